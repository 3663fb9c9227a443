"""Topics of a broker with ZooKeeper, which keeps their settings where cleanerd cannot read them: it is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import META_PROPERTIES
from tests.broker.kafka import KafkaBroker
from tests.broker.live import COMPACT, EVENTS, Journal, fixed_ports, records
from tests.broker.releases import SWITCH, releases
from tests.broker.swapping import build_agent
from tests.broker.tools import run_cleanerd
from tests.broker.workload import alter_config, create_topics
from tests.daemon.processes import DaemonProcess, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

VERSIONS = [version for version, release in releases().items() if release.has_zookeeper]
OWN = {**COMPACT, "min.cleanable.dirty.ratio": "0.3"}
TOPICS = {"compact": OWN, "turned": OWN, "events": EVENTS}
WAIT_S = 120.0


class Place:
    """A broker whose cleaner is off, its topics, and a daemon beside it that is told nothing of them."""

    def __init__(self, root: Path, version: str) -> None:
        self.logs = root / "logs"
        port, zookeeper = fixed_ports(2)
        properties = {"log.cleaner.enable": "false"}
        self.broker = KafkaBroker(root / "broker", [self.logs], properties, ports=(port, zookeeper))
        assert self.broker.release.version == version
        self.broker.start()
        create_topics(self.broker.admin(), TOPICS)
        self.journal = Journal(self.broker.bootstrap)
        (root / "daemon").mkdir()
        settings = {"cleanerd.spark.idle.timeout.ms": "600000"}
        self.daemon = DaemonProcess(root / "daemon", [self.logs], settings, topics={})

    def write(self) -> None:
        """Enough for each of the logs to be dirty."""
        for topic in TOPICS:
            self.journal.fill(topic, records(topic, [*range(30), *range(30), *range(60)] * 2))

    def close(self) -> None:
        if self.broker.pid is not None:
            self.broker.kill()
        self.daemon.kill()

    def states(self) -> dict[str, str]:
        return {log["topic"]: log["state"] for log in self.daemon.ask("logs")["logs"]}

    def cleanings(self, topic: str) -> int:
        """How often a cleaning of its log was committed."""
        events = self.daemon.ask("history", f"{topic}-0")["events"]
        return sum(event["outcome"] == "committed" for event in events)

    def wait_cleaned(self, topic: str, times: int) -> None:
        wait_until(lambda: self.cleanings(topic) >= times, WAIT_S, self.daemon.output)

    def reason(self, topic: str) -> str:
        (found,) = self.daemon.ask("explain", f"{topic}-0")["explanations"]
        return str(found["decision"])


@pytest.fixture(params=VERSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv(SWITCH, request.param)
    build_agent()
    place = Place(tmp_path, request.param)
    yield place
    place.close()


def test_a_zookeeper_broker_is_asked_and_its_last_answer_is_kept(place: Place) -> None:
    """By the agent: cleaned beside it, and when it has stopped; not what it has turned into a topic without compaction."""
    place.daemon.configure(cleanerd_commit_live="auto")
    place.daemon.start()
    place.write()
    place.wait_cleaned("compact", 1)
    place.wait_cleaned("turned", 1)
    assert place.states()["events"] == "ignored"
    assert "cleanup.policy is delete" in place.reason("events")

    alter_config(place.broker.admin(), "turned", {**OWN, "cleanup.policy": "delete"})
    wait_until(lambda: place.states()["turned"] == "ignored", WAIT_S, place.daemon.output)
    done = {topic: place.cleanings(topic) for topic in TOPICS}
    place.daemon.ask("pause", "compact-0", "--reason", "test")
    place.write()
    place.broker.stop()
    place.daemon.stop()
    place.daemon.start()
    place.daemon.ask("resume", "compact-0")
    place.wait_cleaned("compact", done["compact"] + 1)
    assert {topic: place.cleanings(topic) for topic in ("turned", "events")} == {
        topic: done[topic] for topic in ("turned", "events")
    }
    assert "cleanup.policy is delete" in place.reason("turned")
    place.broker.start()
    assert place.broker.troubles() == []


def test_the_cluster_is_asked_where_no_agent_may_be(place: Place) -> None:
    """Through the client's protocol. What a broker did while the daemon was away nobody knows."""
    place.write()
    where = [f"--log-dir={place.logs}", f"--set=cleanerd.kafka.bootstrap.servers={place.broker.bootstrap}"]
    shown = run_cleanerd("config", "show", *where, "--topic", "compact", "--origin").stdout
    assert "broker's answer: TOPIC" in next(
        line for line in shown.splitlines() if line.startswith("cleanup.")
    )
    place.daemon.configure(cleanerd_kafka_bootstrap_servers=place.broker.bootstrap)
    place.daemon.start()
    wait_until(lambda: place.states().get("compact") == "staged", WAIT_S, place.daemon.output)
    assert "cleanup.policy is delete" in place.reason("events")
    place.daemon.stop()
    place.broker.stop()
    place.daemon.configure(cleanerd_kafka_bootstrap_servers="")
    place.daemon.start()
    place.wait_cleaned("compact", 1)
    assert [event for event in place.daemon.events() if event["event"] == "topics_unknown"] == []


def test_without_an_answer_the_daemon_says_in_one_line_what_it_leaves(place: Place) -> None:
    """But a one-shot that may ask cleans what is to be compacted."""
    owner = parse_meta_properties((place.logs / META_PROPERTIES).read_bytes())
    assert (owner.version, owner.node_id) == (0, 1)
    place.write()
    words = ["clean", f"--log-dir={place.logs}", "--set=cleanerd.commit.live=auto", "-o", "json"]
    rows = {row["topic"]: row for row in json.loads(run_cleanerd(*words).stdout)["results"]}
    assert {(row["outcome"], row["committed_by"]) for row in rows.values()} == {("committed", "swap")}
    assert rows.keys() == {"compact", "turned"}
    place.daemon.start()
    (left,) = (event for event in place.daemon.events() if event["event"] == "topics_unknown")
    assert (left["count"], left["topics"]) == (3, sorted(TOPICS))
    assert set(place.states().values()) == {"ignored"}
    assert [event for event in place.daemon.events() if event["event"] == "ignored"] == []
