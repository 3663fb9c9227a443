"""An agent is loaded into JVMs of all kinds, and where that cannot be the reason says what would help."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent.attach import find_jvm
from cleanerd.broker_agent.jar import AgentJar, agent_jar
from cleanerd.broker_agent.session import Session
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import NoWayIn
from tests.broker.releases import required_program
from tests.broker.swapping import build_agent

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

NO_BROKER = "no LogManager is registered in this JVM"
"""What the agent answers in a JVM that is none: it has been loaded, and talks."""
SLEEPER = """
class Sleeper {
    public static void main(String[] args) throws Exception {
        System.out.println("up " + ProcessHandle.current().pid());
        Thread.sleep(600000);
    }
}
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_agent()
    place = tmp_path_factory.mktemp("classes")
    (place / "Sleeper.java").write_text(SLEEPER)
    subprocess.run([required_program("javac"), "-d", str(place), str(place / "Sleeper.java")], check=True)
    return place


@contextmanager
def jvm(classes: Path, *options: str, cwd: str = "/", before: Sequence[str] = ()) -> Iterator[int]:
    command = [*before, required_program("java"), "-Xmx32m", *options, "-cp", str(classes), "Sleeper"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("up")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def ask(pid: int, log_dir: Path) -> str:
    """Why there is no session with a JVM that is no broker."""
    (log_dir / "meta.properties").touch()
    with pytest.raises(NoWayIn) as raised:
        Session(pid, str(log_dir), RealFiles(), SystemClock())
    assert not [name for name in os.listdir(log_dir) if re.search("requests|answers", name)]
    return str(raised.value)


@pytest.mark.parametrize(
    ("options", "cwd", "reason"),
    [
        pytest.param((), "/", NO_BROKER, id="plain"),
        pytest.param((), "/sys", NO_BROKER, id="its working directory takes no file"),
        pytest.param(
            ("-Xrs", "-XX:+StartAttachListener"), "/", NO_BROKER, id="it listens, SIGQUIT would end it"
        ),
        pytest.param(
            ("-Xrs", "-XX:+ReduceSignalUsage"), "/", NO_BROKER, id="so does one with -Xrs by itself"
        ),
        pytest.param(("-XX:+DisableAttachMechanism",), "/", "start it without", id="attach disabled"),
        pytest.param(("-XX:-EnableDynamicAgentLoading",), "/", "start it without", id="agents disabled"),
    ],
)
def test_a_jvm(classes: Path, tmp_path: Path, options: tuple[str, ...], cwd: str, reason: str) -> None:
    with jvm(classes, *options, cwd=cwd) as pid:
        assert reason in ask(pid, tmp_path)
        assert reason in ask(pid, tmp_path)  # again: it listens by now
        os.kill(pid, 0)


def test_a_jvm_in_a_pid_namespace_of_its_own(classes: Path, tmp_path: Path) -> None:
    """It is named by the pid that it has there."""
    unshare = [required_program("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc"]
    with jvm(classes, before=unshare) as parent:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        assert find_jvm(int(children[0])).inner_pid == 1
        assert NO_BROKER in ask(int(children[0]), tmp_path)


def test_a_jvm_that_has_the_directory_elsewhere(classes: Path, tmp_path: Path) -> None:
    unshare = [
        required_program("unshare"),
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs none {tmp_path} && exec "$@"',
        "-",
    ]
    with jvm(classes, before=unshare) as pid:
        assert "is not where process" in ask(pid, tmp_path)


def test_what_is_no_jvm_is_sent_no_signal(tmp_path: Path) -> None:
    """A writer may hold the lock of a directory, too; SIGQUIT would end it."""
    process = subprocess.Popen([shutil.which("sleep") or "sleep", "60"])
    try:
        assert "is no JVM" in ask(process.pid, tmp_path)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert "has ended" in ask(process.pid, tmp_path)
    assert "cannot be seen" in ask(0, tmp_path)


def test_of_another_user_only_root_is_let_in(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jvm(classes) as pid:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(NoWayIn, match="its own user and group only"):
            find_jvm(pid)


def test_another_jar_than_the_one_that_was_built_is_not_loaded(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker compares the hash itself: what lies in the directory may have been exchanged."""
    jar = agent_jar()
    monkeypatch.setattr(sessions, "agent_jar", lambda: AgentJar(jar.content, "0" * 64))
    with jvm(classes) as pid:
        assert "expected SHA-256 000" in ask(pid, tmp_path)


def test_a_path_that_the_protocol_cannot_carry_is_refused(classes: Path, tmp_path: Path) -> None:
    place = tmp_path / "a=b"
    place.mkdir()
    with jvm(classes) as pid:
        assert "must have no =" in ask(pid, place)
