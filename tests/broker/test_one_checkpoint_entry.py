"""The broker's cleaner reads the checkpoints of all log directories into one map, and dies of a partition that has two."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import (
    COMPACT,
    DAEMON,
    PATIENCE_S,
    Journal,
    check_nothing_is_lost,
    create_elsewhere,
    home,
    records,
)
from tests.harness.broker.tools import READ_UNCOMMITTED, offset_checkpoint, read_all
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import DaemonProcess, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TOPIC, CHECKPOINT = "moved", "cleaner-offset-checkpoint"
NO_CLEANER = {"log.cleaner.enable": "false"}
CLEANER = {"log.cleaner.enable": "true", "log.cleaner.min.cleanable.ratio": "0.0"}
KEYS = [*range(30), *range(30), *range(60)] * 2


@pytest.fixture
def log_dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def daemon(tmp_path: Path, log_dirs: tuple[Path, Path]) -> Iterator[DaemonProcess]:
    """For both directories; started by the test, once the broker has made them."""
    found = DaemonProcess(tmp_path / "daemon", list(log_dirs), DAEMON)
    yield found
    found.kill()


def entries(log_dirs: tuple[Path, Path]) -> dict[Path, int]:
    """First dirty offset of the partition, in each directory that tells one."""
    found = {log_dir: offset_checkpoint(log_dir / CHECKPOINT) for log_dir in log_dirs}
    return {d: offsets[f"{TOPIC}-0"] for d, offsets in found.items() if f"{TOPIC}-0" in offsets}


def clean_and_stop(broker: KafkaBroker, daemon: DaemonProcess, log_dirs: tuple[Path, Path]) -> None:
    """Have a result staged, end the broker, have it committed."""
    where = home(TOPIC, log_dirs)
    wait_until(lambda: list(where.glob(f"{TOPIC}-0/*.manifest.cleanerd")), PATIENCE_S, daemon.output)
    broker.stop()
    wait_until(lambda: where in entries(log_dirs), PATIENCE_S, daemon.output)


def test_a_partition_that_lies_elsewhere_now_has_one_entry(
    tmp_path: Path, log_dirs: tuple[Path, Path], daemon: DaemonProcess
) -> None:
    """With its cleaner off, a broker leaves the entry of a deleted topic behind. Then the cleaner is turned on."""
    broker = KafkaBroker(tmp_path / "off", list(log_dirs), NO_CLEANER)
    with broker:
        create_topics(broker.admin(), {TOPIC: COMPACT})
        Journal(broker.bootstrap).fill(TOPIC, records("first", KEYS))
        before = home(TOPIC, log_dirs)
        daemon.start()
        clean_and_stop(broker, daemon, log_dirs)
        assert set(entries(log_dirs)) == {before}

        broker.start()
        create_elsewhere(broker.admin(), TOPIC, log_dirs)
        journal = Journal(broker.bootstrap)
        journal.fill(TOPIC, records("second", KEYS))
        clean_and_stop(broker, daemon, log_dirs)
        ((now, cleaned_to),) = entries(log_dirs).items()
        assert now == home(TOPIC, log_dirs) != before
        assert daemon.stop() == 0
        broker.start()

    with KafkaBroker(tmp_path / "on", list(log_dirs), CLEANER) as own:
        again = Journal(own.bootstrap)
        again.written = journal.written
        rng = random.Random(1)
        again.fill(TOPIC, records("third", [rng.randrange(60) for _ in range(300)]))
        wait_until(lambda: entries(log_dirs)[now] > cleaned_to, PATIENCE_S)
        seen = read_all(own, [TOPIC], READ_UNCOMMITTED)[TOPIC]
        check_nothing_is_lost(again.written[TOPIC], seen)
        assert len(seen) < len(again.written[TOPIC])
        assert not [line for line in own.messages() if "Duplicate key" in line or line.startswith("ERROR")]
