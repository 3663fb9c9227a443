"""What every release has to pass, as short as can be: written, cleaned, loaded, read and swapped by its own broker.

A broker writes a few topics: all codecs, tombstones, headers, records without a key, transactions with aborts, one that
stays open, expired producers, deleted records. Its own cleaner makes two passes, a day apart. cleanerd makes them over the
same bytes while no broker runs, and the first one once more beside a live broker: half of the topics are staged, to be
committed after its stop, the other half is swapped in.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cleanerd.broker_agent.live_logs import OwnCleaner
from cleanerd.broker_agent.session import Session
from cleanerd.cli.main import main
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from tests.harness.broker.agreement import (
    Pass,
    check_readers,
    check_with_broker,
    disagreements,
    dumps,
    make_passes,
)
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import warnings
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.origin import write_phases
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import CleanResult, clean, copy_log_dir, log_dirs_in, partition_dir
from tests.harness.broker.workload import DAY_MS, Phase, TopicPlan, plan_topic
from tests.harness.ctl import captured

SEEDS = (1, 12, 2, 13, 9, 15, 29, 34)
"""Codecs and transactions of both clients, records without a key, an open transaction, expired producers, a log start."""
AGES_MS = (0, DAY_MS)
STAGED, SWAPPED = "off", "auto"


@dataclass(frozen=True, slots=True)
class Proof:
    """What is wrong with each part, in words: nothing, if all is well."""

    cleaned: list[str]
    loaded: list[str]
    swapped: list[str]

    @property
    def faults(self) -> list[str]:
        return [*self.cleaned, *self.loaded, *self.swapped]


def prove(root: Path, seeds: Sequence[int] = SEEDS) -> Proof:
    """Everything on the current release, in the new directory `root`."""
    build_agent()
    plans, place = [plan_topic(seed) for seed in seeds], root / "logs"
    place.mkdir(parents=True)
    write_phases(root / "writing", place, [(plan, Phase.ONLY) for plan in plans])
    passes = make_passes(place, plans, root / "theirs", AGES_MS)
    cleaned = [
        f"{text} (pass {number})"
        for number, made in enumerate(passes, 1)
        for text in disagreements(made, plans, root / f"ours-{number}")
    ]
    loaded = _faults(lambda: _load(root / "loading", root / "ours-2", passes[1], plans))
    swapped = _faults(lambda: _beside(root, passes[0], plans))
    return Proof(cleaned, loaded, swapped)


def _load(work_dir: Path, ours: Path, made: Pass, plans: Sequence[TopicPlan]) -> None:
    """The broker starts on what was committed without it."""
    check_with_broker(work_dir, ours, dumps(made.before, plans))


def _beside(root: Path, made: Pass, plans: Sequence[TopicPlan]) -> None:
    """The pass beside a live broker; the records are those that its own cleaner leaves."""
    place, before = root / "live", dumps(made.before, plans)
    copy_log_dir(made.before, place)
    waiting, at_once = plans[0::2], plans[1::2]
    with KafkaBroker(root / "beside", log_dirs_in(place)) as broker:
        staged = _clean(place, waiting, made, STAGED)
        swapped = _clean(place, at_once, made, SWAPPED)
        check_readers(broker, place, before)
        _check_healthy(place, plans, broker)
        complaints = warnings(broker)
    assert complaints == [], complaints
    _check_rows(swapped, at_once, "committed", "swap")
    _check_rows(staged, waiting, "staged", None)
    committed = _clean(place, waiting, made, STAGED)
    _check_rows(committed, waiting, "committed", "lock")
    for plan in plans:
        theirs = dump_partition(partition_dir(made.after, plan.directory))
        ours = dump_partition(partition_dir(place, plan.directory))
        assert ours.records == theirs.records, f"{plan.topic}: other records than its own cleaner leaves"
    check_with_broker(root / "again", place, before)


def _clean(place: Path, plans: Sequence[TopicPlan], made: Pass, live: str) -> CleanResult:
    """Some topics, at the time of the broker's cleaning."""
    topics = [word for plan in plans for word in ("--topic", plan.topic)]
    settings = ("--set", f"cleanerd.commit.live={live}", "--set", "cleanerd.broker.agent.untested=true")
    result = clean(place, plans, *topics, *settings, "--now-ms", str(made.ended_ms))
    assert result.exit_code == 0, result.messages
    return result


def _check_rows(result: CleanResult, plans: Sequence[TopicPlan], outcome: str, way: str | None) -> None:
    rows = [result.rows[plan.directory] for plan in plans]
    assert {row["outcome"] for row in rows} <= {outcome, "unchanged"}, rows
    assert outcome in {row["outcome"] for row in rows}, rows
    assert {row["committed_by"] for row in rows if row["outcome"] == "committed"} <= {way}, rows


def _faults(part: Callable[[], None]) -> list[str]:
    try:
        part()
    except AssertionError as error:
        return [str(error) or repr(error)]
    return []


def _check_healthy(place: Path, plans: Sequence[TopicPlan], broker: KafkaBroker) -> None:
    """`doctor` finds nothing but what was written so, and the agent says that the broker's own cleaner lives."""
    log_dirs = log_dirs_in(place)
    words = [f"--log-dir={log_dir}" for log_dir in log_dirs]
    words += [
        f"--topic-set={plan.topic}:{key}={value}"
        for plan in plans
        for key, value in plan.cleaner_config.items()
    ]
    ran = captured(main, ["doctor", *words, "-o", "json"])
    found = {(one["code"], one["topic"]) for one in json.loads(ran.stdout)["findings"]}
    expected = {("no_keys", plan.topic) for plan in plans if plan.scenario.null_keys}
    if broker.release.has_zookeeper:
        expected |= {("unknown_topics", None)}  # its own
    assert found == expected, (ran.stdout, ran.stderr)
    assert broker.pid is not None
    for log_dir in log_dirs:
        with closing(Session(broker.pid, str(log_dir), RealFiles(), SystemClock())) as session:
            assert OwnCleaner.of(session, str(log_dir)) == OwnCleaner(0, frozenset())
