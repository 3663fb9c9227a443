"""`cleanerctl mute` and `unmute` against a real broker whose own cleaner works."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from cleanerd.daemon.work.cleaner_leases import LEASE_MS
from cleanerd.env.space import space_of
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import offset_checkpoint
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import DaemonProcess, customise, running, wait_until
from tests.harness.disks.mounts import mounted

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

KEY = "min.cleanable.dirty.ratio"
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "20000"}
TOPICS = {"quiet": {**COMPACT, KEY: "0.01"}, "plain": COMPACT, "loud": COMPACT}
LEASE_S = LEASE_MS // 4000
GRACE_S = 20.0
SHORT_LEASES = """
import sys
if "run" in sys.orig_argv:
    from cleanerd.daemon.work import cleaner_leases
    cleaner_leases.LEASE_MS //= 4
    cleaner_leases._RENEW_S /= 4
"""
"""Everything in a quarter of its time."""
SHORT_DUTY = f"""{SHORT_LEASES}
    from cleanerd.policy import lease_duty
    lease_duty.GRACE_S = {GRACE_S}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Its cleaner takes everything that is dirty."""
    with KafkaBroker(
        tmp_path / "broker", [tmp_path / "logs"], {"log.cleaner.min.cleanable.ratio": "0.0"}
    ) as broker:
        create_topics(broker.admin(), TOPICS)
        yield broker


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


def muted(daemon: DaemonProcess) -> list[str]:
    return [row["topic"] for row in daemon.ask("status")["status"]["muted"]]


def test_the_brokers_cleaner_stays_away_as_long_as_the_daemon_lives(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic changes. After kill -9 the broker's cleaner takes over; a restart forgets nothing; `unmute` gives back."""
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
        assert row["topic"] == "quiet"
        daemon.ask("pause", "quiet-0", "--ttl", "10m")  # so that nobody but the broker would clean it
        assert own_values(admin) == {"quiet": "0.01", "plain": None, "loud": None}
        write(broker, *TOPICS)
        wait_until(lambda: "loud" in cleaned(logs), 60, broker.messages)
        threading.Event().wait(LEASE_S + 5)
        assert "quiet" not in cleaned(logs)
        daemon.kill()
        wait_until(lambda: "quiet" in cleaned(logs), LEASE_S + 30, broker.messages)
        daemon.start()
        assert muted(daemon) == ["quiet"]
        daemon.ask("unmute", "quiet")
        assert muted(daemon) == []
        assert daemon.ctl("unmute", "quiet", check=False).returncode == 4
        broker.stop()
        assert daemon.ctl("mute", "quiet", check=False).returncode != 0
        assert muted(daemon) == []
    assert [line for line in broker.messages() if line.startswith(("ERROR", "FATAL"))] == []


LEFT_BYTES = 450_000
"""On a disk of 64 MiB: less than cleanerd leaves free, and enough for a broker and its cleaner."""


def is_held(daemon: DaemonProcess, _: Path) -> None:
    daemon.ask("pause", "quiet-0", "--ttl", "10m")


def is_throttled_to_nothing(daemon: DaemonProcess, _: Path) -> None:
    daemon.ctl("throttle", "--io", "1")


def has_no_room(_: DaemonProcess, logs: Path) -> None:
    with (logs / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, space_of(str(logs)).free_bytes - LEFT_BYTES)


CAUSES = {is_held: "it is paused", is_throttled_to_nothing: "does not get on", has_no_room: "stay free"}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_a_muted_log_that_cleanerd_does_not_clean_goes_back_to_the_brokers_cleaner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Callable[[DaemonProcess, Path], None]
) -> None:
    """Before the broker's disk is full, on a real one; and everybody says so (architecture 2)."""
    customise(monkeypatch, tmp_path / "site", SHORT_DUTY)
    build_agent()
    logs = tmp_path / "logs"
    logs.mkdir()
    settings = {"cleanerd.commit.live": "auto", "cleanerd.scan.interval.ms": "500"}
    with (
        mounted(logs, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaBroker(
            tmp_path / "broker", [logs / "of-it"], {"log.cleaner.min.cleanable.ratio": "0.0"}
        ) as broker,
        contextlib.ExitStack() as stack,
    ):
        create_topics(broker.admin(), TOPICS)
        daemon = stack.enter_context(running(tmp_path / "daemon", logs / "of-it", **settings))
        wait_until(lambda: {"quiet", "loud"} <= {log["topic"] for log in daemon.ask("logs")["logs"]}, 60)
        daemon.ask("mute", "quiet")
        cause(daemon, logs)
        write(broker, "quiet")
        wait_until(lambda: "quiet" in cleaned(logs / "of-it"), GRACE_S + LEASE_S + 60, daemon.output)
        assert "lease_given_back" in daemon.output()
        assert CAUSES[cause] in daemon.ctl("explain", "quiet-0").stdout
        assert muted(daemon) == ["quiet"], "it comes back"
        assert broker.pid is not None
        assert [line for line in broker.messages() if line.startswith(("ERROR", "FATAL"))] == []
