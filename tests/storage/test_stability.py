"""Last stable offset and active producers of a log on disk (spec disk G, B7; rules A.3, A.4, 4.17; case C028).

The log of most tests, one batch each, segments at 0, 4 and 8:

======  ==========================================================
offset  batch
======  ==========================================================
0       data of producer 1
1       data of transaction A (producer 7)
2       data of producer 1
3       COMMIT of A
4       data of transaction B (producer 8)
5       data of producer 2
6       ABORT of B
7       data of transaction C (producer 7)
8       data of producer 1
9       data of producer 3, the last one
======  ==========================================================
"""

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.policy.cleanable import CompactionConfig, cleanable_range
from cleanerd.storage import scan as scan_module
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot, scan_partition
from cleanerd.storage.stability import Stability, read_stability
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter

FILES = RealFiles()
TP = TopicPartition("t", 0)
HOUR_MS = 3_600_000
EXPIRATION_MS = 86_400_000
NOW_MS = 100_000
END = 10


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """See above; timestamps are 1000 times the offset."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20, index_interval_bytes=60) as writer:
        plain = {pid: Producer(writer, producer_id=pid) for pid in (1, 2, 3)}
        txn = {pid: Producer(writer, producer_id=pid) for pid in (7, 8)}

        def put(producer: Producer) -> None:
            producer.put(b"k", b"v", 1000 * writer.log_end_offset)

        put(plain[1])
        txn[7].begin()
        put(txn[7])
        put(plain[1])
        txn[7].commit(3000)
        writer.roll()
        txn[8].begin()
        put(txn[8])
        put(plain[2])
        txn[8].abort(6000)
        txn[7].begin()
        put(txn[7])
        writer.roll()
        put(plain[1])
        put(plain[3])
    return tmp_path


def scan(log_dir: Path, high_watermark: int | None = None, log_start: int = 0) -> PartitionSnapshot:
    """As a broker's directory when a high watermark is given."""
    checkpoints = Checkpoints({}, {}, {TP: log_start}, {TP: high_watermark or 0})
    partition = PartitionDir.of(FILES, str(log_dir), TP)
    found = scan_partition(partition, TP, checkpoints, is_kafka=high_watermark is not None)
    assert found is not None
    return found


def stability(
    log_dir: Path, high_watermark: int | None = None, log_start: int = 0, now_ms: int = NOW_MS
) -> Stability:
    snapshot = scan(log_dir, high_watermark, log_start)
    return read_stability(FILES, snapshot, now_ms=now_ms, expiration_ms=EXPIRATION_MS)


def producers(found: Stability) -> dict[int, int]:
    return dict(zip(found.producers.ids.tolist(), found.producers.last_data_offsets.tolist(), strict=True))


def at_every_high_watermark(log_dir: Path) -> list[tuple[int, dict[int, int]]]:
    found = [stability(log_dir, high_watermark) for high_watermark in range(11)]
    return [(one.last_stable_offset, producers(one)) for one in found]


def path(log_dir: Path, base: int, kind: FileKind) -> Path:
    return log_dir / str(TP) / str(SegmentFileName(base, kind))


@pytest.mark.parametrize(
    ("high_watermark", "expected"),
    [
        (None, 7),  # C is open
        (10, 7),
        (8, 7),
        (7, 7),
        (6, 4),  # the marker of B is at the high watermark: not replicated yet
        (5, 4),
        (4, 4),
        (3, 1),  # likewise that of A
        (2, 1),
        (1, 1),
        (0, 0),
    ],
)
def test_a_3_transaction_whose_marker_is_at_or_above_the_high_watermark_counts_as_open(
    log_dir: Path, high_watermark: int | None, expected: int
) -> None:
    assert stability(log_dir, high_watermark).last_stable_offset == expected


def test_a_4_active_producers_are_those_of_the_whole_log_with_their_last_data_offset(log_dir: Path) -> None:
    """Also beyond the high watermark: rule 4.17 keeps a batch only while it is its producer's last one."""
    for high_watermark in (None, 10, 4, 0):
        assert producers(stability(log_dir, high_watermark)) == {1: 8, 2: 5, 3: 9, 7: 7, 8: 4}


def test_4_17_expired_producers_are_forgotten_but_not_with_an_open_transaction(log_dir: Path) -> None:
    """Producer 1 wrote last at 8000, 2 at 5000, 3 at 9000, the marker of 8 is of 6000; 7 is in a transaction."""
    assert producers(stability(log_dir, now_ms=EXPIRATION_MS + 7999)) == {1: 8, 3: 9, 7: 7}
    assert producers(stability(log_dir, now_ms=EXPIRATION_MS + 8000)) == {3: 9, 7: 7}
    assert producers(stability(log_dir, now_ms=EXPIRATION_MS * 9)) == {7: 7}


def corrupt(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


DAMAGES: list[Callable[[Path], object]] = [
    corrupt,
    lambda file: os.truncate(file, 9),
    Path.unlink,
    lambda file: file.write_bytes(b""),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("snapshots", [[10], [8, 10], [4, 8, 10]])
def test_g_damaged_snapshots_cost_time_and_change_nothing(
    log_dir: Path, damage: Callable[[Path], object], snapshots: list[int]
) -> None:
    """An older one is taken, in the end the whole log is replayed."""
    expected = at_every_high_watermark(log_dir)
    for offset in snapshots:
        damage(path(log_dir, offset, FileKind.PRODUCER_SNAPSHOT))
    assert at_every_high_watermark(log_dir) == expected


INDEXES: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(bytes(80)),
    lambda file: file.write_bytes(bytes(7) + b"\x09"),  # inside a batch
    lambda file: file,
]


@pytest.mark.parametrize("damage", INDEXES)
@pytest.mark.parametrize("read_bytes", [20, 64])
def test_b8_damaged_offset_indexes_and_small_buffers_change_nothing(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object], read_bytes: int
) -> None:
    expected = at_every_high_watermark(log_dir)
    for base in (0, 4, 8):
        damage(path(log_dir, base, FileKind.OFFSET_INDEX))
    monkeypatch.setattr(scan_module, "_READ_BYTES", read_bytes)
    assert at_every_high_watermark(log_dir) == expected


def test_b9_an_index_entry_counts_only_where_a_batch_with_a_right_crc_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value may hold what looks like the head of a batch: a replay from there would miss an open transaction."""
    head = struct.pack(">qi4xb", 0, 1 << 20, 0)

    def open_log() -> LogWriter:
        return LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20)

    with open_log() as writer:
        Producer(writer).put(b"k", head)
    with open_log() as writer:
        producer = Producer(writer, producer_id=7)
        producer.begin()
        producer.put(b"k", b"v")
    path(tmp_path, 2, FileKind.PRODUCER_SNAPSHOT).unlink()
    position = path(tmp_path, 0, FileKind.LOG).read_bytes().index(head)
    path(tmp_path, 0, FileKind.OFFSET_INDEX).write_bytes(struct.pack(">ii", 0, position))
    monkeypatch.setattr(scan_module, "_READ_BYTES", 64)
    assert stability(tmp_path).last_stable_offset == 1


def test_10_5_snapshot_at_or_below_the_log_start_is_not_used(log_dir: Path) -> None:
    """Kafka drops it when it loads the log; one at 4 that lies is believed only if the log starts below."""
    truth = path(log_dir, 8, FileKind.PRODUCER_SNAPSHOT).read_bytes()
    for offset in (8, 10):
        path(log_dir, offset, FileKind.PRODUCER_SNAPSHOT).unlink()
    path(log_dir, 4, FileKind.PRODUCER_SNAPSHOT).write_bytes(truth)  # claims that a transaction is open at 7
    assert stability(log_dir, 5).last_stable_offset == 4  # believed: 7 is above the high watermark
    assert producers(stability(log_dir, 10, log_start=4)) == {1: 8, 2: 5, 3: 9, 7: 7, 8: 4}


def test_torn_tail_is_not_replayed(log_dir: Path) -> None:
    log = path(log_dir, 8, FileKind.LOG)
    path(log_dir, 10, FileKind.PRODUCER_SNAPSHOT).unlink()
    os.truncate(log, log.stat().st_size - 1)
    assert scan(log_dir).log_end_offset == 9
    assert producers(stability(log_dir)) == {1: 8, 2: 5, 7: 7, 8: 4}


def test_a_new_epoch_forgets_the_data_of_the_old_one(tmp_path: Path) -> None:
    """A.4: only the marker of the new epoch is known then, which is -1 for the last data offset (rule 4.17)."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        Producer(writer, producer_id=4, producer_epoch=1).put(b"k", b"v")
        fencing = Producer(writer, producer_id=4, producer_epoch=2)
        fencing.begin()
        fencing.abort()
    assert producers(stability(tmp_path)) == {4: -1}


def test_log_without_producers_is_stable_up_to_its_high_watermark(tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        for _ in range(5):
            Producer(writer).put(b"k", b"v")
    assert (stability(tmp_path).last_stable_offset, producers(stability(tmp_path))) == (5, {})
    assert stability(tmp_path, 3).last_stable_offset == 3


def test_c028_undecided_transactional_data_is_not_cleanable(tmp_path: Path) -> None:
    """Open at 0 to 2: nothing. With the ABORT at 3 and its segment closed: up to there, and past the lag all of it."""
    config = CompactionConfig(0.0, HOUR_MS, 2**63 - 1)

    def bounds(high_watermark: int, now_ms: int) -> tuple[int, int]:
        snapshot = scan(tmp_path, high_watermark)
        found = read_stability(FILES, snapshot, now_ms=now_ms, expiration_ms=EXPIRATION_MS)
        facts = replace(snapshot, recovery_point=None).facts(found.last_stable_offset)
        cleanable = cleanable_range(facts, config, now_ms)
        return cleanable.first_dirty_offset, cleanable.first_uncleanable_offset

    now_ms = 10 * HOUR_MS
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        producer = Producer(writer, producer_id=15)
        producer.begin()
        for _ in range(3):
            producer.put(b"k", b"v", now_ms)
        writer.roll()
        now_ms += HOUR_MS + 1
        assert bounds(3, now_ms) == (0, 0)
        producer.abort(now_ms)
        writer.roll()
        assert bounds(4, now_ms) == (0, 3)
        assert bounds(4, now_ms + HOUR_MS + 1) == (0, 4)
