"""Conformance cases C071, C091-C101, D08-D10, D15: how a batch looks after records were taken out of it.

Upstream decides by a filter of its own; here the records go because they have no key, are superseded or aborted, so every
batch goes through the real path. C099 is about output buffers that grow, which there are none of. D09 is turned round:
Kafka copies a batch with a wrong CRC, cleanerd refuses the log.
"""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanerd.errors import CorruptFile
from cleanerd.format.batch import BatchHeader, Record, encode_batch, encode_empty_batch, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import encode_message, encode_wrapper, wrap_messages
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.tables import WRITTEN
from cleanerd.pipeline.segment_indexes import index_entries
from tests.harness.damage.batches import sealed
from tests.harness.kernels import reference
from tests.harness.kernels.real_path import Layout, RealPath
from tests.harness.kernels.reference import Batch, Facts, LastBatch, Segment
from tests.harness.logs.random_log import LogSegment

NOW_MS = 1_700_000_000_000
CODECS = list(Codec)
WRAPPING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
FACTS = Facts(NOW_MS, NOW_MS + 1000, first_dirty_offset=0, round_end=1000, producers={}, aborted=())
PRODUCER = {"producer_id": 23, "producer_epoch": 5, "base_sequence": 10}


def clean(directory: Path, data: bytes, facts: Facts = FACTS) -> list[Batch]:
    """One round over one segment; the twin must agree."""
    cleaned = RealPath(directory, [LogSegment(0, data)], facts, Layout(slice_bytes=1)).clean()
    assert cleaned == reference.clean([Segment(data, retain_legacy_deletes=False)], facts)
    return list(reference.read_batches(cleaned.segments[0]))


def keyed(*offsets: int, ts: Sequence[int] | None = None, drop: Sequence[int] = ()) -> list[Record]:
    times = ts or [10 + offset for offset in offsets]
    return [
        Record(offset, time, None if offset in drop else b"key-%d" % offset, b"value-%d" % offset)
        for offset, time in zip(offsets, times, strict=True)
    ]


def batch_of(
    *offsets: int, ts: Sequence[int] | None = None, drop: Sequence[int] = (), **options: Any
) -> bytes:
    return encode_batch(keyed(*offsets, ts=ts, drop=drop), base_offset=offsets[0], **options)


def headers_of(batches: Sequence[Batch]) -> list[BatchHeader]:
    return [batch.header for batch in batches if batch.header is not None]


def offsets_of(batches: Sequence[Batch]) -> list[list[int]]:
    return [[record.offset for record in batch.records] for batch in batches]


def test_c071_magic_0_messages_in_magic_1_wrappers(tmp_path: Path) -> None:
    """KAFKA-4298: they become batches of magic 2, also the one without duplicates (rules 4.33, 4.34)."""

    def invalid(base: int, keys: Sequence[int]) -> bytes:
        inner = b"".join(
            encode_message(Record(i, -1, b"%d" % key, b"%d" % (base + i)), magic=0)
            for i, key in enumerate(keys)
        )
        last = base + len(keys) - 1
        return wrap_messages(
            inner, magic=1, codec=Codec.GZIP, last_offset=last, timestamp_ms=NOW_MS, log_append_time=False
        )

    batches = clean(tmp_path, invalid(25, (0, 1, 0, 1)) + invalid(50, (3, 4)))
    assert offsets_of(batches) == [[27, 28], [50, 51]]
    for batch in batches:
        assert batch.magic == 2
        assert all(int(record.value or b"") == record.offset for record in batch.records)


@pytest.mark.parametrize("codec", CODECS)
def test_c091_partition_leader_epoch(codec: Codec, tmp_path: Path) -> None:
    """Preserved by a rebuild and by an empty header."""
    data = batch_of(0, 1, drop=(0,), codec=codec, leader_epoch=67)
    data += batch_of(2, drop=(2,), codec=codec, leader_epoch=68)
    batches = clean(tmp_path, data, replace(FACTS, round_end=3))
    assert [header.leader_epoch for header in headers_of(batches)] == [67, 68]


@pytest.mark.parametrize("transactional", [True, False])
def test_c092_empty_batch_retention(transactional: bool, tmp_path: Path) -> None:
    """Of base 3 with two records: everything of the header but codec, horizon and base timestamp stays."""
    source = batch_of(
        3,
        4,
        ts=(11, 12),
        drop=(3, 4),
        codec=Codec.LZ4,
        transactional=transactional,
        delete_horizon_ms=NOW_MS,
        **PRODUCER,
    )
    (batch,) = clean(tmp_path, source, replace(FACTS, producers={23: LastBatch(5, 4)}))
    (header,) = headers_of([batch])
    assert len(batch.data) == 61
    before = parse_header(source)
    kept = {
        "size_bytes": 61,
        "crc": header.crc,
        "attributes": header.attributes,
        "base_timestamp_ms": -1,
        "record_count": 0,
    }
    assert header == replace(before, **kept)
    assert header.last_sequence == 11
    assert header.is_transactional is transactional
    assert (header.delete_horizon_ms, header.codec) == (None, Codec.NONE)


def test_c093_c094_empty_batches(tmp_path: Path) -> None:
    """An empty batch stays as it is while it is needed, then it goes."""
    empty = encode_empty_batch(parse_header(batch_of(3, **PRODUCER)))
    (batch,) = clean(tmp_path, empty, replace(FACTS, producers={23: LastBatch(5, 3)}))
    assert batch.data == empty
    assert clean(tmp_path, empty, replace(FACTS, producers={23: LastBatch(5, 9)})) == []
    assert clean(tmp_path, empty) == []


@pytest.mark.parametrize("codec", CODECS)
def test_c095_base_timestamp_becomes_delete_horizon(codec: Codec, tmp_path: Path) -> None:
    """Record timestamps stay though the base they count from moves."""
    horizon_ms = (2**31 - 1) // 2
    records = [Record(o, t, b"k%d" % o, v) for o, t, v in ((0, 5, b"a"), (1, 10, None), (2, 15, b"c"))]
    data = encode_batch(records, base_offset=0, codec=codec)
    facts = replace(FACTS, now_ms=horizon_ms - 1, new_horizon_ms=horizon_ms)
    (batch,) = clean(tmp_path, data, facts)
    assert batch.delete_horizon_ms == horizon_ms
    assert list(batch.records) == records
    assert [(header.max_timestamp_ms, header.codec) for header in headers_of([batch])] == [(15, codec)]


@pytest.mark.parametrize("codec", CODECS)
def test_c096_whole_batches_discarded(codec: Codec, tmp_path: Path) -> None:
    """Batches [0], [1,2], [3..5], [6], the second and the last of them aborted."""
    options = {"producer_epoch": 0, "base_sequence": 0, "transactional": True, "codec": codec}
    data = b"".join(batch_of(*o, producer_id=o[0], **options) for o in ((0,), (1, 2), (3, 4, 5), (6,)))
    facts = replace(FACTS, aborted=(AbortedTxn(1, 1, 20, 21), AbortedTxn(6, 6, 21, 22)))
    assert [batch.last_offset for batch in clean(tmp_path, data, facts)] == [0, 5]


@pytest.mark.parametrize("codec", CODECS)
def test_c097_already_compacted(codec: Codec, tmp_path: Path) -> None:
    """Base 0 with records 5, 8 and 10: base and last offset stay for a batch; what was a wrapper closes up around 8."""
    records = keyed(5, 8, 10, drop=(5, 10))
    (batch,) = clean(tmp_path, encode_batch(records, base_offset=0, last_offset=10, codec=codec))
    assert (batch.base_offset, batch.last_offset, offsets_of([batch])) == (0, 10, [[8]])
    if codec in WRAPPING:
        for magic in (0, 1):
            (batch,) = clean(tmp_path, encode_wrapper(records, magic=magic, codec=codec))
            assert (batch.base_offset, batch.last_offset, batch.magic) == (8, 8, 2)


@pytest.mark.parametrize("codec", CODECS)
def test_c098_producer_info(codec: Codec, tmp_path: Path) -> None:
    """Producer fields, base and last sequence survive a rebuild."""
    other = {"producer_id": 99384, "producer_epoch": 234, "base_sequence": 15, "transactional": True}
    data = batch_of(0, 1, drop=(0,), codec=codec)
    data += batch_of(2, 3, 4, drop=(2,), codec=codec, **PRODUCER)
    data += batch_of(5, 6, 7, drop=(7,), codec=codec, **other)
    batches = clean(tmp_path, data)
    headers = headers_of(batches)
    assert [(h.base_offset, h.last_offset) for h in headers] == [(0, 1), (2, 4), (5, 7)]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence, h.last_sequence) for h in headers] == [
        (-1, -1, -1, -1),
        (23, 5, 10, 12),
        (99384, 234, 15, 17),
    ]
    assert [h.is_transactional for h in headers] == [False, False, True]
    assert offsets_of(batches) == [[1], [3, 4], [5, 6]]


CASE_100 = ((0,), (1, 2), (3, 4, 5), (6,))
CASE_100_TIMES = {0: 10, 1: 11, 2: 12, 3: 13, 4: 20, 5: 15, 6: 16}


def records_of_case_100(offsets: Sequence[int]) -> list[Record]:
    """Seven records, 0, 2 and 3 of them without a key."""
    return keyed(*offsets, ts=[CASE_100_TIMES[offset] for offset in offsets], drop=(0, 2, 3))


@pytest.mark.parametrize("codec", CODECS)
def test_c100_filter_to_batches(codec: Codec, tmp_path: Path) -> None:
    """Batches of 1, 2, 3, 1 records, the keyless ones dropped."""
    data = b"".join(encode_batch(records_of_case_100(o), base_offset=o[0], codec=codec) for o in CASE_100)
    batches = clean(tmp_path, data)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(1, 2), (3, 5), (6, 6)]
    assert offsets_of(batches) == [[1], [4, 5], [6]]
    times = [(header.base_timestamp_ms, header.max_timestamp_ms) for header in headers_of(batches)]
    assert times == [(11, 11), (20, 20), (16, 16)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, *WRAPPING])
def test_c100_filter_to_legacy(codec: Codec, magic: int, tmp_path: Path) -> None:
    """The same in wrappers and as single messages."""
    if codec is Codec.NONE:
        data = b"".join(encode_message(r, magic=magic) for o in CASE_100 for r in records_of_case_100(o))
        expected, times = [(1, 1), (4, 4), (5, 5), (6, 6)], [11, 20, 15, 16]
    else:
        data = b"".join(encode_wrapper(records_of_case_100(o), magic=magic, codec=codec) for o in CASE_100)
        expected, times = [(1, 1), (4, 5), (6, 6)], [11, 20, 16]
    batches = clean(tmp_path, data)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == expected
    found = [header.max_timestamp_ms for header in headers_of(batches)]
    assert found == (times if magic == 1 else [-1] * len(times))


@pytest.mark.parametrize("codec", CODECS)
def test_c101_log_append_time(codec: Codec, tmp_path: Path) -> None:
    """Type and max timestamp stay when records go; a batch of which all go vanishes."""
    options = {"codec": codec, "log_append_time": True, "max_timestamp_ms": 4711}
    data = b"".join(batch_of(*offsets, drop=(0, 1, 3), **options) for offsets in ((0,), (1, 2), (3, 4, 5)))
    batches = clean(tmp_path, data)
    assert offsets_of(batches) == [[2], [4, 5]]
    assert [(h.is_log_append_time, h.max_timestamp_ms) for h in headers_of(batches)] == [(True, 4711)] * 2
    assert {record.timestamp_ms for batch in batches for record in batch.records} == {4711}


@pytest.mark.parametrize("codec", [Codec.NONE, *WRAPPING])
def test_c101_log_append_time_legacy(codec: Codec, tmp_path: Path) -> None:
    """The same in magic 1, whose batches keep the type in magic 2 (rule 4.33)."""
    sets = [keyed(*offsets, drop=(0, 1, 3)) for offsets in ((0,), (1, 2), (3, 4, 5))]
    if codec is Codec.NONE:
        data = b"".join(encode_message(r, magic=1, log_append_time=True) for records in sets for r in records)
    else:
        data = b"".join(
            encode_wrapper(records, magic=1, codec=codec, log_append_time=True, timestamp_ms=4711)
            for records in sets
        )
    batches = clean(tmp_path, data)
    assert [h.is_log_append_time for h in headers_of(batches)] == [True] * (3 if codec is Codec.NONE else 2)
    if codec is not Codec.NONE:
        assert {record.timestamp_ms for batch in batches for record in batch.records} == {4711}


def test_d08_middle_record_obsolete(tmp_path: Path) -> None:
    """Gzip, CreateTime: same bases and sequences, count 2, base timestamp of the first kept, valid CRC."""
    records = keyed(7, 8, 9, ts=(50, 40, 45), drop=(8,))
    source = encode_batch(
        [replace(record, headers=(("h", b"1"), ("n", None))) for record in records],
        base_offset=7,
        codec=Codec.GZIP,
        leader_epoch=4,
        transactional=True,
        **(PRODUCER | {"base_sequence": 2**31 - 2}),
    )
    before = parse_header(source)
    (batch,) = clean(tmp_path, source)
    (header,) = headers_of([batch])
    expected = replace(before, record_count=2, base_timestamp_ms=50, max_timestamp_ms=50)
    assert replace(header, size_bytes=before.size_bytes, crc=before.crc) == expected
    assert header.last_sequence == 0
    assert [(r.offset, r.timestamp_ms, len(r.headers)) for r in batch.records] == [(7, 50, 2), (9, 45, 2)]


def test_unknown_attribute_bits_are_cleared(tmp_path: Path) -> None:
    """Rule 4.27; a copied batch keeps them."""
    rebuilt, copied = batch_of(0, 1, drop=(0,)), batch_of(2)
    data = b"".join(sealed(batch[:21] + b"\x01\x80" + batch[23:]) for batch in (rebuilt, copied))
    assert [header.attributes for header in headers_of(clean(tmp_path, data))] == [0, 0x180]


def test_unknown_legacy_attribute_bits_are_cleared(tmp_path: Path) -> None:
    """Neither the timestamp type in magic 0 nor what is the control bit elsewhere means anything there."""
    wrapper = encode_wrapper(keyed(0, 1, 2, drop=(0,)), magic=0, codec=Codec.GZIP)
    message = encode_message(keyed(3)[0], magic=0)
    data = b"".join(
        sealed(entry[:17] + bytes([entry[17] | 0x38]) + entry[18:]) for entry in (wrapper, message)
    )
    again = encode_message(Record(4, 5, b"key-3", b"v"), magic=1)
    batches = clean(tmp_path, data + sealed(again[:17] + b"\x30" + again[18:]))
    assert offsets_of(batches) == [[1, 2], [4]]
    assert [header.attributes for header in headers_of(batches)] == [Codec.GZIP, 0]


@pytest.mark.parametrize("delta", [0, 1])
def test_d09_wrong_crc_is_refused(delta: int, tmp_path: Path) -> None:
    """Whether the batch would be copied or rebuilt: a position is named, nothing is written."""
    data, good = batch_of(0, 1, drop=(0,) if delta else ()), batch_of(2)
    told = r"\.log: at byte \d+: expected a batch with CRC \w{8}, found bytes with"
    with pytest.raises(CorruptFile, match=told) as caught:
        clean(tmp_path, data + good[:-1] + bytes([good[-1] ^ 1]))
    assert caught.value.position == len(data)


@pytest.mark.parametrize("codec", CODECS)
def test_d10_batch_with_a_horizon_is_copied(codec: Codec, tmp_path: Path) -> None:
    """Nothing to drop and a horizon already there: byte for byte."""
    records = [Record(0, 5, b"a", b"1"), Record(1, 6, b"b", None)]
    data = encode_batch(records, base_offset=0, codec=codec, delete_horizon_ms=NOW_MS + 5)
    assert [batch.data for batch in clean(tmp_path, data)] == [data]


def test_untouched_batches_are_copied(tmp_path: Path) -> None:
    """Byte for byte, though a compressor of today would write other bytes."""
    source = batch_of(0, 1, codec=Codec.GZIP)
    other = sealed(source[:61] + gzip.compress(gzip.decompress(source[61:]), 9, mtime=7))
    assert other != source
    assert [batch.data for batch in clean(tmp_path, other)] == [other]


def test_d15_index_lookups(tmp_path: Path) -> None:
    """For every record offset the lookup finds a batch at or before the record's (4.45)."""
    data = b"".join(batch_of(o, o + 1, drop=(o,)) for o in range(0, 200, 2))
    path = RealPath(tmp_path, [LogSegment(0, data)], FACTS, Layout(slice_bytes=500))
    cleaned = path.clean().segments[0]
    (part,) = path.parts
    index = OffsetIndex(part.entries.offsets, part.entries.positions)
    assert len(index.positions) > 5
    starts = [0]
    for batch in reference.read_batches(cleaned):
        assert all(index.lookup(record.offset) <= starts[-1] for record in batch.records)
        starts.append(starts[-1] + len(batch.data))
    assert set(part.entries.positions.tolist()) <= set(starts)


def test_time_index_entries_as_an_appending_broker_sets_them() -> None:
    """Running maximum and the last offset of the batch that first had it, at every mark and at the end (B3, B4)."""
    written = np.zeros(6, WRITTEN)
    written["size"] = 100
    written["position"] = np.arange(0, 600, 100)
    written["last_offset"] = [9, 19, 29, 39, 49, 59]
    written["max_timestamp"] = [5, 7, 6, 7, 8, 1]
    entries = index_entries(written, 150)
    assert entries.offsets.tolist() == [29, 49]
    assert entries.positions.tolist() == [200, 400]
    assert entries.timestamps.tolist() == [7, 8, 8]
    assert entries.timestamp_offsets.tolist() == [19, 49, 49]
    none = index_entries(written[:0], 150)
    assert (len(none.offsets), len(none.timestamps)) == (0, 0)
