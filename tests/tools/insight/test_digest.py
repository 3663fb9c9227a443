"""A digest of a log: what no right cleaning changes, and what every damage does (`insight.md`)."""

import os
import random
from pathlib import Path

import pytest

from cleanerd.format.batch import Record, encode_batch, iterate_batches
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.legacy import encode_wrapper
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.format.txn_index import AbortedTxn, render_txn_index
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight import digest
from cleanerd.tools.insight.digest import LogDigest, Question, digest_logs
from cleanerd.tools.insight.digest_report import Side, compare, log_row, sides_of
from cleanerd.tools.insight.digest_rows import Terms
from tests.harness.kernels import reference
from tests.harness.kernels.real_path import RealPath
from tests.harness.kernels.reference import Facts, Segment
from tests.harness.logs.logdirs import GOLDEN, segment
from tests.harness.logs.random_log import KEYS, NOW_MS, RETENTION_MS, LogSegment, RandomLog

ALL = frozenset(range(256))
EVERY = Question(wanted=ALL)


def of(directory: Path, question: Question | None = None) -> LogDigest:
    found = digest_logs([str(directory)], question or Question())
    assert found.failed == {}
    (log,) = found.logs
    return log


def why_none(directory: Path, question: Question | None = None) -> str:
    found = digest_logs([str(directory)], question or Question())
    assert found.logs == []
    (reason,) = found.failed.values()
    return reason


def write(directory: Path, data: bytes, aborted: list[AbortedTxn]) -> Path:
    directory.mkdir(parents=True)
    segment(directory, 0).write_bytes(data)
    txns = sorted(aborted, key=lambda txn: txn.last_offset)
    segment(directory, 0, FileKind.TXN_INDEX).write_bytes(render_txn_index(txns))
    return directory


# -- what no right cleaning changes --------------------------------------------------------------------------------


def settled_log(rng: random.Random, log: RandomLog, batches: int) -> None:
    """So many more batches, and the ends of all transactions."""
    log.append(batches)
    while any(producer.txn_first_offset is not None for producer in log.producers.values()):
        log._marker()


@pytest.mark.parametrize("seed", range(12))
def test_cleanings_to_random_degrees(seed: int, tmp_path: Path) -> None:
    """By our kernels and by the plain twin: tombstones and markers of any age, aborted records, codecs, old formats."""
    rng = random.Random(f"digest {seed}")
    log = RandomLog(rng, keys=rng.choice((KEYS, KEYS[:3])))
    cleaned, aborted, first_dirty, now_ms, number = b"", list[AbortedTxn](), 0, NOW_MS, 0
    ends = []
    for _ in range(4):
        settled_log(rng, log, rng.choice((3, 20, 40)))
        ends.append((log.next_offset, len(log.batches), len(log.aborted)))
    at, _, _ = ends[-1]
    whole = write(tmp_path / "whole" / "t-0", log.data, log.aborted)
    expected = of(whole, EVERY)
    newest = {
        record.key: record
        for record in read_records(str(whole), isolation="read_committed")
        if record.key is not None
    }
    alive = {key: record for key, record in newest.items() if record.value is not None}
    assert {one.key: one.offset for one in expected.listed} == {key: one.offset for key, one in alive.items()}
    number_of = of(whole)
    assert number_of.keys == expected.keys == len(alive)
    assert number_of.digest == sum(one.hash for one in expected.listed) % 2**128
    batches_before = 0
    for end, batches, txns in ends:
        new = b"".join(placed.data for placed in log.batches[batches_before:batches])
        new_aborted = [one for one in log.aborted[:txns] if one.last_offset >= first_dirty]
        segments = [LogSegment(0, cleaned + new)]
        facts = Facts(
            now_ms, rng.choice((now_ms + RETENTION_MS, None)), first_dirty, end, {}, (*aborted, *new_aborted)
        )
        for twin in (False, True):
            if twin:
                found = reference.clean(
                    [Segment(one.data, one.retain_legacy_deletes) for one in segments], facts
                )
            else:
                place = tmp_path / f"clean-{number}"
                place.mkdir()
                found = RealPath(place, segments, facts).clean()
            rest = b"".join(placed.data for placed in log.batches[batches:])
            later = [one for one in log.aborted if one.last_offset >= end]
            name = tmp_path / f"{number}-{twin}" / "t-0"
            copy = write(name, b"".join(found.segments) + rest, [*found.kept_aborted, *later])
            again = of(copy)
            assert (again.at, again.digest, again.sums) == (at, number_of.digest, number_of.sums), (
                seed,
                number,
                twin,
            )
        cleaned, aborted = b"".join(found.segments), list(found.kept_aborted)
        first_dirty, batches_before, number = end, batches, number + 1
        now_ms += rng.choice((0, RETENTION_MS + 1))


# -- what every damage does ----------------------------------------------------------------------------------------

TIME_MS = 1_700_000_000_000
PRODUCER = {"producer_id": 1, "producer_epoch": 0}


def data(
    offset: int, key: str, value: str | None, *, is_transactional: bool = False, **more: object
) -> bytes:
    headers = (("h", b"1"),) if key == "g" else ()
    fields = {"timestamp_ms": TIME_MS + offset, "headers": headers} | more
    record = Record(
        offset,
        fields["timestamp_ms"],
        key.encode(),
        None if value is None else value.encode(),
        fields["headers"],
    )
    producer = PRODUCER | {"base_sequence": offset, "transactional": True} if is_transactional else {}
    return encode_batch([record], base_offset=offset, **producer)


def marker(offset: int, kind: ControlType) -> bytes:
    return encode_end_txn_marker(kind, offset=offset, timestamp_ms=TIME_MS, coordinator_epoch=0, **PRODUCER)


COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
ABORTED = AbortedTxn(1, 4, 5, 6)
BATCHES = {
    0: data(0, "a", "1"),
    1: data(1, "b", "1"),
    2: data(2, "c", "1", is_transactional=True),
    3: marker(3, COMMIT),
    4: data(4, "d", "1", is_transactional=True),
    5: marker(5, ABORT),
    6: data(6, "e", "1"),
    7: data(7, "a", "2"),
    8: data(8, "f", "1"),
    9: data(9, "f", None),
    10: data(10, "g", "1"),
    11: data(11, "h", "1", is_transactional=True),
    12: marker(12, COMMIT),
    13: data(13, "i", "1"),
    15: data(15, "j", "1"),
}
"""By offset. Offset 14 is free; the end is 16."""
DAMAGES: dict[str, tuple[dict[int, bytes | None], str]] = {
    "a key is lost": ({6: None}, "e"),
    "an old value is back": ({7: None}, "a"),
    "an aborted record is committed": ({5: marker(5, COMMIT)}, "d"),
    "a control batch is lost": ({3: None}, "c"),
    "a committed transaction is aborted": ({12: marker(12, ABORT)}, "h"),
    "a tombstone went before its value": ({9: None}, "f"),
    "an offset is moved": ({13: None, 14: data(14, "i", "1", timestamp_ms=TIME_MS + 13)}, "i"),
    "a header is changed": ({10: data(10, "g", "1", headers=(("h", b"2"),))}, "g"),
    "a header lost its value": ({10: data(10, "g", "1", headers=(("h", None),))}, "g"),
    "a time is changed": ({6: data(6, "e", "1", timestamp_ms=TIME_MS)}, "e"),
    "a value is changed": ({6: data(6, "e", "2")}, "e"),
    "a value is empty": ({6: data(6, "e", "")}, "e"),
    "a key is changed": ({6: data(6, "x", "1")}, "ex"),
    "the newest record is there twice": ({14: data(14, "i", "1")}, "i"),
    "a committed record of a transaction is lost": ({2: None}, "c"),
}


def damaged(directory: Path, changes: dict[int, bytes | None]) -> Path:
    batches = {**BATCHES, **changes}
    aborted = [] if changes.get(5) else [ABORTED]
    if 12 in changes:
        aborted.append(AbortedTxn(1, 11, 12, 13))
    return write(directory / "t-0", b"".join(batches[at] or b"" for at in sorted(batches)), aborted)


def side(directory: Path, question: Question = EVERY) -> Side:
    return Side(str(directory), question.terms, question.wanted, log_row(of(directory, question)))


@pytest.mark.parametrize("what", DAMAGES)
def test_every_damage_is_found_with_its_key(what: str, tmp_path: Path) -> None:
    changes, keys = DAMAGES[what]
    sides = [side(damaged(tmp_path / "sound", {})), side(damaged(tmp_path / "damaged", changes))]
    (found,) = compare(sides)
    assert found.result == "differs"
    assert found.keys is not None
    assert "".join(row["key"] for row in found.keys) == keys
    assert of(Path(sides[0].report)).digest != of(Path(sides[1].report)).digest


@pytest.mark.parametrize("part_bytes", [1, digest._PART_BYTES])
@pytest.mark.parametrize("with_offsets", [True, False])
def test_an_abort_marker_that_is_lost_has_no_digest(
    with_offsets: bool, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers would leave out what its producer commits later: the number would stay, and be wrong."""
    directory = damaged(tmp_path, {5: None})
    index = b"".join(n.to_bytes(4) for n in (6, sum(len(BATCHES[at]) for at in range(5))))
    segment(directory, 0, FileKind.OFFSET_INDEX).write_bytes(index)
    monkeypatch.setattr(digest, "_PART_BYTES", part_bytes)
    reason = why_none(directory, Question(Terms(with_offsets=with_offsets)))
    assert reason.startswith(
        "the record of producer 1 at offset 4 is aborted, and the marker that says so is gone"
    )


@pytest.mark.parametrize("part_bytes", [1, 100, 300])
@pytest.mark.parametrize("changes", [{}, {3: None}, {2: None}])
def test_where_a_log_is_cut_makes_no_difference(
    changes: dict[int, bytes | None], part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers, and newer records, that lie in other parts count alike; so do the buckets of the exchange."""
    directory = damaged(tmp_path, changes)
    expected = of(directory, EVERY)
    index = b"".join(
        base.to_bytes(4) + position.to_bytes(4)
        for position, _, _ in iterate_batches(segment(directory, 0).read_bytes())
        if (base := int.from_bytes(segment(directory, 0).read_bytes()[position : position + 8]))
    )
    segment(directory, 0, FileKind.OFFSET_INDEX).write_bytes(index)
    monkeypatch.setattr(digest, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(digest, "_BUCKET_RECORDS", 2)
    again = of(directory, EVERY)
    assert (again.sums, again.listed, again.keys) == (expected.sums, expected.listed, expected.keys)


# -- what may be compared ------------------------------------------------------------------------------------------


DENSE: dict[int, bytes | None] = {14: data(14, "k", "1")}
"""As logs are before a cleaning: no offset is missing."""


def put_checkpoint(directory: Path, name: str, offset: int) -> None:
    (directory.parent / name).write_bytes(render_offset_checkpoint({TopicPartition("t", 0): offset}))


def test_bounds_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    """Above what is decided, below what a cleaning has looked at, before the log start."""
    directory = damaged(tmp_path, DENSE)
    assert "is decided up to offset 16, not to 17" in why_none(directory, Question(at=17))
    put_checkpoint(directory, "cleaner-offset-checkpoint", 10)
    put_checkpoint(directory, "log-start-offset-checkpoint", 2)
    for at in (0, 5, 9):
        assert "may be cleaned up to offset 10" in why_none(directory, Question(at=at))
    assert "begins at offset 2, not at 1; ask --from 2" in why_none(directory, Question(start=1))
    assert "ends at offset 16 here, and --from 17 lies above it" in why_none(directory, Question(start=17))
    found = of(directory, Question(at=14, start=7, wanted=ALL))
    assert {one.key: one.offset for one in found.listed} == {b"a": 7, b"g": 10, b"h": 11, b"i": 13}


def test_a_cleaning_beyond_the_high_watermark_that_was_last_written(tmp_path: Path) -> None:
    """A broker writes that one down every few seconds, the other at once: no entry passes for a stale one."""
    directory = damaged(tmp_path, {0: None})
    put_checkpoint(directory, "cleaner-offset-checkpoint", 17)
    for at in (None, 16):
        assert (
            "may be cleaned up to offset 17: what is decided was last written down for offset 16"
            in why_none(directory, Question(at=at))
        )


def test_a_cleaning_that_did_not_end_may_have_looked_at_all_that_was_closed(tmp_path: Path) -> None:
    """Nothing but the times of its new segments shows it, once its broker was killed and has started again."""
    directory = damaged(tmp_path, DENSE)
    assert of(directory, Question(at=7)).keys == 4
    for base, limit in (0, 7), (7, 13), (13, 16):
        segment(directory, base).write_bytes(
            b"".join(found for at, found in sorted({**BATCHES, **DENSE}.items()) if base <= at < limit)
        )
    (directory / f"{0:020d}.log.cleaned").touch()
    assert of(directory, Question(at=7)).keys == 4, "a cleaning that only writes may take hours"
    os.utime(segment(directory, 0), (TIME_MS / 1000, TIME_MS / 1000))  # as a cleaning does
    later_ns = segment(directory, 0).stat().st_ctime_ns + 10**9
    os.utime(segment(directory, 13), ns=(later_ns, later_ns))
    assert "may be cleaned up to offset 13" in why_none(directory, Question(at=7))
    os.utime(segment(directory, 7), ns=(later_ns, later_ns))
    assert "may be cleaned up to offset 7:" in why_none(directory, Question(at=5))
    assert of(directory, Question(at=7)).keys == 4
    for base in (7, 13):
        os.utime(segment(directory, base), (TIME_MS / 1000, TIME_MS / 1000))
    assert "may be cleaned up to offset 13" in why_none(directory, Question(at=7))
    assert of(directory).at == 16


def test_no_cleaning_looks_behind_the_open_transaction_that_its_broker_has_written_down_since(
    tmp_path: Path,
) -> None:
    directory = damaged(tmp_path, {12: None})
    whole = segment(directory, 0).read_bytes()
    segment(directory, 13).write_bytes(batches := b"".join(BATCHES[at] for at in BATCHES if at >= 13))
    segment(directory, 0).write_bytes(whole.removesuffix(batches))
    put_checkpoint(directory, "replication-offset-checkpoint", 16)
    os.utime(segment(directory, 0), (TIME_MS / 1000, TIME_MS / 1000))
    assert "may be cleaned up to offset 13: what is decided was last" in why_none(directory)
    written_ns = segment(directory, 13).stat().st_ctime_ns + 10**10
    os.utime(directory.parent / "replication-offset-checkpoint", ns=(written_ns, written_ns))
    assert of(directory).at == 11


def test_what_another_replica_cleaned_is_compared_at_its_end_only(tmp_path: Path) -> None:
    """It was fetched with gaps, the first at its beginning; up to where its leader was cleaned shows nowhere."""
    directory = damaged(tmp_path, {0: None, 8: None})
    put_checkpoint(directory, "log-start-offset-checkpoint", 1)
    assert "lacks offsets from 9 on, which no cleaning here took" in why_none(directory, Question(at=12))
    assert "ask --at 16" in why_none(directory, Question(at=12))
    assert of(directory).at == 16
    put_checkpoint(directory, "log-start-offset-checkpoint", 0)
    assert "lacks offsets from 1 on" in why_none(directory, Question(at=12))
    put_checkpoint(directory, "cleaner-offset-checkpoint", 8)
    assert "lacks offsets from 9 on" in why_none(directory, Question(at=12))
    put_checkpoint(directory, "cleaner-offset-checkpoint", 9)  # its own cleaning took them; 14 is above
    assert "lacks offsets from 15 on" in why_none(directory, Question(at=12))


@pytest.mark.parametrize("gone", [None, 0, 6])
def test_a_legacy_wrapper_does_not_say_where_it_begins(gone: int | None, tmp_path: Path) -> None:
    """So its records are looked at: one that lacks none is no gap, one that lacks some is, between batches of any kind."""
    records = [Record(at, TIME_MS, str(at).encode(), b"1", ()) for at in range(12)]
    wrappers = [
        encode_wrapper([one for one in records[low:high] if one.offset != gone], magic=1, codec=Codec.GZIP)
        for low, high in ((0, 3), (5, 8), (8, 11))
    ]
    between = [data(3, "3", "1"), data(4, "4", "1")]
    whole = b"".join([wrappers[0], *between, *wrappers[1:], data(11, "11", "1")])
    directory = write(tmp_path / "t-0", whole, [])
    if gone is None:
        assert of(directory, Question(at=6)).keys == 6
    else:
        assert "lacks offsets from" in why_none(directory, Question(at=8))
    put_checkpoint(directory, "cleaner-offset-checkpoint", 7)
    assert of(directory, Question(at=8)).keys == 8 - (gone is not None)


def test_an_open_transaction_ends_what_is_decided(tmp_path: Path) -> None:
    directory = damaged(tmp_path, {12: None})
    assert of(directory).at == 11
    assert "an open transaction" in why_none(directory, Question(at=16))


def test_replicas_get_common_bounds(tmp_path: Path) -> None:
    """One was cut by retention, another one is behind."""
    one, other = damaged(tmp_path / "1", DENSE), damaged(tmp_path / "2", {0: None, 1: None, 15: None})
    put_checkpoint(other, "log-start-offset-checkpoint", 2)
    found = digest_logs([str(one), str(other)], EVERY)
    assert [(log.start, log.at) for log in found.logs] == [(2, 14), (2, 14)]
    assert found.logs[0].digest == found.logs[1].digest
    sides = [Side(log.directory, Terms(), ALL, log_row(log)) for log in (of(one), of(other))]
    (compared,) = compare(sides)
    assert (compared.result, compared.why) == (
        "not_comparable",
        "one is at offset 16, the other at 14; ask both --at 14",
    )
    sides = [Side(str(path), Terms(), ALL, log_row(of(path, Question(at=14)))) for path in (one, other)]
    assert compare(sides)[0].why == "one begins at offset 0, the other at 2; ask both --from 2"


def test_copies_in_another_cluster(tmp_path: Path) -> None:
    """Other offsets, times, transactions; the same keys, values and headers."""
    source = damaged(tmp_path / "source", {})
    rows = [
        ("b", "1"),
        ("x", "1"),
        ("j", "1"),
        ("a", "2"),
        ("c", "1"),
        ("e", "1"),
        ("g", "1"),
        ("h", "1"),
        ("x", None),
    ]
    copied = [data(3 + at, key, value) for at, (key, value) in enumerate([*rows, ("i", "1")])]
    target = write(tmp_path / "target" / "t-0", b"".join(copied), [])
    question = Question(Terms(with_offsets=False), wanted=ALL)
    sides = [side(path, question) for path in (source, target)]
    assert [one.result for one in compare(sides)] == ["equal"]
    both = digest_logs([str(source), str(target)], question)  # each has bounds of its own
    assert [one.result for one in compare(sides_of(both, question))] == ["equal"]
    assert of(source).digest != of(target).digest


def test_records_without_a_key(tmp_path: Path) -> None:
    """Of a log without keys all count; in others they are counted apart, for a cleaning takes them."""

    def no_key(offset: int, value: str) -> bytes:
        return encode_batch([Record(offset, TIME_MS, None, value.encode())], base_offset=offset)

    one = write(tmp_path / "1" / "t-0", no_key(0, "a") + no_key(1, "b"), [])
    other = write(tmp_path / "2" / "t-0", no_key(1, "b"), [])
    assert of(one).no_key[0] == 2
    assert [found.result for found in compare([side(one), side(one)])] == ["equal"]
    assert [found.result for found in compare([side(one), side(other)])] == ["differs"]
    hidden = {
        "tombstone": (data(0, "t", None), [], data(0, "t", None)),
        "aborted": (BATCHES[4] + marker(5, ABORT), [ABORTED], b""),
    }
    for name, (before, aborted, after) in hidden.items():
        whole = write(tmp_path / name / "t-0", before + no_key(6, "a") + no_key(7, "b"), aborted)
        cleaned = write(tmp_path / f"{name} cleaned" / "t-0", after + no_key(7, "b"), [])
        put_checkpoint(cleaned, "cleaner-offset-checkpoint", 7)
        (found,) = compare([side(whole), side(cleaned)])
        assert (found.result, found.why) == (
            "equal",
            "records without a key differ: 2 and 1; a cleaning removes them",
        )
    put_checkpoint(other, "cleaner-offset-checkpoint", 1)  # it took the first one, and maybe its tombstones
    (found,) = compare([side(one), side(other)])
    assert (found.result, found.why) == (
        "not_comparable",
        "records without a key differ: 2 and 1; whether a cleaning took them is not known",
    )
    put_checkpoint(other, "cleaner-offset-checkpoint", 2)  # a cleaning would have taken what is left
    assert [found.result for found in compare([side(one), side(other)])] == ["differs"]
    mixed, keys = damaged(tmp_path / "mixed", {14: no_key(14, "a")}), damaged(tmp_path / "keys", {})
    (found,) = compare([side(keys), side(mixed)])  # no cleaning was here
    assert (found.result, found.why) == ("differs", "records without a key differ: 0 and 1")
    put_checkpoint(keys, "cleaner-offset-checkpoint", 15)
    (found,) = compare([side(keys), side(mixed)])
    assert (found.result, found.why) == (
        "equal",
        "records without a key differ: 0 and 1; a cleaning removes them",
    )


def test_another_seed_is_another_number(tmp_path: Path) -> None:
    directory = damaged(tmp_path, {})
    assert of(directory).digest != of(directory, Question(Terms(seed=1))).digest
    one = of(directory, Question(Terms(buckets=1)))
    assert one.digest == of(directory).digest
    assert list(one.sums) == [0]
    sides = [side(directory), side(directory, Question(Terms(seed=1), wanted=ALL))]
    assert compare(sides)[0].result == "not_comparable"


@pytest.mark.soak
def test_on_spark_it_is_the_same(tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go through files, and buckets are resolved by other processes."""
    spark.stop()  # a digest has a session of its own
    logs = [
        str(damaged(tmp_path, {})),
        *(str(GOLDEN / name) for name in ("transactions-0", "zstd-0", "cleaned-0")),
    ]
    expected = digest_logs(logs, EVERY)
    monkeypatch.setattr(digest, "INLINE_BYTES", 0)
    monkeypatch.setattr(digest, "_BUCKET_RECORDS", 2)
    assert digest_logs(logs, EVERY) == expected
