"""The broker's cleaner is kept from a log as long as a lease is renewed, and no longer."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cleanerd.broker_agent.leases import lease
from cleanerd.broker_agent.live_logs import describe, named_log
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from tests.harness.broker.live import COMPACT_DELETE, PATIENCE_S
from tests.harness.broker.swapping import FILES, TOPIC, TXN_TOPIC, Swapping
from tests.harness.broker.workload import alter_config, create_topics
from tests.harness.daemon.processes import ROOT, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TP, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TXN_TOPIC, 0)
HOLDER = """
import sys, threading
from cleanerd.broker_agent.leases import lease
from cleanerd.broker_agent.session import Session
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir

pid, log_dir, topic = sys.argv[1:]
session = Session(int(pid), log_dir, RealFiles(), SystemClock())
log = PartitionDir(RealFiles(), f"{log_dir}/{topic}-0"), TopicPartition(topic, 0)
while True:
    assert lease(session, "holder", [log], 4000) == {}
    print("renewed", flush=True)
    threading.Event().wait(1)
"""


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Swapping]:
    """Of which no cleaner has taken a log."""
    with Swapping(tmp_path) as world:
        world.transactions.end(commit=True)
        yield world


def log(swapping: Swapping, tp: TopicPartition) -> tuple[PartitionDir, TopicPartition]:
    return PartitionDir(FILES, str(swapping.directory(tp.topic))), tp


def timers(swapping: Swapping) -> int:
    tasks = Path(f"/proc/{swapping.broker.pid}/task").iterdir()
    found = 0
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found += (task / "comm").read_text().startswith("cleanerd-agent-")
    return found


def make_dirtiest(swapping: Swapping) -> None:
    for topic in (TOPIC, TXN_TOPIC):
        alter_config(swapping.broker.admin(), topic, {"min.cleanable.dirty.ratio": "0.0"})


def test_after_kill_9_of_its_holder_the_brokers_cleaner_takes_over(swapping: Swapping) -> None:
    """And takes the other log meanwhile. The timer ends with the last lease."""
    command = [sys.executable, "-c", HOLDER, str(swapping.broker.pid), str(swapping.log_dir), TOPIC]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "renewed\n"
        make_dirtiest(swapping)
        wait_until(lambda: swapping.first_dirty_offset(TXN_TOPIC) > 0, PATIENCE_S)
        for _ in range(6):  # longer than one lease
            assert holder.stdout.readline() == "renewed\n"
        assert swapping.first_dirty_offset(TOPIC) == 0
        assert timers(swapping) == 1
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    wait_until(lambda: swapping.first_dirty_offset(TOPIC) > 0, PATIENCE_S)
    wait_until(lambda: timers(swapping) == 0, 10)
    swapping.check_in_order()


def test_each_holder_has_its_own(swapping: Swapping) -> None:
    """Two daemons: a log is given back when the last of them gives it back. A conversation may end meanwhile."""
    both = [log(swapping, TP), log(swapping, OTHER)]
    session, other = swapping.session(), swapping.session()
    assert lease(session, "one", both, 60_000) == {}
    assert lease(other, "two", both[:1], 60_000) == {}
    session.close()
    session = swapping.session()
    make_dirtiest(swapping)
    assert lease(session, "one", [], 60_000) == {}
    wait_until(lambda: swapping.first_dirty_offset(TXN_TOPIC) > 0, PATIENCE_S)
    threading.Event().wait(2)  # many times log.cleaner.backoff.ms
    assert swapping.first_dirty_offset(TOPIC) == 0
    (found,) = describe(session, str(swapping.log_dir), [TP])
    assert found.cleaning_state == "LogCleaningPaused"
    assert lease(other, "two", [], 60_000) == {}
    wait_until(lambda: swapping.first_dirty_offset(TOPIC) > 0, PATIENCE_S)
    wait_until(lambda: timers(swapping) == 0, 10)
    assert swapping.complaints() == []


def test_a_leased_log_is_swapped(swapping: Swapping) -> None:
    """A pause that leases make up keeps nobody from swapping, and it goes on afterwards."""
    session = swapping.session()
    logs = [log(swapping, TP)]
    assert lease(session, "one", logs, 60_000) == lease(session, "two", logs, 60_000) == {}
    wait_until(
        lambda: describe(session, str(swapping.log_dir), [TP])[0].cleaning_state == "LogCleaningPaused", 10
    )
    assert swapping.stage_copies(groups_max=3).by(session).outcome == "swapped"
    (found,) = describe(session, str(swapping.log_dir), [TP])
    assert found.cleaning_state == "LogCleaningPaused"
    swapping.check()


def test_what_cannot_be_leased_is_named_with_its_reason(swapping: Swapping) -> None:
    """The others are leased all the same."""
    create_topics(swapping.broker.admin(), {"retained": COMPACT_DELETE})
    wait_until(lambda: (swapping.directory("retained") / "partition.metadata").exists(), PATIENCE_S)
    session, retained = swapping.session(), TopicPartition("retained", 0)
    elsewhere = (log(swapping, OTHER)[0], TopicPartition("retained", 0))
    refused = lease(session, "one", [log(swapping, TP), log(swapping, retained)], 60_000)
    assert list(refused) == [retained]
    assert "contains delete" in refused[retained]
    assert "the broker has the log in" in lease(session, "one", [elsewhere], 60_000)[retained]
    named = {"request": "lease", "holder": "one", "logs": [named_log(*log(swapping, TP))]}
    for lease_ms in (0, -1, 1 << 40):
        assert session.ask({**named, "lease_ms": lease_ms}, 10)["outcome"] == "failed"
    wait_until(lambda: timers(swapping) == 0, 10)  # what was refused has taken the place of what "one" had
