"""One shot: clean what a request asks for, log directory by log directory (architecture 3, 6).

Per directory: guard against a second cleanerd, recover what an interrupted commit left, read the checkpoints, examine every
partition, clean the candidates job by job, then give compacted logs their retention pass (rule 1.28). Whatever happens to
one log becomes its result; the others go on.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from cleanerd.cleaning.choose import Candidate, examine, in_jobs, in_order, partitions
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit import commit_staged
from cleanerd.cleaning.lock import commit_lock
from cleanerd.cleaning.reset import reset_checkpoint
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cleaning.retain import Retained, retain
from cleanerd.cleaning.spark_master import spark_master
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import CleanerdError, DirOffline, LockHeld, from_os_error
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.session import SparkSession
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.recover import recover
from cleanerd.storage.scan import PartitionSnapshot, is_kafka_dir, scan_partition

_JOB_BYTES = 256 << 20
_JOB_LOGS = 256


def clean_once(
    request: CleanRequest,
    progress: Progress,
    clock: Clock,
    *,
    files: Files | None = None,
    session: SparkSession | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> list[LogResult]:
    """Clean once and return a result per log. A given `session` stays open; otherwise one is made and stopped.

    Raises Fatal when nothing can be done at all (no Java, no Spark).
    """
    own_session = session is None
    session = session or SparkSession(spark_master(request.config))
    run = _Run(request, progress, clock, files or RealFiles(), session, entropy)
    try:
        for log_dir in request.log_dirs:
            run.clean_log_dir(log_dir)
        return run.results
    finally:
        if own_session:
            session.stop()


class _Run:
    """What one call of `clean_once` carries from directory to directory."""

    def __init__(
        self,
        request: CleanRequest,
        progress: Progress,
        clock: Clock,
        files: Files,
        session: SparkSession,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._results: dict[tuple[str, int, str], LogResult] = {}
        self._request = request
        self._progress = progress
        self._clock = clock
        self._files = files
        self._cleaner = Cleaner(request, progress, clock, files, session, entropy)

    @property
    def results(self) -> list[LogResult]:
        """What became of every log so far."""
        return list(self._results.values())

    def clean_log_dir(self, log_dir: str) -> None:
        """One log directory; its own failure is one result, without a partition."""
        try:
            found = partitions(self._files, log_dir, self._request)
        except OSError as error:
            self._add(LogResult("", -1, log_dir, "failed", _text(error, log_dir)))
            return
        try:
            with self._guard(log_dir):
                self._clean_partitions(log_dir, found)
        except (CleanerdError, OSError) as error:
            reason = _text(error, log_dir)
            done = {(r.topic, r.partition) for r in self.results if r.log_dir == log_dir}
            rest = [tp for tp in found if (tp.topic, tp.partition) not in done] or [TopicPartition("", -1)]
            for tp in rest:
                self._add(LogResult(tp.topic, tp.partition, log_dir, "failed", reason))

    @contextlib.contextmanager
    def _guard(self, log_dir: str) -> Iterator[None]:
        """No second cleanerd in the same directory. A dry run writes nothing, so it takes no lock either."""
        if self._request.dry_run:
            yield
            return
        try:
            lock = LogDirLock(log_dir, names.CLEANERD_LOCK)
            lock.__enter__()
        except LockHeld as error:
            raise DirOffline(f"another cleanerd works in {log_dir} (process {error.pid})") from error
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _clean_partitions(self, log_dir: str, found: list[TopicPartition]) -> None:
        is_kafka = is_kafka_dir(self._files, log_dir)
        found = self._recover(log_dir, found, is_kafka=is_kafka)
        self._commit_waiting(log_dir, found, is_kafka=is_kafka)
        self._reset_checkpoints(log_dir, found, is_kafka=is_kafka)
        candidates = self._examine(log_dir, found, is_kafka=is_kafka)
        for job in in_jobs(in_order(candidates), job_bytes=_JOB_BYTES, job_logs=_JOB_LOGS):
            for result in self._cleaner.clean(job):
                self._add(result)
        self._retain(log_dir, found, is_kafka=is_kafka)

    def _recover(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> list[TopicPartition]:
        """Finish or undo interrupted commits where nobody else owns the directory; returns what may be looked at.

        Where somebody does, a log in the middle of a commit is refused by the scan.
        """
        if self._request.dry_run:
            return found
        usable = []
        try:
            with commit_lock(log_dir, is_kafka=is_kafka):
                for tp in found:
                    reason = self._recover_partition(os.path.join(log_dir, str(tp)), is_kafka=is_kafka)
                    if reason is None:
                        usable.append(tp)
                    else:
                        self._add(LogResult(tp.topic, tp.partition, log_dir, "failed", reason))
        except LockHeld:
            return found
        return usable

    def _recover_partition(self, directory: str, *, is_kafka: bool) -> str | None:
        try:
            return recover(self._files, directory, is_kafka=is_kafka)
        except (CleanerdError, OSError) as error:
            return _text(error, directory)

    def _commit_waiting(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice; what no longer fits is dropped."""
        if self._request.dry_run:
            return
        for tp in found:
            with contextlib.suppress(CleanerdError):  # cleaned anew, and then it is told
                round_end = commit_staged(self._files, log_dir, tp, is_kafka=is_kafka)
                if round_end is not None:
                    reason = "staged by an earlier cleaning"
                    done = LogResult(
                        tp.topic, tp.partition, log_dir, "committed", reason, end_offset=round_end
                    )
                    self._replace(done)

    def _reset_checkpoints(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        if self._request.dry_run:
            return
        checkpoints = read_checkpoints(self._files, log_dir)
        for tp in found:
            if self._request.topic_config(tp.topic).compact:
                with contextlib.suppress(CleanerdError, OSError):  # the examination tells what is wrong
                    reset_checkpoint(self._files, log_dir, tp, checkpoints, is_kafka=is_kafka)

    def _examine(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> list[Candidate]:
        checkpoints = read_checkpoints(self._files, log_dir)
        candidates: list[Candidate] = []
        for tp in found:
            answer = examine(
                self._files,
                log_dir,
                tp,
                checkpoints,
                self._request,
                is_kafka=is_kafka,
                now_ms=self._clock.now_ms(),
            )
            if isinstance(answer, Candidate):
                candidates.append(answer)
            elif answer.outcome == "failed" or (self._is_asked_for(tp) and not self._has_result(tp, log_dir)):
                self._add(answer)
        return candidates

    def _has_result(self, tp: TopicPartition, log_dir: str) -> bool:
        return any(
            (r.topic, r.partition, r.log_dir) == (tp.topic, tp.partition, log_dir) for r in self.results
        )

    def _is_asked_for(self, tp: TopicPartition) -> bool:
        """Compacted logs are always reported, others only when they were named."""
        return self._request.topics is not None or self._request.topic_config(tp.topic).compact

    def _retain(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Retention for compacted logs that are not in trouble (rule 1.28)."""
        checkpoints = read_checkpoints(self._files, log_dir)
        results = {TopicPartition(r.topic, r.partition): r for r in self.results if r.log_dir == log_dir}
        for tp in found:
            result = results.get(tp)
            config = self._request.topic_config(tp.topic)
            if not config.compact or (result is not None and result.outcome in ("failed", "aborted")):
                continue
            try:
                snapshot = scan_partition(self._files, log_dir, tp, checkpoints, is_kafka=is_kafka)
                if snapshot is None:
                    continue
                now_ms, dry_run = self._clock.now_ms(), self._request.dry_run
                retained = retain(self._files, snapshot, config, now_ms=now_ms, dry_run=dry_run)
            except LockHeld:
                return  # a broker lives: its own retention works
            except (CleanerdError, OSError) as error:
                reason = _text(error, f"{log_dir}/{tp}")
                self._replace(replace(_of(result, tp, log_dir), outcome="failed", reason=reason))
                continue
            if retained is not None:
                self._replace(_with_retention(_of(result, tp, log_dir), snapshot, retained))

    def _replace(self, result: LogResult) -> None:
        """One result per log: the newest, at its end of the account."""
        key = (result.topic, result.partition, result.log_dir)
        self._results.pop(key, None)
        self._results[key] = result

    def _add(self, result: LogResult) -> None:
        self._replace(result)
        self._progress.finished(result)


def _text(error: CleanerdError | OSError, where: str) -> str:
    return str(from_os_error(error, where) if isinstance(error, OSError) else error)


def _of(result: LogResult | None, tp: TopicPartition, log_dir: str) -> LogResult:
    return result or LogResult(tp.topic, tp.partition, log_dir, "skipped")


def _with_retention(result: LogResult, snapshot: PartitionSnapshot, retained: Retained) -> LogResult:
    """The result of a log after retention took segments from it."""
    skipped = result.outcome in ("skipped", "unchanged")
    return replace(
        result,
        outcome="committed" if skipped else result.outcome,
        reason=str(retained) if skipped or not result.reason else f"{result.reason}; {retained}",
        bytes_before=result.bytes_before or snapshot.size_bytes,
        bytes_after=snapshot.size_bytes - retained.bytes,
        segments_before=result.segments_before or len(snapshot.segments),
        segments_after=len(snapshot.segments) - retained.segments + retained.rolled,
    )
