"""An agent is loaded into JVMs of all kinds, and where that cannot be the reason says what would help."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.broker_agent import attach
from cleanerd.broker_agent import session as sessions
from cleanerd.broker_agent.attach import find_jvm, load_agent
from cleanerd.broker_agent.jar import AgentJar, agent_jar
from cleanerd.broker_agent.session import Session
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import NoWayIn
from cleanerd.format import names
from tests.harness.broker.jvms import NO_BROKER, compiled, javas, jvm
from tests.harness.broker.releases import required_program, run_tool
from tests.harness.broker.swapping import build_agent

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

NOBODY = 65534


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_agent()
    return compiled(tmp_path_factory.mktemp("classes"))


def ask(pid: int, log_dir: Path) -> str:
    """Why there is no session with a JVM that is no broker."""
    (log_dir / names.LOCK).touch()
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


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("@{}", "-XX:+DisableAttachMechanism"),
        ("-XX:Flags={}", "+DisableAttachMechanism"),
        ("-XX:VMOptionsFile={}", "-XX:+DisableAttachMechanism"),
    ],
)
def test_an_option_in_a_file(
    classes: Path, tmp_path: Path, option: str, content: str, *, is_relative: bool
) -> None:
    """Else SIGQUIT has it print all its threads at each attempt, for nothing, and the reason names another remedy."""
    (tmp_path / "options").write_text(f"{content}\n")
    word = option.format("options" if is_relative else tmp_path / "options")
    with jvm(classes, word, cwd=str(tmp_path)) as pid:
        assert "-XX:+DisableAttachMechanism: start it without" in ask(pid, tmp_path)


@pytest.mark.parametrize("java", javas(), ids=lambda java: "-".join(Path(java).parts[-4:-2]))
def test_each_java_that_is_here(classes: Path, tmp_path: Path, java: str) -> None:
    """Whatever it warns of on the standard error of its JVM."""
    if "java.instrument" not in run_tool([java, "--list-modules"]).stdout:
        pytest.skip("a runtime without the module java.instrument loads no agent")
    with jvm(classes, java=java) as pid:
        assert NO_BROKER in ask(pid, tmp_path)


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


def test_a_jvm_with_a_tmp_of_its_own(classes: Path, tmp_path: Path) -> None:
    """As by PrivateTmp: it is asked, and listens, there. Its working directory takes no file."""
    assert classes.is_relative_to("/tmp")
    assert tmp_path.is_relative_to("/tmp")
    own_tmp = "mount --bind /tmp /mnt && mount -t tmpfs none /tmp"
    for place in (classes, tmp_path):
        own_tmp += f" && mkdir -p {place} && mount --bind /mnt/{place.relative_to('/tmp')} {place}"
    unshare = [required_program("unshare"), "--mount", "sh", "-c", f'{own_tmp} && exec "$@"', "-"]
    with jvm(classes, cwd="/sys", before=unshare) as pid:
        Path(f"/tmp/.java_pid{pid}").unlink(missing_ok=True)  # of a JVM that was killed, and had this number
        assert NO_BROKER in ask(pid, tmp_path)
        assert Path(f"/proc/{pid}/root/tmp/.java_pid{pid}").exists()
        assert not Path(f"/tmp/.java_pid{pid}").exists()


@pytest.mark.parametrize("options", [(), ("-XX:+StartAttachListener",), ("-Xrs",)])
def test_a_jvm_with_a_tmp_that_it_cannot_write_to(
    classes: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Whatever its options: it cannot listen. The reason names what has not been tried."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        shutil.copy(classes / "Sleeper.class", place)
        closed = 'mount -t tmpfs -o ro none /tmp && exec "$@"'
        unshare = [required_program("unshare"), "--mount", "sh", "-c", closed, "-"]
        with jvm(place, *options, before=unshare) as pid:
            with pytest.raises(NoWayIn) as raised:
                load_agent(find_jvm(pid), "/agent.jar", "", SystemClock())
            assert "its /tmp cannot be written: start it with -javaagent:cleanerd-agent.jar" in str(
                raised.value
            )
            with pytest.raises(NoWayIn, match="its /tmp cannot be written"):  # as `broker check` foresees
                Session(pid, str(place), RealFiles(), SystemClock(), loads=False)
            os.kill(pid, 0)
    finally:
        shutil.rmtree(place)


def test_a_jvm_of_another_user(
    classes: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Root is let in, and what it leaves is the other user's; who has that user alone, or that group alone, is not."""
    place = Path(tempfile.mkdtemp())  # of pytest's directories others see nothing
    request.addfinalizer(lambda: shutil.rmtree(place))
    shutil.copy(classes / "Sleeper.class", place)
    for path in (place, *place.iterdir(), place / names.LOCK):
        path.touch()
        os.chown(path, NOBODY, NOBODY)
    as_nobody = [required_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with jvm(place, before=as_nobody) as pid:
        assert NO_BROKER in ask(pid, place)
        assert (place / ".cleanerd-agent.jar").stat().st_uid == NOBODY
        for uid, gid in ((NOBODY, os.getegid()), (12345, NOBODY)):
            monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
            monkeypatch.setattr(os, "getegid", lambda gid=gid: gid)
            with pytest.raises(NoWayIn, match="its own user and group only"):
                find_jvm(pid)


def test_a_jvm_that_hangs(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for so long, whether it listens or not, and answers again when it goes on."""
    monkeypatch.setattr(attach, "TIMEOUT_S", 1.0)
    with jvm(classes) as pid:
        for reason in ("does not within 1 s", "look for a broker that hangs"):
            os.kill(pid, signal.SIGSTOP)
            assert reason in ask(pid, tmp_path)
            os.kill(pid, signal.SIGCONT)
            assert NO_BROKER in ask(pid, tmp_path)


def test_an_answer_that_begins_as_a_success_may_be_none(classes: Path, tmp_path: Path) -> None:
    """The request was understood, but the jar names no agent."""
    jar = tmp_path / "no-agent.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    with jvm(classes) as pid, pytest.raises(NoWayIn, match="did not load the agent: 0 return code: 1"):
        load_agent(find_jvm(pid), str(jar), "", SystemClock())


@contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that is none of a JVM, killed at the end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_jvm_that_would_write_a_dump_is_sent_no_signal(tmp_path: Path) -> None:
    """OpenJ9, by the names of its libraries: to that one SIGQUIT is the request for a dump, each time a file."""
    code = "import mmap, sys; files = [open(path) for path in sys.argv[1:]]; "
    code += "maps = [mmap.mmap(file.fileno(), 0, prot=1) for file in files]; print('up', flush=True); sys.stdin.read()"
    libraries = [tmp_path / "libjvm.so", tmp_path / "libj9vm29.so"]
    for library in libraries:
        library.write_text("x")
    command = [sys.executable, "-c", code, *map(str, libraries)]
    with started(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert "is OpenJ9, to which cleanerd does not attach: start it with -javaagent" in ask(
            process.pid, tmp_path
        )
        assert process.poll() is None


def test_what_is_no_jvm_is_sent_no_signal(tmp_path: Path) -> None:
    """A writer may hold the lock of a directory, too; SIGQUIT would end it."""
    with started(["sleep", "60"]) as process:
        assert "is not a JVM" in ask(process.pid, tmp_path)
        assert process.poll() is None
    assert "has ended" in ask(process.pid, tmp_path)
    assert "cannot be seen" in ask(0, tmp_path)


def test_another_jar_than_the_one_that_was_built_is_not_loaded(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker compares the hash itself: what lies in the directory may have been exchanged."""
    jar = agent_jar()
    monkeypatch.setattr(sessions, "agent_jar", lambda: AgentJar(jar.content, "0" * 64))
    with jvm(classes) as pid:
        assert "expected SHA-256 000" in ask(pid, tmp_path)


def test_a_path_that_the_protocol_cannot_carry_is_refused(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a jar that cannot be that of the installation, and lies in the log directory."""
    place = tmp_path / "a=b"
    place.mkdir()
    (tmp_path / "a\nb").mkdir()
    with jvm(classes) as pid:
        assert NO_BROKER in ask(pid, place)
        assert "line feed" in ask(pid, tmp_path / "a\nb")
        monkeypatch.setattr(sessions, "agent_jar", lambda: replace(agent_jar(), path=""))
        assert "must have no =" in ask(pid, place)


@contextmanager
def squatting(pid: int, uid: int, told: Path) -> Iterator[None]:
    """A user has put a socket where a JVM would listen, listens himself, and writes down what he is told."""
    path = f"/tmp/.java_pid{pid}"
    Path(path).unlink(missing_ok=True)  # of an earlier process with this number
    code = f"""if True:
        import os, socket
        listening = socket.socket(socket.AF_UNIX)
        listening.bind({path!r}); os.chmod({path!r}, 0o666); listening.listen(); print("listens", flush=True)
        while True:
            connected, _ = listening.accept()
            connected.settimeout(1)
            try: print(connected.recv(4096).decode(), end="", flush=True)
            except OSError: pass
            connected.close()
    """
    become = [required_program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    with (
        told.open("wb") as file,
        subprocess.Popen([*become, "/usr/bin/python3", "-c", code], stdout=file) as hostile,
    ):
        try:
            while not told.read_bytes():
                assert hostile.poll() is None
            yield
        finally:
            hostile.kill()
            Path(path).unlink(missing_ok=True)


def test_a_socket_of_somebody_else_is_told_nothing(classes: Path, tmp_path: Path) -> None:
    """Who listens is asked of the kernel. A JVM of root takes the name back."""
    with jvm(classes) as pid, squatting(pid, NOBODY, tmp_path / "told"):
        assert NO_BROKER in ask(pid, tmp_path)
        assert (tmp_path / "told").read_bytes() == b"listens\n"


def test_a_socket_of_somebody_else_in_the_way_is_named(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A JVM of a user cannot take away what another one has made in /tmp."""
    monkeypatch.setattr(attach, "TIMEOUT_S", 1.0)
    place = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(place))
    shutil.copy(classes / "Sleeper.class", place)
    place.chmod(0o755)
    as_nobody = [required_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with jvm(place, before=as_nobody) as pid, squatting(pid, 12345, tmp_path / "told"):
        with pytest.raises(NoWayIn, match="user 12345 has put a socket there"):
            load_agent(find_jvm(pid), "/agent.jar", "", SystemClock())
        assert (tmp_path / "told").read_bytes() == b"listens\n"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log directory to which a group may write; the cache directory is this user's alone."""
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, -1, NOBODY)
    shared.chmod(0o2775)
    return shared


def test_nothing_is_loaded_from_where_a_group_may_write(
    classes: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jar is that of the installation, else beside the pipes in the cache directory; else the reason says why not."""
    own = shared.parent / "cache" / "cleanerd" / "agent"
    loaded = list[str]()

    def load(jvm: attach.Jvm, jar: str, text: str, clock: Clock) -> None:
        loaded.append(jar)
        load_agent(jvm, jar, text, clock)

    monkeypatch.setattr(sessions, "load_agent", load)
    with jvm(classes) as pid:
        assert NO_BROKER in ask(pid, shared)
        monkeypatch.setattr(sessions, "agent_jar", lambda: replace(agent_jar(), path=""))
        assert NO_BROKER in ask(pid, shared)
        assert loaded == [agent_jar().path, str(own / ".cleanerd-agent.jar")]
        assert os.listdir(shared) == [names.LOCK]
        assert own.stat().st_mode & 0o777 == 0o700
        own.parent.chmod(0o777)
        assert f"every user may write to {own.parent}" not in (reason := ask(pid, shared))
        assert (
            f"group {NOBODY} may write to {shared}: what process {pid} loads must lie where nobody else"
            in reason
        )
        shared.chmod(0o755)
        assert NO_BROKER in ask(pid, shared)
        assert loaded[2:] == [str(shared / ".cleanerd-agent.jar")]


def test_a_pipe_that_is_exchanged_for_a_link_gives_nothing_away(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has been opened: root gives it to the broker's user."""
    (tmp_path / "canary").write_text("root's")
    before, real = (tmp_path / "canary").stat(), os.mkfifo

    def exchanged(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, mode, dir_fd=dir_fd)
        os.unlink(name, dir_fd=dir_fd)
        os.symlink(tmp_path / "canary", name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkfifo", exchanged)
    with jvm(classes) as pid:
        assert "cleanerd must be able to write there" in ask(pid, tmp_path)
    monkeypatch.setattr(
        os, "mkfifo", lambda name, _, dir_fd: os.link(tmp_path / "canary", name, dst_dir_fd=dir_fd)
    )
    with jvm(classes) as pid:
        assert "was exchanged for something else" in ask(pid, tmp_path)
    assert (tmp_path / "canary").stat()[:6] == before[:6]
