"""Conformance cases C001-C011 and C053-C061, D07 and D11: what survives, and why.

Which of them do not apply, and why, is in tests/cases.py.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cleanerd.errors import CorruptFile
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import encode_message, encode_wrapper
from cleanerd.kernels.newest import mark_superseded, new_set
from cleanerd.policy.verdicts import RecordVerdict
from tests.harness.kernels.real_path import Layout, RealPath
from tests.harness.kernels.small_log import DAY_MS, LARGE_MS, SmallLog
from tests.harness.logs.random_log import LogSegment
from tests.kernels.test_oracles import keyed

NOW_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> SmallLog:
    return SmallLog(tmp_path)


@pytest.mark.parametrize("n", [10, 100, 1000, 5000])
def test_c001_every_key_is_found(n: int) -> None:
    """A set made for n keys takes n keys, and knows them all afterwards."""
    table = new_set(n)
    assert not mark_superseded(keyed(list(range(n))), 0, table).any()
    assert mark_superseded(keyed(list(range(n))), n, table).all()
    assert np.count_nonzero(table.any(axis=1)) == n


def test_c002_an_empty_set_knows_nothing() -> None:
    """Nothing is superseded by nobody."""
    assert not mark_superseded(keyed(list(range(10))), 10, new_set(0)).any()


def test_c007_each_range_supersedes_by_itself(log: SmallLog) -> None:
    """Unique keys: nothing goes, whatever the range; one offset more or less makes no difference."""
    log.append_each(range(100), per_segment=10)
    for first_dirty, segments in ((0, 1), (10, 3), (30, 10)):
        cleaned = log.clean(first_dirty, segments=segments)
        assert cleaned.counts == Counter({RecordVerdict.KEEP: 10 * segments})
    assert log.keys == list(range(100))


def test_c009_a_large_gap_between_offsets(log: SmallLog) -> None:
    """Offsets 0 and 7206178 in one segment."""
    log.append(0)
    log.next_offset = 7206178
    log.append(0)
    log.clean(0)
    assert log.offsets == [7206178]


@pytest.mark.trap("an endless loop at holes and at dirty offsets inside of batches")
@pytest.mark.parametrize(("hole", "end"), [(11, 12), (15, 30)])
def test_c010_c011_holes_at_segment_ends(hole: int, end: int, log: SmallLog) -> None:
    """The round ends at the base of the active segment though offsets are missing; its last batch may go then."""
    log.append_each(range(10), per_segment=10)
    log.next_offset = hole
    log.segments[-1] = LogSegment(hole, b"")
    log.append_each(range(10), per_segment=10)
    if end > log.next_offset:
        log.segments[-1] = LogSegment(end, b"")
    log.clean(0)
    assert log.offsets == list(range(hole, hole + 10))


def test_c053_superseded_records_go(log: SmallLog) -> None:
    """Newer records of the odd keys in the dirty section take the older ones out of all segments."""
    log.append_each(range(12), per_segment=4)
    first_dirty = log.next_offset
    log.append_each((1, 3, 5, 7, 9))
    cleaned = log.clean(first_dirty)
    assert log.keys == [0, 2, 4, 6, 8, 10, 11, 1, 3, 5, 7, 9]
    assert cleaned.counts == Counter({RecordVerdict.KEEP: 12, RecordVerdict.SUPERSEDED: 5})


def test_c054_statistics(log: SmallLog) -> None:
    """Keys 0,1,0,1,0 cleaned from 2: five read, two kept."""
    log.append(0, 1, 0, 1, 0)
    cleaned = log.clean(2)
    assert log.offsets == [3, 4]
    assert cleaned.counts == Counter({RecordVerdict.SUPERSEDED: 3, RecordVerdict.KEEP: 2})


def test_c056_what_lies_from_the_bound_on_is_as_it_was(log: SmallLog) -> None:
    """The bound lies inside the third segment: the first two shrink, those from the third on keep every byte."""
    log.append_each([0, 0, 1, 1, 0, 1, 2, 3, 2, 3], per_segment=2)
    before = [segment.data for segment in log.segments]
    log.clean(0, segments=2)
    first = [segment.data for segment in log.segments]
    assert [len(new) < len(old) for new, old in zip(first, before, strict=True)][:2] == [True, True]
    assert first[2:] == before[2:]


@pytest.mark.trap("output larger than its input")
def test_c067_c068_a_record_larger_than_any_buffer(log: SmallLog) -> None:
    """A mebibyte in slices and chunks of a byte: sizes come from batch headers, not from a configured maximum."""
    large = b"x" * (1 << 20)
    for key in (0, 1, 0, 1):
        log.append(key, value=large)
        log.roll()
    log.clean(0)
    assert log.offsets == [2, 3]


@pytest.mark.parametrize("damage", ["magic", "cut"])
def test_c069_c070_a_damaged_batch_fails_the_cleaning(log: SmallLog, damage: str) -> None:
    """A magic byte of 0xff; a file that is cut inside of a batch."""
    log.append(0, value=b"x" * 5000)
    log.roll()
    first = log.segments[0]
    data = first.data[:1024] if damage == "cut" else first.data[:16] + b"\xff" + first.data[17:]
    layout = Layout(chunk_bytes=1, buckets=4, slice_bytes=1)
    path = RealPath(log.directory, [LogSegment(0, data)], log.facts(0, 1, LARGE_MS), layout)
    with pytest.raises(CorruptFile):
        path.clean()


@pytest.mark.trap("null keys")
def test_c057_unkeyed_messages(log: SmallLog) -> None:
    """A log that was not compacted before: keyless records go, and are counted."""
    for _ in range(7):
        log.append(None)
    log.append_each(range(5))
    keyed_part = sum(len(b.data) for b in list(log.batches())[7:])
    cleaned = log.clean(0)
    assert log.keys == list(range(5))
    assert sum(len(segment.data) for segment in log.segments) == keyed_part
    assert cleaned.counts == Counter({RecordVerdict.NO_KEY: 7, RecordVerdict.KEEP: 5})


def test_c058_deletes(log: SmallLog) -> None:
    """Tombstones for the even keys: none of them has a value afterwards."""
    log.append_each(range(10))
    log.append(*range(0, 10, 2), value=None)
    log.append(99)
    log.clean(0)
    assert log.keys == [1, 3, 5, 7, 9, 99]


def test_c059_last_empty_batch_retained(log: SmallLog) -> None:
    """Rule 4.16 b: of a range in which nothing stays, one empty batch marks the end."""
    for _ in range(3):
        log.append(None, None)
        log.append(None)
        log.roll()
    log.clean(0)
    assert log.batch_ends == [8]
    assert [len(batch.records) for batch in log.batches()] == [0]
    assert [len(segment.data) for segment in log.segments] == [0, 0, 61, 0]
    log.append(1)
    log.clean(9)
    assert log.batch_ends == [9]


@pytest.mark.trap("tombstones that go too early")
def test_c061_tombstone_horizon_counts_from_the_cleaning(log: SmallLog) -> None:
    """Not from the record's own time, however old or young that is."""
    for offset, timestamp_ms, value in (
        (0, NOW_MS + DAY_MS + 10_000, b"v"),
        (1, NOW_MS - DAY_MS - 10_000, None),
    ):
        log.add(encode_batch([Record(offset, timestamp_ms, b"0", value)], base_offset=offset))
    log.append(5)
    log.clean(0, NOW_MS)
    kept = [record for batch in log.batches() for record in batch.records]
    assert [(record.offset, record.value is None) for record in kept] == [(1, True), (2, False)]
    assert kept[0].timestamp_ms == NOW_MS - DAY_MS - 10_000
    log.append(6)
    log.clean(3, NOW_MS)
    assert [batch.last_offset for batch in log.batches()] == [1, 2, 3]


@pytest.mark.trap("tombstones that go too early")
@pytest.mark.parametrize("codec", list(Codec))
def test_d07_tombstone_kept_until_its_horizon(codec: Codec, log: SmallLog) -> None:
    """A round at t + r - 1 keeps it, one at t + r drops it (4.19); the first value is never moved (4.28)."""
    log.add(encode_batch([Record(0, 5, b"0", None), Record(1, 5, b"1", b"v")], base_offset=0, codec=codec))
    log.append(9)
    for now_ms, counts in (
        (NOW_MS, {RecordVerdict.KEEP: 3}),
        (NOW_MS + DAY_MS - 1, {RecordVerdict.KEEP: 3}),
        (NOW_MS + DAY_MS, {RecordVerdict.KEEP: 2, RecordVerdict.TOMBSTONE: 1}),
        (NOW_MS + 2 * DAY_MS, {RecordVerdict.KEEP: 2}),
    ):
        assert log.clean(0, now_ms).counts == Counter(counts)
        assert next(log.batches()).delete_horizon_ms == NOW_MS + DAY_MS


@pytest.mark.trap("tombstones that go too early")
@pytest.mark.parametrize("retain", [True, False])
def test_legacy_tombstones_go_by_the_age_of_their_segment(retain: bool, log: SmallLog) -> None:
    """Rules 4.2, 4.19: magic 0 and 1 have no horizon; the tombstones that stay get one (rule 4.25)."""
    data = encode_message(Record(0, 5, b"0", None), magic=1) + encode_wrapper(
        [Record(1, 5, b"1", None), Record(2, 5, b"2", b"v")], magic=1, codec=Codec.GZIP
    )
    log.segments = [LogSegment(0, b"", retain_legacy_deletes=retain)]
    log.add(data)
    log.append(9)
    log.clean(0, NOW_MS)
    found = [record.offset for batch in log.batches() for record in batch.records]
    assert found == ([0, 1, 2, 3] if retain else [2, 3])
    horizons = [batch.delete_horizon_ms is not None for batch in log.batches()]
    assert horizons == ([True, True, False] if retain else [False, False])


def test_a_legacy_last_batch_is_kept_whole(log: SmallLog) -> None:
    """Deviation from 4.31: Kafka gives up on the log, we keep the batch as it is, and its records count as kept."""
    wrapper = encode_wrapper([Record(1, 5, None, b"v"), Record(2, 5, None, b"w")], magic=1, codec=Codec.GZIP)
    log.append(9)
    log.add(wrapper)
    cleaned = log.clean(0)
    assert [batch.data for batch in log.batches()][1] == wrapper
    assert cleaned.counts == Counter({RecordVerdict.KEEP: 3})


@pytest.mark.parametrize("codec", list(Codec))
def test_c104_every_codec(codec: Codec, log: SmallLog) -> None:
    """100 keys three times over, a large value, then duplicates again: the last value of every key."""
    values: dict[bytes, tuple[int, bytes]] = {}

    def write(keys: range, rounds: int, size: int = 0) -> None:
        for _ in range(rounds):
            for key in keys:
                offset = log.next_offset
                record = Record(offset, NOW_MS + offset, b"%d" % key, b"%d" % offset + b"x" * size)
                log.add(encode_batch([record], base_offset=offset, codec=codec))
                values[b"%d" % key] = offset, record.value or b""

    log.layout = Layout(chunk_bytes=3000, buckets=4)
    write(range(100), 3)
    write(range(1), 1, size=1000)
    write(range(80), 1)
    log.clean(0)
    found = {r.key: (r.offset, r.value) for batch in log.batches() for r in batch.records}
    assert found == values


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_c105_c106_legacy_formats_and_nested_messages(codec: Codec, log: SmallLog) -> None:
    """Wrappers of magic 0, then of 1, then batches, with duplicates inside one set: the last value of every key."""
    log.layout = Layout(chunk_bytes=600, buckets=4, slice_bytes=500)
    newest: dict[bytes | None, bytes | None] = {}
    for magic in (0, 1, 2):
        for _ in range(3):
            start = log.next_offset
            records = [
                Record(start + i, -1 if magic == 0 else 1000, b"%d" % (i % 4), b"%d" % (start + i))
                for i in range(8)
            ]
            newest |= {record.key: record.value for record in records}
            if magic == 2:
                log.add(encode_batch(records, base_offset=start, codec=codec))
            else:
                log.add(encode_wrapper(records, magic=magic, codec=codec))
    size = sum(len(segment.data) for segment in log.segments)
    log.clean(0)
    assert {r.key: r.value for batch in log.batches() for r in batch.records} == newest
    assert sum(len(segment.data) for segment in log.segments) < size
