"""Files that wait for their deletion (rules 5.8-5.10): on time, all of them, and never one that is not ours to delete."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cleanerd.cleaning.retain import retain
from cleanerd.daemon.work.deletions import RETRY_MS, Deleted, PendingDeletions
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.log_dir import LogDir
from tests.harness.logs.retained import EXPIRED, NOW_MS, bases, snapshot_of, stop_broker, write_log
from tests.harness.logs.troubled import lock_of_another

DELAY_MS = 60_000


class FailingFiles(RealFiles):
    """Cannot unlink, or look up, files with these endings."""

    kept, hidden = "none", "none"

    def unlink(self, path: str) -> None:
        if path.endswith(self.kept):
            raise PermissionError(13, "not this one", path)
        super().unlink(path)

    def exists(self, path: str) -> bool:
        if path.endswith(self.hidden):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().exists(path)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def pending(files: FailingFiles) -> PendingDeletions:
    return PendingDeletions(files, FixedNow(NOW_MS))


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    return directory


def deleted_file(directory: Path, base: int = 0, kind: str = ".log", content: bytes = b"12345") -> str:
    path = directory / f"{base:020d}{kind}.deleted"
    path.write_bytes(content)
    return str(path)


def next_due_ms(pending: PendingDeletions) -> int | None:
    """When the next file is due, None when none waits."""
    return min((one.due_ms for one in pending._waiting.values()), default=None)


def left(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name != names.GENERATION)


def test_5_8_nothing_goes_before_its_time(pending: PendingDeletions, partition: Path) -> None:
    """C119, C120: a file exists until its delay has passed."""
    first, second = deleted_file(partition, 0), deleted_file(partition, 5)
    pending.add([first], NOW_MS + 10)
    pending.add([second], NOW_MS + 20)
    assert next_due_ms(pending) == NOW_MS + 10
    assert pending.run_due(NOW_MS + 9) == Deleted()
    assert pending.run_due(NOW_MS + 10) == Deleted(files=1, bytes=5)
    assert left(partition) == [os.path.basename(second)]
    assert pending.run_due(NOW_MS + 20) == Deleted(files=1, bytes=5)
    assert (left(partition), next_due_ms(pending)) == ([], None)


def test_a_clock_that_was_set_back_keeps_no_file(pending: PendingDeletions, partition: Path) -> None:
    """Due times are those of the wall clock: a day back would be a day of space that does not come back."""
    pending.add([deleted_file(partition)], NOW_MS + 10)
    assert pending.run_due(NOW_MS).files == 0
    assert pending.run_due(NOW_MS - 1).files == 1
    assert left(partition) == []


def test_5_8_all_are_attempted_even_if_one_fails(
    pending: PendingDeletions, files: FailingFiles, partition: Path
) -> None:
    """What failed is told, and tried again later."""
    files.kept = ".index.deleted"
    paths = [deleted_file(partition, 0, kind) for kind in (".log", ".index", ".timeindex", ".snapshot")]
    pending.add(paths, NOW_MS)
    done = pending.run_due(NOW_MS)
    assert (done.files, list(done.failures)) == (3, [paths[1]])
    assert left(partition) == [os.path.basename(paths[1])]
    assert pending.run_due(NOW_MS + RETRY_MS - 1) == Deleted()
    files.kept = "none"
    assert pending.run_due(NOW_MS + RETRY_MS) == Deleted(files=1, bytes=5)


def test_a_name_that_cannot_be_read_is_the_trouble_of_its_log(
    pending: PendingDeletions, partition: Path
) -> None:
    """Of a broker in a locale with other digits: the others are deleted, and the thread goes on."""
    other = partition.parent / "other-0"
    other.mkdir()
    odd, sound = deleted_file(partition), deleted_file(other)
    (partition / ("\u0660" * 20 + ".log")).touch()
    pending.add([odd, sound], NOW_MS)
    done = pending.run_due(NOW_MS)
    assert list(done.failures) == [odd]
    assert not os.path.exists(sound)


def test_5_8_missing_files_are_only_noted(pending: PendingDeletions, partition: Path) -> None:
    """A broker deleted them when it loaded the log, or the partition is gone with its directory."""
    paths = [deleted_file(partition, base) for base in (0, 5)]
    pending.add([*paths, str(partition / "never there")], NOW_MS)
    os.unlink(paths[0])
    assert pending.run_due(NOW_MS) == Deleted(files=1, bytes=5)
    pending.add([deleted_file(partition)], NOW_MS)
    partition.rename(partition.with_name(f"t-0.{'a' * 32}-delete"))
    assert pending.run_due(NOW_MS) == Deleted()
    assert next_due_ms(pending) is None


def test_5_10_leftovers_are_due_at_once(pending: PendingDeletions, partition: Path) -> None:
    """C115. Whatever was left of their delay: Kafka deletes them when it loads the log (5.12)."""
    ours = {os.path.basename(deleted_file(partition, 5, kind)) for kind in (".log", ".txnindex", ".snapshot")}
    others = ["00000000000000000007-0000000001.checkpoint.deleted", f"{9:020d}.log", "notes.deleted"]
    for name in others:
        (partition / name).touch()
    pending.adopt(str(partition))
    assert set(left(partition)) == {*ours, *others}, "only queued: the lock is not held"
    assert pending.run_due(NOW_MS).files == len(ours)
    assert left(partition) == sorted(others)


def test_while_somebody_else_holds_the_lock_nothing_is_touched(
    pending: PendingDeletions, tmp_path: Path, partition: Path
) -> None:
    """A file that vanishes while a broker loads its logs takes the whole directory offline. Others need not wait for it."""
    (tmp_path / "free" / "t-0").mkdir(parents=True)
    pending.add([deleted_file(partition), deleted_file(tmp_path / "free" / "t-0")], NOW_MS)
    with lock_of_another(tmp_path / names.LOCK):
        assert pending.run_due(NOW_MS) == Deleted(files=1, bytes=5)
        assert len(left(partition)) == 1
    with LogDirLock(str(tmp_path)):  # another thread of the daemon commits
        assert pending.run_due(NOW_MS) == Deleted()
    assert pending.run_due(NOW_MS) == Deleted(files=1, bytes=5)


def test_a_file_that_came_under_the_same_name_is_not_deleted(
    pending: PendingDeletions, partition: Path
) -> None:
    """The topic was deleted and created anew, and its broker stopped in the middle of a swap."""
    path = deleted_file(partition)
    pending.add([path], NOW_MS)
    other = partition / "other"
    other.write_bytes(b"of the new topic")
    other.replace(path)
    assert pending.run_due(NOW_MS) == Deleted()
    assert Path(path).read_bytes() == b"of the new topic"
    assert next_due_ms(pending) is None


@pytest.mark.parametrize("suffix", [".cleaned", ".swap"])
def test_nothing_goes_while_segments_are_being_exchanged(
    pending: PendingDeletions, partition: Path, suffix: str
) -> None:
    """Rule 5.19b: what is `.deleted` beside them may be the only copy."""
    other = partition / f"{0:020d}.log{suffix}"
    other.touch()
    deleted_file(partition)
    pending.adopt(str(partition))
    assert pending.run_due(NOW_MS) == Deleted()
    other.unlink()
    assert pending.run_due(NOW_MS).files == 1


def test_a_file_that_waits_already_keeps_the_earlier_time(pending: PendingDeletions, partition: Path) -> None:
    """A pass that goes on where another one was interrupted names its files once more."""
    path = deleted_file(partition)
    for due_ms in (NOW_MS + 10, NOW_MS + 5, NOW_MS + 20):
        pending.add([path], due_ms)
    assert next_due_ms(pending) == NOW_MS + 5


def test_a_file_that_cannot_be_looked_up_is_not_gone(
    pending: PendingDeletions, files: FailingFiles, partition: Path
) -> None:
    """A disk that fails for a while must not have it lie there until the daemon is started again."""
    files.hidden = path = deleted_file(partition)
    pending.add([path], NOW_MS)
    assert list(pending.run_due(NOW_MS).failures) == [path]
    files.hidden = "none"
    assert pending.run_due(NOW_MS + RETRY_MS).files == 1


def test_a_directory_that_cannot_be_locked_is_told_and_tried_again(
    pending: PendingDeletions, tmp_path: Path, partition: Path
) -> None:
    (tmp_path / names.LOCK).mkdir()
    path = deleted_file(partition)
    pending.add([path], NOW_MS)
    assert list(pending.run_due(NOW_MS).failures) == [path]
    (tmp_path / names.LOCK).rmdir()
    assert pending.run_due(NOW_MS + RETRY_MS).files == 1


def test_any_thread_may_use_it(pending: PendingDeletions, partition: Path) -> None:
    """Several delete at once what several have queued: each file once, and none is left."""
    paths = [deleted_file(partition, base) for base in range(60)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(pending.add, [paths] * 3, [NOW_MS] * 3))
        list(pool.map(pending.run_due, [NOW_MS] * 3))
    pending.run_due(NOW_MS)
    assert (left(partition), next_due_ms(pending)) == ([], None)


@pytest.mark.parametrize("survives", [True, False])
def test_c138_files_of_expired_segments_go_after_the_delay(
    pending: PendingDeletions, tmp_path: Path, survives: bool
) -> None:
    """From the retention pass to the empty directory, with a daemon that lives on or is started anew."""
    directory = write_log(tmp_path)
    stop_broker(tmp_path, 15)
    retain(
        LogDir.at(RealFiles(), str(tmp_path), FixedNow(NOW_MS)), snapshot_of(tmp_path), EXPIRED, dry_run=False,
        dispose=lambda paths: pending.add(paths, NOW_MS + DELAY_MS),
    )  # fmt: skip
    assert bases(tmp_path) == [15]
    waiting = [name for name in left(directory) if name.endswith(".deleted")]
    assert len(waiting) == 11
    now_ms = NOW_MS + DELAY_MS - 1
    assert pending.run_due(now_ms) == Deleted()
    if survives:
        now_ms += 1
    else:
        pending = PendingDeletions(RealFiles(), FixedNow(now_ms))
        pending.adopt(str(directory))
    assert pending.run_due(now_ms).files == len(waiting)
    assert len(left(directory)) == 4


@pytest.mark.parametrize("sign", [names.REPLICATION_CHECKPOINT, f"kept-0/{names.PARTITION_METADATA}"])
def test_nothing_is_deleted_in_a_damaged_directory(
    pending: PendingDeletions, tmp_path: Path, partition: Path, sign: str
) -> None:
    """Also when it became one after that was queued (the table of architecture 2)."""
    pending.add([deleted_file(partition)], NOW_MS)
    (tmp_path / sign).parent.mkdir(exist_ok=True)
    (tmp_path / sign).write_text("0\n0\n")
    pending._onlooker.look(str(tmp_path), thorough=True)
    assert pending.run_due(NOW_MS + 10) == Deleted()
    assert pending.run_due(NOW_MS + 10**6) == Deleted()
    assert len(left(partition)) == 1
    (tmp_path / sign).unlink()
    pending._onlooker.look(str(tmp_path), thorough=True)
    assert pending.run_due(NOW_MS + 10**7).files == 1, "nobody's again: no meta.properties was ever there"
