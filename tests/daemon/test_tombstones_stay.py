"""The daemon keeps tombstones while another replica is away (architecture 2), says so, and goes on when it is back."""

from pathlib import Path

import pytest

from cleanerd.env.clock import SystemClock
from tests.harness.daemon.processes import DaemonProcess
from tests.harness.daemon.scrape import get, parse
from tests.harness.logs.member import NODE, OTHER, TP, Broker, deletions, values
from tests.harness.logs.metadata import SAMPLE_ID, TOPIC, change, config

RETENTION_MS = 1500
LOG = str(TP)


def explained(daemon: DaemonProcess) -> dict[str, str]:
    (found,) = daemon.ask("explain", LOG)["explanations"]
    return {fact["name"]: fact["value"] for fact in found["facts"]}


def keeping(daemon: DaemonProcess) -> float:
    scrape = parse(get(daemon.metrics_address())[2])
    return scrape.total("cleanerd_logs_keeping_tombstones")


@pytest.mark.soak
@pytest.mark.trap("tombstones that go while a replica is away")
def test_a_log_is_looked_at_once_while_a_replica_is_away_and_cleaned_when_it_is_back(tmp_path: Path) -> None:
    now_ms = SystemClock().now_ms
    broker = Broker(tmp_path / "logs", None, NODE, OTHER, began_ms=now_ms())
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS)}
    broker.hear(
        now_ms(),
        *(config(TOPIC, TP.topic, *one) for one in settings.items()),
        change(SAMPLE_ID, 0, isr=[NODE]),
    )
    broker.hear(now_ms())
    broker.write(values, deletions)
    listens = {"cleanerd.metrics.listen": "127.0.0.1:0"}
    with DaemonProcess(tmp_path / "d", [broker.log_dir], listens, topics={}) as daemon:
        daemon.start().wait_committed(LOG)
        assert len(broker.keys()) == 6
        daemon.wait(lambda: any(job["trigger"] == "horizon" for job in daemon.ask("jobs")["jobs"]), 60)
        assert explained(daemon)["tombstones"].startswith(
            "stay, and markers: replica 3 is not in sync since "
        )
        daemon.wait(lambda: keeping(daemon) == 1, 60)
        row = daemon.ask("clean", LOG, "--force", "--wait")["jobs"][0]
        assert "; tombstones stay: replica 3 is not in sync since " in row["reason"]
        horizon_jobs = [job for job in daemon.ask("jobs")["jobs"] if job["trigger"] == "horizon"]
        assert len(horizon_jobs) == 1, "it is not due again and again"
        broker.hear(now_ms(), change(SAMPLE_ID, 0, isr=[NODE, OTHER]))
        assert "which is less than delete.retention.ms (1500) ago" in explained(daemon)["tombstones"]
        assert len(broker.keys()) == 6
        daemon.wait(lambda: "tombstones" not in explained(daemon), 60)
        daemon.ctl("clean", LOG, "--force", "--wait")
        assert broker.keys() == {b"last"}
        daemon.wait(lambda: keeping(daemon) == 0, 60)
        reloads = [event for event in daemon.events() if event["event"] == "reload"]
        assert reloads == [], "a change of in-sync replicas is none of the configuration"
