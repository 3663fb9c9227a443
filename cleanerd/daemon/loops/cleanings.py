"""Cleaning jobs of the daemon: the engine stages, the daemon commits, and notifies all that have to know.

The logs of a job are in progress (`PartitionStates.try_start_all`) when `run` is called, and given back when it returns,
whatever happened (2.13).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from structlog.contextvars import bind_contextvars, bound_contextvars, unbind_contextvars

from cleanerd.cleaning import outcomes
from cleanerd.cleaning.batching import one_by_one
from cleanerd.cleaning.commit.committer import Committer, in_rounds
from cleanerd.cleaning.commit.slices import OF_A_JOB, SliceSize
from cleanerd.cleaning.outcomes import Committed, Failed, Skipped, Staged, Superseded, Unchanged
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.roll import roll
from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.engine.calls import CleanCall, PlannedBytes, StepDone
from cleanerd.daemon.engine.client import CallHost, Engine
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.telemetry.event_log import log_step
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.commits import UNREAD, Commits, JobHost
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs, rank
from cleanerd.daemon.work.schedule import Schedule
from cleanerd.daemon.workers import Bells, Life, Workers
from cleanerd.errors import Aborted, CleanerdError, JobFailed, each_log, ours
from cleanerd.format.names import TopicPartition
from cleanerd.policy.tombstones import Stay
from cleanerd.spark_runtime.channel import Channel, driver_host
from cleanerd.spark_runtime.messages import GO_ON, STOP, Moved, Phase, ReportAnswer
from cleanerd.spark_runtime.spark_master import spark_master
from cleanerd.storage.generation import end_left_truncation
from cleanerd.storage.log_dir import Owner
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints
from cleanerd.storage.staged import try_discard_staged
from cleanerd.units import counted, first_of

_NAMED = 3  # reasons of a job, and logs with one reason
_EXAMINED_FOR_MS = 60_000
"""An exact examination may find what the files do not show, like an open transaction: look again then."""


@dataclass(frozen=True, slots=True)
class _JobCall(CallHost):
    """A call of the engine about logs of a job, and what its tasks report. `first`: how many logs were planned before it."""

    cleanings: "Cleanings"
    job: Job
    logs: Sequence[LogId]
    first: int

    def progressed(self, message: PlannedBytes | StepDone) -> None:
        """Plans are for the tasks' reports, steps for the log."""
        log_dir = self.logs[0].log_dir
        if isinstance(message, StepDone):
            log_step(log_dir, message.step)
        else:
            self.cleanings.jobs.plan(self.job, LogId(log_dir, message.topic_partition), message.total_bytes)

    def is_aborted(self) -> bool:
        return any(map(self.cleanings.conditions.states.is_aborted, self.logs))

    def answer(self, moved: Moved) -> ReportAnswer:
        """Count work on a log, and make it wait for the throttle. Must not raise."""
        jobs, metrics = self.cleanings.jobs, self.cleanings.commits.metrics
        is_planned = moved.phase is not Phase.EXAMINE
        log = jobs.planned_log(self.job, self.first + moved.log) if is_planned else self.logs[moved.log]
        if log is None:
            return STOP
        phase, read_bytes, written_bytes = moved.phase.name.lower(), moved.read_bytes, moved.written_bytes
        if moved.phase in (Phase.INDEX, Phase.REWRITE):  # what a job is known to have to read and write
            jobs.advance(self.job, phase, read_bytes, written_bytes, moved.records)
        else:
            jobs.work(self.job)
        self._live()
        metrics.moved(log.log_dir, phase, read_bytes, written_bytes)

        def is_to_stop() -> bool:
            self._live()  # a task that waits for the throttle does not hang
            return self.cleanings.conditions.states.is_aborted(log)

        with metrics.throttled(self.job.id, log.log_dir):
            self.cleanings.throttle.charge(
                read_bytes, written_bytes, is_to_stop, is_urgent=self.cleanings.is_urgent
            )
        return STOP if self.cleanings.conditions.states.is_aborted(log) else GO_ON

    def _live(self) -> None:
        """Tasks of the job report, so worker and engine are alive."""
        worker = self.job.worker  # None as soon as the job has ended
        if worker is not None:
            worker.beat()
        self.cleanings.engine.beat()


@dataclass(frozen=True, slots=True)
class Cleanings:
    """Runs jobs; thread-safe."""

    engine: Engine
    conditions: Conditions
    commits: Commits
    jobs: Jobs
    throttle: Throttle
    is_urgent: bool = False  # its I/O counts as all other, and is paid before that of the others

    def run(self, job: Job) -> list[LogResult]:
        """Clean the logs of a job, commit what may be committed. Never raises for what is wrong with a log."""
        with self.engine.job():
            return self._run(job)

    def _run(self, job: Job) -> list[LogResult]:
        results: list[LogResult] = []
        busy = list(job.logs)
        try:
            was_live = self._has_live_broker(job)  # it may end meanwhile, or start
            self._end_left_truncations(job.logs)
            staged = self._stage(job)
            in_more = [log for log in job.logs if _has_rest(staged[log])]
            settled = self._settle(staged)
            # Those that are done do not wait for the rounds of others.
            for log in sorted(job.logs, key=in_more.__contains__):
                with bound_contextvars(**log.fields()):
                    result = in_rounds(settled[log], functools.partial(self._next_round, job, log))
                    if log in in_more:
                        self.engine.drop_rest(log)
                    if was_live or self._has_live_broker(job):
                        result = result.beside_broker()
                    result = self._with_cause(log, result)
                    results.append(result)
                    self.cleaned(job, log, result)
                busy.remove(log)
                self.conditions.states.done_cleaning(log)
        finally:
            words = [result.outcome.word for result in results]
            worst_first = sorted(results, key=lambda result: rank(result.outcome.word))
            reasons = [
                (str(result.topic_partition), result.reason) for result in worst_first if result.reason
            ]
            if busy:  # an error that is a defect, or of the machine: the log of the daemon has it
                words.append(Failed.word)
                unexpected = "an unexpected error, which the log of the daemon reports"
                reasons = [*((str(log), unexpected) for log in busy), *reasons]
            self.jobs.end(job, words, _reason(reasons, len(job.logs)))
            for log in busy:
                self.conditions.states.done_cleaning(log)
        return results

    def _with_cause(self, log: LogId, result: LogResult) -> LogResult:
        """The result with the cause of a stop, which the tasks of the log do not know."""
        why, outcome = self.conditions.states.why_stopped(log), result.outcome
        if why is None or not isinstance(outcome, outcomes.Aborted | Failed | Superseded):
            return result
        reason = why if isinstance(outcome, outcomes.Aborted) else f"{why}: {outcome.reason}"
        return replace(result, outcome=replace(outcome, reason=reason))

    def cleaned(self, job: Job, log: LogId, result: LogResult) -> None:
        """Record the outcome of a log, which is still in progress."""
        outcome = result.outcome
        self.conditions.inventory.touch_log(log)
        is_one_of_thousands = job.trigger == "horizon" and isinstance(outcome, Skipped)  # after a start
        if not is_one_of_thousands:
            self.commits.metrics.cleaned(job.id, log, result)
            self.commits.events.cleaned(job, log, result)
        if isinstance(outcome, Failed):
            self._note_failed(log, outcome)
        elif not isinstance(outcome, outcomes.Aborted | Superseded):
            self.conditions.failures.forget(log)
        self._note_examined(job, log, result)

    def _note_failed(self, log: LogId, outcome: Failed) -> None:
        conditions = self.conditions
        stamp, now_ms = conditions.stamp(log), conditions.clock.now_ms()
        failure = conditions.failures.failed(log, outcome, stamp, conditions.configuration().broker, now_ms)
        if failure.is_uncleanable:
            self.commits.events.record(
                "cleaning", "uncleanable", failure.reason, log, failures=failure.failures
            )

    def _note_examined(self, job: Job, log: LogId, result: LogResult) -> None:
        now_ms, outcome = self.conditions.clock.now_ms(), result.outcome
        is_refused = isinstance(outcome, outcomes.Aborted) and not self.conditions.states.is_aborted(log)
        if (
            isinstance(outcome, Superseded) or is_refused
        ):  # soon, if it is seen to be another log, else after a pause
            self.conditions.due_logs.note_examined(
                log, now_ms + self.conditions.configuration().broker.retry_backoff_ms
            )
        is_unrecorded = isinstance(outcome, Unchanged) and outcome.reason is not None
        if is_unrecorded:
            self.conditions.due_logs.note_unrecorded(log)
        if isinstance(outcome, Skipped) or is_unrecorded:
            self.conditions.due_logs.note_examined(log, now_ms + _EXAMINED_FOR_MS)
        if job.trigger in ("horizon", "request") and isinstance(outcome, Skipped):
            self.conditions.due_logs.note_horizon(log, outcome.next_horizon_ms)
        elif isinstance(outcome, Committed | Staged | Unchanged):
            self.conditions.due_logs.note_cleaned(log)
        if isinstance(outcome, Committed | Staged | Unchanged | Skipped):
            self.conditions.due_logs.note_tombstones(log, result.tombstones_stay)

    def _has_live_broker(self, job: Job) -> bool:
        return self.conditions.ownership.owner(job.logs[0].log_dir) is Owner.LIVE_BROKER

    def _end_left_truncations(self, logs: Sequence[LogId]) -> None:
        """A log whose writer died while it truncated can be planned again. Examining it reports whatever else there is."""
        for log in logs:
            if not self.conditions.ownership.is_yielding(log.log_dir):
                end_left_truncation(PartitionDir(self.conditions.ownership.files, log.directory))

    def _stage(self, job: Job) -> dict[LogId, LogResult]:
        """Have the engine clean and stage the job. A failure of the engine is that of every log that fails alone, too."""
        left, not_rolled = self._rolled(job)
        found = one_by_one(lambda logs: self._call(job, logs), left, _failed) if left else []
        self.commits.metrics.staged(found, self.conditions.configuration().broker)
        by_name = {result.topic_partition: result for result in (*not_rolled, *found)}
        assert len(by_name) == len(not_rolled) + len(found) == len(job.logs), "each log has one result"
        return {log: by_name[log.topic_partition] for log in job.logs}

    def _rolled(self, job: Job) -> tuple[Sequence[LogId], list[LogResult]]:
        """Close active segments, where that is asked for; logs to go on with, and results of those that stay as they were.

        The schedule cleans those as before.
        """
        if not job.roll:
            return job.logs, []
        left, stay = list[LogId](), list[LogResult]()
        for log in job.logs:
            with each_log(log.directory) as rolled:
                roll(self.conditions.ownership.at(log.log_dir), log.topic_partition, self.commits.brokers)
                left.append(log)
            if rolled.error is not None:
                aborted = outcomes.Aborted(str(rolled.error))
                stay.append(LogResult(log.topic_partition, log.log_dir, aborted))
        return left, stay

    def _next_round(self, job: Job, log: LogId) -> LogResult:
        (staged,) = one_by_one(lambda logs: self._call(job, logs, goes_on=True), [log], _failed)
        self.commits.metrics.staged([staged], self.conditions.configuration().broker)
        return self._settle({log: staged})[log]

    def _call(self, job: Job, logs: Sequence[LogId], *, goes_on: bool = False) -> list[LogResult]:
        """Have the engine clean logs of a job. Raises JobFailed."""
        log_dir, configuration = logs[0].log_dir, self.conditions.configuration()
        assert all(log.log_dir == log_dir for log in logs), "one call is for one log directory"
        watch = Stopwatch(self.conditions.clock)
        host = _JobCall(self, job, logs, len(job.planned))
        with Channel(host.answer, driver_host(spark_master(configuration.broker))) as channel:
            partitions = tuple(log.topic_partition for log in logs)
            call = CleanCall(
                log_dir=log_dir,
                partitions=partitions,
                checkpoints=self._checkpoints(log_dir, partitions),
                config=self.throttle.limited(configuration.broker),
                topic_configs={tp.topic: configuration.topic(tp.topic) for tp in partitions},
                tombstones=self._why_tombstones_stay(logs),
                force=job.force,
                horizons=job.trigger in ("horizon", "request"),
                reporter=channel.reporter,
                is_owned=self.conditions.ownership.owner(log_dir).has_lock,
                jobs_at_once=jobs_at_once(configuration.broker),
                goes_on=goes_on,
            )
            try:
                return _with_examination(self.engine.clean(call, host), watch.seconds)
            except CleanerdError as error:
                self._discard(logs)
                if all(map(self.conditions.states.is_aborted, logs)):  # the engine was stopped
                    error = Aborted(str(error))
                if isinstance(error, JobFailed):
                    raise
                return [_failed(log, error) for log in logs]

    def _why_tombstones_stay(self, logs: Sequence[LogId]) -> dict[TopicPartition, Stay]:
        found = {log.topic_partition: self.commits.why_tombstones_stay(log) for log in logs}
        return {tp: stay for tp, stay in found.items() if stay is not None}

    def _checkpoints(self, log_dir: str, partitions: Sequence[TopicPartition]) -> Checkpoints | None:
        """The checkpoints of a live broker; None without one, or if the directory has an error, which the engine reports."""
        with each_log(log_dir):
            return self.commits.brokers.checkpoints(self.conditions.ownership.at(log_dir), partitions)
        return None

    def _settle(self, results: Mapping[LogId, LogResult]) -> dict[LogId, LogResult]:
        """Commit what is staged, record what is unchanged: of one log directory, and with few writes of its checkpoint."""
        waiting = {log: one for log, one in results.items() if isinstance(one.outcome, Staged | Unchanged)}
        settled = self._settle_in(next(iter(results)).log_dir, list(waiting.values()))
        for before, after in zip(waiting.values(), settled, strict=True):
            new_phases = after.statistics.phase_seconds.items() - before.statistics.phase_seconds.items()
            self.commits.metrics.phases_took(dict(new_phases))
        return {**results, **dict(zip(waiting, settled, strict=True))}

    def _settle_in(self, path: str, waiting: Sequence[LogResult]) -> list[LogResult]:
        if self.conditions.ownership.is_yielding(path):
            return [one.waiting("waits for a broker that is about to start") for one in waiting]
        if not self.commits.refresh():
            return [one.waiting(UNREAD) for one in waiting]
        try:
            log_dir = self.conditions.ownership.at(path)
        except (CleanerdError, OSError) as error:
            return [one.failed(ours(error, path)) for one in waiting]
        host = JobHost(log_dir, self.commits)
        return Committer(log_dir, host, SliceSize(OF_A_JOB), self.commits.brokers).settle(waiting)

    def _discard(self, logs: Sequence[LogId]) -> None:
        """An engine that died may have staged some groups of a log and not others."""
        for log in logs:
            try_discard_staged(PartitionDir(self.conditions.ownership.files, log.directory))


class Cleaners:
    """As many workers as log.cleaner.threads, and the express one."""

    def __init__(
        self,
        schedule: Schedule,
        cleanings: Cleanings,
        express: Cleanings,
        scanner: Scanner,
        bells: Bells,
        life: Life,
    ) -> None:
        """`express` cleans reserved topics that have waited too long."""
        self._schedule, self.cleanings, self._express = schedule, cleanings, express
        self._scanner, self._life = scanner, life
        self.workers = Workers(self._step, self._express_step, bells.work, schedule.conditions.clock)

    def _step(self) -> float:
        return self.work(*self._schedule.next(), self.cleanings)

    def _express_step(self) -> float:
        return self.work(self._schedule.next_express(), self._round_pause_s, self._express)

    @property
    def _round_pause_s(self) -> float:
        return self._schedule.conditions.configuration().broker.round_pause_s

    def work(self, job: Job | None, pause_s: float, cleanings: Cleanings) -> float:
        """Do a job, after which the next one may begin at once; `pause_s` where there is none."""
        if job is None:
            return pause_s
        job.worker, commits = self.workers.current(), self.cleanings.commits
        for log in job.logs:
            commits.metrics.wasted(log.log_dir, commits.inventory.staged_bytes(log))
        bind_contextvars(**job.fields())
        try:
            cleanings.run(job)
        finally:
            job.worker = None
        unbind_contextvars(*job.fields())  # not after an error: the line about the dead thread names its job
        self._scanner.refresh()
        return self._round_pause_s if self._life.stopping.is_set() else 0.0


def _with_examination(results: list[LogResult], seconds: float) -> list[LogResult]:
    """Results of a job with the phase before the cleaning: the part of `seconds` that the cleaning itself did not take."""
    found = [result.statistics for result in results]
    examine_s = max(seconds - max((one.seconds for one in found), default=0.0), 0.0)
    return [
        replace(
            result,
            statistics=replace(one, phase_seconds={"examine": examine_s, **one.phase_seconds}),
        )
        for result, one in zip(results, found, strict=True)
    ]


def _reason(reasons: Sequence[tuple[str, str]], logs: int) -> str | None:
    """The reason of a job: each reason of its logs once, with their names if not all logs have it; of many the first few."""
    by_reason: dict[str, list[str]] = {}
    for log, reason in reasons:
        by_reason.setdefault(reason, []).append(log)
    if len(by_reason) == 1 and len(reasons) == logs:
        return next(iter(by_reason))
    said = [f"{first_of(names, _NAMED)}: {reason}" for reason, names in list(by_reason.items())[:_NAMED]]
    more = len(by_reason) - len(said)
    if more:
        said.append(f"and {counted(more, 'more reason')}, which `cleanerctl explain` has for each log")
    return "; ".join(said) or None


def jobs_at_once(config: CleanerdConfig) -> int:
    """Most jobs at a time. They share log.cleaner.dedupe.buffer.size, as the threads of Kafka's cleaner do."""
    return config.log_cleaner_threads + bool(config.reserved_topics)  # those have a worker of their own


def _has_rest(result: LogResult) -> bool:
    return isinstance(result.outcome, Staged) and result.outcome.groups_left > 0


def _failed(log: LogId, error: CleanerdError) -> LogResult:
    return LogResult.of_error(log.topic_partition, log.log_dir, error)
