"""A daemon beside a running broker has it swap each result at once; where it may not, the reason is shown."""

import os
import signal
from collections.abc import Iterator

import pytest

from cleanerd.broker_agent.leases import lease
from cleanerd.broker_agent.live_logs import RequestQueue
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from tests.harness.broker.live import DAEMON, PATIENCE_S
from tests.harness.broker.swapping import FILES, TOPIC, Swapping
from tests.harness.daemon.processes import DaemonProcess, running, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def daemon(swapping: Swapping, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    settings = {**DAEMON, "cleanerd.commit.live": "auto", "cleanerd.staged.min.free.ratio": "0.01"}
    with running(tmp_path_factory.mktemp("daemon"), swapping.log_dir, **settings) as daemon:
        yield daemon


def facts(daemon: DaemonProcess) -> dict[str, str]:
    """That `explain` has of the log, by name."""
    (found,) = daemon.ask("explain", f"{TOPIC}-0")["explanations"]
    return {fact["name"]: fact["value"] for fact in found["facts"]}


def test_results_are_swapped_as_they_come(swapping: Swapping, daemon: DaemonProcess) -> None:
    """Over and over beside traffic, over a kill of the broker, which ends the conversation, and its next start."""

    def cleaned_above(offset: int) -> None:
        wait_until(lambda: swapping.first_dirty_offset(TOPIC) > offset, PATIENCE_S, daemon.output)

    swapping.transactions.end(commit=True)
    with swapping.traffic:
        cleaned_above(0)
        cleaned_above(swapping.first_dirty_offset(TOPIC))
        (log_dir,) = daemon.ask("status")["status"]["log_dirs"]
        assert (log_dir["committed_by"], log_dir["swap_reason"]) == ("swap", None)
        swapping.check()
        swapping.broker.kill()
        swapping.broker.start()
        cleaned_above(swapping.first_dirty_offset(TOPIC))
        swapping.check()
    (job,) = daemon.ask("clean", f"{TOPIC}-0", "--roll", "--wait")["jobs"]
    assert job["outcome"] == "committed", job
    assert swapping.first_dirty_offset(TOPIC) > max(swapping.ledgers[TOPIC].written), "all of it"
    swapping.check()
    events = daemon.ask("history", f"{TOPIC}-0", "--limit", "1000")["events"]
    assert {event["outcome"] for event in events if event["kind"] == "cleaning"} >= {"committed"}
    ways = {event["committed_by"] for event in events if event["outcome"] == "committed"}
    assert {"swap"} <= ways <= {"swap", "lock"}, "with the lock while no broker lived"
    assert not [event for event in events if event["outcome"] in {"failed", "uncleanable"}]
    assert swapping.errors() == []


def test_it_is_known_for_how_long_requests_wait_in_the_brokers_queue(
    swapping: Swapping, daemon: DaemonProcess
) -> None:
    """As the broker's own metric has it, for the limit that follows it: Kafka rounds each wait to milliseconds."""
    daemon.configure(cleanerd_throttle_request_queue_max_ms=60_000)
    daemon.ask("reload")

    def is_known() -> bool:
        view = daemon.ask("throttle")["throttle"]["request_queue"]
        if view is None or view["wait_ms"] is None:
            return False
        assert view["reason"] == f"requests wait {view['wait_ms']:.1f} ms, at most 60000 ms"
        return True

    with swapping.traffic:
        wait_until(is_known, PATIENCE_S, daemon.output)
        before = RequestQueue.of(swapping.session())
        wait_until(lambda: RequestQueue.of(swapping.session()).requests > before.requests, PATIENCE_S)
        now = RequestQueue.of(swapping.session())
        assert 0 <= now.mean_ms_since(before) < 60_000
        assert now.waited_us >= before.waited_us


def test_explain_reports_what_keeps_the_brokers_own_cleaner_from_a_log(
    swapping: Swapping, daemon: DaemonProcess
) -> None:
    """A lease here; a move, a truncation or a deletion that hangs looks the same."""
    log = PartitionDir(FILES, str(swapping.directory())), TopicPartition(TOPIC, 0)
    session = swapping.session()

    def is_kept() -> bool:
        lease(session, "a test", [log], 60_000)  # again where the broker's cleaner was at it
        return facts(daemon).get("broker's cleaner") == "is kept from this log (LogCleaningPaused)"

    wait_until(is_kept, PATIENCE_S, daemon.output)
    assert lease(session, "a test", [], 60_000) == {}
    wait_until(lambda: "broker's cleaner" not in facts(daemon), PATIENCE_S, daemon.output)


def test_explain_waits_for_no_broker_that_hangs(swapping: Swapping, daemon: DaemonProcess) -> None:
    """It names the silence, and goes by the broker's files."""
    wait_until(lambda: "examination" in facts(daemon), PATIENCE_S, daemon.output)
    assert swapping.broker.pid is not None
    os.kill(swapping.broker.pid, signal.SIGSTOP)
    try:
        told = lambda: facts(daemon).get("broker", "").startswith("does not answer")  # noqa: E731
        wait_until(told, PATIENCE_S, daemon.output)  # an answer of a moment ago counts for a while
    finally:
        os.kill(swapping.broker.pid, signal.SIGCONT)
    wait_until(lambda: "broker" not in facts(daemon), PATIENCE_S, daemon.output)
