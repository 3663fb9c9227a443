"""A partition has one first dirty offset in all log directories of a broker."""

import errno
import os
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.log_dir import LogDir
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.troubled import META_PROPERTIES, lock_of_another

FILES = RealFiles()
TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 1)


@pytest.fixture
def log_dirs(tmp_path: Path) -> tuple[Path, Path]:
    """Of one broker. The partition lies in the second; the first has a stale entry of it, and one of another."""
    a, b = tmp_path / "a", tmp_path / "b"
    for log_dir, tp in ((a, OTHER), (b, TP)):
        (log_dir / str(tp)).mkdir(parents=True)
        (log_dir / names.LOCK).touch()
        (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    (a / names.CLEANER_OFFSET_CHECKPOINT).write_text("0\n2\nt 0 99\nother 1 7\n")
    return a, b


def record(log_dirs: tuple[Path, Path], *, is_kafka: bool = True, files: RealFiles = FILES) -> None:
    everywhere = tuple(str(log_dir) for log_dir in log_dirs)
    LogDir(files, everywhere[1], SystemClock(), is_kafka, everywhere).record_cleaned({TP: 5})


def entries(log_dir: Path) -> dict[TopicPartition, int]:
    return read_offsets(FILES, str(log_dir / names.CLEANER_OFFSET_CHECKPOINT))


@pytest.mark.trap("checkpoint entries of another directory")
def test_the_entry_of_the_directory_where_it_was_goes(log_dirs: tuple[Path, Path]) -> None:
    """C047: a log that moved has its entry in one directory only, from its first cleaning there on (rule 2.16)."""
    record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{OTHER: 7}, {TP: 5}]


def test_where_the_old_entry_cannot_go_there_is_no_new_one(log_dirs: tuple[Path, Path]) -> None:
    with lock_of_another(log_dirs[0] / names.LOCK):
        record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{TP: 99, OTHER: 7}, {}]


def test_of_a_live_broker_without_a_cleaner_the_old_entry_goes(log_dirs: tuple[Path, Path]) -> None:
    """It has the locks of both. Else a log that it has moved would be cleaned from its start again and again."""
    with lock_of_another(*(log_dir / names.LOCK for log_dir in log_dirs)):
        record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{OTHER: 7}, {TP: 5}]


def test_where_two_processes_have_the_directories_there_is_no_new_entry(log_dirs: tuple[Path, Path]) -> None:
    with lock_of_another(log_dirs[0] / names.LOCK), lock_of_another(log_dirs[1] / names.LOCK):
        record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{TP: 99, OTHER: 7}, {}]


def test_another_directory_that_fails_is_no_reason_not_to_write_in_this_one(
    log_dirs: tuple[Path, Path],
) -> None:
    """Else nothing would be recorded in any directory of a broker with one bad disk, and all its logs be cleaned again and
    again. A broker reads no checkpoint there.
    """

    def fail(call: str, path: str) -> None:
        if call == "read" and path.startswith(str(log_dirs[0])):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    record(log_dirs, files=HookedFiles(before=fail))
    assert [entries(log_dir) for log_dir in log_dirs] == [{TP: 99, OTHER: 7}, {TP: 5}]


def test_where_an_old_entry_can_be_read_and_not_taken_out_there_is_no_new_one(
    log_dirs: tuple[Path, Path],
) -> None:
    """As in a file system that has become a read-only one."""
    (log_dirs[0] / names.LOCK).unlink()
    (log_dirs[0] / names.LOCK).mkdir()
    record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{TP: 99, OTHER: 7}, {}]


def test_another_brokers_directory_is_left_alone(log_dirs: tuple[Path, Path]) -> None:
    path = log_dirs[0] / names.META_PROPERTIES
    path.write_text(META_PROPERTIES.replace("node.id=", "node.id=9"))
    assert path.read_text() != META_PROPERTIES
    record(log_dirs)
    assert [entries(log_dir) for log_dir in log_dirs] == [{TP: 99, OTHER: 7}, {TP: 5}]


def test_a_damaged_checkpoint_of_the_other_is_its_own_trouble(log_dirs: tuple[Path, Path]) -> None:
    """A broker takes that directory offline, so there is no second entry."""
    path = log_dirs[0] / names.CLEANER_OFFSET_CHECKPOINT
    path.write_text("0\n9\n")
    record(log_dirs)
    assert path.read_text() == "0\n9\n"
    assert entries(log_dirs[1]) == {TP: 5}


def test_2_10_a_move_into_a_directory_that_lost_its_meta_properties_is_seen(
    log_dirs: tuple[Path, Path],
) -> None:
    """Its broker goes on with the move once the file is back: what it copied does not fit to a log cleaned meanwhile."""
    a, b = log_dirs
    (a / f"{TP}.0123456789abcdef0123456789abcdef-future").mkdir()
    (a / names.META_PROPERTIES).unlink()
    (a / names.REPLICATION_CHECKPOINT).write_text("0\n0\n")
    found = LogDir.at(FILES, str(b), SystemClock(), [str(a), str(b)])
    assert found.elsewhere([TP]) == {TP: f"its broker moves it to {a}"}
    (a / names.REPLICATION_CHECKPOINT).unlink()  # nobody's, as far as anything shows
    (a / f"{TP}.0123456789abcdef0123456789abcdef-future").rmdir()
    assert found.elsewhere([TP]) == {}
