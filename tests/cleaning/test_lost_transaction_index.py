"""A power cut took entries of a transaction index and left the log: what was aborted must not count as committed.

Else an aborted tombstone takes a committed value with it, and no index that is rebuilt later brings that back.
"""

import os
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.names import FileKind, segment_path
from cleanerd.storage.checkpoints import update_checkpoint
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.spark.in_process import TP, Cleaning

FILES = RealFiles()
LATER_MS = 1_000_000


def write(log_dir: Path, *, is_marker_in_active: bool) -> None:
    """A committed value, and its tombstone in a transaction that is aborted, perhaps in the next segment."""
    writer = LogWriter(str(log_dir), "t", 0, segment_bytes=10_000)
    Producer(writer).put(b"k", b"good", 1)
    producer = Producer(writer, producer_id=7)
    producer.begin()
    producer.put(b"k", None, 2)
    if is_marker_in_active:
        writer.roll()
    producer.abort(3)
    if not is_marker_in_active:
        writer.roll()
        Producer(writer).put(b"other", b"v", 4)
    writer._segment.release()  # it dies


def clean(log_dir: Path) -> None:
    Cleaning(FILES, str(log_dir), LATER_MS).run()


def values(log_dir: Path) -> list[bytes | None]:
    found = read_records(str(log_dir / "t-0"), isolation="read_committed")
    return [record.value for record in found if record.key == b"k"]


@pytest.mark.parametrize("is_marker_in_active", [True, False])
@pytest.mark.parametrize("left_bytes", [0, 7, None])
def test_b6_a_marker_without_its_entry_stops_the_cleaning_until_the_index_is_back(
    tmp_path: Path, is_marker_in_active: bool, left_bytes: int | None
) -> None:
    """In the active segment, where it is replayed, and in the cleaned range, where its data is met. None: no file."""
    write(tmp_path, is_marker_in_active=is_marker_in_active)
    base = 2 if is_marker_in_active else 0
    path = segment_path(str(tmp_path / str(TP)), base, FileKind.TXN_INDEX)
    entries = Path(path).read_bytes()
    os.unlink(path)
    if left_bytes is not None:
        Path(path).write_bytes(entries[:left_bytes])
    with pytest.raises(CorruptFile, match=r"txnindex"):
        clean(tmp_path)
    Path(path).write_bytes(entries)
    clean(tmp_path)
    assert values(tmp_path) == [b"good"]


@pytest.mark.parametrize("is_marker_in_active", [True, False])
def test_4_22_a_transaction_below_the_log_start_needs_no_entry(
    tmp_path: Path, is_marker_in_active: bool
) -> None:
    """A broker deleted records up to an offset behind the marker, and the segments wait for a retention pass: no trouble."""
    write(tmp_path, is_marker_in_active=is_marker_in_active)
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=10_000) as writer:
        Producer(writer).put(b"k", b"new", 5)
        writer.roll()
        Producer(writer).put(b"end", b"v", 6)
    update_checkpoint(FILES, str(tmp_path), names.LOG_START_CHECKPOINT, {TP: 3})
    clean(tmp_path)
    assert values(tmp_path)[-1] == b"new"
