"""A broker with two log directories, of which one fails in the middle of a swap."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from cleanerd.storage.log_dir import LogDir
from tests.broker_agent.test_swap import not_to_be_renamed
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import PATIENCE_S, Journal, check_nothing_is_lost, fixed_ports, home, records
from tests.harness.broker.swapping import FILES, QUICK, asked_brokers, build_agent, staged_copies
from tests.harness.broker.tools import READ_UNCOMMITTED, read_all
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TOPICS = ("one", "two", "three", "four")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    build_agent()
    log_dirs = [tmp_path / "first", tmp_path / "second"]  # the metadata log lies in the first
    with KafkaBroker(tmp_path / "broker", log_dirs, ports=fixed_ports(2)) as broker:
        create_topics(broker.admin(), dict.fromkeys(TOPICS, QUICK))
        yield broker


def test_a_directory_that_fails_is_given_up_alone(broker: KafkaBroker) -> None:
    """The broker goes on with the other one, and so do swaps. It lets go of the lock of the one that failed; the log in
    the middle of a swap is left alone there, until the broker's next start, which finds everything.
    """
    first, second = broker.log_dirs
    journal = Journal(broker.bootstrap)
    for topic in TOPICS:
        journal.fill(topic, records(topic, [*range(30), *range(60)]))
    homes = {topic: home(topic, broker.log_dirs) for topic in TOPICS}
    alive, failing = (next(topic for topic in TOPICS if homes[topic] == path) for path in (first, second))
    with closing(asked_brokers()) as asked:

        def outcome(topic: str) -> str:
            return asked.swap(str(homes[topic]), staged_copies(homes[topic], topic, 2)).outcome

        assert asked.why_not(str(second)) is None
        with not_to_be_renamed(second / f"{failing}-0" / f"{0:020}.log"):
            wait_until(lambda: outcome(failing) == "failed", 60)
            wait_until(lambda: asked.why_not(str(second)) == f"{second}: no broker runs there", PATIENCE_S)
        broker.poll()
        wait_until(lambda: outcome(alive) == "swapped", 60)
        journal.fill(alive, records("more", range(60)))
        wait_until(lambda: outcome(alive) == "swapped", 60)

    (found,) = LogDir.at(FILES, str(second), SystemClock()).recover([f"{failing}-0"])
    assert "start the broker once: it finishes or undoes that" in str(found.error)
    broker.stop()
    broker.start()
    assert [line for line in broker.troubles() if "ERROR" in line] == []
    seen = read_all(broker, TOPICS, READ_UNCOMMITTED)
    for topic in TOPICS:
        check_nothing_is_lost(journal.written[topic], seen[topic], why=topic)
