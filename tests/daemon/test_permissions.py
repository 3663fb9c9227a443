"""What a daemon makes, its JVM and its workers too, under the umask of somebody careless: modes, owners, ports, sockets.

The daemon runs with umask 000, so that every mode that nobody has thought of shows.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.daemon import processes
from tests.harness.daemon.processes import DaemonProcess
from tests.harness.logs.troubled import write_logs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PATIENCE_S = 180
MODE, OWNER = 0o640, (4321, 1234)
"""Of the broker's files."""


class Careless(DaemonProcess):
    """A daemon with umask 000."""

    def arguments(self) -> list[str]:
        return ["sh", "-c", 'umask 000; exec "$@"', "sh", *super().arguments()]


@dataclass
class Place:
    """A daemon that has cleaned, and whose engine lives on."""

    root: Path
    daemon: DaemonProcess
    before: frozenset[str]

    @property
    def tree(self) -> list[psutil.Process]:
        daemon = psutil.Process(self.daemon.pid)
        return [daemon, *daemon.children(recursive=True)]

    def made(self) -> dict[str, os.stat_result]:
        """Everything below the root that was not there before the daemon, and all that is open elsewhere for writing."""
        found = {str(path): path.lstat() for path in self.root.rglob("*") if str(path) not in self.before}
        for process in self.tree:
            for file in process.open_files():
                is_elsewhere = not file.path.startswith(
                    (str(self.root), str(processes.ROOT), "/proc", "/dev")
                )
                if is_elsewhere and getattr(file, "mode", "r") != "r" and os.path.exists(file.path):
                    found[file.path] = os.lstat(file.path)
        return found


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="careless-"))  # pytest's own directories let nobody in
    root.chmod(0o755)
    logs = write_logs(root / "logs", "one")
    for path in logs.rglob("*"):
        os.chmod(path, 0o750 if path.is_dir() else MODE)
        if os.geteuid() == 0:
            os.chown(path, *OWNER)
    (root / "tmp").mkdir()
    before = frozenset(str(path) for path in root.rglob("*"))
    settings = {
        "cleanerd.metrics.listen": "127.0.0.1:0",
        "cleanerd.spark.conf.spark.local.dir": root / "tmp",
    }
    daemon = Careless(root / "d", [logs], settings)
    with pytest.MonkeyPatch.context() as patch:
        environment = {**processes.environment(), "TMPDIR": str(root / "tmp")}
        patch.setattr(processes, "environment", lambda: environment)
        try:
            daemon.start()
            daemon.wait_committed("one-0", timeout_s=PATIENCE_S)
            yield Place(root, daemon, before)
        finally:
            if daemon.process is not None:
                daemon.process.terminate()
                daemon.process.wait(60)
            shutil.rmtree(root)


OURS = ("d/server.properties", "d/topics.d", "d/stderr.log")
"""Made by these tests."""


def test_nobody_else_may_write_to_anything(place: Place) -> None:
    """Sockets ask who connects, besides."""
    made = place.made()
    assert len(made) > 10
    names = {os.path.relpath(path, place.root): found for path, found in made.items()}
    wrong = {
        name: oct(found.st_mode)
        for name, found in names.items()
        if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode) and not name.startswith(OURS)
    }
    assert wrong == {}


def test_state_can_be_read_by_nobody_else(place: Place) -> None:
    """The directory lets nobody in, so that what lies in it needs no mode of its own."""
    state = (place.root / "d" / "state").stat()
    assert oct(stat.S_IMODE(state.st_mode)) == oct(0o750)
    assert oct(stat.S_IMODE(place.daemon.socket.stat().st_mode)) == oct(0o660)


def test_files_of_the_log_have_mode_and_owner_of_those_that_they_replace(place: Place) -> None:
    """A broker that cannot read one takes its directory offline (spec disk A6)."""
    logs = place.root / "logs"
    files = [path for path in (logs / "one-0").iterdir() if path.suffix in (".log", ".index", ".timeindex")]
    assert files
    for path in [*files, logs / "cleaner-offset-checkpoint"]:
        found = path.stat()
        assert oct(stat.S_IMODE(found.st_mode)) == oct(MODE), path
        assert os.geteuid() != 0 or (found.st_uid, found.st_gid) == OWNER, path


def test_every_port_is_on_loopback(place: Place) -> None:
    """Metrics, the channel of the tasks, Spark's own: none more, and each of a process that is known."""
    addresses = listening(*place.tree)
    assert addresses
    assert {address.ip.removeprefix("::ffff:") for address in addresses} <= {"127.0.0.1", "::1"}, addresses


def unix_sockets(place: Place) -> set[str]:
    """Names of those of the daemon and all below it; one that starts with `ABSTRACT` is no file."""
    opened = (connection for process in place.tree for connection in process.net_connections("unix"))
    return {str(connection.laddr) for connection in opened if connection.laddr}


def listening(*processes: psutil.Process) -> list[Any]:
    """Addresses of their ports."""
    opened = (connection for process in processes for connection in process.net_connections("inet"))
    return [connection.laddr for connection in opened if connection.status == psutil.CONN_LISTEN]


def test_nobody_else_may_connect_to_another_socket_than_that_of_the_control_api(place: Place) -> None:
    """Spark makes sockets for its Python workers, over which pickled results travel."""
    named = {name for name in unix_sockets(place) if not name.startswith(ABSTRACT)}
    assert str(place.daemon.socket) in named
    modes = {path: oct(stat.S_IMODE(os.stat(path).st_mode)) for path in named - {str(place.daemon.socket)}}
    assert set(modes.values()) <= {oct(0o700), oct(0o600)}, modes


ABSTRACT = "@"
TRY_ALL = """
import json, os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
call = b"c\\nz:java.lang.System\\ngetProperties\\ne\\n"
said = {}
for place in json.loads(sys.argv[1]):
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    for request in (call, b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\x80\\x05N.", bytes(4096)):
        with socket.socket(family) as client:
            client.settimeout(2)
            try:
                client.connect(place.replace("@", chr(0), 1) if isinstance(place, str) else tuple(place))
                client.sendall(request)
                answer = client.recv(4096).decode("latin-1")
            except OSError as error:
                answer = type(error).__name__
        said.setdefault(str(place), []).append(answer)
print(json.dumps(said))
"""


def told_to_nobody(places: list[object]) -> dict[str, list[str]]:
    """What another user hears at sockets, for a call of the JVM, a page, a pickle and zeros; or the name of an error."""
    command = [sys.executable, "-I", "-c", TRY_ALL, json.dumps(places)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_gets_nothing_out_of_any_port_or_socket(place: Place) -> None:
    """The port of the JVM asks for a secret, those of the workers too; only metrics answer. Nothing ends of it."""
    daemon, *children = place.tree
    sockets = unix_sockets(place)
    ports = [("127.0.0.1", address.port) for address in listening(*children)]
    assert ports
    assert str(place.daemon.socket) in sockets
    said = told_to_nobody([*sorted(sockets), *ports])
    for name in sockets:
        is_refused = {"PermissionError"} if name.startswith("/") else {"ConnectionRefusedError"}
        assert set(said[name]) == is_refused, name
    heard = {answer for where, answers in said.items() if where not in sockets for answer in answers}
    assert not any(answer.startswith(("!y", "HTTP/1.0 200", "HTTP/1.1 200")) for answer in heard), said
    assert all(process.is_running() for process in (daemon, *children))
    assert place.daemon.log("one-0")["state"] == "clean"
