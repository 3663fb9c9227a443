"""One cleaning job of the daemon: the engine stages, the daemon commits, everybody who has to know is told.

The logs of a job are in progress (`PartitionStates.try_start_all`) when `run` is called, and given back when it returns,
whatever happened (2.13).
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from structlog.contextvars import bound_contextvars

from cleanerd.cleaning.commit import commit_staged, record_unchanged
from cleanerd.cleaning.lock import commit_lock
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.spark_master import spark_master
from cleanerd.config.load import Configuration
from cleanerd.daemon.engine.calls import CleanCall, Planned
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.telemetry.metrics import Metrics
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.daemon.work.throttle import Throttle
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import Aborted, CleanerdError, DirOffline, LockHeld, Retryable, from_os_error
from cleanerd.pipeline.channel import Channel, Phase, driver_host
from cleanerd.storage.recover import recover
from cleanerd.storage.scan import is_kafka_dir
from cleanerd.storage.staged import discard_staged

_log = structlog.get_logger("cleanerd")


@dataclass(frozen=True, slots=True)
class Cleanings:
    """Runs jobs; thread-safe. `done` hears of every log what became of it, while the log is still in progress."""

    engine: Engine
    states: PartitionStates
    jobs: Jobs
    throttle: Throttle
    files: Files
    configuration: Callable[[], Configuration]
    metrics: Metrics
    clock: Clock
    is_yielding: Callable[[str], bool]  # whether `.lock` is to be left alone for a broker that starts
    done: Callable[[Job, LogId, LogResult], None]
    beat: Callable[[Job], None]
    is_urgent: bool = False  # its I/O is counted like all other, but it is the others that wait for it

    def run(self, job: Job) -> list[LogResult]:
        """Clean the logs of a job, commit what may be committed. Never raises for what is wrong with a log."""
        results: list[LogResult] = []
        busy = list(job.logs)
        try:
            for log, staged in self._stage(job).items():
                with bound_contextvars(**log.fields()):
                    result = self._settle(log, staged)
                    results.append(result)
                    self.done(job, log, result)
                busy.remove(log)
                self.states.done_cleaning(log)  # one by one: nobody waits for the other logs of the job
        finally:
            reasons = [result.reason for result in results if result.reason]
            self.jobs.end(job, [result.outcome for result in results], reasons[0] if reasons else None)
            for log in busy:
                self.states.done_cleaning(log)
        return results

    def _stage(self, job: Job) -> dict[LogId, LogResult]:
        """What the engine makes of the job. Its own failure is that of every log."""
        log_dir, configuration = job.logs[0].log_dir, self.configuration()
        watch = Stopwatch(self.clock)

        def planned(news: Planned) -> None:
            self.jobs.plan(job, LogId(log_dir, news.topic_partition), news.total_bytes)

        host = driver_host(spark_master(configuration.broker))
        with Channel(lambda *report: self._answer(job, *report), host) as channel:
            call = CleanCall(
                log_dir=log_dir,
                partitions=tuple(log.topic_partition for log in job.logs),
                config=configuration.broker,
                topic_configs={
                    log.topic_partition.topic: configuration.topic(log.topic_partition.topic)
                    for log in job.logs
                },
                force=job.force,
                horizons=job.trigger == "horizon",
                reporter=channel.reporter,
            )
            try:
                answers = self.engine.clean(call, planned)
                found = _with_examination(answers, watch.seconds)
            except CleanerdError as error:
                self._discard(job)
                return {log: _failed(log, error) for log in job.logs}
        self.metrics.staged(found, configuration.broker)
        by_name = {(result.topic, result.partition): result for result in found}
        return {log: by_name[log.topic_partition.topic, log.topic_partition.partition] for log in job.logs}

    def _answer(
        self,
        job: Job,
        number: int,
        phase: Phase,
        read_bytes: int,
        written_bytes: int,
        records: int,
    ) -> bool:
        """A task reports: count it, let it wait for its I/O to be paid, tell it whether to go on. Must not raise."""
        log = self.jobs.planned_log(job, number)
        if log is None:
            return False
        if phase is not Phase.VERIFY:  # what it reads was counted when it was written
            self.jobs.advance(job, phase.name.lower(), read_bytes, written_bytes, records)
        self.beat(job)
        self.metrics.moved(log.log_dir, phase.name.lower(), read_bytes, written_bytes)
        with self.metrics.throttled(job.id, log.log_dir):
            self.throttle.charge(
                read_bytes, written_bytes, lambda: self.is_urgent or self.states.is_aborted(log)
            )
        return not self.states.is_aborted(log)

    def _settle(self, log: LogId, result: LogResult) -> LogResult:
        """Commit what is staged, record what is unchanged."""
        if result.outcome not in ("staged", "unchanged"):
            return result
        if self.is_yielding(log.log_dir):
            return replace(result, reason="waits for a broker that is about to start")
        is_kafka, watch = is_kafka_dir(self.files, log.log_dir), Stopwatch(self.clock)
        try:
            if result.outcome == "staged":
                before = lambda: self.states.begin_commit(log)  # noqa: E731
                with watch.phase("commit"):
                    commit_staged(
                        self.files, log.log_dir, log.topic_partition, is_kafka=is_kafka, before=before,
                        swapped=lambda group: self.metrics.swapped(log.log_dir, group),
                    )  # fmt: skip
                self.metrics.phases_took(watch.phase_seconds)
                return result.after(watch, "committed")
            assert result.end_offset is not None
            assert result.basis is not None
            self.states.begin_commit(log)
            with watch.phase("checkpoint"):
                record_unchanged(
                    self.files,
                    log.log_dir,
                    log.topic_partition,
                    result.end_offset,
                    is_kafka=is_kafka,
                    basis=result.basis,
                )
            self.metrics.phases_took(watch.phase_seconds)
            return result.after(watch)
        except LockHeld as error:
            return replace(result, reason=f"waits for the lock: {error}")
        except Aborted as error:
            discard_staged(self.files, log.directory)
            return replace(result, outcome="aborted", reason=str(error))
        except (CleanerdError, OSError) as error:
            self.mend(log, is_kafka=is_kafka)
            return _worse(result, _own(error, log))

    def mend(self, log: LogId, *, is_kafka: bool) -> None:
        """After a commit that went wrong: finish it or take it back, if the disk lets us; else the next start will."""
        try:
            with commit_lock(log.log_dir, is_kafka=is_kafka):
                acted = functools.partial(self.metrics.recovered, log.log_dir)
                recover(self.files, log.directory, is_kafka=is_kafka, acted=acted)
        except (CleanerdError, OSError) as error:
            _log.error("recovery_failed", **log.fields(), reason=str(error))

    def _discard(self, job: Job) -> None:
        """An engine that died may have staged some groups of a log and not others."""
        for log in job.logs:
            with contextlib.suppress(OSError):
                discard_staged(self.files, log.directory)


def _with_examination(results: list[LogResult], seconds: float) -> list[LogResult]:
    """Results of a job whose call took so long: what the cleaning did not take went by before it."""
    examine_s = max(seconds - max((result.seconds for result in results), default=0.0), 0.0)
    return [
        replace(result, phase_seconds={"examine": examine_s, **result.phase_seconds}) for result in results
    ]


def _own(error: CleanerdError | OSError, log: LogId) -> CleanerdError:
    return from_os_error(error, log.directory) if isinstance(error, OSError) else error


def _failed(log: LogId, error: CleanerdError) -> LogResult:
    tp = log.topic_partition
    return _worse(LogResult(tp.topic, tp.partition, log.log_dir, "failed"), error)


def _worse(result: LogResult, error: CleanerdError) -> LogResult:
    return replace(
        result,
        outcome="aborted" if isinstance(error, Aborted) else "failed",
        reason=str(error),
        error=type(error).__name__,
        is_retryable=isinstance(error, Retryable | DirOffline),
    )
