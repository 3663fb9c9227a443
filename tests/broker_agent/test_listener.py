"""A broker that was started with -javaagent is asked over its socket, by who sees no more of it than its log directory."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleanerd.broker_agent import session as sessions
from cleanerd.errors import NoWayIn
from tests.harness.broker.releases import required_program, run_tool
from tests.harness.broker.swapping import Swapping, swap_command
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

JAR = Path(sessions.__file__).parent / "cleanerd-agent.jar"
NOBODY = 65534


@pytest.fixture(scope="module")
def swapping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapping]:
    """There is no other way in."""
    root = tmp_path_factory.mktemp("listener")
    with Swapping(root, jvm=(f"-javaagent:{JAR}", "-XX:+DisableAttachMechanism")) as world:
        wait_until(path(world).exists, 30)
        yield world


def path(swapping: Swapping) -> Path:
    return swapping.log_dir / ".cleanerd-agent.sock"


def test_a_socket_for_its_user_only_and_for_so_many_at_once(swapping: Swapping) -> None:
    """What is no request ends its conversation, and no other one."""
    assert stat.S_IMODE(os.stat(path(swapping)).st_mode) == 0o600
    session = swapping.session()
    assert session.hello["release"] == swapping.broker.release.version
    with ExitStack() as opened:
        for frame in (struct.pack(">i", -1), struct.pack(">i", 1 << 30)):
            peer = opened.enter_context(connected(swapping))
            peer.sendall(frame)
            assert b"at most" in peer.recv(1000)
            assert peer.recv(1) == b""
        peers = [opened.enter_context(connected(swapping)) for _ in range(40)]  # these say nothing
        wait_until(lambda: sum(is_closed(peer) for peer in peers) > 20, 30)
        assert session.ask({"request": "hello"}, 30)["outcome"] == "hello"
    wait_until(lambda: is_let_in(swapping), 30)
    assert swapping.complaints() == []


def test_a_directory_that_is_mounted_elsewhere_is_refused(swapping: Swapping, tmp_path: Path) -> None:
    """Its socket lets cleanerd in, but each request would name logs that the broker does not have."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mount = f'mount --bind {swapping.log_dir} {elsewhere} && exec "$@"'
    command = [required_program("unshare"), "--mount", "sh", "-c", mount, "-"]
    command += [sys.executable, "-m", "cleanerd.cli.main", "broker", "check", "--log-dir", str(elsewhere)]
    done = subprocess.run([*command, "-o", "json"], check=False, capture_output=True, text=True)
    (row,) = json.loads(done.stdout)["log_dirs"]
    assert f"has it, among {swapping.log_dir}: mount the log directories at the same path" in row["reason"]


def test_another_user_is_not_let_in_whatever_the_mode(swapping: Swapping) -> None:
    """Root is: the kernel says who comes."""
    place = os.open(swapping.log_dir, os.O_PATH)
    for opened in (swapping.log_dir, path(swapping)):
        opened.chmod(0o777)
    name = f"/proc/self/fd/{place}/{path(swapping).name}"  # what lies above is nobody's business
    request = struct.pack(">i", 2) + b"{}"
    code = "import socket, sys; peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]); "
    code += f"peer.sendall({request!r}); sys.stdout.buffer.write(peer.recv(1000))"
    others = [required_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    said = [
        subprocess.run(
            [*who, "/usr/bin/python3", "-c", code, name], pass_fds=[place], capture_output=True, check=False
        )
        for who in ([], others)
    ]
    os.close(place)
    assert b"speaks version" in said[0].stdout, said
    assert said[1].stdout == b"", said
    assert b"Permission" not in said[1].stderr, said


def test_a_cleaning_in_another_pid_namespace_is_swapped(swapping: Swapping) -> None:
    """The holder of .lock has no pid there. After kill -9 the next broker takes over the socket that is left."""
    swapping.transactions.end(commit=True)
    elsewhere = [required_program("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = run_tool([*elsewhere, *swap_command(swapping.log_dir, swapping.ledgers)])
    results = json.loads(done.stdout)["results"]
    assert {row["committed_by"] for row in results} == {"swap"}, results
    swapping.check()
    swapping.broker.kill()
    assert path(swapping).exists()
    swapping.broker.start()
    wait_until(lambda: is_let_in(swapping), 30)
    swapping.swap(swapping.session())
    swapping.check()
    assert swapping.errors() == []


def connected(swapping: Swapping) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect(str(path(swapping)))
    return peer


def is_closed(peer: socket.socket) -> bool:
    """Whatever it was answered before."""
    peer.setblocking(False)
    try:
        while peer.recv(1000):
            pass
    except BlockingIOError:
        return False
    return True


def is_let_in(swapping: Swapping) -> bool:
    try:
        swapping.session().close()
    except NoWayIn:
        return False
    return True
