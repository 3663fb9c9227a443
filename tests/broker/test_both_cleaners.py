"""A broker whose own cleaner takes everything at once, and cleanerd beside it, which does not wait for it either."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import COMPACT, DAEMON, PATIENCE_S, Journal, check_nothing_is_lost, records
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import READ_UNCOMMITTED, offset_checkpoint, read_all, run_cleanerd
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import DaemonProcess, running, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

BROKER = {
    "log.cleaner.min.cleanable.ratio": "0.0",
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "100",  # the recovery point follows what is written
}
EAGER = {
    **DAEMON,
    "log.cleaner.min.cleanable.ratio": "0.0",
    "log.cleaner.backoff.ms": "50",
    "cleanerd.broker.cleaner.grace.ms": "0",  # nothing is left to the broker's cleaner
    "cleanerd.retry.max": "1",  # one strike would be too many
}
RACED = 4
_numbers = count()
CLEANS_MAX = 12
WRITES_MAX = 2_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    root = tmp_path_factory.mktemp("broker")
    with KafkaBroker(root / "broker", [root / "logs"], BROKER) as broker:
        yield broker


@pytest.fixture
def log_dir(broker: KafkaBroker) -> Path:
    return broker.log_dirs[0]


@pytest.fixture
def raced(broker: KafkaBroker) -> list[str]:
    """Topics for this test alone."""
    topics = [f"raced-{next(_numbers)}" for _ in range(RACED)]
    create(broker, topics)
    return topics


@pytest.fixture(params=["off", "auto"])
def live(request: pytest.FixtureRequest) -> str:
    """Whether results are swapped in (cleanerd.commit.live), which meets the broker's cleaner at each log."""
    build_agent()
    return str(request.param)


@pytest.fixture
def daemon(tmp_path: Path, raced: list[str], log_dir: Path, live: str) -> Iterator[DaemonProcess]:
    with running(tmp_path / "daemon", log_dir, **EAGER, **{"cleanerd.commit.live": live}) as daemon:
        yield daemon


def create(broker: KafkaBroker, topics: list[str]) -> None:
    create_topics(broker.admin(), dict.fromkeys(topics, COMPACT))


def write(journal: Journal, topics: list[str], number: int) -> None:
    for topic in topics:
        journal.fill(topic, records(f"{topic} {number}", [key % 23 for key in range(number, number + 80)]))


def events(daemon: DaemonProcess) -> list[dict[str, Any]]:
    return list(daemon.ask("history", "*", "--limit", "10000")["events"])


def lost(event: dict[str, Any]) -> bool:
    return event["outcome"] in {"superseded_by_broker", "dropped"}


def swapped(event: dict[str, Any]) -> bool:
    return event["outcome"] == "committed" and event["committed_by"] == "swap"


def check_all(broker: KafkaBroker, journal: Journal) -> None:
    seen = read_all(broker, [*journal.written], READ_UNCOMMITTED)
    for topic in journal.written:
        check_nothing_is_lost(journal.written[topic], seen[topic])


def test_being_second_is_no_failure_and_nothing_is_lost(
    broker: KafkaBroker, raced: list[str], log_dir: Path, daemon: DaemonProcess, live: str
) -> None:
    """No strike, no failure in the account, nothing on either's error level; every key is there, and both cleaners live."""
    journal, numbers = Journal(broker.bootstrap), count()
    awaited, times = (swapped, 1) if live == "auto" else (lost, 3)

    def has_met() -> bool:
        write(journal, raced, next(numbers))
        return Counter(map(awaited, events(daemon)))[True] >= times

    wait_until(has_met, PATIENCE_S, daemon.output)
    outcomes = Counter((event["kind"], event["outcome"]) for event in events(daemon))
    assert {outcome for _, outcome in outcomes}.isdisjoint({"failed", "uncleanable"}), outcomes
    assert [log["failures"] for log in daemon.ask("logs")["logs"] if log["failures"]] == []
    assert [event for event in daemon.events() if event["level"] == "error"] == []
    assert daemon.ctl("clean", f"{raced[0]}-0", "--wait").returncode == 0
    print(outcomes)
    check_all(broker, journal)
    assert daemon.stop() == 0
    before = offset_checkpoint(log_dir / CLEANER_OFFSET_CHECKPOINT)

    def goes_on() -> bool:
        write(journal, raced, next(numbers))
        after = offset_checkpoint(log_dir / CLEANER_OFFSET_CHECKPOINT)
        return all(after.get(f"{topic}-0", 0) > before.get(f"{topic}-0", 0) for topic in raced)

    wait_until(goes_on, PATIENCE_S, lambda: f"{before} {broker.troubles()}")
    check_all(broker, journal)
    assert [line for line in broker.troubles() if "ERROR" in line] == []


@pytest.mark.fault("files that change or grow while they are read")
def test_a_one_shot_beside_the_brokers_cleaner_ends_well(
    broker: KafkaBroker, raced: list[str], log_dir: Path, live: str
) -> None:
    """Whatever of it came too late. There is a producer all the time, so that not all is clean when the command looks."""
    journal, outcomes, is_over = Journal(broker.bootstrap), Counter[str](), threading.Event()

    def produce() -> None:
        for number in range(WRITES_MAX):
            write(journal, raced, number)
            if is_over.wait(0.2):
                return

    options = [f"--log-dir={log_dir}", "--set=log.cleanup.policy=compact", "--force", "-o", "json"]
    options += [f"--set=cleanerd.commit.live={live}", *(f"--topic={topic}" for topic in raced)]
    with ThreadPoolExecutor(1) as threads:
        producing = threads.submit(produce)
        try:
            for _ in range(CLEANS_MAX):
                done = run_cleanerd("clean", *options)
                assert done.returncode == 0, (done.stdout, done.stderr)
                outcomes.update(result["outcome"] for result in json.loads(done.stdout)["results"])
                if set(outcomes) - {"skipped"}:
                    break
        finally:
            is_over.set()
        producing.result(PATIENCE_S)
    assert set(outcomes) - {"skipped"}, outcomes
    check_all(broker, journal)


@pytest.mark.parametrize("live", ["off"], indirect=True)
def test_topics_that_are_being_created_are_nothing_to_warn_of(
    broker: KafkaBroker, daemon: DaemonProcess
) -> None:
    """The broker writes `partition.metadata` after the directory, and we read of a topic after it is there."""
    names = [f"new-{next(_numbers)}" for _ in range(50)]
    create(broker, names)

    def known() -> set[str]:
        return {log["topic"] for log in daemon.ask("logs")["logs"] if log["state"] != "ignored"}

    wait_until(lambda: known().issuperset(names), PATIENCE_S, daemon.output)
    assert [event for event in daemon.events() if event["event"] == "ignored"] == []
