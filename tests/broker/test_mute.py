"""`cleanerctl mute` and `unmute` against a real broker whose own cleaner works."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from cleanerd.daemon.work.cleaner_leases import LEASE_MS
from tests.broker.kafka import KafkaBroker
from tests.broker.swapping import build_agent
from tests.broker.tools import offset_checkpoint
from tests.broker.workload import create_topics
from tests.daemon.processes import DaemonProcess, customise, running, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

KEY = "min.cleanable.dirty.ratio"
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "20000"}
TOPICS = {"quiet": {**COMPACT, KEY: "0.01"}, "plain": COMPACT, "loud": COMPACT}
SECRET = "correct horse"
LEASE_S = LEASE_MS // 4000
SHORT_LEASES = """
import sys
if "run" in sys.orig_argv:
    from cleanerd.daemon.work import cleaner_leases
    cleaner_leases.LEASE_MS //= 4
    cleaner_leases._RENEW_S /= 4
"""
"""Everything in a quarter of its time."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Its cleaner takes everything that is dirty."""
    with KafkaBroker(
        tmp_path / "broker", [tmp_path / "logs"], {"log.cleaner.min.cleanable.ratio": "0.0"}
    ) as broker:
        create_topics(broker.admin(), TOPICS)
        yield broker


@pytest.fixture
def daemon(broker: KafkaBroker, tmp_path: Path) -> Iterator[DaemonProcess]:
    """Beside it; its client has a configuration with a secret."""
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=PLAINTEXT\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="me" password="{SECRET}";\n'
    )
    settings = {
        "cleanerd.kafka.bootstrap.servers": broker.bootstrap,
        "cleanerd.kafka.client.config": str(client),
        "log.cleaner.backoff.ms": "500",
        "cleanerd.scan.interval.ms": "500",
    }
    with running(tmp_path / "daemon", tmp_path / "logs", **settings) as daemon:
        yield daemon


def own_values(admin: AdminClient) -> dict[str, str | None]:
    found = {}
    for topic in TOPICS:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entry = admin.describe_configs([resource])[resource].result(30)[KEY]
        found[topic] = entry.value if entry.source == 1 else None  # DYNAMIC_TOPIC_CONFIG
    return found


def write(broker: KafkaBroker, *topics: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "batch.size": 2000})
    for number in range(600):
        for topic in topics:
            producer.produce(topic, b"v" * 200, b"k%d" % (number % 7))
        producer.flush(30)


def cleaned(log_dir: Path) -> set[str]:
    """Topics with a first dirty offset of the broker's cleaner."""
    path = log_dir / "cleaner-offset-checkpoint"
    return {log.removesuffix("-0") for log in offset_checkpoint(path)} if path.exists() else set()


def muted(daemon: DaemonProcess) -> dict[str, str | None]:
    return {row["topic"]: row["prior_ratio"] for row in daemon.ask("status")["status"]["muted"]}


def test_the_brokers_cleaner_stays_away_until_it_is_given_back_exactly_what_was(
    broker: KafkaBroker, daemon: DaemonProcess, tmp_path: Path
) -> None:
    admin, logs = broker.admin(), tmp_path / "logs"
    wait_until(lambda: {"quiet", "plain", "loud"} <= {log["topic"] for log in daemon.ask("logs")["logs"]}, 60)
    rows = daemon.ask("mute", "quiet")["muted"] + daemon.ask("mute", "pl*")["muted"]
    assert [(row["topic"], row["confirmed"]) for row in rows] == [("quiet", True), ("plain", True)]
    assert own_values(admin) == {"quiet": "1.0", "plain": "1.0", "loud": None}
    daemon.ask("mute", "quiet")  # once more: what was before is not forgotten
    assert muted(daemon) == {"quiet": "0.01", "plain": None}

    write(broker, *TOPICS)
    wait_until(lambda: "loud" in cleaned(logs), 60, broker.messages)
    wait_until(lambda: daemon.log("quiet-0")["state"] == "staged", 90, daemon.output)
    assert cleaned(logs) & {"quiet", "plain"} == set()

    daemon.kill()
    daemon.start()
    assert muted(daemon) == {"quiet": "0.01", "plain": None}, "a restart forgets nothing"

    daemon.ask("unmute", "*")
    assert own_values(admin) == {"quiet": "0.01", "plain": None, "loud": None}
    assert muted(daemon) == {}
    wait_until(lambda: {"quiet", "plain"} <= cleaned(logs), 60, broker.messages)
    assert daemon.ctl("unmute", "quiet", check=False).returncode == 4
    told = daemon.output() + daemon.ctl("status").stdout + daemon.ctl("history", "--all").stdout
    assert SECRET not in told
    assert [line for line in broker.messages() if line.startswith(("ERROR", "FATAL"))] == []


def test_what_somebody_else_has_set_since_then_stays(broker: KafkaBroker, daemon: DaemonProcess) -> None:
    admin = broker.admin()
    wait_until(lambda: "quiet" in {log["topic"] for log in daemon.ask("logs")["logs"]}, 60)
    daemon.ask("mute", "quiet")
    other = ConfigEntry(KEY, "0.3", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "quiet", incremental_configs=[other])
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until(lambda: own_values(admin)["quiet"] == "0.3", 30)
    daemon.ask("unmute", "quiet")
    assert own_values(admin)["quiet"] == "0.3"
    broker.stop()
    ran = daemon.ctl("mute", "quiet", check=False)
    assert ran.returncode != 0
    assert "the cluster cannot be asked" in ran.stderr
    assert muted(daemon) == {}


def test_where_the_broker_can_be_asked_itself_the_cluster_is_not(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic changes. The broker's cleaner stays away as long as the daemon lives, and after kill -9 takes over."""
    customise(monkeypatch, tmp_path / "site", SHORT_LEASES)
    build_agent()
    admin, logs = broker.admin(), tmp_path / "logs"
    settings = {
        "cleanerd.commit.live": "auto",
        "cleanerd.scan.interval.ms": "500",
        "log.cleaner.threads": "1",
    }
    with running(tmp_path / "daemon", logs, **settings) as daemon:
        wait_until(lambda: {"quiet", "loud"} <= {log["topic"] for log in daemon.ask("logs")["logs"]}, 60)
        (row,) = daemon.ask("mute", "quiet")["muted"]
        assert (row["confirmed"], row["by_lease"]) == (True, True)
        daemon.ask("pause", "quiet-0", "--ttl", "10m")  # so that nobody but the broker would clean it
        assert own_values(admin) == {"quiet": "0.01", "plain": None, "loud": None}
        write(broker, *TOPICS)
        wait_until(lambda: "loud" in cleaned(logs), 60, broker.messages)
        threading.Event().wait(LEASE_S + 5)
        assert "quiet" not in cleaned(logs)
        daemon.kill()
        wait_until(lambda: "quiet" in cleaned(logs), LEASE_S + 30, broker.messages)
        daemon.start()
        assert muted(daemon) == {"quiet": None}
        daemon.ask("unmute", "quiet")
        assert muted(daemon) == {}
    assert [line for line in broker.messages() if line.startswith(("ERROR", "FATAL"))] == []
