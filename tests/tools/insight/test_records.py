"""Records as columns, against the plain Python reader: every field of every record, every selection."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.errors import BadUsage, CleanerdError, CorruptFile, LogUncleanable, SourceChanged
from cleanerd.format import names
from cleanerd.format.legacy import encode_message
from cleanerd.format.names import MAX_OFFSET
from cleanerd.format.record import Record
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.records import (
    HEADERS,
    KEY,
    VALUE,
    Columns,
    LogRange,
    open_log,
    read_columns,
    split,
)
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import GOLDEN, random_partition, segment
from tests.harness.logs.troubled import holder

LOGS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and not path.name.startswith("__"))
ISOLATIONS = ("read_uncommitted", "read_committed")


def rows(columns: Columns) -> list[Record]:
    assert columns.keys is not None
    assert columns.values is not None
    assert columns.headers is not None
    ends = columns.headers.offsets.tolist()
    return [
        Record(
            int(columns.offsets[row]),
            int(columns.timestamps_ms[row]),
            columns.keys.item(row),
            columns.values.item(row),
            tuple(
                (
                    (columns.headers.keys.item(at) or b"").decode(errors="surrogateescape"),
                    columns.headers.values.item(at),
                )
                for at in range(ends[row], ends[row + 1])
            ),
        )
        for row in range(len(columns))
    ]


def records(log: LogRange, **options) -> list[Record]:
    return [record for columns in read_columns(log, **options) for record in rows(columns)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", LOGS)
def test_what_a_broker_wrote(name: str, isolation: str) -> None:
    """All codecs, headers, nulls, LogAppendTime, transactions, compacted segments."""
    expected = list(read_records(str(GOLDEN / name), isolation=isolation))
    assert expected
    assert records(open_log(str(GOLDEN / name), isolation=isolation)) == expected


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_random_logs(isolation: str, tmp_path: Path) -> None:
    """Magic 0 and 1, wrappers, empty keys and values, batches without records."""
    total = 0
    for seed in range(60):
        partition = random_partition(tmp_path / f"t-{seed}", seed)
        expected = list(read_records(str(partition), isolation=isolation))
        found = records(open_log(str(partition), isolation=isolation))
        assert len(found) == len(expected), seed
        for mine, theirs in zip(found, expected, strict=True):
            # A message of magic 1 in a wrapper of magic 0 (KAFKA-4298) has no timestamp here, as in a cleaning.
            assert mine in (theirs, replace(theirs, timestamp_ms=-1)), seed
        total += len(expected)
    assert total > 1000


def test_timestamp_types(tmp_path: Path) -> None:
    """0 CreateTime, 1 LogAppendTime, -1 in magic 0, as Kafka's clients say."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    messages = [encode_message(Record(n, 1000 + n, b"k", b"v"), magic=n) for n in range(2)]
    messages.append(encode_message(Record(2, 1002, b"k", b"v"), magic=1, log_append_time=True))
    segment(partition, 0).write_bytes(b"".join(messages))
    found = [kind for columns in read_columns(open_log(str(partition))) for kind in columns.timestamp_types]
    assert found == [-1, 0, 1]
    log = open_log(str(GOLDEN / "append-time-0"))
    assert {int(kind) for columns in read_columns(log) for kind in columns.timestamp_types} == {1}


@pytest.mark.parametrize("name", LOGS)
def test_any_range_of_offsets(name: str) -> None:
    """From inside of batches to inside of batches, by the index."""
    expected = list(read_records(str(GOLDEN / name)))
    end = expected[-1].offset + 2
    for start in range(end):
        for stop in (start, start + 1, start + 5, MAX_OFFSET):
            found = records(open_log(str(GOLDEN / name), start_offset=start, end_offset=stop))
            assert found == [record for record in expected if start <= record.offset < stop]


@pytest.mark.parametrize("max_bytes", [1, 300, 700, 1 << 30])
def test_parts_make_up_the_log(max_bytes: int) -> None:
    """Cut at the entries of the index; small segments share a part; each travels to another process."""
    path = str(GOLDEN / "idempotent-0")
    parts = split(open_log(path), max_bytes)
    assert len(parts) == {1: 7, 1 << 30: 1}.get(max_bytes, len(parts))
    assert all(part.size_bytes > 0 for part in parts)
    assert sum(part.size_bytes for part in parts) == open_log(path).size_bytes
    found = [records(pickle.loads(pickle.dumps(part))) for part in parts]
    assert [record for some in found for record in some] == list(read_records(path))
    for part, some in zip(parts, found, strict=True):
        assert all(part.start_offset <= record.offset < part.end_offset < MAX_OFFSET for record in some)
    inner = split(open_log(path, start_offset=3, end_offset=11), max_bytes)
    assert [record.offset for part in inner for record in records(part)] == list(range(3, 11))
    assert (inner[0].start_offset, inner[-1].end_offset) == (3, 11)


def test_only_the_columns_that_are_asked_for() -> None:
    """The others are None."""
    log = open_log(str(GOLDEN / "plain-0"))
    for wanted in ((), (KEY,), (VALUE,), (HEADERS,), (KEY, HEADERS)):
        (columns,) = read_columns(log, columns=wanted)
        assert (columns.keys is not None) == (KEY in wanted)
        assert (columns.values is not None) == (VALUE in wanted)
        assert (columns.headers is not None) == (HEADERS in wanted)
        assert len(columns) == 16


def test_a_segment_that_goes_meanwhile(log_dir: Path) -> None:
    """Deleted, or exchanged by a cleaning: never half of one and half of the other."""
    log = open_log(str(log_dir / "plain-0"))
    path = segment(log_dir / "plain-0", 0)
    content = path.read_bytes()
    path.rename(path.with_suffix(".deleted"))
    with pytest.raises(SourceChanged, match="is gone"):
        records(log)
    path.write_bytes(content)
    with pytest.raises(SourceChanged, match="another file"):
        records(log)


def test_nothing_above_the_high_watermark(log_dir: Path) -> None:
    """Of a broker's directory; whatever lies there."""
    partition = log_dir / "plain-0"
    last = damage.starts(segment(partition, 0))[-1]
    watermark = int.from_bytes(segment(partition, 0).read_bytes()[last : last + 8])
    expected = [record for record in records(open_log(str(partition))) if record.offset < watermark]
    (log_dir / names.REPLICATION_CHECKPOINT).write_text(f"0\n1\nplain 0 {watermark}\n")
    damage.overwrite(segment(partition, 0), last + 70, b"\xff")
    os.truncate(segment(partition, 0), segment(partition, 0).stat().st_size - 3)
    assert records(open_log(str(partition))) == expected


def test_a_log_whose_high_watermark_is_not_written_down_is_not_empty(log_dir: Path) -> None:
    """Only what its broker will still write is worth waiting for: a thousand logs must not wait one after the other."""
    checkpoint, directory = log_dir / names.REPLICATION_CHECKPOINT, log_dir / "plain-0"
    checkpoint.write_text("0\n0\n")
    made_ns = directory.stat().st_mtime_ns

    def check(error: type[CleanerdError], why: str) -> None:
        for isolation in ISOLATIONS:
            with pytest.raises(
                error, match=f"replication-offset-checkpoint: has no entry for plain-0, {why}"
            ):
                open_log(str(directory), isolation=isolation)

    check(LogUncleanable, ".*no broker runs here")
    with holder(log_dir / names.LOCK):
        os.utime(checkpoint, ns=(made_ns, made_ns))
        check(SourceChanged, "so it is not known which records are committed$")
        os.utime(checkpoint, ns=(made_ns, made_ns + 2 * 10**9))
        check(LogUncleanable, ".*the broker has written the file since")
        checkpoint.unlink()
        check(SourceChanged, "so it is not known which records are committed$")
    assert records(open_log(str(log_dir / "__cluster_metadata-0"))) == []


def test_a_lost_transaction_index_is_no_reason_to_show_aborted_records(log_dir: Path) -> None:
    path = log_dir / "transactions-0"
    for index in path.glob("*.txnindex"):
        index.unlink()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    with pytest.raises(CorruptFile, match="the transaction of producer 1 that was aborted at offset"):
        open_log(str(path), isolation="read_committed")
    assert records(open_log(str(path)))


def test_what_is_no_partition(tmp_path: Path) -> None:
    """A log directory, an empty partition."""
    with pytest.raises(BadUsage):
        open_log(str(tmp_path / "logs"))
    (tmp_path / "t-0").mkdir()
    assert records(open_log(str(tmp_path / "t-0"))) == []
