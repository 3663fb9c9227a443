"""Small segments become one although nothing of them goes: what a whole cleaning makes of `policy.merging`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format.batch import encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind
from cleanerd.format.record import Record
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.index_files import read_offset_index
from cleanerd.storage.scan import read_aborted_txns
from cleanerd.storage.segments import live_bases
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.retained import TP, snapshot_of
from tests.harness.logs.troubled import Contents, assert_settled, clean, contents, segment

BIG = 400


def append(log_dir: Path, segments: Sequence[int]) -> Path:
    """Closed segments of so many records, no key of which is ever written again, and an active one behind them."""
    with LogWriter(
        str(log_dir), TP.topic, TP.partition, segment_bytes=1 << 20, index_interval_bytes=300
    ) as writer:
        producer = Producer(writer)
        for records in segments:
            for _ in range(records):
                offset = writer.log_end_offset
                producer.put(b"key %d" % offset, b"value %d" % offset, 1000 + offset)
            writer.roll()
        return Path(writer.directory)


def bytes_of(log: Contents) -> bytes:
    """All of the log, one segment behind the other."""
    return b"".join(content for name, (_, _, content) in log.items() if name.endswith(FileKind.LOG.value))


def test_segments_of_unique_keys_become_one_batch_for_batch(tmp_path: Path, spark: LazySpark) -> None:
    directory = append(tmp_path, [5] * 40)
    before, times = (
        contents(directory),
        [s.facts.largest_timestamp_ms for s in snapshot_of(tmp_path).segments],
    )
    last = segment(directory, 39).stat()
    plan = clean(spark, tmp_path, options=["--dry-run"]).results[tmp_path.name, "t"]
    assert (plan["outcome"], plan["segments_after"], contents(directory)) == ("planned", 2, before)
    result = clean(spark, tmp_path).results[tmp_path.name, "t"]
    assert (result["outcome"], result["segments_before"], result["segments_after"]) == ("committed", 41, 2)
    assert result["removed"] == {}
    assert result["bytes_before"] == result["bytes_after"]
    assert live_bases(str(directory)) == [0, 200]
    assert bytes_of(contents(directory)) == bytes_of(before)
    merged, _ = snapshot_of(tmp_path).segments
    assert merged.identity.mtime_ns == last.st_mtime_ns
    assert merged.facts.largest_timestamp_ms == max(times[:-1])
    index = read_offset_index(RealFiles(), merged.sibling(FileKind.OFFSET_INDEX), 0)
    assert max(np.diff([0, *index.positions.tolist(), merged.size_bytes])) < 2 * 4096, "as any segment"
    assert_settled(directory)


def test_segments_become_one_beside_a_group_that_loses_records(tmp_path: Path, spark: LazySpark) -> None:
    """Also where one task cleans all groups of a log, which leaves to the driver what it may merge."""
    directory = append(tmp_path, [5] * 8)
    small_bytes = sum(segment(directory, number).stat().st_size for number in range(8))
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        producer = Producer(writer)
        for number in range(BIG):
            producer.put(b"one key", b"value %d" % number, 1000)
        writer.roll()
    newest = list(read_records(str(directory)))[-1]
    options = [f"--topic-set=t:segment.bytes={small_bytes + 100}"]
    result = clean(spark, tmp_path, options=options).results[tmp_path.name, "t"]
    assert (result["outcome"], result["removed"]) == ("committed", {"superseded": BIG - 1})
    assert live_bases(str(directory)) == [0, 40, 40 + BIG]
    assert list(read_records(str(directory)))[-1] == newest
    assert_settled(directory)


def test_a_log_that_grows_is_written_again_only_as_far_as_it_pays(tmp_path: Path, spark: LazySpark) -> None:
    """A large segment keeps its file while small ones come and are merged behind it, not in every cleaning."""
    append(tmp_path, [BIG])
    segments, inodes = [], set()
    for _ in range(4):
        directory = append(tmp_path, [5, 5, 5])
        clean(spark, tmp_path)
        segments.append(len(live_bases(str(directory))) - 1)
        inodes.add(segment(directory, 0).stat().st_ino)
    assert segments == [2, 2, 5, 2]
    assert len(inodes) == 1
    assert len(list(read_records(str(directory)))) == BIG + 4 * 15


def test_c065_empty_segments_are_merged_away(tmp_path: Path, spark: LazySpark) -> None:
    """Three segments that span 2^31 offsets each, the same key everywhere: emptied by one cleaning, merged by the next."""
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        for base in (0, 2**31, 2 * 2**31):
            records = [Record(offset, 1000, b"key", b"value") for offset in (base, base + 2**31 - 1)]
            writer.append(encode_batch(records, base_offset=base))
            writer.roll()
        writer.append(encode_batch([Record(3 * 2**31, 1000, b"key", b"value")], base_offset=3 * 2**31))
        directory = Path(writer.directory)
    clean(spark, tmp_path)
    assert len(live_bases(str(directory))) == 4
    assert [s.size_bytes == 0 for s in snapshot_of(tmp_path).segments] == [True, True, False, False]
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        writer.roll()
    assert clean(spark, tmp_path).outcome("t", tmp_path.name) == "committed"
    sizes = [s.size_bytes for s in snapshot_of(tmp_path).segments]
    assert (sizes[0], len(sizes)) == (0, 4)  # of five, the first two are one
    assert_settled(directory)


def test_transaction_index_and_compressed_batches_come_along(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=1 << 20) as writer:
        for number in range(6):
            producer = Producer(writer, codec=Codec.GZIP, producer_id=number)
            producer.begin()
            producer.put(b"key %d" % number, b"value" * 9, 1000)
            (producer.abort if number % 2 else producer.commit)(1000)
            writer.roll()
        directory = Path(writer.directory)
    with monkeypatch.context() as patched:
        patched.setattr("cleanerd.cleaning.clean.merge_neighbours", lambda plan, _: plan)
        for _ in range(3):  # the aborted records go, then their markers get a delete horizon
            append(tmp_path, [1])
            clean(spark, tmp_path)
        append(tmp_path, [1])
        unmerged = contents(directory)
        aborted = read_aborted_txns(RealFiles(), snapshot_of(tmp_path))
        clean(spark, tmp_path)
        assert bytes_of(contents(directory)) == bytes_of(unmerged)
    append(tmp_path, [1])
    unmerged = contents(directory)
    clean(spark, tmp_path)
    assert len(live_bases(str(directory))) < sum(name.endswith(".log") for name in unmerged)
    assert bytes_of(contents(directory)) == bytes_of(unmerged)
    assert read_aborted_txns(RealFiles(), snapshot_of(tmp_path)) == aborted
