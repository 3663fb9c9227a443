"""What one broker leaves behind, for all tests to copy.

`origin` holds a topic for every seed. The first half of the seeds was written in one phase. The second half
was written in two, with a cleaning by the broker between them: their logs have a clean head, a checkpoint,
delete horizons and kept empty batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from tests.broker.kafka import KafkaBroker
from tests.broker.logdump import dump_partition
from tests.broker.model import first_uncleanable_offset
from tests.broker.producers import WriterPool
from tests.broker.tools import copy_log_dir, wait_until_cleaned, wait_until_deleted
from tests.broker.workload import (
    SCENARIOS,
    Phase,
    TopicPlan,
    create_topics,
    delete_records,
    plan_topic,
    write,
)

ONE_PHASE = tuple(plan_topic(seed) for seed in range(len(SCENARIOS)))
TWO_PHASES = tuple(plan_topic(seed) for seed in range(len(SCENARIOS), 2 * len(SCENARIOS)))
CLEANING = {"log.cleaner.min.cleanable.ratio": "0.0"}
"""The broker's own cleaner takes every log with a dirty byte (rule 1.21)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A log directory of a cleanly stopped broker, and how many records were sent to each topic."""

    log_dir: Path
    plans: tuple[TopicPlan, ...]
    sent: dict[str, int]


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """The written topics of all seeds."""
    root = tmp_path_factory.mktemp("origin")
    log_dir = root / "logs"
    first = write_phases(root / "first", log_dir, [(plan, Phase.FIRST) for plan in TWO_PHASES])
    clean_by_broker(root / "cleaning", log_dir, [plan.directory for plan in TWO_PHASES])
    last = [(plan, Phase.ONLY) for plan in ONE_PHASE] + [(plan, Phase.SECOND) for plan in TWO_PHASES]
    second = write_phases(root / "second", log_dir, last)
    sent = {topic: count + first.get(topic, 0) for topic, count in second.items()}
    return Origin(log_dir, (*ONE_PHASE, *TWO_PHASES), sent)


@pytest.fixture
def log_dir(origin: Origin, tmp_path: Path) -> Path:
    """A copy of the origin for a test to change."""
    copy = tmp_path / "logs"
    copy_log_dir(origin.log_dir, copy)
    return copy


def write_phases(
    work_dir: Path, log_dir: Path, phases: Sequence[tuple[TopicPlan, Phase]], *, kill: bool = False
) -> dict[str, int]:
    """One broker run that writes the phases, then stops or is killed; records sent by topic."""
    now_ms = SystemClock().now_ms()
    with KafkaBroker(work_dir, [log_dir]) as broker:
        admin = broker.admin()
        create_topics(admin, {plan.topic: plan.config for plan, phase in phases if phase is not Phase.SECOND})
        with WriterPool(broker.bootstrap) as pool:
            sent = {plan.topic: write(admin, pool, plan, phase, now_ms) for plan, phase in phases}
        for plan, phase in phases:
            if plan.scenario.delete_records and phase is not Phase.FIRST:
                log_start = sent[plan.topic] // 2
                delete_records(admin, plan.topic, log_start)
                wait_until_deleted(broker, log_dir / plan.directory, log_start)
        if kill:
            broker.kill()
    return sent


def clean_by_broker(work_dir: Path, log_dir: Path, directories: Iterable[str]) -> None:
    """Let the broker's own cleaner make exactly one pass over each of the logs, then stop the broker.

    Nobody writes, so nothing is dirty after one pass, and the threshold 0.0 takes no log twice.
    """
    logs = [dump_partition(log_dir / name) for name in directories]
    with KafkaBroker(work_dir, [log_dir], CLEANING) as broker:
        wait_until_cleaned(broker, log_dir, {log.name: first_uncleanable_offset(log) for log in logs})
