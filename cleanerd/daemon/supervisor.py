"""The daemon as a whole: its parts, its threads, the order in which they start and stop.

Start   1. directories taken (`ownership`), a second instance refused with the pid of the first
        2. leftovers of interrupted commits mended, where nobody else owns the directory
        3. first scan
        4. workers, keepers, control socket; from here on it is ready
Stop    1. no new work; every cleaning is aborted at its next buffer, waiters are sent away
        2. workers end; a commit that has begun is finished
        3. engine, keepers, control socket, history, directory locks

What a kill leaves instead, the next start mends.

thread                what it does
--------------------  -----------------------------------------------------------------------------------------
cleanerd-worker-<n>   the next job (`schedule`), then the next
cleanerd-worker-express  reserved topics that have waited too long behind long jobs
cleanerd-scanner      inventory: when the watcher saw something, and every cleanerd.scan.interval.ms
cleanerd-committer    staged results whose directory became free
cleanerd-retention    log.retention.check.interval.ms for logs that are not compacted, the backoff for the others
cleanerd-housekeeper  deletions that are due, holds that expire, an idle engine, history
"""

import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial

import structlog
from structlog.contextvars import bind_contextvars, unbind_contextvars

from cleanerd.cleaning.boundary import attempt
from cleanerd.cleaning.result import SUPERSEDED, LogResult
from cleanerd.cleaning.retain import Retained
from cleanerd.cleaning.spark_master import express_place, spark_place
from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.load import Configuration
from cleanerd.config.reload import ReloadPlan
from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus, Trigger
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.inventory.ignored import why_foreign
from cleanerd.daemon.inventory.inventory import Inventory, ScanReport
from cleanerd.daemon.inventory.known_log import stamp_of
from cleanerd.daemon.inventory.watch import LogDirWatcher
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.telemetry.history import HOLD, History
from cleanerd.daemon.telemetry.metrics import Metrics, dedupe_ratio
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import HistoryEvent
from cleanerd.daemon.work.brokers_cleaner import BrokersCleaner
from cleanerd.daemon.work.cleanings import Cleanings
from cleanerd.daemon.work.commits import Commits
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.deletions import Deleted, PendingDeletions
from cleanerd.daemon.work.failures import Failures
from cleanerd.daemon.work.holds import Hold
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.daemon.work.retention import Retention, whose_turn
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.work.wanted import Wanted
from cleanerd.daemon.workers import Bell, Worker, Workers
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.storage.scan import is_kafka_dir

HORIZON = "horizon"
_HOUSEKEEPING_S = 1.0
_PRUNE_S = 600.0
_EXAMINED_FOR_MS = 60_000
"""What an exact examination found may be other than what the files say, like an open transaction: look again then."""

_log = structlog.get_logger("cleanerd")


class Supervisor:
    """Everything but the process around it. `configuration` answers with the one that holds now.

    `recovering` hears of every partition directory that was mended: with many, a start takes a while. `refresh` takes in
    what the cluster has said about its topics since the configuration was read.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        log_dirs: tuple[str, ...],
        history: History,
        files: Files,
        clock: Clock,
        recovering: Callable[[], None] = lambda: None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self.configuration = configuration
        self.log_dirs = log_dirs
        self.history = history
        self.files = files
        self.clock = clock
        self.started_s = clock.monotonic_s()
        self.is_ready = False
        self.is_stopping = threading.Event()
        self.offline: dict[str, str] = {}
        self.ignored: dict[LogId, str] = {}
        self.full: dict[str, str] = {}  # log directories in which nothing more may be staged, and why
        self._workers_of: dict[str, Worker] = {}  # who waits for a job, by its id
        self.progressed = threading.Condition()  # notified when a log was cleaned, committed or vanished
        self.metrics = Metrics(log_dirs, clock)
        self.events = EventLog(history, clock, self._told)
        self.states = PartitionStates(clock, [Hold(**hold) for hold in history.all(HOLD).values()])
        self.throttle = Throttle(clock)
        self.failures = Failures(history)
        self.jobs = Jobs(clock)
        self.deletions = PendingDeletions(files, clock)
        self.inventory = Inventory(files, clock)
        stall_timeout_ms = lambda: configuration().broker.job_stall_timeout_ms  # noqa: E731
        self.engine = Engine(lambda: spark_place(configuration().broker), clock, stall_timeout_ms)
        self._express_engine = Engine(lambda: express_place(configuration().broker), clock, stall_timeout_ms)
        self.ownership = Ownership(files, clock, self._recovered, self.metrics.recovered)
        self._recovering = recovering
        self.bell = Bell()
        self.wanted = Wanted(self.states, files, clock, configuration, refresh)
        self._make_steps()
        self._make_threads()

    def _make_steps(self) -> None:
        """Who cleans, commits and retains, and who decides what is next."""
        configuration, files, clock = self.configuration, self.files, self.clock
        self.cleanings = Cleanings(
            engine=self.engine, states=self.states, jobs=self.jobs, throttle=self.throttle, files=files,
            configuration=configuration, metrics=self.metrics, clock=clock,
            is_yielding=self.ownership.is_yielding, wanted=self.wanted, log_dirs=self.log_dirs,
            done=self._cleaned, beat=self._beat,
            is_owned=lambda log_dir: self.ownership.owner_of(log_dir) is not None,
        )  # fmt: skip
        self.commits = Commits(
            states=self.states, ownership=self.ownership, events=self.events, files=files,
            inventory=self.inventory, metrics=self.metrics, clock=clock, log_dirs=self.log_dirs,
            wanted=self.wanted, pause=self.is_stopping.wait,
            mend=lambda log: self.cleanings.mend(log, is_kafka=is_kafka_dir(files, log.log_dir)),
        )  # fmt: skip
        self.retention = Retention(
            states=self.states, files=files, clock=clock, configuration=configuration,
            dispose=self.deletions.add, done=self._retained,
        )  # fmt: skip
        self.conditions = Conditions(
            inventory=self.inventory, states=self.states, failures=self.failures, ownership=self.ownership,
            configuration=configuration, clock=clock, offline=lambda: self.offline,
            ignored=lambda: self.ignored, full=lambda: self.full,
            brokers_cleaner=BrokersCleaner(files),
        )  # fmt: skip
        self.schedule = Schedule(
            self.inventory, self.states, self.jobs, configuration,
            lambda log: self.conditions.of(log).obstacle, clock,
        )  # fmt: skip

    def _make_threads(self) -> None:
        """Workers, keepers, and what wakes them."""
        clock = self.clock
        express = replace(self.cleanings, engine=self._express_engine, is_urgent=True)
        self.workers = Workers(
            lambda: self._work(self.schedule.next(), self.cleanings),
            self.schedule.pause_s,
            lambda: self._work(self.schedule.next_express(), express),
            self._backoff_s,
            self.bell,
            clock,
        )
        self.scan_bell, self.commit_bell, self._slow_bell = Bell(), Bell(), Bell()
        self._watcher = LogDirWatcher(self.log_dirs, self._seen_change, self._seen_lock)
        self._scanned_s = -math.inf
        self._retained_s = self._pruned_s = clock.monotonic_s()
        self._keepers = [
            Worker("cleanerd-scanner", self._scan_step, self._scan_pause_s, self.scan_bell, clock),
            Worker("cleanerd-committer", self._commit_step, self._commit_pause_s, self.commit_bell, clock),
            Worker("cleanerd-retention", self._retention_step, self._backoff_s, self._slow_bell, clock),
            Worker("cleanerd-housekeeper", self._housekeep, lambda: _HOUSEKEEPING_S, self._slow_bell, clock),
        ]

    # -- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Steps 1 to 4 but for the control socket. Raises Fatal when another cleanerd works in one of the directories."""
        self.set_limits(self.configuration())
        self.throttle.set_configured(self.configuration().broker)
        self.offline = self.ownership.take_at_start(self.log_dirs)
        for log_dir in self.log_dirs:
            if log_dir not in self.offline and not self.ownership.mend(log_dir):
                _log.info("owned_by_another", log_dir=log_dir, pid=self.ownership.owner_of(log_dir))
        self.scan()
        for value in self.history.all(HORIZON).values():
            self.inventory.note_horizon(LogId.of_fields(value), int(value["horizon_ms"]))
        self._watcher.start()
        self.workers.start(self.configuration().broker.log_cleaner_threads)
        for keeper in self._keepers:
            keeper.start()
        self.is_ready = True
        self.events.record("daemon", "started", logs=len(self.inventory.logs()), log_dirs=list(self.log_dirs))

    def stop(self) -> bool:
        """Steps 1 to 3 but for the control socket; whether everything ended within cleanerd.shutdown.timeout.ms."""
        timeout_s = self.configuration().broker.shutdown_timeout_ms / 1000
        deadline_s = self.clock.monotonic_s() + timeout_s
        self.is_ready = False
        self.is_stopping.set()
        self.states.close()
        self.workers.stop()
        for keeper in self._keepers:
            keeper.stop()
        with self.progressed:
            self.progressed.notify_all()
        is_drained = self.workers.join(timeout_s)
        for engine in (self.engine, self._express_engine):
            engine.stop(max(min(deadline_s - self.clock.monotonic_s(), 5.0), 0.5))
        self._watcher.stop()
        for keeper in self._keepers:
            is_drained &= keeper.join(max(deadline_s - self.clock.monotonic_s(), 0.1))
        self.events.record("daemon", "stopped" if is_drained else "cut off")
        self.history.close()
        self.ownership.release()
        return is_drained

    def apply(self, plan: ReloadPlan) -> None:
        """Put a new configuration into effect; called before `configuration` answers with it."""
        self.set_limits(plan.new)
        self.throttle.set_configured(plan.new.broker, plan.old.broker)
        for log in self.inventory.logs():
            if log.topic_partition.topic in plan.compact_removed:
                self.states.stop(log)  # rule 2.8
        if plan.needs_workers:
            self.workers.resize(plan.new.broker.log_cleaner_threads)

    def reloaded(self, outcome: ReloadOutcome) -> None:
        """After every reload: tell of it; what was in the way may be gone. One that was asked for ends a `throttle`."""
        if (
            outcome.trigger in (Trigger.REQUEST, Trigger.SIGNAL)
            and outcome.status is not ReloadStatus.REJECTED
        ):
            self.throttle.set_configured(self.configuration().broker)
        if outcome.status is not ReloadStatus.UNCHANGED:
            reason = "; ".join(outcome.problems) or None
            changes = [str(change) for change in outcome.plan.changes] if outcome.plan else None
            self.events.record(
                "reload", outcome.status.value, reason, trigger=outcome.trigger.value, changes=changes
            )
        if outcome.plan is not None:
            self._judge(self.inventory.logs())
            self.bell.ring()

    def set_limits(self, configuration: Configuration) -> None:
        """Priorities and the size of the history as configured."""
        config = configuration.broker
        self.history.set_limits(config.history_max_age_ms, config.history_max_bytes)
        self.inventory.reserve(config.reserved_topics, config.reserved_max_wait_ms)

    # -- what workers do ----------------------------------------------------------------------------------------

    def _work(self, job: Job | None, cleanings: Cleanings) -> bool:
        if job is None:
            return False
        worker = self.workers.current()
        if worker is not None:
            self._workers_of[job.id] = worker
        for log in job.logs:
            self.metrics.wasted(log.log_dir, self.inventory.staged_bytes(log))
        bind_contextvars(**job.fields())
        try:
            cleanings.run(job)
        finally:
            self._workers_of.pop(job.id, None)
        unbind_contextvars(*job.fields())  # not of a thread that dies of it: that tells its job
        self._refresh()
        return not self.is_stopping.is_set()

    def _beat(self, job: Job) -> None:
        """The tasks of a job report: the worker that waits for them lives."""
        worker = self._workers_of.get(job.id)
        if worker is not None:
            worker.beat()

    def _cleaned(self, job: Job, log: LogId, result: LogResult) -> None:
        """What became of a log; it is still in progress."""
        now_ms, config = self.clock.now_ms(), self.configuration().broker
        self._touch(log)
        self.metrics.cleaned(job.id, log, result)
        self.events.cleaned(job, log, result)
        if result.outcome in ("committed", "staged") and config.log_kafka_summary:
            self.events.summarized(self.workers.number(), log, result, dedupe_ratio([result], config))
        if result.outcome == "failed":
            failure = self.failures.failed(log, result, self.stamp(log), config, now_ms)
            if failure.is_uncleanable:
                self.events.record_log(
                    "cleaning", "uncleanable", log, failure.reason, failures=failure.failures
                )
        elif result.outcome not in ("aborted", SUPERSEDED):
            self.failures.succeeded(log)
        if result.outcome == SUPERSEDED:  # as soon as the log is seen to be another one, else after a pause
            self.inventory.note_examined(log, now_ms + config.retry_backoff_ms)
        if result.outcome == "skipped" or (result.outcome == "unchanged" and result.reason):
            self.inventory.note_examined(log, now_ms + _EXAMINED_FOR_MS)
        if result.outcome in ("committed", "staged", "unchanged"):
            self._note_horizon(log, result.next_horizon_ms)

    def _told(self, event: HistoryEvent) -> None:
        """An event was recorded."""
        self.metrics.told(event)
        if (event.kind, event.outcome) == ("commit", "dropped") and event.topic is not None:
            log = LogId.of_fields(event.model_dump())
            self.metrics.wasted(log.log_dir, self.inventory.staged_bytes(log))

    def _note_horizon(self, log: LogId, horizon_ms: int | None) -> None:
        self.inventory.note_horizon(log, horizon_ms)
        if horizon_ms is None:
            self.history.delete(HORIZON, log.directory)
        else:
            self.history.put(HORIZON, log.directory, {**log.fields(), "horizon_ms": horizon_ms})

    def stamp(self, log: LogId) -> str:
        """Stands for the files of a log and its configuration: another one means that a failure may be over."""
        return stamp_of(self.inventory.facts(log), self.configuration().topic(log.topic_partition.topic))

    # -- what keepers do ----------------------------------------------------------------------------------------

    def scan(self) -> None:
        """A full scan."""
        self._scanned_s = self.clock.monotonic_s()
        self.offline = self.ownership.take(self.log_dirs)
        usable = [log_dir for log_dir in self.log_dirs if log_dir not in self.offline]
        with self.metrics.phase("scan"):
            self._took(self.inventory.scan(usable))
        for log_dir in usable:
            delay_ms = lambda topic: self.configuration().topic(topic).file_delete_delay_ms  # noqa: E731
            attempt(partial(self.deletions.adopt_logs, log_dir, delay_ms), log_dir)
        self.metrics.scanned(self.log_dirs, self.offline)
        self._watcher.follow()

    def _refresh(self) -> None:
        """Look at what was touched only."""
        self._took(self.inventory.scan_touched([d for d in self.log_dirs if d not in self.offline]))

    def _took(self, report: ScanReport) -> None:
        self.offline.update(report.offline)
        for log in report.vanished:
            self.states.forget(log)
            self.failures.succeeded(log)
            self.ignored.pop(log, None)
        self._judge([*report.appeared, *report.changed])
        for log_dir in filter(lambda log_dir: is_kafka_dir(self.files, log_dir), self.log_dirs):
            self.conditions.brokers_cleaner.look(log_dir, self.ownership.owner_of(log_dir))
        self.full = self.commits.full_dirs(self.log_dirs, self.configuration().broker)
        with self.progressed:
            self.progressed.notify_all()
        if report.appeared or report.changed or report.back_online:
            self.bell.ring()
        if any(k is not None and k.contents.is_staged for k in map(self.inventory.facts, report.changed)):
            self.commit_bell.ring()

    def _judge(self, logs: list[LogId]) -> None:
        """Whether logs are the cluster's at all, and whether what ailed them is over."""
        configuration = self.configuration()
        for log in logs:
            reason = attempt(partial(why_foreign, self.files, log, configuration), log.directory)
            if reason is None:
                self.ignored.pop(log, None)
            elif self.ignored.get(log) != str(reason):
                self.ignored[log] = str(reason)
                _log.warning("ignored", **log.fields(), reason=str(reason))
        for failure in self.failures.all():
            if self.failures.changed(failure.log, self.stamp(failure.log)):
                _log.info("tried_again", **failure.log.fields(), reason="it changed")

    def _scan_step(self) -> bool:
        if self.clock.monotonic_s() - self._scanned_s < self._scan_pause_s():
            self._refresh()
            return False
        for failure in self.failures.all():
            self._touch(failure.log)  # a file that is mended in its place does not change its directory
        self.scan()
        return False

    def _scan_pause_s(self) -> float:
        return self.configuration().broker.scan_interval_ms / 1000

    def _seen_change(self, log_dir: str, name: str | None) -> None:
        if name is not None:
            self.inventory.touch(log_dir, name)
        else:  # events were lost
            self._scanned_s = -math.inf
        self.scan_bell.ring()

    def _seen_lock(self, log_dir: str) -> None:  # noqa: ARG002  # whose it was does not matter
        self.commit_bell.ring()

    def _commit_step(self) -> bool:
        yielding = self._yielding()
        free = [log for log in self.inventory.staged() if log.log_dir not in yielding]
        waiting = [log for log in free if not self.jobs.of(log)]
        if waiting:
            self.commits.try_all(waiting, lambda log_dir: not self.ownership.is_yielding(log_dir))
            self._refresh()
        return False

    def _yielding(self) -> set[str]:
        """Log directories to which a broker is coming: nothing of ours begins there."""
        return set(filter(self.ownership.is_yielding, self.log_dirs))

    def _commit_pause_s(self) -> float:
        config = self.configuration().broker
        pause_ms = config.staged_commit_interval_ms if self.inventory.staged() else config.scan_interval_ms
        return pause_ms / 1000

    def _retention_step(self) -> bool:
        configuration, now_s = self.configuration(), self.clock.monotonic_s()
        is_time = (now_s - self._retained_s) * 1000 >= configuration.broker.retention_check_interval_ms
        if is_time:
            self._retained_s = now_s
        usable = self.usable(self.inventory.logs())
        known = [known for known in map(self.inventory.facts, usable) if known is not None]
        self.retention.reset_checkpoints([found.log for found in known if found.may_need_reset])
        failed = {failure.log for failure in self.failures.all()}
        logs = whose_turn(known, configuration.topic, failed, is_time=is_time)
        if logs:
            self.retention.run(logs)
            self._refresh()
        return False

    def usable(self, logs: Iterable[LogId]) -> list[LogId]:
        """Those that retention may look at: their directory works and no broker is coming to it."""
        out_of_reach = {*self.offline, *self._yielding()}
        return [log for log in logs if log.log_dir not in out_of_reach and log not in self.ignored]

    def _backoff_s(self) -> float:
        config = self.configuration().broker
        return min(config.backoff_ms, config.retention_check_interval_ms) / 1000

    def _retained(self, log: LogId, retained: Retained | None, reason: str | None) -> None:
        self._touch(log)
        self.metrics.retained(log, retained)
        self.events.retained(log, retained, reason)

    def _housekeep(self) -> bool:
        now_ms = self.clock.now_ms()
        deleted = Deleted() if self._yielding() else self.deletions.run_due(now_ms)
        if deleted.files or deleted.failures:
            failures = {path: str(error) for path, error in deleted.failures.items()}
            _log.info("deleted_files", files=deleted.files, bytes=deleted.bytes, failures=failures or None)
        for hold in self.states.expire(now_ms):
            self.history.delete(HOLD, hold.id)
            reason = f"hold {hold.id} of {hold.owner} on {hold.pattern} ({hold.reason}) was never released"
            self.events.record("control", "expired", reason)
            self.bell.ring()
        idle_ms = self.configuration().broker.spark_idle_timeout_ms
        for engine in (self.engine, self._express_engine):
            if engine.stop_if_idle(idle_ms):
                _log.info("engine_stopped", reason="idle")
        if self.clock.monotonic_s() - self._pruned_s > _PRUNE_S:
            self._pruned_s = self.clock.monotonic_s()
            self.history.prune(now_ms)
        return False

    # -- odds and ends ------------------------------------------------------------------------------------------

    def keep_hold(self, hold: Hold) -> bool:
        """Let a hold outlive a restart; False when the disk does not let us."""
        return self.history.put(HOLD, hold.id, asdict(hold))

    def threads_alive(self, limit_s: float) -> bool:
        """Whether every worker that works has shown life lately."""
        return all(worker.silent_s() < limit_s for worker in [*self.workers.all(), *self._keepers])

    def trouble(self, limit_s: float) -> str | None:
        """Why the daemon is not as it should be, None if it is."""
        if not self.threads_alive(limit_s):
            return "a thread hangs; SIGUSR1 tells where"
        return self.engine.stalled or self._express_engine.stalled

    @property
    def deaths(self) -> int:
        """How often an internal error ended a thread, since the start."""
        return self.workers.deaths + sum(keeper.deaths for keeper in self._keepers)

    @property
    def since_scan_s(self) -> float:
        """How long ago the last full scan began."""
        return self.clock.monotonic_s() - self._scanned_s

    def _touch(self, log: LogId) -> None:
        self.inventory.touch(log.log_dir, os.path.basename(log.directory))

    def _recovered(self, directory: str, reason: str | None) -> None:
        self._recovering()
        if reason is not None:
            self.events.record("recovery", "failed", f"{directory}: {reason}")
        try:
            self.deletions.adopt(directory)
        except (CleanerdError, OSError) as error:
            _log.warning("leftovers_not_read", directory=directory, reason=str(error))
