"""Each rule of `doctor` finds its planted fault and nothing else; a healthy directory gives nothing."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.broker_agent.live_logs import OwnCleaner
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.format.batch import encode_batch
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.format.record import Record
from cleanerd.format.time_index import TimeIndex, render_time_index
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.metadata_log import find_metadata
from cleanerd.storage.stability import read_stability
from cleanerd.tools.insight.doctor import gather, sample
from cleanerd.tools.insight.doctor.facts import DAY_MS, HOUR_MS, BrokerFacts, Limits, Sample
from cleanerd.tools.insight.doctor.gather import Gathering
from cleanerd.tools.insight.doctor.rules import judge
from cleanerd.tools.insight.doctor.sample import Budget
from cleanerd.tools.insight.find import find
from tests.harness.kernels.reference import read_batches
from tests.harness.logs.logdirs import broker_log_dir, random_partition, segment
from tests.harness.logs.random_log import KEYS

NOW_MS = 1_800_000_000_000
COMPACT = ("t", "cleanup.policy", "compact")
LIMITS = Limits(least_bytes=1 << 20)
TP = TopicPartition("t", 0)
HEX = "0123456789abcdef0123456789abcdef"


def batch(offset: int, key: str | None, value: str | None, *, age_ms: int = HOUR_MS, **more: int) -> bytes:
    record = Record(
        offset,
        NOW_MS - age_ms,
        None if key is None else key.encode(),
        None if value is None else value.encode(),
    )
    return encode_batch([record], base_offset=offset, **more)


def put(
    directory: Path, base: int, *batches: bytes, age_ms: int = HOUR_MS, newest_ms: int | None = None
) -> None:
    """A segment with its indexes, last written so long ago."""
    directory.mkdir(exist_ok=True)
    for kind, content in (
        (FileKind.LOG, b"".join(batches)),
        (FileKind.OFFSET_INDEX, b""),
        (
            FileKind.TIME_INDEX,
            render_time_index(
                TimeIndex(np.array([NOW_MS - age_ms if newest_ms is None else newest_ms]), np.array([base])),
                base,
            ),
        ),
    ):
        path = segment(directory, base, kind)
        path.write_bytes(content)
        os.utime(path, ns=(0, (NOW_MS - age_ms) * 1_000_000))


def two(root: Path, topic: str = "t", age_ms: int = HOUR_MS) -> Path:
    """A closed segment and an active one, in which nothing is superseded."""
    directory = root / f"{topic}-0"
    put(directory, 0, batch(0, "a", "1", age_ms=age_ms), batch(1, "b", "1", age_ms=age_ms), age_ms=age_ms)
    put(directory, 2, batch(2, "c", "1"))
    return directory


def checkpoint(root: Path, name: str, offsets: dict[TopicPartition, int], age_ms: int = 0) -> None:
    path = root / f"{name}-checkpoint"
    path.write_bytes(render_offset_checkpoint(offsets))
    os.utime(path, ns=(0, (NOW_MS - age_ms) * 1_000_000))


def look(
    *roots: Path, topic_sets: Sequence[tuple[str, str, str]] = (COMPACT,), now_ms: int = NOW_MS
) -> BrokerFacts:
    configuration = resolve(read_sources(None, (), topic_sets))
    configuration = configuration.with_metadata(
        find_metadata(RealFiles(), list(map(str, roots)), str(roots[0]))
    )
    clock = FixedNow(now_ms)
    budget = Budget(clock, 1 << 30, 1e12, lambda *_: None)
    return Gathering(configuration, "--log-dir d", clock, LIMITS, budget).run(
        [str(root) for root in roots], (), ()
    )


def codes(broker: BrokerFacts, limits: Limits = LIMITS) -> list[str]:
    return [one.code for one in judge(broker, limits)]


def test_healthy(tmp_path: Path) -> None:
    """What a real broker left, and a compacted log that waits for nothing."""
    assert codes(look(broker_log_dir(tmp_path / "logs"), topic_sets=[])) == []
    (root := tmp_path / "one").mkdir()
    two(root)
    broker = look(root)
    assert codes(broker) == []
    assert broker.directories[0].logs[0].sample == Sample(records=3, keys=3)


def dead(root: Path) -> None:
    two(root, age_ms=7 * HOUR_MS)


def stuck(root: Path) -> None:
    two(root, age_ms=7 * HOUR_MS)
    checkpoint(root, "cleaner-offset", {TP: 0}, age_ms=HOUR_MS)


def deadline(root: Path) -> None:
    two(root, age_ms=3 * HOUR_MS)


def old(root: Path) -> None:
    two(root, age_ms=9 * HOUR_MS)
    checkpoint(root, "cleaner-offset", {TP: 2}, age_ms=HOUR_MS)


def above_high_watermark(root: Path) -> None:
    directory = two(root, age_ms=7 * HOUR_MS)
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    checkpoint(root, "replication-offset", {TP: 1})
    checkpoint(root, "recovery-point-offset", {TP: 3})


def transaction(root: Path) -> None:
    directory = two(root, age_ms=3 * HOUR_MS)
    opened = batch(
        2, "c", "1", age_ms=2 * HOUR_MS, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0
    )
    put(directory, 2, opened)


def future(root: Path) -> None:
    put(root / "t-0", 0, batch(0, "a", "1", age_ms=-2 * DAY_MS), newest_ms=NOW_MS + 2 * DAY_MS)
    put(root / "t-0", 1, batch(1, "b", "1"))


def not_rolled(root: Path) -> None:
    put(root / "t-0", 0, *(batch(number, "a", "x" * 100_000) for number in range(20)))


def tombstone(root: Path) -> None:
    put(root / "t-0", 0, batch(0, "a", None, delete_horizon_ms=NOW_MS - 2 * DAY_MS))
    put(root / "t-0", 1, batch(1, "b", "1"))
    checkpoint(root, "cleaner-offset", {TP: 1})


def duplicates(root: Path) -> None:
    put(root / "t-0", 0, *(batch(number, "a", "x" * 100_000) for number in range(20)))
    put(root / "t-0", 20, batch(20, "b", "1"))


def cleaned_duplicates(root: Path) -> None:
    duplicates(root)
    checkpoint(root, "cleaner-offset", {TP: 20})


def no_key(root: Path) -> None:
    two(root)
    put(root / "t-0", 2, batch(2, None, "1"))


def left(place: str) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        two(root)
        path = root / place.format(f"{0:020d}")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(batch(0, "a", "1"))

    return plant


def broker_without_id(root: Path) -> None:
    above_high_watermark(root)
    (root / "meta.properties").unlink()
    checkpoint(root, "replication-offset", {TP: 3})


PLANTED: dict[str, tuple[Callable[[Path], object], Sequence[tuple[str, str, str]]]] = {
    "cleaner_dead": (dead, [COMPACT]),
    "cleaner_stuck": (stuck, [COMPACT]),
    "deadline_missed": (deadline, [COMPACT, ("t", "max.compaction.lag.ms", str(HOUR_MS))]),
    "held_back": (above_high_watermark, [COMPACT]),
    "open_transaction": (transaction, [COMPACT]),
    "future_timestamps": (future, [COMPACT]),
    "active_segment": (not_rolled, [COMPACT]),
    "retention_overdue": (
        old,
        [("t", "cleanup.policy", "compact,delete"), ("t", "retention.ms", str(HOUR_MS))],
    ),
    "tombstones_overdue": (tombstone, [COMPACT]),
    "superseded": (cleaned_duplicates, [COMPACT]),
    "first_cleaning": (duplicates, [COMPACT]),
    "no_keys": (no_key, [COMPACT]),
    "left_alone": (broker_without_id, [COMPACT, ("t", "min.cleanable.dirty.ratio", "1")]),
    "unknown_topics": (two, []),
}


@pytest.mark.parametrize("code", PLANTED)
def test_each_rule_finds_its_fault_and_no_other(code: str, tmp_path: Path) -> None:
    plant, settings = PLANTED[code]
    plant(tmp_path)
    found = judge(look(tmp_path, topic_sets=settings), LIMITS)
    assert [one.code for one in found] == [code]
    assert found[0].evidence
    assert found[0].remedy
    assert "kafka-delete-records" not in found[0].remedy  # refused without the policy delete


def test_a_live_broker_knows_at_once_what_its_files_show_late(tmp_path: Path) -> None:
    """Its agent says which cleaner threads are dead, and which logs they have given up."""
    two(tmp_path)
    two(tmp_path, "u", age_ms=7 * HOUR_MS)
    broker = look(tmp_path, topic_sets=[COMPACT, ("u", "cleanup.policy", "compact")])
    assert codes(broker) == ["cleaner_dead"]  # of u by its files

    def said(dead_threads: int, *uncleanable: str) -> list[tuple[str, str | None]]:
        own = OwnCleaner(dead_threads, frozenset(TopicPartition(one, 0) for one in uncleanable))
        directories = (replace(broker.directories[0], own_cleaner=own),)
        return [
            (one.code, one.place.topic) for one in judge(replace(broker, directories=directories), LIMITS)
        ]

    assert said(0) == [("cleaner_stuck", "u")]
    assert said(1, "t") == [("cleaner_dead", None)]
    assert said(0, "u") == [("cleaner_stuck", "u")]
    assert sorted(said(0, "t")) == [("cleaner_stuck", "t"), ("cleaner_stuck", "u")]
    assert said(0, "gone", "u") == [("cleaner_stuck", "u")]


def test_a_cleaner_that_is_at_a_large_log_for_hours_is_not_dead(tmp_path: Path) -> None:
    dead(tmp_path)
    cleaned = two(tmp_path, "u") / f"{0:020d}.log.cleaned"
    for age_ms, code, why in (
        (HOUR_MS // 2, "cleaner_stuck", "the cleaner is busy with u-0"),
        (2 * HOUR_MS, "cleaner_dead", "is not there"),
    ):
        cleaned.touch()
        os.utime(cleaned, ns=(0, (NOW_MS - age_ms) * 1_000_000))
        found = judge(look(tmp_path, topic_sets=[COMPACT, ("u", "cleanup.policy", "compact")]), LIMITS)
        (one,) = [one for one in found if one.code.startswith("cleaner_")]
        assert (one.code, why in one.evidence) == (code, True)
    os.utime(cleaned.rename(tmp_path / "t-0" / cleaned.name), ns=(0, NOW_MS * 1_000_000))
    found_codes = codes(look(tmp_path))
    assert not [one for one in found_codes if one.startswith("cleaner_")], "what is being cleaned is not late"


def test_a_cleaner_thread_that_reads_a_large_log_has_written_nothing_yet(tmp_path: Path) -> None:
    """Its process shows whether it lives, also to whoever may not ask it."""
    dead(tmp_path)
    name = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    mine = name.read_text()
    with LogDirLock(str(tmp_path)):
        (one,) = judge(look(tmp_path), LIMITS)
        assert (one.code, "its broker has no cleaner thread" in one.evidence) == ("cleaner_dead", True)
        try:
            name.write_text("kafka-log-cleaner-thread-0"[:15])
            (one,) = judge(look(tmp_path), LIMITS)
        finally:
            name.write_text(mine)
    assert (one.code, "its broker's cleaner thread lives" in one.evidence) == ("cleaner_stuck", True)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("t-0/{}.log.deleted", "deleted_file"),
        ("t-0/{}.log.cleanerd", "staged"),
        (f"t-0.{HEX}-delete/{{}}.log", "delete_directory"),
        (f"t-0.{HEX}-future/{{}}.log", "future_directory"),
        (f"t-0.{HEX}-stray/{{}}.log", "stray_directory"),
    ],
)
def test_what_is_left_over(place: str, code: str, tmp_path: Path) -> None:
    """Once it has waited for longer than a broker lets it wait, which a change of its name begins; strays at once."""
    left(place)(tmp_path)
    now_ms = os.stat(tmp_path).st_ctime_ns // 1_000_000
    assert code in [one.code for one in look(tmp_path, now_ms=now_ms + 25 * HOUR_MS).directories[0].leftovers]
    found = look(tmp_path, now_ms=now_ms).directories[0].leftovers
    assert [one.code for one in found] == ([code] if code == "stray_directory" else [])
    (one, *_) = [
        one for one in judge(look(tmp_path, now_ms=now_ms + 25 * HOUR_MS), LIMITS) if one.code == code
    ]
    assert one.cost_bytes == len(batch(0, "a", "1"))


@pytest.mark.parametrize(
    ("topic", "policy", "code"),
    [
        ("connect-offsets", "delete", "state_is_deleted"),
        ("prod.connect-cluster-1-configs", "compact,delete", "state_is_deleted"),
        ("_schemas", "delete", "state_is_deleted"),
        ("debezium_connect_offsets", "delete", "state_is_deleted"),
        ("mm2-offsets.us.internal", "delete", "state_is_deleted"),
        ("__consumer_offsets", "delete", "state_is_deleted"),
        ("app-store-changelog", "delete", "state_is_deleted"),
        ("app-store-changelog", "compact,delete", None),
        ("connect-offsets", "compact", None),
        ("connect", "delete", None),
        ("dbhistory.inventory", "delete", "history_is_lost"),
        ("schema-changes.inventory", "compact", "history_is_lost"),
        ("order-status", "delete", None),
    ],
)
def test_policies_under_which_a_topic_loses_what_it_is_for(
    topic: str, policy: str, code: str | None, tmp_path: Path
) -> None:
    two(tmp_path, topic)
    (tmp_path / f"{topic}-1").mkdir()
    put(tmp_path / f"{topic}-1", 0, batch(0, "a", "1"))
    found = judge(look(tmp_path, topic_sets=[(topic, "cleanup.policy", policy)]), LIMITS)
    assert [(one.code, one.place.topic, one.place.partition) for one in found] == (
        [(code, topic, None)] if code else []
    )


def test_a_history_that_is_kept_as_a_whole_is_right(tmp_path: Path) -> None:
    two(tmp_path, "dbhistory.inventory")
    sets = [
        ("dbhistory.inventory", "cleanup.policy", "delete"),
        ("dbhistory.inventory", "retention.ms", "-1"),
    ]
    assert codes(look(tmp_path, topic_sets=sets)) == []


def test_internal_topics_that_take_long_to_load(tmp_path: Path) -> None:
    two(tmp_path, "__consumer_offsets")
    broker = look(tmp_path, topic_sets=[("__consumer_offsets", "cleanup.policy", "compact")])
    assert codes(broker) == []
    small = replace(LIMITS, internal_bytes=100)
    assert codes(broker, small) == ["large_internal"]
    (found,) = judge(replace(broker, release="4.1"), small)
    assert found.remedy.startswith("Kafka 4.1 before 4.1.2 may not load it once it is cleaned: upgrade")


def test_directories_that_are_filled_unevenly(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    two(tmp_path / "0", "u")
    put(tmp_path / "1" / "t-0", 0, *(batch(number, str(number), "x" * 100_000) for number in range(40)))
    broker = look(
        tmp_path / "0", tmp_path / "1", topic_sets=[(one, "cleanup.policy", "delete") for one in "tu"]
    )
    assert codes(broker) == ["skew"]
    assert codes(replace(broker, is_whole=False)) == []


def test_what_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    two(tmp_path)
    two(tmp_path, "u")
    path = segment(tmp_path / "u-0", 0)
    path.unlink()
    path.mkdir()
    broker = look(tmp_path, topic_sets=[COMPACT, ("u", "cleanup.policy", "compact")])
    assert [str(log.topic_partition) for log in broker.directories[0].logs] == ["t-0"]
    (unreadable,) = [one for one in judge(broker, LIMITS) if one.code == "unreadable"][-1:]
    assert f"`cleanerd verify --log-dir {tmp_path}` says" in unreadable.remedy  # which takes no settings


def test_the_estimate_holds_within_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the keys against all of them, with what a roll adds apart."""
    directory = tmp_path / "t-0"
    rows = [
        batch(number, f"key {number * number % 7919 % 3000}", "x" * (number % 50)) for number in range(20_000)
    ]
    put(directory, 0, *rows[:15_000])
    put(directory, 15_000, *rows[15_000:])
    (log,) = look(tmp_path).directories[0].logs
    exact = log.sample
    assert exact is not None
    assert (exact.records, exact.error_bytes) == (20_000, 0)
    monkeypatch.setattr(sample, "WHOLE_BYTES", 0)
    budget = Budget(FixedNow(NOW_MS), 1 << 30, 1e12, lambda *_: None)
    found = sample.take_sample(RealFiles(), log, 0, budget)
    assert 0 < found.error_bytes < exact.superseded_bytes
    whole = exact.superseded_bytes + exact.after_roll_bytes
    assert abs(found.superseded_bytes + found.after_roll_bytes - whole) <= 1.5 * found.error_bytes
    assert found.keys == pytest.approx(exact.keys, rel=0.5)
    sizes: dict[str, list[int]] = {}
    for number in range(15_000):
        sizes.setdefault(f"{number * number % 7919 % 3000}", []).append(len(rows[number]))
    assert exact.superseded_bytes == sum(sum(some[:-1]) for some in sizes.values())


def test_old_timestamps_that_are_written_today_are_no_fault(tmp_path: Path) -> None:
    """A copy of another cluster bears the times of its records."""
    old_ms = 1000 * DAY_MS
    opened = batch(
        1, "b", "1", age_ms=old_ms, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0
    )
    put(tmp_path / "t-0", 0, batch(0, "a", "1", age_ms=old_ms), age_ms=1000, newest_ms=NOW_MS - old_ms)
    put(tmp_path / "t-0", 1, opened, age_ms=0)
    sets = [("t", "cleanup.policy", "compact,delete"), ("t", "max.compaction.lag.ms", str(HOUR_MS))]
    assert codes(look(tmp_path, topic_sets=sets)) == []


def test_names_and_small_files_are_those_of_verify(tmp_path: Path) -> None:
    above_high_watermark(tmp_path)
    checkpoint(tmp_path, "replication-offset", {TP: 3})
    (tmp_path / "t-0" / "partition.metadata").unlink()
    (tmp_path / "backup").mkdir()
    found = {one.code: one.evidence for one in judge(look(tmp_path), replace(LIMITS, due_ms=DAY_MS))}
    assert found == {
        "foreign_directory": "expected TOPIC-PARTITION, found backup",
        "partition_metadata_missing": str(tmp_path / "t-0" / "partition.metadata"),
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_sample_agrees_with_find(seed: int, tmp_path: Path) -> None:
    """Over random logs of all magics and codecs, with transactions; a record has its share of its batch."""
    directory = random_partition(tmp_path / "t-0", seed)
    (log,) = look(tmp_path).directories[0].logs
    shares = {}
    for one in read_batches(segment(directory, 0).read_bytes()):
        for record in one.records:
            shares[record.offset] = len(one.data) / len(one.records)
    gone = [
        one.offset
        for one in find([str(tmp_path)], KEYS).occurrences
        if one.state in ("superseded", "aborted") and one.offset < log.last_stable_offset
    ]
    assert log.sample is not None
    assert log.sample.after_roll_bytes == pytest.approx(sum(shares[offset] for offset in gone), abs=1)
    assert log.sample.superseded_bytes == 0


def test_what_the_budget_does_not_cover_is_not_read(tmp_path: Path) -> None:
    """The largest log that fits comes first; headers and names are looked at all the same."""
    two(tmp_path)
    put(tmp_path / "u-0", 0, *(batch(number, "a", "x" * 1000) for number in range(20)))
    clock, sets = FixedNow(NOW_MS), [COMPACT, ("u", "cleanup.policy", "compact")]
    budget = Budget(clock, 10_000, 1e12, lambda *_: None)
    gathering = Gathering(resolve(read_sources(None, (), sets)), "", clock, LIMITS, budget)
    (small, large) = gathering.run([str(tmp_path)], (), ()).directories[0].logs
    assert (small.sample, large.sample) == (Sample(records=3, keys=3), None)


def test_an_interrupted_look_has_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Sample:
        raise KeyboardInterrupt

    above_high_watermark(tmp_path)
    monkeypatch.setattr(gather, "take_sample", interrupt)
    broker = look(tmp_path)
    assert broker.is_interrupted
    assert codes(broker) == ["held_back"]
    two(tmp_path, "u")
    monkeypatch.setattr(
        gather,
        "read_stability",
        lambda files, snapshot, **more: (
            interrupt() if snapshot.topic_partition.topic == "u" else read_stability(files, snapshot, **more)
        ),
    )
    broker = look(tmp_path, topic_sets=[COMPACT, ("u", "cleanup.policy", "compact")])
    assert (broker.is_interrupted, len(broker.directories[0].logs)) == (True, 1)
