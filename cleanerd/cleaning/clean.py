"""One cleaning of one or several logs, from candidates to results: steps 3 to 9 of architecture 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.commit import commit_staged, record_unchanged
from cleanerd.cleaning.merge import merge_neighbours
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.plan import CleaningPlan, plan_cleaning
from cleanerd.cleaning.result import CleanRequest, LogResult, Outcome, Progress
from cleanerd.cleaning.stage import stage_log
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.space import space_for
from cleanerd.errors import Aborted, CleanerdError, DirOffline, LockHeld, NoSpace, Retryable, from_os_error
from cleanerd.pipeline.channel import Channel, Phase, Reporter, driver_host
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.session import SparkFailed, SparkSession
from cleanerd.pipeline.work import IndexedLog, RewrittenLog
from cleanerd.policy.verdicts import REMOVED_VERDICTS, RecordVerdict
from cleanerd.storage.staged import discard_staged

_SLACK_BYTES = 1 << 20  # indexes and manifests of a group


@dataclass(slots=True)
class _Log:
    """One log on its way through a cleaning."""

    plan: CleaningPlan
    indexed: IndexedLog | None = None
    rewritten: RewrittenLog | None = None
    error: CleanerdError | None = None

    @property
    def is_alive(self) -> bool:
        return self.error is None


class Cleaner:
    """Cleans candidates with one Spark session; every failure of a log ends in its result."""

    def __init__(
        self,
        request: CleanRequest,
        progress: Progress,
        clock: Clock,
        files: Files,
        session: SparkSession,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._request = request
        self._progress = progress
        self._clock = clock
        self._files = files
        self._session = session
        self._entropy = entropy

    def clean(self, candidates: Sequence[Candidate], reporter: Reporter | None = None) -> list[LogResult]:
        """Clean the candidates as common Spark jobs. They share a log directory.

        Tasks report to `reporter`, with the place of their log among those that `Progress.planned` was told of; without
        one they report to the progress of this object.
        """
        watch = Stopwatch(self._clock)
        with watch.phase("plan"):
            logs, results = self._plan(candidates, watch)
        try:
            try:
                self._run_pipeline(logs, reporter, watch)
            except SparkFailed as error:
                for log in logs:
                    log.error = log.error or error
            results += [self._finish(log, watch.split()) for log in logs]
        except BaseException:
            for log in logs:
                self._discard(log)
            raise
        return results

    def _plan(self, candidates: Sequence[Candidate], watch: Stopwatch) -> tuple[list[_Log], list[LogResult]]:
        """Logs to go on with, and results of those that end here."""
        logs: list[_Log] = []
        failed: list[LogResult] = []
        for candidate in candidates:
            try:
                if not self._request.dry_run:
                    discard_staged(
                        self._files, candidate.snapshot.directory
                    )  # of an earlier run: this one is newer
                plan = plan_cleaning(
                    self._files,
                    candidate,
                    now_ms=self._clock.now_ms(),
                    chunk_bytes=self._request.config.chunk_bytes,
                )
                logs.append(_Log(plan))
            except (CleanerdError, OSError) as error:
                failed.append(self._failed(candidate, _own(error, candidate), watch))
        return logs, failed

    def _run_pipeline(self, logs: list[_Log], reporter: Reporter | None, watch: Stopwatch) -> None:
        for log in logs:
            tp = log.plan.candidate.snapshot.topic_partition
            self._progress.planned(
                tp, sum(chunk.source.end - chunk.source.start for chunk in log.plan.work.chunks)
            )
        if reporter is not None:
            self._run_steps(logs, reporter, watch)
            return
        partitions = [log.plan.candidate.snapshot.topic_partition for log in logs]

        def advanced(number: int, phase: Phase, read_bytes: int, written_bytes: int, records: int) -> bool:
            if phase is not Phase.VERIFY:  # reads again what the rewrite has counted as written
                size = read_bytes + written_bytes
                self._progress.advanced(partitions[number], phase.name.lower(), size, records)
            return True

        with Channel(advanced, driver_host(self._session.master)) as channel:
            self._run_steps(logs, channel.reporter, watch)

    def _run_steps(self, logs: list[_Log], reporter: Reporter, watch: Stopwatch) -> None:
        pipeline = Pipeline(self._session, self._budget(), reporter)
        keys = [_fingerprint_key(self._entropy) for _ in logs]
        with watch.phase("index"):
            for log, indexed in zip(logs, pipeline.index([log.plan.work for log in logs], keys), strict=True):
                log.indexed, log.error = indexed, indexed.error
                if log.is_alive and self._request.config.merge_enable:
                    log.plan = merge_neighbours(log.plan, indexed)
        with watch.phase("rewrite"):
            self._rewrite(logs, pipeline)

    def _rewrite(self, logs: list[_Log], pipeline: Pipeline) -> None:
        dry_run = self._request.dry_run
        if not dry_run:
            self._check_space(logs, pipeline)
        indexed_logs = [log.indexed for log in logs if log.indexed is not None]
        for log, rewritten in zip(logs, pipeline.rewrite(indexed_logs, write=not dry_run), strict=True):
            log.rewritten, log.error = rewritten, log.error or rewritten.error

    def _budget(self) -> Budget:
        config = self._request.config
        return Budget(int(config.dedupe_buffer_size_bytes * config.io_buffer_load_factor))

    def _check_space(self, logs: list[_Log], pipeline: Pipeline) -> None:
        """Refuse logs whose new files do not fit beside the old ones; measured exactly only when it is tight."""
        alive = [log for log in logs if log.is_alive]
        if not alive:
            return
        directory, wanted = alive[0].plan.candidate.snapshot.directory, sum(map(_peak_bound, alive))
        free = space_for(directory, lambda space: wanted <= space.free_bytes).free_bytes
        if wanted <= free:
            return
        indexed = [log.indexed for log in alive if log.indexed is not None]
        for log, counted in zip(alive, pipeline.rewrite(indexed, write=False), strict=True):
            peak = _written_bytes(counted) + _overhead(log)
            log.error = counted.error
            if log.error is None and peak > free:
                tp = log.plan.candidate.snapshot.topic_partition
                log.error = NoSpace(
                    f"{tp}: needs {peak} bytes beside the old segments, {free} bytes are free on the file system of "
                    f"{log.plan.candidate.snapshot.directory}"
                )
                assert log.indexed is not None
                log.indexed.error = log.error
            elif log.error is None:
                free -= peak

    def _finish(self, log: _Log, watch: Stopwatch) -> LogResult:
        """Stage and commit one log, or say why not."""
        candidate, files = log.plan.candidate, self._files
        if log.error is not None or log.rewritten is None:
            self._discard(log)
            return self._failed(candidate, log.error or Aborted("stopped"), watch)
        if self._request.dry_run:
            return self._result(log, "planned", None, watch)
        try:
            with watch.phase("stage"):
                staged = stage_log(files, log.plan, log.rewritten)
            if not self._request.stage_only:
                with watch.phase("commit" if staged else "checkpoint"):
                    self._commit(log, staged)
        except LockHeld as error:
            outcome: Outcome = "staged" if staged else "unchanged"
            reason = f"waits for the lock: {error}" if staged else f"checkpoint not written: {error}"
            return self._result(log, outcome, reason, watch)
        except (CleanerdError, OSError) as error:
            self._discard(log)
            return self._failed(candidate, _own(error, candidate), watch)
        done: Outcome = "staged" if self._request.stage_only else "committed"
        return self._result(log, done if staged else "unchanged", None, watch)

    def _commit(self, log: _Log, staged: int) -> None:
        snapshot, round_end = log.plan.candidate.snapshot, log.plan.work.round_end
        log_dir, tp = snapshot.log_dir, snapshot.topic_partition
        if staged:
            commit_staged(self._files, log_dir, tp, is_kafka=snapshot.is_kafka)
        else:
            record_unchanged(
                self._files,
                log_dir,
                tp,
                round_end,
                is_kafka=snapshot.is_kafka,
                basis=log.plan.candidate.basis,
            )

    def _discard(self, log: _Log) -> None:
        if not self._request.dry_run:
            discard_staged(self._files, log.plan.candidate.snapshot.directory)

    def _failed(self, candidate: Candidate, error: CleanerdError, watch: Stopwatch) -> LogResult:
        snapshot = candidate.snapshot
        return LogResult(
            topic=snapshot.topic_partition.topic,
            partition=snapshot.topic_partition.partition,
            log_dir=snapshot.log_dir,
            outcome="aborted" if isinstance(error, Aborted) else "failed",
            reason=str(error),
            error=type(error).__name__,
            is_retryable=isinstance(error, Retryable | DirOffline),
            first_dirty_offset=candidate.range.first_dirty_offset,
            end_offset=candidate.range.first_uncleanable_offset,
            bytes_before=snapshot.size_bytes,
            bytes_after=snapshot.size_bytes,
            segments_before=len(snapshot.segments),
            segments_after=len(snapshot.segments),
            seconds=watch.seconds,
            phase_seconds=watch.phase_seconds,
        )

    def _result(self, log: _Log, outcome: Outcome, reason: str | None, watch: Stopwatch) -> LogResult:
        assert log.indexed is not None
        assert log.rewritten is not None
        snapshot, plan = log.plan.candidate.snapshot, log.plan
        changed = [plan.groups[number] for number in log.indexed.changed_groups]
        written = _written_bytes(log.rewritten)
        replaced = sum(segment.size_bytes for group in changed for segment in group.sources)
        removed = _removed(log.rewritten)
        records_read = log.indexed.records_read
        return LogResult(
            topic=snapshot.topic_partition.topic,
            partition=snapshot.topic_partition.partition,
            log_dir=snapshot.log_dir,
            outcome=outcome,
            reason=reason,
            first_dirty_offset=plan.candidate.range.first_dirty_offset,
            end_offset=plan.candidate.range.first_uncleanable_offset,
            bytes_read=sum(summary.bytes for summary in log.indexed.summaries),
            bytes_before=snapshot.size_bytes,
            bytes_after=snapshot.size_bytes - replaced + written,
            records_read=records_read,
            records_kept=records_read - int(removed.sum()),
            removed={v.reason: int(removed[v]) for v in REMOVED_VERDICTS if removed[v]},
            segments_before=len(snapshot.segments),
            segments_after=len(snapshot.segments) - sum(len(group.sources) - 1 for group in changed),
            seconds=watch.seconds,
            phase_seconds=watch.phase_seconds,
            peak_extra_bytes=written + _overhead(log),
            next_horizon_ms=_next_horizon_ms(log.rewritten),
            basis=plan.candidate.basis,
        )


def _own(error: CleanerdError | OSError, candidate: Candidate) -> CleanerdError:
    return from_os_error(error, candidate.snapshot.directory) if isinstance(error, OSError) else error


def _fingerprint_key(entropy: Callable[[int], bytes]) -> tuple[int, int]:
    return int.from_bytes(entropy(8)), int.from_bytes(entropy(8))


def _removed(log: RewrittenLog) -> np.ndarray:
    """Records removed per verdict; KEEP counts as none."""
    total = np.zeros(len(RecordVerdict), np.int64)
    for parts in log.parts.values():
        for written in parts:
            total += written.part.removed
    total[RecordVerdict.KEEP] = 0
    return total


def _next_horizon_ms(log: RewrittenLog) -> int | None:
    """When the next tombstone or marker of the log may go."""
    now_ms = log.indexed.work.now_ms
    written = [part.part.next_horizon_ms for parts in log.parts.values() for part in parts]
    found = [summary.next_horizon_ms for summary in log.indexed.summaries] + written
    return min((horizon_ms for horizon_ms in found if horizon_ms > now_ms), default=None)


def _written_bytes(log: RewrittenLog) -> int:
    return sum(written.part.size_bytes for parts in log.parts.values() for written in parts)


def _overhead(log: _Log) -> int:
    """Indexes, and the part that is being appended while its copy already exists."""
    assert log.indexed is not None
    groups = log.indexed.changed_groups
    chunks = [c.source.end - c.source.start for c in log.plan.work.chunks if c.group in groups]
    return _SLACK_BYTES * len(groups) + max(chunks, default=0)


def _peak_bound(log: _Log) -> int:
    """Upper bound for the new bytes of a log: nothing grows but tombstone batches, by a few bytes each."""
    assert log.indexed is not None
    sizes = [
        s.bytes + s.bytes // 8
        for c, s in zip(log.plan.work.chunks, log.indexed.summaries, strict=True)
        if c.group in log.indexed.changed_groups
    ]
    return sum(sizes) + _overhead(log)
