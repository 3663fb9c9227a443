"""Topics of a broker with ZooKeeper, which keeps their settings where cleanerd cannot read them: it is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import META_PROPERTIES
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import COMPACT, EVENTS, Journal, fixed_ports, records
from tests.harness.broker.releases import SWITCH, releases
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import run_cleanerd
from tests.harness.broker.workload import alter_config, create_topics
from tests.harness.daemon.processes import DaemonProcess, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

VERSIONS = [version for version, release in releases().items() if release.has_zookeeper]
OWN = {**COMPACT, "min.cleanable.dirty.ratio": "0.3"}
TOPICS = {"compact": OWN, "turned": OWN, "events": EVENTS}
WAIT_S = 120.0


class Place:
    """A broker whose cleaner is off, and its topics."""

    def __init__(self, root: Path) -> None:
        self.logs = root / "logs"
        port, zookeeper = fixed_ports(2)
        properties = {"log.cleaner.enable": "false"}
        self.broker = KafkaBroker(root / "broker", [self.logs], properties, ports=(port, zookeeper))
        self.broker.start()
        create_topics(self.broker.admin(), TOPICS)
        self.journal = Journal(self.broker.bootstrap)

    def write(self) -> None:
        """Enough for each of the logs to be dirty."""
        for topic in TOPICS:
            self.journal.fill(topic, records(topic, [*range(30), *range(30), *range(60)] * 2))


@pytest.fixture(scope="module", params=VERSIONS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    build_agent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, request.param)
        place = Place(tmp_path_factory.mktemp("place"))
        yield place
        if place.broker.pid is not None:
            place.broker.kill()


@pytest.fixture
def daemon(place: Place, tmp_path: Path) -> Iterator[DaemonProcess]:
    """Beside the broker, which lives, to be started by the test; it is told nothing of the topics."""
    if place.broker.pid is None:
        place.broker.start()
    with DaemonProcess(tmp_path, [place.logs], {}, topics={}) as daemon:
        yield daemon


def states(daemon: DaemonProcess) -> dict[str, str]:
    return {log["topic"]: log["state"] for log in daemon.ask("logs")["logs"]}


def cleanings(daemon: DaemonProcess, topic: str) -> int:
    """How often a cleaning of its log was committed."""
    return sum(event["outcome"] == "committed" for event in daemon.history(f"{topic}-0"))


def wait_cleaned(daemon: DaemonProcess, topic: str, times: int) -> None:
    wait_until(lambda: cleanings(daemon, topic) >= times, WAIT_S, daemon.output)


def reason(daemon: DaemonProcess, topic: str) -> str:
    (found,) = daemon.ask("explain", f"{topic}-0")["explanations"]
    return str(found["decision"])


def test_without_an_answer_the_daemon_says_in_one_line_what_it_leaves(
    place: Place, daemon: DaemonProcess
) -> None:
    """But a one-shot that may ask cleans what is to be compacted."""
    owner = parse_meta_properties((place.logs / META_PROPERTIES).read_bytes())
    assert (owner.version, owner.node_id) == (0, 1)
    place.write()
    words = ["clean", f"--log-dir={place.logs}", "--set=cleanerd.commit.live=auto", "-o", "json"]
    rows = {row["topic"]: row for row in json.loads(run_cleanerd(*words).stdout)["results"]}
    assert {(row["outcome"], row["committed_by"]) for row in rows.values()} == {("committed", "swap")}
    assert rows.keys() == {"compact", "turned"}
    daemon.start()
    (left,) = (event for event in daemon.events() if event["event"] == "topics_unknown")
    assert (left["count"], left["topics"]) == (3, sorted(TOPICS))
    assert set(states(daemon).values()) == {"ignored"}
    assert [event for event in daemon.events() if event["event"] == "ignored"] == []


def test_a_zookeeper_broker_is_asked_and_its_last_answer_is_kept(place: Place, daemon: DaemonProcess) -> None:
    """By the agent: cleaned beside it, and when it has stopped; not what it has turned into a topic without compaction."""
    daemon.configure(cleanerd_commit_live="auto")
    daemon.start()
    place.write()
    wait_cleaned(daemon, "compact", 1)
    wait_cleaned(daemon, "turned", 1)
    assert states(daemon)["events"] == "retained"
    assert "cleanup.policy is delete" in reason(daemon, "events")

    alter_config(place.broker.admin(), "turned", {**OWN, "cleanup.policy": "delete"})
    wait_until(lambda: states(daemon)["turned"] == "retained", WAIT_S, daemon.output)
    done = {topic: cleanings(daemon, topic) for topic in TOPICS}
    daemon.ask("pause", "compact-0", "--reason", "test")
    place.write()
    place.broker.stop()
    daemon.stop()
    daemon.start()
    daemon.ask("resume", "compact-0")
    wait_cleaned(daemon, "compact", done["compact"] + 1)
    assert {topic: cleanings(daemon, topic) for topic in ("turned", "events")} == {
        topic: done[topic] for topic in ("turned", "events")
    }
    assert "cleanup.policy is delete" in reason(daemon, "turned")
    place.broker.start()
    assert place.broker.troubles() == []
