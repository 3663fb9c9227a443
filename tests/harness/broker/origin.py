"""What one broker leaves behind, for all tests to copy.

`origin` holds a topic for every seed. The first half of the seeds was written in one phase. The second half
was written in two, with a cleaning by the broker between them: their logs have a clean head, a checkpoint,
delete horizons and kept empty batches.
"""

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import dump_partition
from tests.harness.broker.model import first_uncleanable_offset
from tests.harness.broker.producers import WriterPool
from tests.harness.broker.tools import (
    copy_log_dir,
    log_dirs_in,
    partition_dir,
    wait_until_cleaned,
    wait_until_deleted,
)
from tests.harness.broker.workload import (
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
    """A log directory of a cleanly stopped broker, and what is in it."""

    log_dir: Path
    plans: tuple[TopicPlan, ...] = (*ONE_PHASE, *TWO_PHASES)


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """The written topics of all seeds; whichever worker of a run needs them first writes them for all."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "origin"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "complete").exists():
            write_origin(root, root / "logs", ONE_PHASE, TWO_PHASES)
            (root / "complete").touch()
    return Origin(root / "logs")


def write_origin(
    root: Path, place: Path, one_phase: Sequence[TopicPlan], two_phases: Sequence[TopicPlan]
) -> None:
    """Topics written at once, and topics written in two phases with a cleaning by the broker between them."""
    write_phases(root / "first", place, [(plan, Phase.FIRST) for plan in two_phases])
    clean_by_broker(root / "cleaning", place, [plan.directory for plan in two_phases])
    last = [(plan, Phase.ONLY) for plan in one_phase] + [(plan, Phase.SECOND) for plan in two_phases]
    write_phases(root / "second", place, last)


@pytest.fixture
def log_dir(origin: Origin, tmp_path: Path) -> Path:
    """A copy of the origin for a test to change."""
    copy = tmp_path / "logs"
    copy_log_dir(origin.log_dir, copy)
    return copy


def write_phases(
    work_dir: Path, place: Path, phases: Sequence[tuple[TopicPlan, Phase]], *, kill: bool = False
) -> None:
    """One broker run that writes the phases, then stops or is killed."""
    now_ms = SystemClock().now_ms()
    with KafkaBroker(work_dir, log_dirs_in(place)) as broker:
        admin = broker.admin()
        create_topics(admin, {plan.topic: plan.config for plan, phase in phases if phase is not Phase.SECOND})
        with WriterPool(broker.bootstrap) as pool:
            sent = {plan.topic: write(admin, pool, plan, phase, now_ms) for plan, phase in phases}
        for plan, phase in phases:
            if plan.scenario.delete_records and phase is not Phase.FIRST:
                log_start = sent[plan.topic] // 2
                delete_records(admin, plan.topic, log_start)
                wait_until_deleted(broker, partition_dir(place, plan.directory), log_start)
        if kill:
            broker.kill()


def clean_by_broker(work_dir: Path, place: Path, directories: Iterable[str]) -> None:
    """Let the broker's own cleaner make exactly one pass over each of the logs, then stop the broker.

    Nobody writes, so nothing is dirty after one pass, and the threshold 0.0 takes no log twice.
    """
    logs = [dump_partition(partition_dir(place, name)) for name in directories]
    with KafkaBroker(work_dir, log_dirs_in(place), CLEANING) as broker:
        wait_until_cleaned(broker, place, {log.name: first_uncleanable_offset(log) for log in logs})
