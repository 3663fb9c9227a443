"""What a directory holds under a name of the log's need not be a file of it: FIFOs, devices, links, sparse terabytes.

Nothing of that makes a run wait or take memory, and it is the trouble of its own log: the reason names the file.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.env.files import NotRegular, RealFiles, regular_fd
from cleanerd.format import names
from cleanerd.format.names import FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.logs.troubled import GOOD, assert_cleaned, clean, segment, write_logs

SPARSE_BYTES = 1 << 40


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


ODD: tuple[Callable[[Path], None], ...] = (fifo, sparse, loop, endless)
PLACES: dict[str, Callable[[Path], Path]] = {
    "log": lambda partition: segment(partition, 1),
    "active": lambda partition: segment(partition, -1),
    "index": lambda partition: segment(partition, 1, FileKind.OFFSET_INDEX),
    "timeindex": lambda partition: segment(partition, 1, FileKind.TIME_INDEX),
    "txnindex": lambda partition: segment(partition, 1, FileKind.TXN_INDEX),
    "epochs": lambda partition: partition / names.LEADER_EPOCH_CHECKPOINT,
    "generation": lambda partition: partition / names.GENERATION,
}


def stats(partition: Path) -> dict[str, tuple[int, int]]:
    """Inode and size of everything; a terabyte is not read."""
    return {path.name: (path.lstat().st_ino, path.lstat().st_size) for path in partition.iterdir()}


@pytest.mark.parametrize("odd", ODD)
def test_a_run_says_which_file_is_none_and_cleans_the_other_logs(
    odd: Callable[[Path], None], tmp_path: Path, spark: LazySpark
) -> None:
    """An index that is a file all the same, and ends in a hole, is one that was allocated in advance."""
    log_dir = write_logs(tmp_path / "logs", GOOD, *PLACES, "snapshot")
    odd_files = {topic: find(log_dir / f"{topic}-0") for topic, find in PLACES.items()}
    for path in odd_files.values():
        odd(path)
    for snapshot in (log_dir / "snapshot-0").glob(f"*{FileKind.PRODUCER_SNAPSHOT.value}"):
        odd(snapshot)
    before = {topic: stats(log_dir / f"{topic}-0") for topic in PLACES}
    ran = clean(spark, log_dir)
    assert ran.code == 1
    assert_cleaned(ran, log_dir / f"{GOOD}-0")
    for topic, path in odd_files.items():
        if odd is sparse and topic in ("index", "timeindex"):
            assert_cleaned(ran, log_dir / f"{topic}-0")
        else:
            assert str(path) in ran.reason(topic)
            assert stats(log_dir / f"{topic}-0") == before[topic]
    assert ran.outcome("snapshot") == "committed", "a snapshot saves time, nothing else"


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_CHECKPOINT])
def test_a_checkpoint_that_is_none_is_the_trouble_of_its_log_directory(
    odd: Callable[[Path], None], name: str, tmp_path: Path, spark: LazySpark
) -> None:
    good, bad = write_logs(tmp_path / "good", GOOD), write_logs(tmp_path / "bad", "bad")
    odd(bad / name)
    ran = clean(spark, bad, good)
    assert name in ran.reason("bad", "bad")
    assert_cleaned(ran, good / f"{GOOD}-0")


def test_a_directory_whose_name_kafka_would_not_accept_is_foreign(tmp_path: Path, spark: LazySpark) -> None:
    """Its name would end up in a checkpoint, which no broker could read then (spec disk A7)."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    strange = [
        b"sp ace-0",
        b"new\nline-0",
        b"latin-\xe9-0",
        b"\xff\xfe-0",
        "h\xe4user-0".encode(),
        b"..-0",
        b".-1",
        b"x" * 250 + b"-0",
    ]
    for name in strange:
        target = os.path.join(os.fsencode(log_dir), name)
        os.mkdir(target)
        for file in (log_dir / "bad-0").iterdir():
            os.link(file, os.path.join(target, os.fsencode(file.name)))
    ran = clean(spark, log_dir)
    assert {topic for _, topic in ran.results} == {GOOD, "bad"}
    assert ran.code == 0
    lines = (log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text().splitlines()
    assert sorted(line.split()[0] for line in lines[2:]) == ["bad", GOOD]


@pytest.mark.parametrize("odd", [fifo, loop, endless])
def test_what_is_found_is_said(odd: Callable[[Path], None], tmp_path: Path) -> None:
    odd(tmp_path / "file")
    for read in (regular_fd, RealFiles().read):
        with pytest.raises(NotRegular, match=r"expected a regular file, found a (FIFO|symbolic link)"):
            read(str(tmp_path / "file"))


def test_no_read_takes_more_than_its_caller_allows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    assert RealFiles().read(str(path), 4) == b"four"
    with pytest.raises(NotRegular, match="expected at most 3 bytes, found 4"):
        RealFiles().read(str(path), 3)


def test_a_partition_directory_that_is_a_link_is_left_alone(tmp_path: Path, spark: LazySpark) -> None:
    """As by the daemon: what lies behind a link may be another one's. A log directory may be a link."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "linked")
    elsewhere = (log_dir / "linked-0").rename(tmp_path / "elsewhere")
    (log_dir / "linked-0").symlink_to(elsewhere)
    (tmp_path / "link").symlink_to(log_dir)
    before = stats(elsewhere)
    ran = clean(spark, tmp_path / "link")
    assert ran.code == 1
    assert ran.outcome(GOOD, "link") == "committed"
    assert (
        ran.reason("linked", "link")
        == f"{tmp_path}/link/linked-0: a symbolic link is not a partition directory"
    )
    assert stats(elsewhere) == before
