"""What `inspect` counts, against plain Python over the same batches."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from cleanerd.format.codecs import Codec
from cleanerd.format.record import encode_records
from cleanerd.format.txn_index import parse_txn_index
from cleanerd.pipeline.values import TopicCodec
from cleanerd.tools.insight.inspect import Inspection, inspect_partition
from tests.kernels.reference import Batch, read_batches
from tests.synthetic import Shape, write_log
from tests.tools.insight.logdirs import GOLDEN, random_partition

LOGS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and not path.name.startswith("__"))
NOW_MS = 1_795_237_300_000
DAY_MS = 86_400_000


def is_aborted(batch: Batch, aborted: list) -> bool:
    return any(
        batch.producer_id == txn.producer_id
        and txn.first_offset <= batch.last_offset < txn.last_offset
        and batch.is_transactional
        and not batch.is_control
        for txn in aborted
    )


def plain(partition: Path) -> tuple[Counter[str], dict, Counter[int]]:
    """Counts, the newest record of each key, and of each day the keys that were written."""
    counts: Counter[str] = Counter()
    newest: dict[bytes, tuple] = {}
    days: dict[int, set] = defaultdict(set)
    aborted = [
        txn
        for path in partition.glob("*.txnindex")
        for txn in parse_txn_index(path.read_bytes())
    ]  # fmt: skip
    for path in sorted(partition.glob("*.log")):
        counts["bytes"] += path.stat().st_size
        for batch in read_batches(path.read_bytes()):
            counts["batches"] += 1
            counts["records"] += len(batch.records)
            for record in batch.records:
                if batch.is_control:
                    counts["markers"] += 1
                elif is_aborted(batch, aborted):
                    counts["aborted"] += 1
                elif record.key is None:
                    counts["no key"] += 1
                else:
                    counts["superseded"] += record.key in newest
                    counts["tombstones"] += record.value is None
                    newest[record.key] = record
                    days[record.timestamp_ms // DAY_MS].add(record.key)
    return counts, newest, Counter({day: len(keys) for day, keys in days.items()})


def compare(found: Inspection, partition: Path, *, days: bool = True) -> None:
    counts, newest, by_day = plain(partition)
    live_tombstones = sum(record.value is None for record in newest.values())
    assert found.bytes == counts["bytes"]
    assert (found.batches, found.records) == (counts["batches"], counts["records"])
    assert (found.keys, found.superseded_records) == ((len(newest), 0), (counts["superseded"], 0))
    assert (found.tombstones, found.live_tombstones) == (counts["tombstones"], live_tombstones)
    assert found.no_key_records == counts["no key"]
    assert found.aborted_records == counts["aborted"]
    parts = found.live_bytes.value + found.superseded_bytes.value + found.no_key_bytes
    empty = 61 * (found.batches)  # at most: of batches without records only the header is left
    assert 0 <= found.bytes - (parts + found.marker_bytes + found.aborted_bytes) <= empty
    assert sum(band.bytes for band in found.superseded_ages) == found.superseded_bytes.value
    assert sum(band.records for band in found.tombstone_ages) == live_tombstones
    assert {hot.key for hot in found.hot_keys} <= {key[:64] for key in newest}
    assert sum(use.bytes for use in found.codecs) == found.bytes
    assert sum(day.records for day in found.days) == found.records
    if days:
        assert {day.day: day.keys for day in found.days if day.keys} == dict(by_day)


@pytest.mark.parametrize("name", LOGS)
def test_what_a_broker_wrote(name: str) -> None:
    compare(inspect_partition(str(GOLDEN / name), now_ms=NOW_MS), GOLDEN / name)


def test_random_logs(tmp_path: Path) -> None:
    """Magic 0 and 1, wrappers, empty and missing keys, transactions, batches without records."""
    for seed in range(40):
        partition = random_partition(tmp_path / f"t-{seed}", seed)
        compare(inspect_partition(str(partition), now_ms=NOW_MS), partition, days=False)


def test_bytes_are_shares_of_the_batch() -> None:
    """Of an uncompressed batch: the record as encoded, and as much of the header as its size is of all records."""
    partition = GOLDEN / "transactions-0"
    found = inspect_partition(str(partition), now_ms=NOW_MS)
    sizes: dict[bytes, int] = {}
    for path in sorted(partition.glob("*.log")):
        for batch in read_batches(path.read_bytes()):
            assert batch.header is not None
            base = batch.header.base_timestamp_ms
            for record in batch.records:
                size = len(encode_records([record], base_offset=batch.base_offset, base_timestamp_ms=base))
                sizes[record.key or b""] = round(size * len(batch.data) / (len(batch.data) - 61))
    assert {hot.key: hot.bytes - hot.superseded_bytes for hot in found.hot_keys} == pytest.approx(
        {hot.key: sizes[hot.key] for hot in found.hot_keys}, abs=1
    )


def test_prefixes_end_with_a_separator_or_have_the_length_asked_for() -> None:
    names = {one.prefix: one.records for one in inspect_partition(str(GOLDEN / "plain-0"), now_ms=0).prefixes}
    assert names == {b"key-": 12, b"key": 1, b"schl": 1, b"": 1}
    fixed = inspect_partition(str(GOLDEN / "plain-0"), now_ms=0, prefix_bytes=2).prefixes
    assert {one.prefix: one.records for one in fixed} == {b"ke": 13, b"sc": 1, b"": 1}


def test_more_keys_than_fit_are_estimated_within_the_error_that_is_named(tmp_path: Path) -> None:
    """And what does not depend on keys stays exact; the hot key is found among all others."""
    keys = write_log(tmp_path / "t-0", 60_000, Shape(keys=20_000, value_bytes=10))
    distinct = len(np.unique(keys))
    off = []
    for _ in range(8):  # the sample is drawn anew each time
        found = inspect_partition(str(tmp_path / "t-0"), now_ms=NOW_MS, keys_max=2000)
        assert found.sampled_keys < 1
        assert found.records == len(keys)
        assert 0 < found.keys.error < distinct / 4
        off.append(abs(found.keys.value - distinct) / found.keys.error)
        off.append(
            abs(found.superseded_records.value - (len(keys) - distinct)) / found.superseded_records.error
        )
    assert sorted(off)[len(off) // 2] < 1
    assert max(off) < 3  # six standard deviations


def test_hot_keys_are_found_when_not_all_keys_have_a_row(tmp_path: Path) -> None:
    """A row is too small by the error at most, never too large."""
    keys = write_log(tmp_path / "t-0", 120_000, Shape(keys=100_000, value_bytes=10))
    found = inspect_partition(str(tmp_path / "t-0"), now_ms=NOW_MS)
    assert found.hot_keys_error_bytes
    assert found.keys == (len(np.unique(keys)), 0)
    record_bytes = found.bytes / found.records
    most = int(np.bincount(keys).max())
    assert found.hot_keys[0].bytes <= most * record_bytes + most
    assert found.hot_keys[0].bytes + found.hot_keys_error_bytes >= (most - 1) * record_bytes


def test_other_batches_are_measured_not_guessed(tmp_path: Path) -> None:
    """What is predicted for another codec is what a log written with it takes."""
    shape = {"keys": 5000, "value_bytes": 200, "random_bytes": 40}
    write_log(tmp_path / "t-0", 40_000, Shape(**shape, records_per_batch=64))
    write_log(tmp_path / "t-1", 40_000, Shape(**shape, records_per_batch=64, codec=4))
    plain_log, zstd = (inspect_partition(str(tmp_path / f"t-{n}"), now_ms=NOW_MS) for n in (0, 1))
    predicted = {(one.codec, one.batch_bytes): one for one in plain_log.alternatives}
    assert predicted["zstd", 16384].size_bytes == pytest.approx(zstd.bytes, rel=0.1)
    assert predicted["none", 16384].saved_bytes == pytest.approx(0, abs=plain_log.bytes * 0.01)


def test_batches_in_the_codec_of_the_topic_are_measured_at_its_level(tmp_path: Path) -> None:
    """As large as they are; without a codec of the topic there is no such row."""
    shape = {"keys": 5000, "value_bytes": 200, "random_bytes": 40}
    write_log(tmp_path / "t-0", 40_000, Shape(**shape, records_per_batch=10))
    write_log(tmp_path / "t-1", 40_000, Shape(**shape, records_per_batch=10, codec=4))
    sizes = {}
    for level in (1, 3, 19):
        codec = TopicCodec(Codec.ZSTD, level, is_taken=False)
        found = inspect_partition(str(tmp_path / "t-0"), now_ms=NOW_MS, topic_codec=codec)
        (row,) = [one for one in found.alternatives if one.is_of_topic]
        sizes[level] = row.size_bytes
        assert row.saved_bytes == found.bytes - row.size_bytes
    without = inspect_partition(str(tmp_path / "t-1"), now_ms=NOW_MS)
    assert sizes[3] == pytest.approx(without.bytes, rel=0.1)
    assert sizes[1] > sizes[19]
    assert not any(one.is_of_topic for one in without.alternatives)
