"""The daemon beside one of three brokers: `cleanerctl install`, and installs by itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.cluster import KafkaCluster
from tests.broker.install.installing import check_back, connected, partition_of
from tests.daemon.processes import DaemonProcess, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

NODE = 2
TOPICS = {"asked": [[1, 2, 3]], "itself": [[2, 1, 3]], "other": [[1, 2, 3]], "single": [[2]]}
SECRET = "correct horse"


@pytest.fixture
def daemon(cluster: KafkaCluster, admin: AdminClient, tmp_path: Path) -> Iterator[DaemonProcess]:
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=PLAINTEXT\nsasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required username="me" password="{SECRET}";\n'
    )
    settings = {
        "cleanerd.kafka.bootstrap.servers": cluster.bootstrap,
        "cleanerd.kafka.client.config": str(client),
        "cleanerd.min.cleanable.dirty.ratio": "0.1",
        "cleanerd.install.min.reclaim.bytes": "0",
        "cleanerd.install.topics": "itself, single",
    }
    daemon = DaemonProcess(tmp_path, [cluster.log_dir(NODE)], settings, topics={})
    daemon.start()
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()


def installs(daemon: DaemonProcess, name: str) -> list[str]:
    """Outcomes, the oldest first."""
    return [event["outcome"] for event in reversed(daemon.history(name)) if event["kind"] == "install"]


def refusal(daemon: DaemonProcess, topic: str) -> str:
    """Why an install could not begin now."""
    ran = daemon.ctl("install", topic, "--dry-run", check=False)
    assert ran.returncode == 1, ran.stdout
    (row,) = json.loads(ran.stdout)["installs"]
    assert row["outcome"] == "refused"
    return str(row["reason"])


def test_results_reach_the_running_broker_when_asked_and_by_themselves(
    cluster: KafkaCluster, admin: AdminClient, daemon: DaemonProcess
) -> None:
    for topic in TOPICS:
        wait_until(lambda topic=topic: daemon.log(f"{topic}-0")["state"] == "staged", 120, daemon.output)
    (row,) = daemon.ask("install", "asked", "--dry-run")["installs"]
    assert (row["outcome"], row["replicas"]) == ("possible", [1, 2, 3])
    assert "single replica" in refusal(daemon, "single")
    assert installs(daemon, "asked") == installs(daemon, "itself") == [], "off unless it is asked for"

    with connected(cluster) as other:
        other.write_claim('{"id": "of another"}')
        ran = daemon.ctl("install", "asked-0", "--wait", "--timeout", "4s", check=False)
        (row,) = json.loads(ran.stdout)["installs"]
        assert row["outcome"] == "waiting"
        assert "another install is under way in the cluster" in row["reason"]
        other.write_claim("")
    (row,) = daemon.ask("install", "asked-0", "--wait", "--timeout", "60s")["installs"]
    assert row["outcome"] == "installed", (row, daemon.output())
    check_back(admin, cluster, "asked", [1, 2, 3])
    wait_until(lambda: daemon.log("asked-0")["state"] == "clean", 30, daemon.output)
    assert daemon.log("asked-0")["first_dirty_offset"] > 1000, "it is not cleaned once more"

    daemon.configure(cleanerd_install="reassign")
    daemon.ctl("reload")
    wait_until(lambda: installs(daemon, "itself")[-1:] == ["installed"], 60, daemon.output)
    check_back(admin, cluster, "itself", [2, 1, 3])
    leader = lambda: admin.list_topics("itself", timeout=30).topics["itself"].partitions[0].leader  # noqa: E731
    wait_until(lambda: leader() == NODE, 30)
    assert installs(daemon, "single") == installs(daemon, "other") == []
    assert daemon.log("other-0")["state"] == daemon.log("single-0")["state"] == "staged"
    assert partition_of(admin, "other") == ([1, 2, 3], [1, 2, 3])
    assert daemon.outcomes("asked-0") == ["staged"]
    (daemon.directory / "topics.d" / "other.properties").write_text("remote.storage.enable=true\n")
    daemon.ctl("reload")
    assert "its topic is tiered" in refusal(daemon, "other"), "a dry run refuses what an install would"
    cluster.brokers[NODE].stop()
    wait_until(lambda: "no broker runs there" in refusal(daemon, "single"), 30, daemon.output)
    assert daemon.stop() == 0
    shown = daemon.output() + str(daemon.config.read_text())
    assert SECRET not in shown
