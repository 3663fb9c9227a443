"""Candidates to staged results: steps 3 to 8 of architecture 3, without the commit."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from cleanerd.cleaning import steps
from cleanerd.cleaning.choose import Candidate, PaceOf
from cleanerd.cleaning.merge import merge_neighbours
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.plan import CleaningPlan, plan_cleaning
from cleanerd.cleaning.reservations import Reservations
from cleanerd.cleaning.result import CleaningOutcome, CleanRequest, LogResult, Progress
from cleanerd.cleaning.room import ForeseenSpace, Room, no_space
from cleanerd.cleaning.stage import stage_log
from cleanerd.cleaning.throttle import Throttle
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.space import floor_bytes, space_of
from cleanerd.errors import Aborted, CleanerdError, CorruptFile, Fatal, JobFailed, NoSpace, attempt
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.values import IndexedLog, LogWork, RewrittenLog
from cleanerd.policy.verdicts import REMOVED_VERDICTS, RecordVerdict
from cleanerd.spark_runtime.channel import Channel, Reporter, driver_host
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, Moved, Phase, ReportAnswer
from cleanerd.storage.changed import changed_while_read, is_other_segment
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import discard_staged, staged_bytes

_STAGING_THREADS = 4


@dataclass(slots=True)
class _Log:
    """One log on its way through a cleaning."""

    plan: CleaningPlan
    indexed: IndexedLog | None = None
    rewritten: RewrittenLog | None = None
    staged: int = 0  # groups
    error: CleanerdError | None = None
    groups_left: int = 0  # there was no room for
    rounds: int | None = None  # in which all of them will be cleaned, when that is not known to be one

    @property
    def candidate(self) -> Candidate:
        return self.plan.candidate

    @property
    def is_alive(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Logs that are cleaned together, by `Cleaner.plan`, `write` and `end`; results of those that have ended before.

    `is_owned`: a broker lives in the log directory. The watch runs while something is done for them.
    """

    candidates: Sequence[Candidate]
    is_owned: bool
    watch: Stopwatch
    logs: list[_Log] = field(default_factory=list)
    results: list[LogResult] = field(default_factory=list)


class Cleaner:
    """Cleans candidates with one Spark session, up to the commit; every failure of a log ends in its result."""

    def __init__(
        self,
        request: CleanRequest,
        progress: Progress,
        clock: Clock,
        files: Files,
        session: LazySpark,
        entropy: Callable[[int], bytes],
        reservations: Reservations | None = None,
        pace_of: PaceOf | None = None,
    ) -> None:
        """`pace_of`: what the planning of a log reads at; by default, at the limits of the configuration."""
        self._reservations = reservations or Reservations(files)
        self._throttle = Throttle(clock)
        self._throttle.set_configured(request.config)
        self.pace_of: PaceOf = pace_of or (lambda _: self._pay)
        self._request = request
        self._progress = progress
        self._clock = clock
        self._files = files
        self._session = session
        self._entropy = entropy

    def stage(
        self, candidates: Sequence[Candidate], reporter: Reporter | None = None, *, is_owned: bool = False
    ) -> list[LogResult]:
        """Clean candidates of one log directory as common Spark jobs and stage the results: `plan`, `write` and `end`."""
        return self.end(self.write(self.plan(candidates, is_owned=is_owned), reporter))

    def plan(self, candidates: Sequence[Candidate], *, is_owned: bool = False) -> CleaningJob:
        """What to do to candidates of one log directory. What an earlier cleaning left staged is dropped.

        It may wait for its turn. `is_owned`: a broker lives in the log directory, and cleanerd.staged.min.free.ratio holds.
        """
        job = CleaningJob(candidates, is_owned, Stopwatch(self._clock))
        with job.watch.phase("plan"):
            logs, results = self._plan(candidates, partial(self._drop_and_plan, is_owned=is_owned), job.watch)
        job.watch.pause()
        job.logs.extend(logs)
        job.results.extend(results)
        return job

    def write(
        self,
        job: CleaningJob,
        reporter: Reporter | None = None,
        make_room: Callable[[], object] = lambda: None,
        begun: Callable[[], object] = lambda: None,
    ) -> CleaningJob:
        """Clean what was planned as common Spark jobs. What they have written waits for `end`.

        Tasks report to `reporter`, with the place of their log among those passed to `Progress.planned`; without
        one they report to the progress of this object and obey the limits of the configuration.
        Without a broker, a log that has no room as a whole is cleaned as far as there is room: `LogResult.groups_left`.
        `make_room` is called before that, or a refusal: it waits for what will free room. `begun` is called once tasks run,
        once or more often: from then on this process has time for something else.

        Raises JobFailed when the jobs of several logs failed and none of them is known to be at fault; Fatal without Java.
        """
        job.watch.resume()
        write = partial(self._write, is_owned=job.is_owned, make_room=make_room)
        try:
            self._run_pipeline(job.logs, reporter, job.watch, write, in_one_step=True, begun=begun)
        except BaseException:
            self.give_up(job.candidates)
            raise
        job.watch.pause()
        return job

    def end(self, job: CleaningJob) -> list[LogResult]:
        """Stage what was written; while the next job is written, if the caller likes."""
        job.watch.resume()
        try:
            with job.watch.phase("stage"):
                self._stage_all(job.logs)
            return job.results + [
                self._outcome(log, "staged" if log.staged else "unchanged", job.watch) for log in job.logs
            ]
        except BaseException:
            self.give_up(job.candidates)
            raise
        finally:
            self._release(job.candidates)

    def give_up(self, candidates: Sequence[Candidate]) -> None:
        """Drop what has been written of them."""
        for candidate in candidates:
            self._discard(candidate)
        self._release(candidates)

    def _release(self, candidates: Sequence[Candidate]) -> None:
        self._reservations.release(candidate.snapshot.directory for candidate in candidates)

    def count(
        self, candidates: Sequence[Candidate], space: ForeseenSpace, *, is_owned: bool = False
    ) -> list[LogResult]:
        """What `stage`, and a commit unless `is_owned`, would come to; writes nothing. Raises what `stage` does.

        A log that would have no room has failed. What the others would take is taken from `space`.
        """
        watch = Stopwatch(self._clock)
        with watch.phase("plan"):
            logs, results = self._plan(candidates, partial(self._plan_one, is_owned=is_owned), watch)
        self._run_pipeline(logs, None, watch, self._count)
        self._foresee(logs, space, is_owned=is_owned)
        return results + [self._outcome(log, "planned", watch) for log in logs]

    def _foresee(self, logs: list[_Log], space: ForeseenSpace, *, is_owned: bool) -> None:
        """Refuse logs that would have no room: those of a job are all written before the first is committed."""
        if is_owned:  # what waits of them would be dropped first
            for log in logs:
                directory = log.candidate.snapshot.directory
                space.take(directory, -staged_bytes(PartitionDir(self._files, directory)))
        granted, taken = 0, 0
        for log in [log for log in logs if log.is_alive and log.rewritten is not None]:
            assert log.rewritten is not None
            directory, extra = log.candidate.snapshot.directory, Room.counted(log.plan, log.rewritten)
            room = space.room_bytes(directory) - log.plan.work.least_free_bytes - granted
            if extra.peak_bytes > max(room, 0):
                log.rounds = None if is_owned else extra.rounds(room)
                if log.rounds is None:
                    log.error = no_space(
                        log.candidate.snapshot,
                        extra.peak_bytes,
                        extra.first_bytes(by_group=not is_owned),
                        room,
                    )
                    continue
            granted += min(extra.peak_bytes, max(room, 0))
            taken += extra.taken(is_committed=not is_owned)
        for log in logs[:1]:
            space.take(log.candidate.snapshot.directory, taken)

    def _plan(
        self,
        candidates: Sequence[Candidate],
        plan_one: Callable[[Candidate], CleaningPlan],
        watch: Stopwatch,
    ) -> tuple[list[_Log], list[LogResult]]:
        """Logs to go on with, and results of those that end here."""
        logs: list[_Log] = []
        failed: list[LogResult] = []
        for candidate in candidates:
            plan = attempt(partial(plan_one, candidate), candidate.snapshot.directory)
            if isinstance(plan, CleanerdError):
                failed.append(self._failed(candidate, plan, watch))
            else:
                logs.append(_Log(replace(plan, work=replace(plan.work, number=len(logs)))))
        return logs, failed

    def _plan_one(self, candidate: Candidate, *, is_owned: bool = False) -> CleaningPlan:
        config = self._request.config
        ratio = config.staged_min_free_ratio if is_owned else 0.0
        return plan_cleaning(
            self._files,
            candidate,
            now_ms=self._clock.now_ms(),
            chunk_bytes=config.chunk_bytes,
            pace=self.pace_of(candidate.snapshot.topic_partition),
            least_free_bytes=floor_bytes(space_of(candidate.snapshot.directory), ratio),
            in_place=self._session.executor().shares_files,
        )

    def _pay(self, read_bytes: int) -> None:
        self._throttle.charge(read_bytes, 0, lambda: False)

    def _drop_and_plan(self, candidate: Candidate, *, is_owned: bool) -> CleaningPlan:
        """The plan, once what an earlier run staged is dropped: this run is newer."""
        discard_staged(PartitionDir(self._files, candidate.snapshot.directory))
        return self._plan_one(candidate, is_owned=is_owned)

    def _run_pipeline(
        self,
        logs: list[_Log],
        reporter: Reporter | None,
        watch: Stopwatch,
        rewrite: "_Rewrite",
        *,
        in_one_step: bool = False,
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        """The Spark jobs; `in_one_step`: small logs are indexed and rewritten by one of them.

        Raises JobFailed for what cannot be put down to one of several logs.
        """
        if not logs:
            return
        where = logs[0].candidate.snapshot.directory if len(logs) == 1 else logs[0].candidate.snapshot.log_dir
        run = partial(
            self._run_steps, logs, watch=watch, rewrite=rewrite, in_one_step=in_one_step, begun=begun
        )
        error = attempt(lambda: self._report_and_run(logs, reporter, run), where)
        if isinstance(error, Fatal):
            raise error
        if error is not None and len(logs) > 1:
            raise JobFailed(str(error)) from error
        logs[0].error = logs[0].error or error

    def _report_and_run(
        self, logs: list[_Log], reporter: Reporter | None, run: Callable[[Reporter], None]
    ) -> None:
        for log in logs:
            self._progress.planned(log.candidate.snapshot.topic_partition, log.plan.work.size_bytes)
            self._progress.step(steps.planned(log.plan))
        if reporter is not None:
            run(reporter)
            return
        partitions = [log.candidate.snapshot.topic_partition for log in logs]
        throttle = self._throttle

        def answer(moved: Moved) -> ReportAnswer:
            if moved.phase is not Phase.VERIFY:  # reads again what the rewrite has counted as written
                size_bytes = moved.read_bytes + moved.written_bytes
                phase = moved.phase.name.lower()
                self._progress.advanced(partitions[moved.log], phase, size_bytes, moved.records)
            throttle.charge(moved.read_bytes, moved.written_bytes, lambda: False)
            return GO_ON

        with Channel(answer, driver_host(self._session.master)) as channel:
            run(channel.reporter)

    def _run_steps(
        self,
        logs: list[_Log],
        reporter: Reporter,
        *,
        watch: Stopwatch,
        rewrite: "_Rewrite",
        in_one_step: bool,
        begun: Callable[[], object],
    ) -> None:
        pipeline = Pipeline(self._session, budget_of(self._request), reporter, begun)
        if not self._session.is_up and any(log.plan.work.chunks for log in logs):
            with watch.phase("start"):
                self._session.context()
        with pipeline.together([log.plan.work for log in logs]):
            if in_one_step:
                with watch.phase("rewrite"):
                    self._clean_small([log for log in logs if pipeline.is_small(log.plan.work)], pipeline)
            with watch.phase("index"):
                logs = [log for log in logs if log.rewritten is None]
                self._index([log for log in logs if log.indexed is None], pipeline)
                for log in logs:
                    if log.indexed is not None and log.is_alive:
                        log.plan = merge_neighbours(log.plan, log.indexed)
                        self._progress.step(steps.mapped(log.indexed))
            with watch.phase("rewrite"):
                for log, rewritten in zip(logs, rewrite(logs, pipeline), strict=True):
                    log.rewritten, log.error = rewritten, log.error or rewritten.error
                    steps.report_rewritten(self._progress, log.plan, rewritten)

    def _index(self, logs: list[_Log], pipeline: Pipeline) -> None:
        for log, indexed in zip(logs, pipeline.index(*self._works(logs)), strict=True):
            log.indexed, log.error = indexed, indexed.error

    def _clean_small(self, logs: list[_Log], pipeline: Pipeline) -> None:
        """Index and rewrite in one step, if there is plenty of room: no log has been looked into yet."""
        if not logs:
            return
        least_free_bytes = max(log.plan.work.least_free_bytes for log in logs)
        wanted = {log.candidate.snapshot.directory: Room.of_any(log.plan).peak_bytes for log in logs}
        if self._reservations.take(wanted, least_free_bytes) is not None:
            return
        for log, (indexed, rewritten) in zip(logs, pipeline.clean_small(*self._works(logs)), strict=True):
            log.indexed, log.rewritten = indexed, rewritten
            log.error = indexed.error
            if rewritten is not None:
                self._progress.step(steps.mapped(indexed))
                steps.report_rewritten(self._progress, log.plan, rewritten)

    def _works(self, logs: list[_Log]) -> tuple[list[LogWork], list[tuple[int, int]]]:
        """What the pipeline is to do, and the keys that it does it with."""
        return [log.plan.work for log in logs], [_fingerprint_key(self._entropy) for _ in logs]

    def _write(
        self, logs: list[_Log], pipeline: Pipeline, *, is_owned: bool, make_room: Callable[[], object]
    ) -> list[RewrittenLog]:
        self._check_space(logs, pipeline, is_owned=is_owned, make_room=make_room)
        return pipeline.rewrite(_indexed(logs), write=True)

    def _count(self, logs: list[_Log], pipeline: Pipeline) -> list[RewrittenLog]:
        return pipeline.rewrite(_indexed(logs), write=False)

    def _check_space(
        self, logs: list[_Log], pipeline: Pipeline, *, is_owned: bool, make_room: Callable[[], object]
    ) -> None:
        """Reserve room for new files; refuse logs whose do not fit. They are measured exactly only when it is tight."""
        alive = [log for log in logs if log.is_alive]
        if not alive:
            return
        least_free_bytes = max(log.plan.work.least_free_bytes for log in alive)
        wanted = {log.candidate.snapshot.directory: _bound(log).peak_bytes for log in alive}
        if self._reservations.take(wanted, least_free_bytes) is None:
            return
        pipeline.release()
        make_room()
        if self._reservations.take(wanted, least_free_bytes) is None:
            return
        for log, counted in zip(alive, pipeline.rewrite(_indexed(alive), write=False), strict=True):
            log.error = counted.error or self._reserve(log, counted, by_group=not is_owned)
            assert log.indexed is not None
            log.indexed.error = log.error

    def _reserve(self, log: _Log, counted: RewrittenLog, *, by_group: bool) -> NoSpace | None:
        """Room for a whole log, or, `by_group`, for as many of its groups as there is room for, the first ones."""
        assert log.indexed is not None
        groups = sorted(log.indexed.changed_groups)
        if not groups:
            return None
        extra = Room.counted(log.plan, counted)
        peak_bytes = needed_bytes = extra.peak_bytes
        room = self._take(log, peak_bytes)
        if room is not None and by_group:
            fitting = extra.fitting(groups, room) or groups[:1]
            needed_bytes = extra.peak_of(fitting)
            room = self._take(log, needed_bytes)
            log.groups_left = len(groups) - len(fitting)
            log.indexed.changed_groups = frozenset(fitting)
        return None if room is None else no_space(log.candidate.snapshot, peak_bytes, needed_bytes, room)

    def _take(self, log: _Log, size_bytes: int) -> int | None:
        return self._reservations.take({log.plan.work.directory: size_bytes}, log.plan.work.least_free_bytes)

    def _stage_all(self, logs: list[_Log]) -> None:
        """Side by side: staging is waiting for the disk, which syncs the files of many logs as fast as those of one."""
        with ThreadPoolExecutor(_STAGING_THREADS, "cleanerd-stage") as pool:
            list(pool.map(self._stage, logs))  # raises what `_stage` does

    def _stage(self, log: _Log) -> None:
        """Stage one log. One that fails, or has failed before, leaves nothing behind."""
        rewritten = log.rewritten
        if log.error is None and rewritten is not None:
            directory = log.candidate.snapshot.directory
            stage = partial(stage_log, moves_checkpoint=not log.groups_left)
            staged = attempt(lambda: stage(self._files, log.plan, rewritten), directory)
            if isinstance(staged, CleanerdError):
                log.error = staged
            else:
                log.staged = staged
                self._progress.step(steps.staged(log.plan, rewritten, staged))
        if log.error is not None or rewritten is None:
            self._discard(log.candidate)

    def _outcome(self, log: _Log, outcome: CleaningOutcome, watch: Stopwatch) -> LogResult:
        """`outcome`, unless the log failed."""
        if log.error is not None or log.rewritten is None:
            return self._failed(log.candidate, log.error or Aborted("stopped"), watch)
        return _result(log, log.rewritten, outcome, watch)

    def _failed(self, candidate: Candidate, error: CleanerdError, watch: Stopwatch) -> LogResult:
        if isinstance(error, CorruptFile) and is_other_segment(self._files, candidate.snapshot, error.path):
            error = changed_while_read(error)
        return candidate.result("failed", None).failed(error).measured(watch)

    def _discard(self, candidate: Candidate) -> None:
        directory = candidate.snapshot.directory
        attempt(lambda: discard_staged(PartitionDir(self._files, directory)), directory)


def budget_of(request: CleanRequest) -> Budget:
    """Memory for the keys of one of the jobs that run at a time."""
    config = request.config
    return Budget(int(config.dedupe_buffer_size_bytes * config.io_buffer_load_factor / request.jobs_at_once))


_Rewrite = Callable[[list[_Log], Pipeline], list[RewrittenLog]]


def _indexed(logs: list[_Log]) -> list[IndexedLog]:
    return [log.indexed for log in logs if log.indexed is not None]


def _result(log: _Log, rewritten: RewrittenLog, outcome: CleaningOutcome, watch: Stopwatch) -> LogResult:
    assert log.indexed is not None
    snapshot, plan = log.candidate.snapshot, log.plan
    changed = [plan.groups[number] for number in log.indexed.changed_groups]
    parts = [written.part for parts in rewritten.parts.values() for written in parts]
    replaced = sum(segment.size_bytes for group in changed for segment in group.sources)
    removed, extra = _removed(rewritten), Room.counted(plan, rewritten)
    records_read = log.indexed.records_read
    return replace(
        log.candidate.result(outcome, None).measured(watch),
        bytes_read=sum(summary.bytes for summary in log.indexed.summaries),
        bytes_after=snapshot.size_bytes - replaced + sum(part.size_bytes for part in parts),
        records_read=records_read,
        records_kept=records_read - int(removed.sum()),
        removed={v.reason: int(removed[v]) for v in REMOVED_VERDICTS if removed[v]},
        segments_after=len(snapshot.segments) - sum(len(group.sources) - 1 for group in changed),
        reason=_partial(log),
        peak_extra_bytes=extra.peak_bytes,
        peak_group_bytes=extra.largest_group_bytes,
        groups_left=log.groups_left,
        topic_codec_saves_bytes=sum(p.topic_codec_saves_bytes for p in parts)
        if plan.work.topic_codec
        else None,
        damaged_indexes=plan.damage_met(log.indexed),
        basis=log.candidate.basis,
    )


def _partial(log: _Log) -> str | None:
    if log.rounds is not None:
        return f"in {log.rounds} rounds: there is no room for all groups at once beside the old segments"
    if not log.groups_left or log.indexed is None:
        return None
    done = len(log.indexed.changed_groups)
    return f"{done} of {done + log.groups_left} groups: there is no room for more of them beside the old segments"


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


def _bound(log: _Log) -> Room:
    assert log.indexed is not None
    return Room.bound(log.plan, log.indexed)
