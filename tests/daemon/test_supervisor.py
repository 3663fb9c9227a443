"""The supervisor without its threads: what a reload, a hold, a full disk and a foreign directory make of the logs."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cleanerd.cleaning.clean import budget_of
from cleanerd.cleaning.result import CleanRequest, LogResult
from cleanerd.cleaning.throttle import RateLimit
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.reload import plan_reload
from cleanerd.config.sources import read_sources
from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus, ReloadTrigger
from cleanerd.daemon.engine.calls import CleanCall
from cleanerd.daemon.loops.housekeeper import Housekeeper
from cleanerd.daemon.parts import build_parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.workers import Worker
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.names import Suffix, TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import manifest_names
from tests.cleaning.logs import lock_of_another, write_logs
from tests.daemon.processes import wait_until
from tests.storage.kill9_child import GROUPS, TP, clean_until, write_log
from tests.storage.test_kill9 import Truth

Make = Callable[..., Supervisor]


def configuration(log_dir: Path, topics: dict[str, str], **settings: object) -> Configuration:
    assignments = [(name.replace("_", "."), str(value)) for name, value in settings.items()]
    policies = [(topic, "cleanup.policy", policy) for topic, policy in topics.items()]
    return resolve(
        read_sources(assignments=[("log.dirs", str(log_dir)), *assignments], topic_assignments=policies)
    )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a supervisor that has scanned its one log directory; its threads are not started."""
    made: list[Supervisor] = []

    def supervisor(log_dir: Path, topics: dict[str, str], **settings: object) -> Supervisor:
        holds = configuration(log_dir, topics, **settings)
        history = Store(str(tmp_path / "history.sqlite"), max_bytes=10**9)
        found = Supervisor(build_parts(lambda: holds, (str(log_dir),), history, RealFiles(), SystemClock()))
        found.parts.ownership.take_at_start([str(log_dir)])
        found.crew.scanner.scan()
        made.append(found)
        return found

    yield supervisor
    for found in made:
        found.parts.ownership.release()
        found.parts.store.close()


def test_c051_a_topic_that_is_not_compacted_any_more_has_its_cleanings_aborted(
    tmp_path: Path, make: Make
) -> None:
    """Rule 2.8: each partition of the topic once, and nobody else's."""
    logs = write_logs(tmp_path / "logs", "loses", "keeps")
    (logs / "loses-0").rename(logs / "loses-1")
    write_logs(logs, "loses")
    before = {"loses": "compact", "keeps": "compact"}
    daemon = make(logs, before)
    all_logs = daemon.parts.inventory.logs()
    assert daemon.parts.states.try_start_all(all_logs) == all_logs
    after = configuration(logs, before | {"loses": "delete"})
    daemon.apply(plan_reload(daemon.parts.configuration(), after))
    assert {str(log) for log in all_logs if daemon.parts.states.is_aborted(log)} == {"loses-0", "loses-1"}
    for log in all_logs:
        daemon.parts.states.done_cleaning(log)
        assert daemon.parts.states.is_free(log), "nothing stays paused"


def test_c143_uncleanable_logs_are_out_of_the_way_and_counted_until_they_vanish(
    tmp_path: Path, make: Make
) -> None:
    logs = write_logs(tmp_path / "logs", "one", "two", "three")
    daemon = make(logs, dict.fromkeys(("one", "two", "three"), "compact"), cleanerd_retry_max=1)
    for log in daemon.parts.inventory.logs()[:2]:
        tp = log.topic_partition
        bad = LogResult(tp.topic, tp.partition, log.log_dir, "failed", "garbage", error="CorruptFile")
        daemon.parts.failures.failed(
            log, bad, daemon.parts.stamp(log), daemon.parts.configuration().broker, 1
        )
    assert [str(t.log) for t in daemon.parts.failures.all() if t.is_uncleanable] == ["one-0", "three-0"]
    job = daemon.parts.schedule.next()
    assert job is not None
    assert [str(log) for log in job.logs] == ["two-0"], "the others go on"
    (logs / "one-0").rename(tmp_path / "away")
    daemon.crew.scanner.scan()
    assert [str(t.log) for t in daemon.parts.failures.all()] == ["three-0"]


@pytest.mark.parametrize("stops_at", [Suffix.SWAP, Suffix.DELETED])
def test_recovery_ends_a_commit_that_had_begun_in_a_held_log_and_begins_no_other(
    tmp_path: Path, make: Make, stops_at: Suffix
) -> None:
    """Half-done is no state to be left in, but what waits in a held log waits on: the other groups of the cleaning."""
    logs, aside = tmp_path / "logs", tmp_path / "aside"
    logs.mkdir()
    write_log(logs, seed=7)
    truth, partition = Truth(logs), PartitionDir.of(RealFiles(), str(logs), TP)
    daemon = make(logs, {"t": "compact"})
    daemon.parts.states.hold(Hold("1", "*", "me", "because", 0))
    clean_until(str(logs), stops_at.value)
    logs.rename(aside)
    daemon.crew.scanner.scan()
    aside.rename(logs)
    daemon.crew.scanner.scan()
    assert not {name.suffix for name in partition.names()} - {Suffix.LIVE, Suffix.STAGED}
    assert len(manifest_names(partition)) == len(GROUPS) - 1
    (view,) = daemon.parts.commits.try_all(daemon.parts.inventory.logs(), lambda _: True)
    assert view.outcome == "held"
    truth.check(logs)


def test_nothing_more_is_staged_beside_a_live_broker_than_it_allows(tmp_path: Path, make: Make) -> None:
    logs = write_logs(tmp_path / "logs", "one")
    daemon = make(logs, {"one": "compact"}, cleanerd_staged_max_bytes=0)
    (log,) = daemon.parts.inventory.logs()
    assert daemon.parts.conditions.of(log).obstacle is None, "nobody owns the directory: nothing has to wait"
    with lock_of_another(logs / names.LOCK):
        daemon.crew.scanner.scan()
        assert "cleanerd.staged.max.bytes is 0" in str(daemon.parts.conditions.of(log).obstacle)
        assert daemon.parts.schedule.next() is None
    daemon.crew.scanner.scan()
    assert daemon.parts.conditions.of(log).obstacle is None
    assert daemon.parts.schedule.next() is not None


def test_small_logs_of_a_directory_share_a_job_up_to_its_limits(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cleanerd.cleaning.batching.JOB_MAX_LOGS", 3)
    topics = ("a", "b", "c", "d")
    logs = write_logs(tmp_path / "logs", *topics)
    daemon = make(logs, dict.fromkeys(topics, "compact"))
    job = daemon.parts.schedule.next()
    assert job is not None
    assert len(job.logs) == 3
    rest = daemon.parts.schedule.next()
    assert rest is not None
    assert len(rest.logs) == 1
    assert daemon.parts.schedule.next() is None


def test_requested_job_waits_for_its_log_and_goes_before_what_is_due(tmp_path: Path, make: Make) -> None:
    logs = write_logs(tmp_path / "logs", "asked", "due")
    daemon = make(logs, dict.fromkeys(("asked", "due"), "compact"))
    asked = LogId(str(logs), TopicPartition("asked", 0))
    daemon.parts.states.abort_and_pause(asked)
    job = daemon.parts.jobs.request([asked], force=True)
    first = daemon.parts.schedule.next()
    assert first is not None
    assert [str(log) for log in first.logs] == ["due-0"], "a paused log stops nobody else"
    daemon.parts.states.resume(asked)
    assert daemon.parts.schedule.next() is job


def test_cleanerds_own_switch_and_ratio_win_over_the_brokers(tmp_path: Path, make: Make) -> None:
    """`log.cleaner.enable=false` is how the broker's cleaner is switched off, in the file that both read."""
    logs = write_logs(tmp_path / "logs", "one")
    brokers = {"log_cleaner_enable": "false", "log_cleaner_min_cleanable_ratio": "1.0"}
    off = make(logs, {"one": "compact"}, **brokers)
    assert off.parts.schedule.next() is None
    off.parts.ownership.release()
    own = {"cleanerd_log_cleaner_enable": "true", "cleanerd_min_cleanable_dirty_ratio": "0.1"}
    on = make(logs, {"one": "compact"}, **brokers, **own)
    assert on.parts.configuration().topic("one").broker_min_cleanable_dirty_ratio == 1.0
    assert on.parts.schedule.next() is not None


def test_jobs_side_by_side_share_the_memory_for_keys(tmp_path: Path, make: Make) -> None:
    """log.cleaner.dedupe.buffer.size is divided, as Kafka divides it over its threads; the express worker has a share."""
    logs = write_logs(tmp_path / "logs", "one")
    settings = {"log.cleaner.threads": 3, "log.cleaner.dedupe.buffer.size": 80 << 20}
    daemon = make(logs, {"one": "compact"}, **settings)
    calls: list[CleanCall] = []

    class Recorder:
        def clean(self, call: CleanCall, *_: object) -> list[LogResult]:
            calls.append(call)
            return [LogResult.of(tp, call.log_dir) for tp in call.partitions]

    job = daemon.parts.schedule.next()
    assert job is not None
    engine: Any = Recorder()
    replace(daemon.crew.cleaners.cleanings, engine=engine).run(job)
    (call,) = calls
    assert call.jobs_at_once == 4
    request = CleanRequest(
        config=call.config, topic_config=call.topic_configs.__getitem__, log_dirs=(), jobs_at_once=4
    )
    assert budget_of(request).bytes == int((80 << 20) * call.config.io_buffer_load_factor / 4)
    assert not call.is_owned


def test_a_throttle_holds_until_a_reload_is_asked_for_or_the_rates_change(tmp_path: Path, make: Make) -> None:
    """Not until any topic of the cluster changes."""
    logs = write_logs(tmp_path / "logs", "one")
    daemon = make(logs, {"one": "compact"})
    before = daemon.parts.configuration()

    def outcome(trigger: ReloadTrigger) -> ReloadOutcome:
        return ReloadOutcome(trigger, 1, ReloadStatus.UNCHANGED, None)

    daemon.parts.throttle.set_limits(total=5.0)
    daemon.apply(plan_reload(before, configuration(logs, {"one": "compact", "two": "compact"})))
    daemon.crew.reloaded(outcome(ReloadTrigger.METADATA))
    assert daemon.parts.throttle.limits()[RateLimit.TOTAL] == 5.0
    daemon.crew.reloaded(outcome(ReloadTrigger.REQUEST))
    assert daemon.parts.throttle.limits()[RateLimit.TOTAL] > 1e300
    rate = configuration(logs, {"one": "compact"}, log_cleaner_io_max_bytes_per_second=7)
    daemon.apply(plan_reload(before, rate))
    assert daemon.parts.throttle.limits()[RateLimit.TOTAL] == 7.0


def test_a_keeper_that_dies_is_counted_and_started_again_by_a_change(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7.18 for the threads that are no workers; a dead one has a pause, which the change ends."""
    logs = write_logs(tmp_path / "logs")
    mended, worked = threading.Event(), threading.Event()

    def step(_: Housekeeper) -> bool:
        if not mended.is_set():
            raise RuntimeError("out of luck")
        worked.set()
        return False

    monkeypatch.setattr(Housekeeper, "step", step)
    monkeypatch.setattr("cleanerd.daemon.loops.housekeeper.Worker", partial(Worker, restart_pause_s=600))
    daemon = make(logs, {})
    before = daemon.parts.configuration()
    daemon.crew.start(1)
    wait_until(lambda: any(keeper.is_dead for keeper in daemon.crew._keepers), 20)
    assert daemon.crew.deaths == 1
    mended.set()
    daemon.apply(plan_reload(before, configuration(logs, {}, log_cleaner_backoff_ms=7)))
    assert worked.wait(20)
    daemon.crew.stop()
    assert daemon.crew.join_keepers(daemon.parts.clock.monotonic_s() + 20)
