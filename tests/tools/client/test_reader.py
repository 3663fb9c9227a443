"""The consumer's view, also while segments are merged, rolled and deleted under the reader."""

import os
import threading
from itertools import islice

import pytest

from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.batch import Record, encode_empty_batch, iterate_batches, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.head import RECORD_COUNT_AT
from cleanerd.format.names import LOG_START_CHECKPOINT
from cleanerd.storage import segments
from cleanerd.storage.producer_state import last_stable_offset
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.records import open_log, read_columns
from tests.harness.logs.written import open_writer


def offsets(directory, **options) -> list[int]:
    return [record.offset for record in read_records(str(directory), **options)]


def merge(directory, bases, *, keep=lambda offset: True) -> None:
    """What a cleaner commits: one segment under the first base, batches not kept become empty."""
    merged = b""
    for base in bases:
        log = (directory / f"{base:020d}.log").read_bytes()
        for position, size, _ in iterate_batches(log):
            batch = log[position : position + size]
            header = parse_header(batch)
            merged += batch if keep(header.base_offset) else encode_empty_batch(header)
    swap = directory / f"{bases[0]:020d}.log.swap"
    swap.write_bytes(merged)
    for base in bases:
        for suffix in (".log", ".txnindex"):
            (directory / f"{base:020d}{suffix}").unlink(missing_ok=True)
    swap.rename(directory / f"{bases[0]:020d}.log")


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_reads_what_was_written(tmp_path, magic, codec):
    """Every magic, over several segments, from any offset on."""
    with open_writer(tmp_path, segment_bytes=300) as writer:
        producer = Producer(writer, magic=magic, codec=codec)
        for n in range(10):
            producer.send([ProducerRecord(b"a%d" % n, b"v" * n, n), ProducerRecord(None, None, n)])
    directory = str(tmp_path / "t-0")
    expected = []
    for n in range(10):
        stamp = n if magic else -1
        expected += [Record(2 * n, stamp, b"a%d" % n, b"v" * n), Record(2 * n + 1, stamp, None, None)]
    assert list(read_records(directory)) == expected
    for start in range(21):
        assert list(read_records(directory, start_offset=start)) == expected[start:]


def test_deleted_records_whose_segment_is_still_there(tmp_path):
    """A consumer gets nothing below the log start, which may lie inside a batch; nor does the data source."""
    with open_writer(tmp_path, segment_bytes=300) as writer:
        producer = Producer(writer)
        for n in range(10):
            producer.send([ProducerRecord(b"a", b"v", n), ProducerRecord(b"b", b"v", n)])
    directory = tmp_path / "t-0"
    for log_start in (0, 5, 19, 20):
        (tmp_path / LOG_START_CHECKPOINT).write_text(f"0\n1\nt 0 {log_start}\n")
        assert offsets(directory) == list(range(log_start, 20))
        assert offsets(directory, start_offset=7) == list(range(max(log_start, 7), 20))
        for kept in (open_log(str(directory)), open_log(str(directory), start_timestamp_ms=0)):
            found = [offset for columns in read_columns(kept) for offset in columns.offsets.tolist()]
            assert found == list(range(log_start, 20))


def test_large_batches_and_many_of_them(tmp_path):
    """Batches larger than the read buffer, and buffers full of small ones."""
    with open_writer(tmp_path, segment_bytes=2**30) as writer:
        producer = Producer(writer)
        for size in (10, 3 * segments.READ_BYTES, 10, segments.READ_BYTES - 71, 0):
            producer.put(b"k", b"v" * size)
        for _ in range(3000):
            producer.put(b"k", b"v" * 400)
    assert offsets(tmp_path / "t-0") == list(range(3005))


def test_isolation(tmp_path):
    """Aborted data and markers are hidden, open transactions bound the view."""
    with open_writer(tmp_path, segment_bytes=200) as writer:
        plain, one, two = Producer(writer), Producer(writer, producer_id=1), Producer(writer, producer_id=2)
        one.begin()
        two.begin()
        one.put(b"a", b"0")
        two.put(b"b", b"1")
        plain.put(b"c", b"2")
        one.put(b"a", b"3")
        one.abort()
        two.commit()
        one.begin()
        one.put(b"d", b"6")
        one.commit()
        plain.put(b"e", b"8")
        two.begin()
        two.put(b"f", b"9")
        plain.put(b"g", b"10")
        directory = tmp_path / "t-0"
        assert offsets(directory) == [0, 1, 2, 3, 6, 8, 9, 10]
        assert offsets(directory, isolation="read_committed") == [1, 2, 6, 8]
        assert offsets(directory, isolation="read_committed", start_offset=2) == [2, 6, 8]
        assert last_stable_offset(str(directory)) == 9
        two.abort()
        assert offsets(directory, isolation="read_committed") == [1, 2, 6, 8, 10]
        assert last_stable_offset(str(directory)) == writer.log_end_offset == 12


def test_committed_data_after_a_removed_abort_marker_is_seen(tmp_path):
    """A cleaned log may keep the index entry alone; only what the transaction spans is hidden."""
    with open_writer(tmp_path) as writer:
        producer = Producer(writer, producer_id=1)
        producer.begin()
        producer.put(b"a", b"0")
        producer.abort()
        producer.begin()
        producer.put(b"a", b"2")
        producer.commit()
        writer.roll()
    directory = tmp_path / "t-0"
    log = directory / "00000000000000000000.log"
    batches = [(at, size) for at, size, _ in iterate_batches(log.read_bytes())]
    log.write_bytes(log.read_bytes()[batches[2][0] :])
    assert offsets(directory, isolation="read_committed") == [2]


def test_rolled_between_the_end_of_a_segment_and_the_next_listing(tmp_path, monkeypatch):
    """The writer appends and rolls at the worst moment: after the end of the file was seen."""
    with open_writer(tmp_path) as writer:
        producer = Producer(writer)
        producer.put(b"k", b"v")
        real = segments.live_bases

        def listing(directory):
            if writer.log_end_offset == 1:
                producer.put(b"k", b"v")
                writer.roll()
                producer.put(b"k", b"v")
            return real(directory)

        monkeypatch.setattr(segments, "live_bases", listing)
        assert offsets(writer.directory) == [0, 1, 2]


@pytest.mark.parametrize("read_before", range(13))
@pytest.mark.parametrize("merged", [[0, 3], [3, 6], [0, 3, 6, 9], [6], [0]])
def test_segments_merged_while_reading(tmp_path, read_before, merged):
    """Wherever it stands, the reader goes on behind the last record it handed out."""
    with open_writer(tmp_path) as writer:
        producer = Producer(writer)
        for n in range(13):
            if n and n % 3 == 0:
                writer.roll()
            producer.put(b"k%d" % n, b"v")
        directory = tmp_path / "t-0"
        reading = read_records(str(directory))
        seen = [record.offset for record in islice(reading, read_before)]
        merge(directory, merged, keep=lambda offset: offset % 2 == 0)
        seen += [record.offset for record in reading]
        assert seen == sorted(set(seen))
        assert set(range(read_before)) <= set(seen)
        assert set(range(0, 13, 2)) <= set(seen)
        gone = {n for n in range(13) if n % 2 and any(base <= n < base + 3 for base in merged)}
        current = [base for base in (0, 3, 6, 9, 12) if base < read_before][-1:]
        assert set(range(13)) - set(seen) <= gone
        still_open = {n for base in current for n in range(base, base + 3)}
        assert gone & set(seen) <= still_open | set(range(read_before))


def test_reader_waits_for_a_commit_under_way(tmp_path, monkeypatch):
    """While a `.log.swap` lies there, files may be missing: they are not taken for compacted away."""
    with open_writer(tmp_path) as writer:
        for _ in range(3):
            Producer(writer).put(b"k", b"v")
            writer.roll()
    directory = tmp_path / "t-0"
    log, swap = directory / "00000000000000000001.log", directory / "00000000000000000001.log.swap"
    log.rename(swap)
    waits = []

    class Finishing:
        """Stands for the passing of time, in which the commit is finished."""

        def wait(self, seconds):
            waits.append(seconds)
            swap.rename(log)

    monkeypatch.setattr(threading, "Event", Finishing)
    assert offsets(directory) == [0, 1, 2]
    assert waits == [segments.LIST_PAUSE_S]


def test_commit_that_never_ends_is_an_error(tmp_path, monkeypatch):
    """A crash left it half done: reading on might skip records."""
    with open_writer(tmp_path) as writer:
        Producer(writer).put(b"k", b"v")
    directory = tmp_path / "t-0"
    (directory / "00000000000000000000.log").rename(directory / "00000000000000000000.log.swap")
    monkeypatch.setattr(segments, "LIST_PAUSE_S", 0)
    with pytest.raises(SourceChanged, match="not finished"):
        offsets(directory)


def test_segments_deleted_while_reading(tmp_path):
    """Retention: the open file is read to its end, then the log goes on where it now starts."""
    with open_writer(tmp_path) as writer:
        for _ in range(4):
            Producer(writer).send([ProducerRecord(b"k", b"v"), ProducerRecord(b"l", b"w")])
            writer.roll()
        directory = tmp_path / "t-0"
        reading = read_records(str(directory))
        assert next(reading).offset == 0
        for base in (0, 2):
            (directory / f"{base:020d}.log").unlink()
        assert [record.offset for record in reading] == [1, 4, 5, 6, 7]


def test_segment_that_vanishes_after_the_listing(tmp_path, monkeypatch):
    with open_writer(tmp_path) as writer:
        for _ in range(3):
            Producer(writer).put(b"k", b"v")
            writer.roll()
    directory = tmp_path / "t-0"
    real = segments.settled_bases

    def stale(path):
        bases = real(path)
        if (directory / "00000000000000000001.log").exists():
            merge(directory, [0, 1])
        return bases

    reading = read_records(str(directory))
    assert next(reading).offset == 0
    monkeypatch.setattr(segments, "settled_bases", stale)
    assert [record.offset for record in reading] == [1, 2]


def test_torn_tail_of_the_active_segment_is_the_end(tmp_path):
    """Somebody may be writing it right now."""
    with open_writer(tmp_path) as writer:
        Producer(writer).put(b"k", b"v")
    with open(tmp_path / "t-0" / "00000000000000000000.log", "ab") as file:
        file.write(b"\0" * 7)
    assert offsets(tmp_path / "t-0") == [0]


def test_damage_names_file_and_position(tmp_path):
    """A wrong CRC, an impossible header, and a torn batch in a closed segment."""
    with open_writer(tmp_path) as writer:
        producer = Producer(writer)
        producer.put(b"k", b"v")
        size = os.path.getsize(tmp_path / "t-0" / "00000000000000000000.log")
        producer.put(b"k", b"v")
        writer.roll()
    path = tmp_path / "t-0" / "00000000000000000000.log"
    good, count_at = path.read_bytes(), size + RECORD_COUNT_AT
    for bad, position in (
        (good[:-1] + b"x", size + 17),
        (good[:count_at] + b"\xff" + good[count_at + 1 :], count_at),
        (good[:-1], size),
    ):
        path.write_bytes(bad)
        with pytest.raises(CorruptFile) as caught:
            offsets(tmp_path / "t-0")
        assert (caught.value.path, caught.value.position) == (str(path), position)


def test_empty_partition(tmp_path):
    assert offsets(tmp_path) == []
    assert offsets(tmp_path, isolation="read_committed") == []
