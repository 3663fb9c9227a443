"""The supervisor without its threads: what a reload, a hold, a full disk and a foreign directory make of the logs."""

import errno
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.cleaning.commit.host import Turn
from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.throttle import RateLimit
from cleanerd.daemon.api.refusals import Timeout
from cleanerd.daemon.api.verbs import clean
from cleanerd.daemon.api.verbs.abort import abort
from cleanerd.daemon.configuration.reload import ReloadStatus, ReloadTrigger
from cleanerd.daemon.engine.calls import CleanCall
from cleanerd.daemon.engine.client import CallHost, Engine
from cleanerd.daemon.loops.cleanings import _reason
from cleanerd.daemon.loops.housekeeper import Housekeeper
from cleanerd.daemon.rules.log_states import Taken
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import JobHost, _WaitingHost
from cleanerd.daemon.work.jobs import rank
from cleanerd.daemon.work.share import share
from cleanerd.env.files import RealFiles
from cleanerd.errors import Aborted, CleanerdError, SourceChanged
from cleanerd.format import names
from cleanerd.format.names import Suffix, TopicPartition
from cleanerd.spark_runtime.spark_master import spark_place
from cleanerd.storage.log_dir import LogDir, Recovered
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import manifest_names
from tests.harness.daemon.clients import hold
from tests.harness.daemon.processes import wait_until
from tests.harness.daemon.world import World
from tests.harness.disks.by_hand import GROUPS, TP, clean_until, write_log
from tests.harness.disks.repairs import Truth
from tests.harness.logs.troubled import META_PROPERTIES, contents, lock_of_another, segment, stop_broker


def next_logs(world: World) -> list[str]:
    job = world.parts.schedule.next().job
    return [] if job is None else [str(log) for log in job.logs]


def fail(world: World, log: LogId) -> None:
    bad, parts = Failed("garbage"), world.parts
    parts.failures.failed(log, bad, parts.conditions.stamp(log), parts.configuration().broker, 1)


def test_c051_a_topic_that_is_not_compacted_any_more_has_its_cleanings_aborted(world: World) -> None:
    """Rule 2.8: each partition of the topic once, and nobody else's."""
    (world.a / "one-0").rename(world.a / "one-1")
    world.add("one")
    world.scan()
    states, logs = world.parts.states, world.parts.inventory.logs()
    assert states.try_start_all(logs) == logs
    assert world.configure_topic("one", "delete").status is ReloadStatus.ACCEPTED
    assert {str(log) for log in logs if states.is_aborted(log)} == {"one-0", "one-1"}
    for log in logs:
        states.done_cleaning(log)
        assert states.is_free(log), "nothing stays paused"


def test_c143_uncleanable_logs_are_out_of_the_way_and_counted_until_they_vanish(world: World) -> None:
    world.configure(cleanerd_retry_max=1)
    parts = world.parts
    for topic in ("one", "three"):
        fail(world, world.log(topic))
    assert [str(one.log) for one in parts.failures.all() if one.is_uncleanable] == ["one-0", "three-0"]
    assert next_logs(world) == ["two-0"], "the others go on"
    (world.a / "one-0").rename(world.root / "away")
    world.scan()
    assert [str(one.log) for one in parts.failures.all()] == ["three-0"]


def test_an_uncleanable_log_keeps_its_reason_over_a_restart_until_its_file_is_mended(world: World) -> None:
    """Rules 7.14, 1.33 with cleanerd's three strikes."""
    log, file = world.log("one"), segment(world.a / "one-0", 1)
    for _ in range(world.parts.configuration().broker.retry_max):
        fail(world, log)
    world.restart()
    found = world.parts.conditions.of(log)
    assert (found.state, found.reason) == ("uncleanable", "garbage")
    file.write_bytes(file.read_bytes())
    world.clock.advance(world.parts.configuration().broker.scan_interval_ms)
    world.daemon.scanner.step()
    assert world.parts.conditions.of(log).state == "dirty"


def test_topics_that_neither_a_file_nor_a_metadata_log_names_are_left_alone(world: World) -> None:
    """Kafka's defaults would delete what its cluster compacts: whoever does not know the policy touches nothing."""
    stop_broker(world.a, dict.fromkeys(world.topics, 10**6))
    world.configure_topic("one", "compact")
    world.configure(log_cleanup_policy="compact,delete", log_retention_ms=1)
    before = contents(world.a / "two-0")
    world.scan()
    found = world.parts.conditions.of(world.log("two"))
    assert (found.state, "topics.d" in str(found.reason)) == ("ignored", True)
    assert next_logs(world) == ["one-0"]
    assert (
        not {world.log("two"), world.log("three")}
        & world.parts.retention.run(world.parts.inventory.logs()).keys()
    )
    assert contents(world.a / "two-0") == before


def test_a_log_that_is_gone_is_forgotten(world: World) -> None:
    """A topic of its name is another one. Also what ended after it had vanished, as the cleaning that met that does."""
    parts, log, other = world.parts, world.log("one"), world.log("two")

    def happens() -> None:
        for one in (log, other):
            parts.metrics.settled(one, "committed")
            parts.events.record("commit", "committed", None, one)
            fail(world, one)

    def known() -> list[LogId]:
        failed = {failure.log for failure in parts.failures.all()}
        assert {one for one in (log, other) if parts.events.last(one)} == failed
        assert {one for one in (log, other) if parts.metrics.last_clean_s(one)} == failed
        return sorted(failed)

    happens()
    (world.a / "one-0").rename(world.root / "away")
    world.scan()
    assert known() == [other]
    happens()
    world.scan()
    assert known() == [other]
    world.a.rename(world.root / "unmounted")
    parts.inventory.touch_log(other)  # as the end of its cleaning does
    world.daemon.scanner.refresh()
    world.scan()
    assert known() == [other], "a log directory that fails may come back"
    (world.root / "unmounted").rename(world.a)
    (world.a / names.CLEANER_OFFSET_CHECKPOINT).write_text("garbage")
    world.restart()
    assert [one.log for one in world.parts.failures.all()] == [other], "offline since the start"


def vanishes(world: World) -> str:
    (world.a / "one-0").rename(world.root / "one-0.7f-delete")
    world.scan()
    return f"it vanished from {world.a}: its topic was deleted, or it was moved away"


def is_not_compacted(world: World) -> str:
    world.configure_topic("one", "delete")
    return "its cleanup.policy no longer contains compact"


def is_held(world: World) -> str:
    world.parts.states.hold(hold("1", "one"), 0)
    return "uid 0 paused one (hold 1)"


def is_aborted(world: World) -> str:
    with pytest.raises(Timeout):
        abort(world.control, "one", 0)
    return "`cleanerctl abort`"


@pytest.mark.parametrize("happens", [vanishes, is_not_compacted, is_held, is_aborted])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Aborted("asked to stop"), "{}"),
        (SourceChanged("0.log: No such file or directory"), "{}: 0.log: No such file or directory"),
    ],
)
def test_a_cleaning_that_was_to_stop_has_the_cause_in_history_and_job(
    world: World, happens: Callable[[World], str], error: CleanerdError, said: str
) -> None:
    """Its tasks know that they are to stop, or meet what is left of the log."""
    parts, log, expected = world.parts, world.log("one"), []

    class Stopped(Engine):
        def clean(self, task: CleanCall, host: CallHost) -> list[LogResult]:
            expected.append(said.format(happens(world)))
            assert host.is_aborted()
            return [LogResult.of_error(log.topic_partition, log.log_dir, error)]

    requested = parts.jobs.request([log], force=True)
    job = parts.schedule.next().job
    assert job is requested
    engine = Stopped(parts.configuration, spark_place, world.clock)
    replace(world.daemon.cleaners.cleanings, engine=engine).run(job)
    (event,) = parts.store.events("one", 1, None, ("cleaning",))
    assert [event.reason] == [job.reason] == expected
    assert parts.states.why_stopped(log) is None


class Empty(World):
    topics = ()


@pytest.mark.parametrize("stops_at", [Suffix.SWAP, Suffix.DELETED])
def test_recovery_ends_a_commit_that_had_begun_in_a_held_log_and_begins_no_other(
    tmp_path: Path, stops_at: Suffix
) -> None:
    """Half-done is no state to be left in, but what waits in a held log waits on: the other groups of the cleaning."""
    world, aside = Empty(tmp_path), tmp_path / "aside"
    write_log(world.a, seed=7)
    truth, partition = Truth(world.a), PartitionDir.of(RealFiles(), str(world.a), TP)
    world.scan()
    world.parts.states.hold(hold("1", "*"))
    clean_until(str(world.a), stops_at.value)
    world.a.rename(aside)
    world.scan()
    aside.rename(world.a)
    world.scan()
    assert not {name.suffix for name in partition.names()} - {Suffix.LIVE, Suffix.STAGED}
    assert len(manifest_names(partition)) == len(GROUPS) - 1
    (view,) = world.parts.commits.try_all(world.parts.inventory.logs(), lambda _: True)
    assert view.outcome == "held"
    truth.check(world.a)
    world.close()


def test_nothing_more_is_staged_beside_a_live_broker_than_it_allows(world: World) -> None:
    (world.a / names.META_PROPERTIES).write_text(META_PROPERTIES)
    world.configure_topic("one", "compact")
    world.configure(cleanerd_staged_min_free_ratio=1)
    world.scan()
    conditions, log = world.parts.conditions, world.log("one")
    assert conditions.of(log).obstacle is None, "nobody owns the directory: nothing has to wait"
    with lock_of_another(world.a / names.LOCK):
        world.scan()
        assert "cleanerd.staged.min.free.ratio is 1.0" in str(conditions.of(log).obstacle)
        assert next_logs(world) == []
    world.scan()
    assert conditions.of(log).obstacle is None


def test_requests_for_small_logs_are_one_job_as_logs_that_are_due_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not for one that cannot be had now, one that is asked for in another way, or beyond the limits of a job."""
    monkeypatch.setattr("cleanerd.policy.schedule.JOB_MAX_LOGS", 3)
    world.add("four", "five", "six", "rolled")
    world.scan()
    parts, request = world.parts, partial(clean.clean, world.control, force=True)
    (rolled,) = request("rolled", roll=True)
    ids = {str(view.logs[0]): view.id for view in request("*")}
    assert ids.pop("rolled-0") == rolled.id
    parts.states.abort_and_pause(world.log("four"))
    taken = [parts.schedule.next().job for _ in range(2)]
    parts.states.resume_all([world.log("four")])
    taken.append(parts.schedule.next().job)
    jobs = [job for job in taken if job is not None]
    assert [[log.topic_partition.topic for log in job.logs] for job in jobs] == [
        ["rolled"], ["five", "one", "six"], ["four", "three", "two"]
    ]  # fmt: skip
    assert [view.id for view in parts.jobs.views()] == [job.id for job in jobs]
    assert parts.jobs.running() == jobs
    parts.jobs.end(jobs[1], ["committed"], None)
    assert parts.jobs.view(ids["one-0"]) == parts.jobs.view(ids["five-0"])
    assert [parts.jobs.wait(ids[name], 0) for name in ("one-0", "five-0", "four-0")] == [True, True, False]
    for job in jobs:
        for log in job.logs:
            parts.states.done_cleaning(log)
    assert [len(next_logs(world)) for _ in range(4)] == [3, 3, 1, 0], "so are those that are due"


def test_a_request_does_not_wait_for_those_before_it_nor_fail_with_them(world: World) -> None:
    """However many they are: of a directory that has failed since, each ends with the reason."""
    parts, busy, free = world.parts, world.log("one"), world.log("two")
    gone = [LogId(str(world.b), TopicPartition("gone", number)) for number in range(2000)]
    ended = [parts.jobs.request([log], force=True) for log in gone]
    waiting, wanted = (parts.jobs.request([log], force=True) for log in (busy, free))
    parts.obstacles.offline = {str(world.b): "it has failed"}
    parts.states.abort_and_pause(busy)
    assert parts.schedule.next().job is wanted
    assert {(job.outcome, job.reason) for job in ended} == {("failed", f"{world.b}: it has failed")}
    parts.states.resume_all([busy])
    assert parts.schedule.next().job is waiting


def test_a_job_ends_and_gives_its_logs_back_whatever_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the engine is asked, as by a kernel that has no more locks."""
    parts, log = world.parts, world.log("one")
    job = parts.jobs.request([log], force=True)
    assert parts.schedule.next().job is job
    monkeypatch.setattr(type(parts.ownership), "owner", lambda *_: (world.a / "no such").stat())
    with pytest.raises(FileNotFoundError):
        world.daemon.cleaners.cleanings.run(job)
    assert parts.states.is_free(log)
    assert (job.outcome, "the log of the daemon" in str(job.reason)) == ("failed", True)


def test_a_slice_of_a_commit_gives_its_logs_back_whatever_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the look whether a broker starts there."""
    log, log_dir = world.log("one"), world.parts.ownership.at(str(world.a))
    host = _WaitingHost(log_dir, world.parts.commits, lambda _: True, {})
    turn = Turn(host.begin([log.topic_partition]))
    assert not world.parts.states.is_free(log)
    monkeypatch.setattr(JobHost, "end", lambda *_: (world.a / "no such").stat())
    with pytest.raises(FileNotFoundError):
        host.end(turn)
    assert world.parts.states.is_free(log)


def test_a_job_of_several_logs_says_which_reason_is_whose() -> None:
    assert _reason([], 3) is None
    assert _reason([("a-0", "why")], 1) == "why"
    assert _reason([("a-0", "why"), ("b-0", "why")], 2) == "why"
    assert _reason([("a-0", "why")], 4) == "a-0: why"
    many = [*((f"a-{number}", "why") for number in range(5)), ("b-0", "other")]
    assert _reason(many, 6) == "a-0, a-1, a-2 and 2 more: why; b-0: other"
    assert sorted(["skipped", "committed", "held", "failed"], key=rank) == [
        "failed",
        "committed",
        "skipped",
        "held",
    ]
    each = [(f"c-{number}", f"held back from offset {number} on") for number in range(256)]
    said = "; ".join(f"{log}: {reason}" for log, reason in each[:3])
    assert _reason(each, 256) == f"{said}; and 253 more reasons, which `cleanerctl explain` has for each log"


def test_an_abort_ends_what_was_asked_for_and_waits_for_a_worker(world: World) -> None:
    """Who aborts does not expect the cleaning a moment later. Other requests stay."""
    parts = world.parts
    ((ended,), (other,)) = (clean.clean(world.control, topic, force=True) for topic in ("one", "two"))
    assert [one.topic for one in abort(world.control, "one", 0)] == ["one"]
    found = parts.jobs.view(ended.id)
    assert (found.state, found.outcome, found.reason) == ("done", "aborted", "`cleanerctl abort`")
    assert [job.id for job in parts.jobs.requested()] == [other.id]
    assert abort(world.control, "three", 0) == ()
    assert next_logs(world) == ["two-0"]


def test_a_request_that_is_aborted_while_a_worker_takes_it_gives_its_log_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be in progress for ever (2.13)."""
    parts, log = world.parts, world.log("one")
    job, take = parts.jobs.request([log], force=True), parts.states.try_start_all

    def taking(logs: Iterable[LogId]) -> list[Taken]:
        taken = take(logs)
        parts.jobs.refuse(job, "aborted", "the test")
        return taken

    monkeypatch.setattr(parts.states, "try_start_all", taking)
    begun = parts.schedule.next().job
    assert (job.outcome, job.started_ms) == ("aborted", None)
    assert begun is not None
    assert (begun.trigger, log in begun.logs) == ("schedule", True), "it is free again"


def test_requested_job_waits_for_its_log_and_goes_before_what_is_due(world: World) -> None:
    asked = world.log("one")
    world.parts.states.abort_and_pause(asked)
    job = world.parts.jobs.request([asked], force=True)
    assert sorted(next_logs(world)) == ["three-0", "two-0"], "a paused log stops nobody else"
    world.parts.states.resume_all([asked])
    assert world.parts.schedule.next().job is job


def test_cleanerds_own_switch_and_ratio_win_over_the_brokers(world: World) -> None:
    """`log.cleaner.enable=false` is how the broker's cleaner is switched off, in the file that both read."""
    world.restart(log_cleaner_enable="false", log_cleaner_min_cleanable_ratio="1.0")
    assert next_logs(world) == []
    world.restart(cleanerd_log_cleaner_enable="true", cleanerd_min_cleanable_dirty_ratio="0.1")
    assert world.parts.configuration().topic("one").broker_min_cleanable_dirty_ratio == 1.0
    assert next_logs(world) != []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"log_cleaner_enable": "false"}, "log.cleaner.enable"),
        ({"cleanerd_log_cleaner_enable": "false"}, "cleanerd.log.cleaner.enable"),
    ],
)
def test_what_switches_cleaning_off_is_named_by_its_key(
    world: World, settings: dict[str, str], key: str
) -> None:
    """Where a log, its directory and its retention are explained."""
    world.restart(**settings)
    log = world.log("one")
    assert world.parts.conditions.of(log).obstacle == f"cleaning is off: {key} is false"
    text = share(world.parts.conditions, log.log_dir).text
    assert text.endswith(f". To change that: cleanerd.log.cleaner.enable=true, for {key} is false")
    obstacle = world.control.explainer.retention._obstacle(log)
    assert obstacle == f"{key} is false, and compacted logs get their retention from the cleaner"


def test_a_throttle_holds_until_a_reload_is_asked_for_or_the_rates_change(world: World) -> None:
    """Not until any topic of the cluster changes."""
    throttle = world.parts.throttle
    throttle.set_limits(total=5.0, read=5.0)
    world.configure_topic("two", "compact")
    assert throttle.limits()[RateLimit.TOTAL] == 5.0
    world.control.reload(ReloadTrigger.REQUEST)
    assert throttle.limits()[RateLimit.TOTAL] > 1e300
    world.configure(cleanerd_io_max_read_bytes_per_second=7)
    assert throttle.limits()[RateLimit.READ] == 7.0


def test_a_directory_that_cannot_be_recovered_is_not_reported_as_owned_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` cannot be recovered; another process owns `b`."""

    world, recovers = World(tmp_path), LogDir.recover

    def recover(
        log_dir: LogDir, found: Iterable[str], is_under_way: Callable[[str], bool]
    ) -> Iterable[Recovered]:
        if log_dir.path == str(world.a):
            raise PermissionError(errno.EACCES, "no permission", log_dir.path)
        return recovers(log_dir, found, is_under_way)

    world.parts.ownership.release()  # as at the start of a process
    monkeypatch.setattr(world.daemon, "start_threads", lambda: None)
    monkeypatch.setattr(LogDir, "recover", recover)
    with lock_of_another(world.b / names.LOCK), capture_logs() as logged:
        world.daemon.start()
    world.close()
    events = ("owned_by_another", "recovery_postponed")
    assert {(line["event"], line["log_dir"]) for line in logged if line["event"] in events} == {
        ("recovery_postponed", str(world.a)),
        ("owned_by_another", str(world.b)),
    }


def test_a_keeper_that_dies_is_counted_and_started_again_by_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7.18 for the threads that are no workers; a dead one has a pause, which the change ends."""
    mended, worked = threading.Event(), threading.Event()

    def step(_: Housekeeper) -> bool:
        if not mended.is_set():
            raise RuntimeError("out of luck")
        worked.set()
        return False

    monkeypatch.setattr(Housekeeper, "step", step)
    monkeypatch.setattr("cleanerd.daemon.workers._RESTART_PAUSE_S", 600)
    world = World(tmp_path)
    world.parts.states.hold(hold("1", "*"))
    daemon = world.daemon
    daemon.start()
    wait_until(lambda: any(keeper.is_dead for keeper in daemon.keepers), 20)
    assert daemon.deaths == 1
    mended.set()
    world.configure(log_cleaner_backoff_ms=7)
    assert worked.wait(20)
    world.close()
