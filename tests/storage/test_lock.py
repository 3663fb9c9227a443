"""The lock of a log directory against real processes (spec disk A3; numbers are the invariants of `storage.lock`)."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import DirOffline, LockHeld
from cleanerd.format import names
from cleanerd.storage import lock as lock_module
from cleanerd.storage.lock import LogDirLock, may_lease, probe
from cleanerd.storage.log_dir import LogDir
from tests.harness.disks.leases import without_leases
from tests.harness.logs.troubled import holder

TRY = """
import sys
from cleanerd.storage.lock import LogDirLock
from cleanerd.errors import LockHeld
try:
    with LogDirLock(sys.argv[1]):
        print("taken")
except LockHeld as error:
    print(error.pid)
"""


def tried_elsewhere(log_dir: Path) -> str:
    """What another process that asks for the lock gets."""
    root = str(Path(lock_module.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(log_dir)], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def test_1_held_by_another_process_is_refused_with_its_pid(tmp_path: Path) -> None:
    with holder(tmp_path / names.LOCK) as process:
        with pytest.raises(LockHeld) as caught, LogDirLock(str(tmp_path)):
            pass
        assert caught.value.pid == process.pid
        assert probe(str(tmp_path)) == process.pid


def test_probe_takes_nothing(tmp_path: Path) -> None:
    assert probe(str(tmp_path)) is None
    assert not (tmp_path / names.LOCK).exists()
    (tmp_path / names.LOCK).touch()
    assert probe(str(tmp_path)) is None
    assert tried_elsewhere(tmp_path) == "taken"


def test_2_probing_our_own_lock_does_not_drop_it(tmp_path: Path) -> None:
    """To open and close the file once more would: POSIX locks go with any descriptor."""
    with LogDirLock(str(tmp_path)):
        assert probe(str(tmp_path)) == os.getpid()
        assert tried_elsewhere(tmp_path) == str(os.getpid())


def test_2_threads_exclude_each_other_and_a_refused_one_does_not_drop_the_lock(tmp_path: Path) -> None:
    """Also by another path to the same directory."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    refused: list[int | None] = []

    def intrude() -> None:
        try:
            with LogDirLock(str(tmp_path / "link")):
                pass
        except LockHeld as error:
            refused.append(error.pid)

    with LogDirLock(str(tmp_path / "logs")):
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        assert refused == [os.getpid()]
        assert tried_elsewhere(tmp_path / "logs") == str(os.getpid())


def test_2_many_threads_hold_it_one_at_a_time(tmp_path: Path) -> None:
    inside, together = 0, []
    wait = threading.Event().wait

    def work() -> None:
        nonlocal inside
        with LogDirLock(str(tmp_path), wait_s=60.0, wait=lambda _: wait(0.001)):
            inside += 1
            together.append(inside)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 8


def test_3_file_unlinked_between_open_and_lock_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stops unlinks its file: a lock on what is left protects nothing, so another try it is."""
    path = tmp_path / names.LOCK
    lockf, unlinked = fcntl.lockf, []

    def stopping_broker(fd: int, operation: int) -> None:
        lockf(fd, operation)
        if not unlinked:
            unlinked.append(os.stat(path).st_ino)
            path.rename(tmp_path / "kept")  # unlinked, but its inode is not used again
            path.touch()

    monkeypatch.setattr(fcntl, "lockf", stopping_broker)
    with LogDirLock(str(tmp_path)) as lock:
        lock.check()
        assert path.stat().st_ino != unlinked[0]
        assert tried_elsewhere(tmp_path) == str(os.getpid())


def test_3_file_exchanged_again_and_again_counts_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lockf = tmp_path / names.LOCK, fcntl.lockf

    def exchange(fd: int, operation: int) -> None:
        lockf(fd, operation)
        path.unlink()

    monkeypatch.setattr(fcntl, "lockf", exchange)
    with pytest.raises(LockHeld), LogDirLock(str(tmp_path)):
        pass
    monkeypatch.undo()
    with LogDirLock(str(tmp_path)):
        pass


def test_3_check_notices_that_the_file_went_or_was_exchanged_under_the_lock(tmp_path: Path) -> None:
    """The gap between a broker's unlock and its unlink, in which we took the lock."""
    path = tmp_path / names.LOCK
    with LogDirLock(str(tmp_path)) as lock:
        lock.check()
        path.unlink()
        with pytest.raises(LockHeld):
            lock.check()
        path.touch()
        with pytest.raises(LockHeld):
            lock.check()


def test_4_the_file_stays(tmp_path: Path) -> None:
    with LogDirLock(str(tmp_path)):
        inode = (tmp_path / names.LOCK).stat().st_ino
    assert (tmp_path / names.LOCK).stat().st_ino == inode


def test_what_is_written_and_the_name_of_the_file_survive_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was lost would take the holds that the file names with it (rule A.7)."""
    synced, fsync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), synced.append(os.fstat(fd).st_ino)))
    with LogDirLock(str(tmp_path), names.CLEANERD_LOCK) as lock:
        lock.write("x\n")
    assert synced == [(tmp_path / names.CLEANERD_LOCK).stat().st_ino, tmp_path.stat().st_ino]


def test_a_text_for_which_there_is_no_room_is_not_said_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel writes as much as fits."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    with LogDirLock(str(tmp_path), names.CLEANERD_LOCK) as lock, pytest.raises(DirOffline, match="No space"):
        lock.write("text\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_5_a_new_file_is_of_the_owner_of_its_directory_whatever_the_umask(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1235)
    tmp_path.chmod(0o2770)
    umask = os.umask(0o077)
    try:
        with LogDirLock(str(tmp_path)):
            pass
    finally:
        os.umask(umask)
    found = (tmp_path / names.LOCK).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o664)


def test_waiting_ends_when_the_holder_goes(tmp_path: Path) -> None:
    with holder(tmp_path / names.LOCK) as process:

        def let_go(_: float) -> None:
            process.communicate("\n")

        with LogDirLock(str(tmp_path), wait_s=60.0, wait=let_go):
            assert probe(str(tmp_path)) == os.getpid()


def test_waiting_is_bounded(tmp_path: Path) -> None:
    pauses: list[float] = []
    with (
        holder(tmp_path / names.LOCK),
        pytest.raises(LockHeld),
        LogDirLock(str(tmp_path), wait_s=0.5, wait=pauses.append),
    ):
        pass
    assert sum(pauses) == pytest.approx(0.5)


def test_another_thread_of_ours_is_waited_for_where_a_broker_is_not(tmp_path: Path) -> None:
    """It lets go in a moment. Else a pass of retention would end at it as at a broker, and delete-records name one."""
    log_dir = LogDir(RealFiles(), str(tmp_path), SystemClock(), is_kafka=True)
    held = ExitStack()
    held.enter_context(LogDirLock(str(tmp_path)))
    threading.Timer(0.3, held.close).start()
    with log_dir.lock():
        assert probe(str(tmp_path)) == os.getpid()
    with holder(tmp_path / names.LOCK) as process, pytest.raises(LockHeld) as refused, log_dir.lock():
        pass
    assert refused.value.pid == process.pid


def test_the_two_locks_are_independent(tmp_path: Path) -> None:
    with LogDirLock(str(tmp_path), names.CLEANERD_LOCK), LogDirLock(str(tmp_path)):
        assert probe(str(tmp_path), names.CLEANERD_LOCK) == os.getpid()


@pytest.mark.parametrize("action", [lambda path: LogDirLock(path).__enter__(), probe])
def test_unreachable_directory_is_offline(tmp_path: Path, action: object) -> None:
    with pytest.raises(DirOffline):
        action(str(tmp_path / "gone"))  # type: ignore[operator]


def test_something_else_of_that_name_is_offline(tmp_path: Path) -> None:
    (tmp_path / names.LOCK).mkdir()
    with pytest.raises(DirOffline), LogDirLock(str(tmp_path)):
        pass


@pytest.mark.parametrize("name", [names.LOCK, names.CLEANERD_LOCK])
@pytest.mark.parametrize("target", ["nowhere", "somebodys"])
def test_a_link_is_not_followed(tmp_path: Path, name: str, target: str) -> None:
    """6: neither created at its end nor changed there."""
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    (tmp_path / "somebodys").write_text("text")
    (log_dir / name).symlink_to(tmp_path / target)
    with pytest.raises(DirOffline, match=name), LogDirLock(str(log_dir), name):
        pass
    with pytest.raises(DirOffline, match=name):
        probe(str(log_dir), name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "somebodys"]
    assert (tmp_path / "somebodys").read_text() == "text"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """6"""
    os.mkfifo(tmp_path / names.LOCK)
    assert probe(str(tmp_path)) is None
    with LogDirLock(str(tmp_path)):
        assert probe(str(tmp_path)) == os.getpid()


OPENER = """
import fcntl, os, sys, time
began = time.monotonic()
print("opening", flush=True)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", time.monotonic() - began, flush=True)
sys.stdin.readline()
"""


@contextmanager
def starting_broker(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to open and lock the file, once."""
    command = [sys.executable, "-S", "-c", OPENER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        yield process
        process.communicate("\n")


def test_7_a_broker_that_starts_waits_for_our_lock_and_gets_it(tmp_path: Path) -> None:
    with LogDirLock(str(tmp_path)) as lock:
        assert lock.is_leased
        assert not lock.is_wanted
        with starting_broker(tmp_path / names.LOCK) as broker:
            assert broker.stdout is not None
            while not lock.is_wanted:
                threading.Event().wait(0.001)
            threading.Event().wait(0.2)
            lock.__exit__(None, None, None)
            assert broker.stdout.readline().startswith("locked ")
            with pytest.raises(LockHeld) as caught:
                lock.__enter__()
            assert caught.value.pid == broker.pid
        lock.__enter__()


def test_7_a_broker_between_open_and_lock_is_not_overtaken(tmp_path: Path) -> None:
    path = tmp_path / names.LOCK
    script = (
        "import os, sys; os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-S", "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        broker.stdout.readline()
        with pytest.raises(LockHeld, match="a broker may be starting") as caught, LogDirLock(str(tmp_path)):
            pass
        assert caught.value.pid is None
        broker.communicate("")
    with LogDirLock(str(tmp_path)):
        pass


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EACCES])
def test_7_without_leases_it_is_a_plain_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A network file system, or a file of another user."""
    real = fcntl.fcntl

    def no_lease(fd: int, command: int, argument: int | bytes = 0) -> int | bytes:
        if command == fcntl.F_SETLEASE:
            raise OSError(error, "no lease")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", no_lease)
    with LogDirLock(str(tmp_path)) as lock:
        assert not lock.is_leased
        assert not lock.is_wanted
        assert tried_elsewhere(tmp_path) == str(os.getpid())
    assert not may_lease(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_7_a_file_of_another_user_has_no_lease_without_the_capability_for_it(tmp_path: Path) -> None:
    """Root has it outside of containers only."""
    (tmp_path / names.LOCK).touch()
    with without_leases(tmp_path / names.LOCK):
        assert not may_lease(str(tmp_path))
        with LogDirLock(str(tmp_path)) as lock:
            assert (lock.is_leased, lock.is_wanted) == (False, False)
        (tmp_path / names.LOCK).unlink()
        assert may_lease(str(tmp_path)), "it would be ours"


STOPPED = """
import os, signal, sys, threading, time
from cleanerd.storage.lock import LogDirLock, stop_between_holds

stop_between_holds()

def work():
    with LogDirLock(sys.argv[1], sys.argv[2]):
        print("holds", flush=True)
        sys.stdin.readline()
        print("goes on", flush=True)
    print("let go", flush=True)
    sys.stdin.readline()

worker = threading.Thread(target=work)
worker.start()
while worker.is_alive():
    worker.join(0.05)
"""


def _is_stopped(process: "subprocess.Popen[str]") -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("name", [names.LOCK, names.CLEANERD_LOCK])
def test_8_the_keys_of_a_terminal_stop_nobody_who_holds_the_lock(tmp_path: Path, name: str) -> None:
    """Ctrl-Z waits for the end of the hold; a process in the background that its terminal would stop goes on."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lock_module.__file__).parents[2])}
    command = [sys.executable, "-c", STOPPED, str(tmp_path), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "holds\n"
            for number in (signal.SIGTTIN, signal.SIGTTOU):
                process.send_signal(number)
            process.send_signal(signal.SIGTSTP)
            if name == names.CLEANERD_LOCK:  # it is held for hours, and no broker waits for it
                _until(lambda: _is_stopped(process))
                process.send_signal(signal.SIGCONT)
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "goes on\n"
            if name == names.LOCK:
                _until(lambda: _is_stopped(process))
                assert tried_elsewhere(tmp_path) == "taken"
                process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "let go\n"
        finally:
            process.kill()


def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)
