"""The cooperating writer: its bytes on disk, its rolls (spec disk B, architecture section 2)."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage, LockHeld
from cleanerd.format.batch import Record, encode_batch, encode_empty_batch, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.errors import FormatError
from cleanerd.format.legacy import encode_message
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index
from cleanerd.storage.lock import LogDirLock, probe
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.written import check_indexes, contents, open_writer


def test_new_log_directory_is_a_cooperating_one(tmp_path):
    """Both directories come into being, without meta.properties, and nobody holds the lock afterwards."""
    log_dir = tmp_path / "new" / "logs"
    with open_writer(log_dir) as writer:
        assert (writer.log_end_offset, writer.active_base_offset) == (0, 0)
        assert probe(str(log_dir)) is None
    assert sorted(os.listdir(log_dir)) == [".lock", "t-0"]
    names = ["00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex"]
    assert contents(log_dir) == dict.fromkeys(names, b"")


@pytest.mark.parametrize(("topic", "segment_bytes"), [("a/b", 1000), ("t", 2**31), ("t", 0)])
def test_no_log_that_a_broker_refuses(tmp_path, topic, segment_bytes):
    with pytest.raises(BadUsage):
        LogWriter(str(tmp_path), topic, 0, segment_bytes=segment_bytes)
    assert os.listdir(tmp_path) == []


def test_rolls_before_segment_bytes_would_be_exceeded(tmp_path):
    """The last batch may fill a segment exactly; a batch above the limit gets a segment of its own."""
    size = len(encode_batch([Record(0, 0, b"k", b"v")], base_offset=0))
    with open_writer(tmp_path, segment_bytes=3 * size) as writer:
        producer = Producer(writer)
        for _ in range(7):
            producer.put(b"k", b"v")
        producer.put(b"k", b"v" * 1000)
        producer.put(b"k", b"v")
    logs = [name for name in contents(tmp_path) if name.endswith(".log")]
    assert logs == [f"{base:020d}.log" for base in (0, 3, 6, 7, 8)]


def test_rolls_before_a_relative_offset_overflows(tmp_path):
    """Spec disk B1: offsets of a segment are less than 2^31 above its base."""
    with open_writer(tmp_path, segment_bytes=2**30) as writer:
        writer.append(encode_batch([Record(0, 0, b"k", b"v")], base_offset=0, last_offset=2**31 - 1))
        assert writer.active_base_offset == 0
        Producer(writer).put(b"k", b"v")
        assert writer.active_base_offset == 2**31
        assert writer.log_end_offset == 2**31 + 1


def test_roll_of_an_empty_segment_does_nothing(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.roll()
        Producer(writer).put(b"k", b"v")
        writer.roll()
        writer.roll()
        assert writer.active_base_offset == 1
    assert [name for name in contents(tmp_path) if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 1)
    ]


rows = st.tuples(
    st.binary(max_size=5), st.none() | st.binary(max_size=120), st.integers(min_value=-1, max_value=50)
).map(lambda row: ProducerRecord(*row))


@settings(max_examples=40)
@given(st.lists(st.lists(rows, min_size=1, max_size=4), max_size=40), st.sampled_from([0, 1, 2]), st.data())
def test_indexes_by_rule_b4(tmp_path_factory, batches, magic, data):
    """Byte for byte, timestamps going up and down, with closing and reopening in between."""
    log_dir = tmp_path_factory.mktemp("b4")
    codec = data.draw(st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4]))
    reopenings = data.draw(st.sets(st.integers(0, 39)))
    writer = open_writer(log_dir)
    for number, batch in enumerate(batches):
        if number in reopenings:
            writer.close()
            writer = open_writer(log_dir)
        Producer(writer, magic=magic, codec=codec).send(batch)
    writer.close()
    assert check_indexes(log_dir) >= 1


def test_first_index_entry_is_never_at_position_0(tmp_path):
    """Spec disk B4, and exactly at the interval there is no entry yet: it must be exceeded."""
    size = len(encode_batch([Record(0, 0, b"k", b"v")], base_offset=0))
    with open_writer(tmp_path, index_interval_bytes=2 * size) as writer:
        for n in range(5):
            Producer(writer).put(b"k", b"v", n)
    assert contents(tmp_path)["00000000000000000000.index"] == struct.pack(">ii", 3, 3 * size)
    expected = struct.pack(">qiqi", 3, 3, 4, 4)
    assert contents(tmp_path)["00000000000000000000.timeindex"] == expected


def test_snapshot_at_every_roll_and_at_the_end(tmp_path):
    """Spec disk B7: one entry per producer, as of the base offset in the name."""
    with open_writer(tmp_path) as writer:
        first, second = Producer(writer, producer_id=7, producer_epoch=2), Producer(writer, producer_id=3)
        first.send([ProducerRecord(b"a", b"1", 10), ProducerRecord(b"b", b"1", 12)])
        writer.roll()
        second.begin()
        second.put(b"c", b"1", 11)
        writer.roll()
        first.put(b"a", b"2", 13)
        second.commit(14, coordinator_epoch=5)
        at_end = writer.producers
    found = contents(tmp_path)
    snapshots = {
        name: parse_producer_snapshot(found[name], int(name.partition(".")[0]))
        for name in found
        if name.endswith(".snapshot")
    }
    first_at_2 = ProducerEntry(7, 2, 1, 1, 1, 12, -1, -1)
    assert snapshots == {
        "00000000000000000002.snapshot": (first_at_2,),
        "00000000000000000003.snapshot": (ProducerEntry(3, 0, 0, 2, 0, 11, -1, 2), first_at_2),
        "00000000000000000005.snapshot": at_end,
    }
    assert at_end == (ProducerEntry(3, 0, 0, 2, 0, 14, 5, -1), ProducerEntry(7, 2, 2, 3, 0, 13, -1, -1))


def test_snapshot_of_a_log_without_producers_is_the_empty_one(tmp_path):
    """Spec disk B7: ten bytes."""
    with open_writer(tmp_path) as writer:
        Producer(writer).put(b"k", b"v")
        writer.roll()
    assert contents(tmp_path)["00000000000000000001.snapshot"].hex() == "000148674bc700000000"


def test_c077_transaction_index(tmp_path):
    """The log of case C077 gives its two entries, in the segment of the markers."""
    with open_writer(tmp_path, segment_bytes=10**6) as writer:
        one, two = Producer(writer, producer_id=1), Producer(writer, producer_id=2)

        def send(producer, *keys):
            producer.send([ProducerRecord(key.encode(), b"v") for key in keys])

        one.begin()
        two.begin()
        send(one, "1", "2")
        send(two, "2", "3")
        send(one, "3", "4")
        assert (one.commit(), two.commit()) == (6, 7)
        one.begin()
        send(one, "2", "3")
        assert one.abort() == 10
        two.begin()
        send(two, "4", "5")
        one.begin()
        send(one, "5", "6")
        assert (one.commit(), two.abort()) == (15, 16)
        two.begin()
        send(two, "6", "7")
        assert two.commit() == 19
    assert parse_txn_index(contents(tmp_path)["00000000000000000000.txnindex"]) == (
        AbortedTxn(1, 8, 10, 11),
        AbortedTxn(2, 11, 16, 17),
    )


def test_last_stable_offset_of_an_abort_is_that_of_the_other_open_transaction(tmp_path):
    """Spec disk B6, and the entry lies with the marker though the transaction began a segment earlier."""
    with open_writer(tmp_path) as writer:
        one, two = Producer(writer, producer_id=1), Producer(writer, producer_id=2)
        one.begin()
        one.put(b"a", b"1")
        two.begin()
        two.put(b"b", b"1")
        writer.roll()
        one.abort()
        two.abort()
    found = contents(tmp_path)
    assert "00000000000000000000.txnindex" not in found
    assert parse_txn_index(found["00000000000000000002.txnindex"]) == (
        AbortedTxn(1, 0, 2, 1),
        AbortedTxn(2, 1, 3, 4),
    )


@pytest.mark.parametrize("epoch", [0, 4])
def test_marker_without_a_transaction_leaves_no_entry(tmp_path, epoch):
    """As in Kafka. One of a higher epoch (fencing) clears what was known of the batches (rule A.4)."""
    with open_writer(tmp_path) as writer:
        if epoch:
            Producer(writer, producer_id=1).put(b"a", b"1", 3)
        producer = Producer(writer, producer_id=1, producer_epoch=epoch)
        producer.begin()
        producer.abort(5)
        assert writer.producers == (ProducerEntry(1, epoch, -1, -1, 0, 5, 0, -1),)
    assert not any(name.endswith(".txnindex") for name in contents(tmp_path))


@pytest.mark.parametrize(("expiration_ms", "left"), [(100, [2, 3]), (None, [1, 2, 3])])
def test_idle_producers_leave_with_the_next_snapshot(tmp_path, expiration_ms, left):
    """Rule 4.17: after that time exactly, and none that has a transaction open. Else snapshots would grow for ever."""
    options = {"producer_expiration_ms": expiration_ms, "clock": FixedNow(1100)}
    with open_writer(tmp_path, **options) as writer:
        Producer(writer, producer_id=1).put(b"a", b"1", 1000)
        Producer(writer, producer_id=2).put(b"a", b"2", 1001)
        owner = Producer(writer, producer_id=3)
        owner.begin()
        owner.put(b"a", b"3", 5)
        assert [entry.producer_id for entry in writer.producers] == [1, 2, 3]
        writer.roll()
        assert [entry.producer_id for entry in writer.producers] == left
    snapshot = parse_producer_snapshot(contents(tmp_path)["00000000000000000003.snapshot"], 3)
    assert [entry.producer_id for entry in snapshot] == left
    with open_writer(tmp_path) as writer:
        assert [entry.producer_id for entry in writer.producers] == left


def test_sequences_wrap(tmp_path):
    """Rule 0.7."""
    with open_writer(tmp_path) as writer:
        producer = Producer(writer, producer_id=1, next_sequence=2**31 - 1)
        producer.send([ProducerRecord(b"a", b"1"), ProducerRecord(b"b", b"1")])
        producer.put(b"c", b"1")
        assert writer.producers[0].last_sequence == 1


def test_empty_batches_count_for_the_producer_case_c090(tmp_path):
    """A header that compaction kept still carries the last sequence."""
    batch = encode_batch(
        [Record(0, 1, b"a", b"1"), Record(1, 2, b"b", b"1")],
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
    )
    with open_writer(tmp_path) as writer:
        writer.append(encode_empty_batch(parse_header(batch)))
        assert writer.log_end_offset == 2
        assert writer.producers == (ProducerEntry(1, 0, 1, 1, 1, 2, -1, -1),)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        encode_batch([Record(0, 0, b"k", b"v")], base_offset=0)[:-1],
        encode_batch([Record(0, 0, b"k", b"v")], base_offset=0) + b"x",
        encode_batch([Record(0, 0, b"k", b"v")], base_offset=0)[:-1] + b"x",
        encode_message(Record(0, 0, b"k", b"v"), magic=1) * 2,
    ],
)
def test_only_whole_right_batches_are_taken(tmp_path, batch):
    """Anything else is refused before a byte is written, and the writer goes on."""
    with open_writer(tmp_path) as writer:
        with pytest.raises(FormatError):
            writer.append(batch)
        Producer(writer).put(b"k", b"v")
    assert check_indexes(tmp_path) == 1


@pytest.mark.parametrize("offset", [0, 2])
def test_batches_start_at_the_log_end(tmp_path, offset):
    with open_writer(tmp_path) as writer:
        Producer(writer).put(b"k", b"v")
        with pytest.raises(ValueError, match="the log ends at 1"):
            writer.append(encode_batch([Record(offset, 0, b"k", b"v")], base_offset=offset))
        assert writer.log_end_offset == 1


def test_rolling_needs_the_lock_and_appending_does_not(tmp_path):
    """Architecture section 2; a roll refused leaves the log as it was."""
    with open_writer(tmp_path, lock_wait_s=0) as writer:
        producer = Producer(writer)
        producer.put(b"k", b"v" * 500)
        with LogDirLock(str(tmp_path)):
            producer.put(b"k", b"v")
            with pytest.raises(LockHeld):
                writer.roll()
            with pytest.raises(LockHeld):
                producer.put(b"k", b"v" * 500)
            with pytest.raises(LockHeld):
                open_writer(tmp_path, lock_wait_s=0)
        assert writer.log_end_offset == 2
        assert producer.put(b"k", b"v" * 500) == 2
        assert writer.active_base_offset == 2
    check_indexes(tmp_path)


def test_closed_segment_is_complete_before_its_follower_shows(tmp_path):
    """Invariant 2: at each call that a roll makes, a visible higher segment means finished lower files."""

    class Watching(RealFiles):
        def write(self, path, data):
            """Only `.log` makes a segment visible, and it comes after all of these."""
            logs = [name for name in self.list_names(writer.directory) if name.endswith(".log")]
            seen.append((os.path.basename(path), len(logs)))
            super().write(path, data)

    seen = []
    writer = open_writer(tmp_path)
    Producer(writer).put(b"k", b"v")
    writer._files = Watching()
    writer.roll()
    writer.close()
    expected = [
        "00000000000000000001.snapshot",
        "00000000000000000001.index",
        "00000000000000000001.timeindex",
    ]
    assert seen == [(name, 1) for name in expected]


def test_closed_writer_takes_nothing(tmp_path):
    writer = open_writer(tmp_path)
    writer.close()
    with pytest.raises(AssertionError):
        Producer(writer).put(b"k", b"v")


def test_fsync_covers_batches_files_and_directory(tmp_path, monkeypatch):
    """With `fsync`, every append and every file of a roll goes to stable storage."""
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    with open_writer(tmp_path, fsync=True) as writer:
        synced.clear()
        producer = Producer(writer, producer_id=1)
        producer.begin()
        producer.put(b"k", b"v")
        producer.abort()
        names = [os.path.basename(path) for path in synced]
        assert names == ["00000000000000000000.log"] * 2
        writer.roll()
        names = [os.path.basename(path) for path in synced[2:]]
    segment = ["00000000000000000000" + suffix for suffix in (".log", ".index", ".timeindex", ".txnindex")]
    assert names == [*segment, "00000000000000000002.snapshot", "t-0", "t-0"]
