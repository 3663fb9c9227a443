"""The daemon beside a broker that stops: it goes on by what that knew for some minutes (architecture 2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import JobHost, _WaitingHost
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import Aborted
from cleanerd.format.names import LOCK, TopicPartition
from cleanerd.policy.tombstones import KNOWN_FOR_MS
from cleanerd.storage.metadata_log import find_metadata
from cleanerd.units import utc
from tests.cleaning.test_knowledge import Stopped
from tests.harness.clock import HandClock
from tests.harness.logs.metadata import TOPIC, config
from tests.harness.logs.troubled import lock_of_another

OFFSET = 10_000


class Beside:
    """The parts of a daemon, and its scanner, beside a broker that has just stopped."""

    def __init__(self, root: Path) -> None:
        self.broker = Stopped(root / "logs")
        self.log = LogId(str(self.broker.path), TopicPartition("orders", 0))
        self.clock = HandClock()
        self.clock.wall_ms = self.stopped_ms = SystemClock().now_ms()
        self.broker.write_metadata(self.stopped_ms)
        found = find_metadata(RealFiles(), [str(self.broker.path)], "")
        configuration = resolve(read_sources(None), found)
        self.parts = Parts(
            lambda: configuration,
            (str(self.broker.path),),
            Store(str(root / "history.sqlite")),
            RealFiles(),
            self.clock,
        )
        self.scanner = self.parts.supervisor().scanner
        self.scanner.scan()

    def ignored(self) -> str | None:
        return self.parts.obstacles.ignored.get(self.log)

    def outlast(self) -> None:
        """Until nothing may begin any more; no file changes meanwhile."""
        self.clock.advance(KNOWN_FOR_MS + 1)
        self.scanner.refresh()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    found = Beside(tmp_path)
    yield found
    found.scanner.watcher.stop()
    found.parts.ownership.release()


def test_then_nothing_begins_and_the_reason_has_the_last_sign_of_life(beside: Beside) -> None:
    assert beside.ignored() is None
    beside.outlast()
    assert f"its last sign of life was at {utc(beside.stopped_ms)}" in str(beside.ignored())
    assert beside.parts.states.try_start_all([beside.log]) == []


def test_what_has_begun_goes_on(beside: Beside) -> None:
    """A cleaning is not stopped, and may commit; a result that only waits does so on."""
    assert beside.parts.states.try_start_all([beside.log])
    beside.parts.jobs.start("request", [beside.log])
    beside.outlast()
    assert not beside.parts.states.is_aborted(beside.log)
    log_dir = beside.parts.ownership.at(beside.log.log_dir)
    JobHost(log_dir, beside.parts.commits).check(beside.log.topic_partition, OFFSET)
    with pytest.raises(Aborted, match="last sign of life"):
        _WaitingHost(log_dir, beside.parts.commits, lambda _: True, {}).check(
            beside.log.topic_partition, OFFSET
        )


def test_a_result_waits_for_a_policy_that_is_not_certain(beside: Beside) -> None:
    """That of a fresh cleaning, too: nothing proves that the cluster has another one (rule A.5)."""
    assert beside.parts.states.try_start_all([beside.log])
    beside.broker.write_metadata(
        beside.stopped_ms, last=config(TOPIC, "orders", "min.compaction.lag.ms", "5")
    )
    log_dir = beside.parts.ownership.at(beside.log.log_dir)
    for host in (
        JobHost(log_dir, beside.parts.commits),
        _WaitingHost(log_dir, beside.parts.commits, lambda _: True, {}),
    ):
        with pytest.raises(Aborted, match="may never have been accepted"):
            host.check(beside.log.topic_partition, OFFSET)


def test_delete_records_needs_no_settings(beside: Beside) -> None:
    """It is the word of an operator about this log."""
    beside.outlast()
    taken = beside.parts.states.take(beside.log, 0)
    beside.parts.states.done_deleting([taken])


def test_a_broker_that_lives_again_is_known_again(beside: Beside) -> None:
    """At the next look, although nothing else changes in its directory; and no longer once it is gone."""
    beside.outlast()
    (beside.broker.path / LOCK).touch()
    with lock_of_another(beside.broker.path / LOCK):
        beside.scanner.refresh()
        assert "cut off from its controllers" in str(beside.ignored())
        beside.broker.append(beside.clock.now_ms())
        beside.scanner.refresh()
        assert beside.ignored() is None
    beside.scanner.refresh()
    assert beside.ignored() is not None
    beside.broker.write_metadata(beside.clock.now_ms())
    beside.clock.wall_ms = SystemClock().now_ms()
    beside.scanner.refresh()
    assert beside.ignored() is None
