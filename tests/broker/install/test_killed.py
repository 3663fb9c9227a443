"""kill -9 of the daemon itself at each step of an install, and what the next one makes of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker.cluster import KafkaCluster
from tests.broker.install.installing import check_back, clear
from tests.daemon.processes import ROOT, DaemonProcess, environment, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(900)]

NODE = 2
STEPS = ("prepared", "removing", "moving", "adding", "electing", "clearing")
TOPICS = {step: [[2, 1, 3]] for step in STEPS}
SEEN_S = 60.0


@pytest.fixture(scope="module")
def daemon(
    cluster: KafkaCluster, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """With a result for each of them."""
    settings = {
        "cleanerd.kafka.bootstrap.servers": cluster.bootstrap,
        "cleanerd.min.cleanable.dirty.ratio": "0.1",
    }
    daemon = DaemonProcess(tmp_path_factory.mktemp("daemon"), [cluster.log_dir(NODE)], settings, topics={})
    daemon.start()
    for topic in TOPICS:
        wait_until(
            lambda topic=topic: daemon.log(f"{topic}-0")["state"] == "staged", 120, lambda: daemon.output()
        )
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()


@pytest.fixture(autouse=True)
def cleared(cluster: KafkaCluster, daemon: DaemonProcess) -> None:
    """Nothing is left of the test before, and the daemon runs."""
    if daemon.process is None or daemon.process.poll() is not None or area(cluster).exists():
        daemon.stop(signal.SIGKILL)
        clear(cluster)
        daemon.start()


def area(cluster: KafkaCluster) -> Path:
    """Where the daemon keeps what it needs for an install."""
    return cluster.log_dir(NODE).parent / ".cleanerd-install-logs"


@pytest.mark.parametrize("step", STEPS)
def test_the_daemon_is_killed_at_a_step(
    cluster: KafkaCluster, admin: AdminClient, daemon: DaemonProcess, step: str
) -> None:
    asked = ask(daemon, step)
    try:
        left = killed_at(daemon, area(cluster) / "journal", step)
    finally:
        asked.kill()
        asked.wait()
    daemon.start()
    wait_until(lambda: not area(cluster).exists(), 120, daemon.output)
    wait_until(lambda: ended(daemon, step), 30, daemon.output)
    outcome = ended(daemon, step)[-1]
    print(step, left, outcome)
    assert left == step, "killed at another one"
    if step == "prepared":
        assert outcome == "abandoned"
    elif step == "removing":
        assert outcome in ("installed", "returned")
    else:
        assert outcome == "installed"
    check_back(admin, cluster, step, [2, 1, 3])
    leader = lambda: admin.list_topics(step, timeout=30).topics[step].partitions[0].leader  # noqa: E731
    wait_until(lambda: leader() == NODE, 30)
    assert not list(cluster.log_dir(NODE).glob("*/cleanerd-install"))
    state = "clean" if outcome == "installed" else "staged"
    wait_until(lambda: daemon.log(f"{step}-0")["state"] == state, 60, daemon.output)


def ask(daemon: DaemonProcess, topic: str) -> "subprocess.Popen[bytes]":
    """For an install."""
    arguments = ["--socket", str(daemon.socket), "install", f"{topic}-0", "--wait", "--timeout", "60s"]
    return subprocess.Popen(
        [sys.executable, "-m", "cleanerd.cli.ctl.main", *arguments],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip


def killed_at(daemon: DaemonProcess, journal: Path, step: str) -> str:
    """Kill the daemon as soon as the journal has a step; the step that it has then."""
    assert daemon.process is not None
    deadline = time.monotonic() + SEEN_S
    while time.monotonic() < deadline:
        if step_of(journal) == step:
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait()
            return step_of(journal)
        time.sleep(0.001)  # noqa: TID251 - another process is waited for
    raise AssertionError(daemon.output()[-3000:])


def step_of(journal: Path) -> str:
    try:
        return str(json.loads(journal.read_text())["install"]["step"])
    except FileNotFoundError:
        return ""


def ended(daemon: DaemonProcess, topic: str) -> list[str]:
    """Outcomes of installs that are over, the oldest first."""
    events = [event for event in reversed(daemon.history(f"{topic}-0")) if event["kind"] == "install"]
    return [event["outcome"] for event in events if event["outcome"] != "running"]
