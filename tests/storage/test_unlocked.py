"""A broker whose `.lock` was removed under it is still there (architecture 2; invariant 9 of `storage.lock`)."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanerd.errors import LockHeld
from cleanerd.format import names
from cleanerd.storage import unlocked
from cleanerd.storage.lock import LogDirLock, other_holder, probe
from cleanerd.storage.unlocked import owner_without_lock
from tests.harness.disks.leases import without_leases

SEGMENT = "00000000000000000000.log"
PROCESS = """
import fcntl, os, sys
log_dir, mode, *segments = sys.argv[1:]
if mode != "r":
    lock = open(f"{log_dir}/.lock", "w")
    fcntl.lockf(lock, fcntl.LOCK_EX)
    os.unlink(f"{log_dir}/.lock")
    if mode == "other":
        lock.close()
opened = [open(f"{log_dir}/{segment}", "r" if mode == "r" else "r+") for segment in segments]
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Of a broker, with three logs, one of which has two segments."""
    (tmp_path / names.META_PROPERTIES).touch()
    for name in ("a-0", "b-0", "c-0", "d-0.0123456789abcdef0123456789abcdef-delete"):
        (tmp_path / name).mkdir()
        (tmp_path / name / SEGMENT).touch()
    (tmp_path / "b-0" / "00000000000000000007.log").touch()
    return tmp_path


@contextmanager
def process(log_dir: Path, mode: str = "broker", *segments: str) -> Iterator[int]:
    """One that has segments open: for reading with `r`; else for writing, with the lock of a file without a name (`broker`),
    or without (`other`).
    """
    opened = segments or tuple(str(path.relative_to(log_dir)) for path in log_dir.glob("?-0/*.log"))
    command = [sys.executable, "-S", "-c", PROCESS, str(log_dir), mode, *opened]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child.pid
        child.communicate("")


@pytest.mark.parametrize("made_again", [False, True])
def test_a_broker_without_its_lock_file_counts_as_its_holder(log_dir: Path, made_again: bool) -> None:
    """KAFKA-19334: also after somebody has made a new file, which anybody could lock."""
    with process(log_dir) as pid:
        if made_again:
            (log_dir / names.LOCK).touch()
        assert probe(str(log_dir)) == other_holder(str(log_dir)) == pid
        with (
            pytest.raises(
                LockHeld, match=f"is free, but process {pid} has segments open .* stop and start"
            ) as caught,
            LogDirLock(str(log_dir)),
        ):
            pass
        assert caught.value.pid == pid
        assert (log_dir / names.LOCK).exists() == made_again, "nothing is made in its directory"
    assert probe(str(log_dir)) is None
    with LogDirLock(str(log_dir)):
        assert probe(str(log_dir)) == os.getpid()


def test_whoever_reads_the_segments_is_no_broker(log_dir: Path) -> None:
    """A backup, Kafka's tools, `verify`."""
    with process(log_dir, "r"), LogDirLock(str(log_dir)):
        assert owner_without_lock(str(log_dir)) is None


def test_a_writer_that_cannot_be_seen_has_no_pid(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pid namespace, another user: the kernel knows it all the same."""
    with process(log_dir, "other"):
        assert owner_without_lock(str(log_dir)) == 0
        with (
            pytest.raises(LockHeld, match="but another process has segments open") as caught,
            LogDirLock(str(log_dir)),
        ):
            pass
        assert caught.value.pid is None
    with process(log_dir):
        monkeypatch.setattr(unlocked, "_whole_file_locks", dict)  # as /proc/locks shows it there
        assert owner_without_lock(str(log_dir)) == 0


def test_a_directory_of_a_cooperating_writer_is_its_own_between_two_rolls(log_dir: Path) -> None:
    """It has its segments open all the time, and takes `.lock` for moments."""
    (log_dir / names.META_PROPERTIES).unlink()
    with process(log_dir), LogDirLock(str(log_dir)):
        assert owner_without_lock(str(log_dir)) is None


def test_a_segment_that_this_process_writes_is_no_sign(log_dir: Path) -> None:
    with (log_dir / "a-0" / SEGMENT).open("r+"), LogDirLock(str(log_dir)):
        pass


def test_a_log_that_the_broker_does_not_have_does_not_hide_it(log_dir: Path) -> None:
    """One that somebody put there, or that is being deleted."""
    with process(log_dir, "broker", f"c-0/{SEGMENT}") as pid:
        assert owner_without_lock(str(log_dir)) == pid


def test_other_segments_are_asked_when_the_last_ones_are_gone(log_dir: Path) -> None:
    """Cleaned, deleted, moved: which ones are asked is only kept as long as one of them is there."""
    assert owner_without_lock(str(log_dir)) is None
    for path in log_dir.glob("?-0/*.log"):
        path.rename(path.with_name("00000000000000000099.log"))
    with process(log_dir) as pid:
        assert owner_without_lock(str(log_dir)) == pid


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EAGAIN])
def test_without_leases_the_lock_of_a_file_without_a_name_tells(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A network file system, on which all files may look open (NFS 4), a sandbox. A process without that lock cannot be
    known there.
    """
    real = fcntl.fcntl

    def no_lease(fd: int, command: int, argument: int | bytes = 0) -> int | bytes:
        if command == fcntl.F_SETLEASE:
            raise OSError(error, "no lease")
        return real(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", no_lease)
    with process(log_dir) as pid:
        assert owner_without_lock(str(log_dir)) == pid
    with process(log_dir, "other"), LogDirLock(str(log_dir)):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_segments_of_another_user_have_no_lease_without_the_capability_for_it(log_dir: Path) -> None:
    for path in log_dir.glob("?-0/*.log"):
        os.chown(path, 4711, -1)
    with process(log_dir) as pid, without_leases(log_dir / "a-0" / SEGMENT):
        assert owner_without_lock(str(log_dir)) == pid


def test_an_empty_directory_and_one_that_is_gone_have_no_owner(tmp_path: Path) -> None:
    (tmp_path / names.META_PROPERTIES).touch()
    assert owner_without_lock(str(tmp_path)) is None
    assert owner_without_lock(str(tmp_path / "gone")) is None
