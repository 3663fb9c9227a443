"""Candidates to staged results: steps 3 to 8 of architecture 3, without the commit."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from secrets import randbits
from types import MappingProxyType
from typing import Any

from cleanerd.cleaning import steps
from cleanerd.cleaning.batching import Ending
from cleanerd.cleaning.choose import Candidate, PaceOf
from cleanerd.cleaning.outcomes import of_error
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.plan import CleaningPlan, merge_neighbours, plan_cleaning
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress, Statistics
from cleanerd.cleaning.room import FILES_OF_GROUP, Reservations, Room, no_space
from cleanerd.cleaning.round_size import round_bytes
from cleanerd.cleaning.rounds import LogUnderWay, Rests
from cleanerd.cleaning.stage import stage_log
from cleanerd.cleaning.throttle import Throttle
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.space import SWAP_BYTES, floor_bytes, names_left, space_of, wait_for_deleted
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    Fatal,
    JobFailed,
    LogUncleanable,
    NoSpace,
    each_log,
)
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.values import LogWork, RewrittenLog
from cleanerd.spark_runtime.channel import Channel, Reporter, driver_host
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.messages import GO_ON, Moved, Phase, ReportAnswer
from cleanerd.storage.changed import changed_while_read, is_other_segment
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import discard_staged, try_discard_staged

_STAGING_THREADS = 4
_TO_SWAP = "have the broker swap results in, with --set cleanerd.commit.live=auto, or stop it"

Owned = Mapping[str, str | None]
"""Log directories of which another process has `.lock`, each with why that cannot be asked to swap."""
NOBODYS: Owned = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Logs that are cleaned together, by `Cleaner.plan`, `write` and `end`; results of those that have ended before.

    The watch runs while something is done for them.
    """

    candidates: Sequence[Candidate]
    watch: Stopwatch
    logs: list[LogUnderWay]
    results: list[LogResult]

    @property
    def has_rest(self) -> bool:
        """Whether groups of a log are left for another round."""
        return any(log.is_alive and log.groups_left for log in self.logs)


class Cleaner:
    """Cleans candidates with one Spark session, up to the commit; every failure of a log ends in its result.

    `plan` is step 3 of architecture 3, `write` steps 4 to 7, `end` the first half of step 8.
    """

    def __init__(
        self,
        request: CleanRequest,
        progress: Progress,
        clock: Clock,
        files: Files,
        session: LazySpark,
        reservations: Reservations | None = None,
        pace_of: PaceOf | None = None,
        rests: Rests | None = None,
    ) -> None:
        """`pace_of`: what the planning of a log reads at; by default, at the limits of the configuration.

        `rests`: where cleaners of the same process leave what each has to go on with (`rest`).
        """
        self._rests = {} if rests is None else rests
        self._reservations = reservations or Reservations(files)
        self._throttle = Throttle(clock)
        self._throttle.set_configured(request.config)
        self.pace_of: PaceOf = pace_of or (lambda _: self._pay)
        self._request = request
        self._progress = progress
        self._clock = clock
        self._files = files
        self._session = session

    def stage(
        self,
        candidates: Sequence[Candidate],
        reporter: Reporter | None = None,
        owned: Owned = NOBODYS,
    ) -> list[LogResult]:
        """Clean candidates as common Spark jobs and stage the results: `plan`, `write` and `end`."""
        return self.end(self.write(self.plan(candidates, owned), reporter))

    def plan(
        self, candidates: Sequence[Candidate], owned: Owned = NOBODYS, *, drops_staged: bool = True
    ) -> CleaningJob:
        """Plan the cleaning of candidates, of any log directories. With `drops_staged`, results of earlier cleanings are
        dropped first.

        It may wait for its turn. In a directory that is `owned` by a broker that cannot be asked to swap, results will
        wait, and cleanerd.staged.min.free.ratio holds: else they take room for a moment.
        """
        job = CleaningJob(candidates, Stopwatch(self._clock), [], [])
        with job.watch.phase("plan"):
            for candidate in candidates:
                with each_log(candidate.snapshot.directory) as log:
                    plan = self._plan_one(candidate, owned, drops_staged=drops_staged)
                    plan = replace(plan, work=replace(plan.work, number=len(job.logs)))
                    job.logs.append(LogUnderWay.of(plan))
                if log.error is not None:
                    job.results.append(self._failed(candidate, log.error, job.watch))
        job.watch.pause()
        return job

    def write(
        self,
        job: CleaningJob,
        reporter: Reporter | None = None,
        before: Ending[Any] | None = None,
    ) -> CleaningJob:
        """Clean what was planned as common Spark jobs. What they have written waits for `end`.

        Tasks report to `reporter`, with the place of their log among those passed to `Progress.planned`; without
        one they report to the progress of this object and obey the limits of the configuration.
        Where its result does not wait, a large log, or one that has no room as a whole, is cleaned in rounds: this is the
        first (`Staged.groups_left`), `rest` has the others.
        `before` is the end of the job before this one: it begins once tasks run, when this process has time for it, and is
        waited for where there is no room, for it frees some.

        Raises JobFailed when the jobs of several logs failed and none of them is known to be at fault; Fatal without Java.
        """
        job.watch.resume()
        try:
            self._run(job, reporter, before, write=True)
        except BaseException:
            # not of those that were refused: an earlier result of theirs may wait
            self.give_up([log.candidate for log in job.logs])
            raise
        job.watch.pause()
        return job

    def end(self, job: CleaningJob) -> list[LogResult]:
        """Stage what was written; while the next job is written, if the caller likes."""
        job.watch.resume()
        try:
            with job.watch.phase("stage"):
                self._stage_all(job.logs)
            results = [self._result(log, job.watch, lambda log: log.result(log.made())) for log in job.logs]
            for log, result in zip(job.logs, results, strict=True):
                log.size = result.after
                if log.is_alive and log.staged and log.groups_left:
                    self._rests[self._directory(log.candidate)] = log
            return job.results + results
        except BaseException:
            self.give_up([log.candidate for log in job.logs])
            raise
        finally:
            self._release(job.candidates)

    def rest(self, directory: str) -> CleaningJob | None:
        """The groups of a log that are left, once those before them are committed: what `write` and `end` go on with. None
        where they are not known.
        """
        before = self._rests.pop(directory, None)
        if before is None:
            return None
        log = before.next_round()
        self._cut([log])
        return CleaningJob([log.candidate], Stopwatch(self._clock), [log], [])

    def give_up(self, candidates: Sequence[Candidate]) -> None:
        """Drop what has been written of them."""
        for candidate in candidates:
            self._discard(candidate)
        self._release(candidates)

    def _release(self, candidates: Sequence[Candidate]) -> None:
        self._reservations.release(map(self._directory, candidates))

    def count(self, candidates: Sequence[Candidate], owned: Owned = NOBODYS) -> list[LogResult]:
        """The results that `write` would have; writes nothing. Raises the errors of `write`."""
        job = self.plan(candidates, owned, drops_staged=False)
        job.watch.resume()
        self._run(job, None, None, write=False)
        for log in () if self._request.rescues else job.logs:
            with each_log(log.plan.work.directory) as found:
                log.error = log.error or log.lack_of_room()
            log.error = log.error or found.error
        is_any = any(log.indexed is not None and log.indexed.changed_groups for log in job.logs)
        cores = self._session.executor().cores if is_any else 1

        def counted(log: LogUnderWay) -> LogResult:
            return log.counted(cores, self._request.config)

        return job.results + [self._result(log, job.watch, counted) for log in job.logs]

    def _directory(self, candidate: Candidate) -> str:
        """The directory for the new files of a candidate."""
        return self._request.spare or candidate.snapshot.directory

    def _plan_one(self, candidate: Candidate, owned: Owned, *, drops_staged: bool) -> CleaningPlan:
        config, snapshot, is_owned = self._request.config, candidate.snapshot, candidate.log_dir in owned
        waits = is_owned and snapshot.is_kafka and not snapshot.is_reported
        if is_owned:
            self._check_may_stage(candidate, owned[candidate.log_dir], waits=waits)
        if drops_staged:
            self._rests.pop(self._directory(candidate), None)
            discard_staged(PartitionDir(self._files, self._directory(candidate)))
        space, ratio = space_of(snapshot.directory), config.staged_min_free_ratio if waits else 0.0
        least_bytes = floor_bytes(space, ratio)
        if self._request.rescues and not waits:
            least_bytes = SWAP_BYTES if is_owned else 0
        return plan_cleaning(
            self._files,
            candidate,
            now_ms=self._clock.now_ms(),
            chunk_bytes=config.chunk_bytes,
            pace=self.pace_of(snapshot.topic_partition),
            least_free_bytes=least_bytes,
            in_place=self._session.executor().shares_files,
            waits=waits,
            in_any_order=self._request.rescues,
            in_rounds=not waits and snapshot.size_bytes > round_bytes(1, config),
            directory=self._request.spare,
        )

    def _check_may_stage(self, candidate: Candidate, why_not: str | None, *, waits: bool) -> None:
        """Raise NoSpace where nothing more may be staged beside the owner of a directory."""
        path = candidate.log_dir
        if not self._request.rescues:
            log_dir = LogDir(self._files, path, self._clock, candidate.snapshot.is_kafka)
            full = log_dir.why_full(self._request.config, waits=waits)
            if full is not None:
                raise full
        elif waits or why_not is not None:  # it may have described this log, and hang since
            why_not = why_not or "it has not described this log"
            why = (
                f"{path}: its broker runs, and what is cleaned would only take room until it stops: {why_not}"
            )
            raise NoSpace(why, remedy=_TO_SWAP)

    def _pay(self, read_bytes: int) -> None:
        self._throttle.charge(read_bytes, 0, lambda: False)

    def _run(
        self, job: CleaningJob, reporter: Reporter | None, before: Ending[Any] | None, *, write: bool
    ) -> None:
        """The Spark jobs. Raises JobFailed for what cannot be put down to one of several logs."""
        logs = job.logs
        if not logs:
            return
        where = logs[0].candidate.snapshot.directory if len(logs) == 1 else logs[0].candidate.log_dir
        with each_log(where) as together:
            for log in logs:
                snapshot, is_first = log.candidate.snapshot, log.before is None
                size_bytes = log.plan.work.size_bytes if is_first else 0
                self._progress.planned(snapshot.topic_partition, snapshot.log_dir, size_bytes)
                if is_first:
                    self._progress.step(steps.planned(log.plan))
            with self._own_reporter(logs) if reporter is None else contextlib.nullcontext(reporter) as used:
                self._run_steps(job, used, before, write=write)
        if isinstance(together.error, Fatal):
            raise together.error
        if together.error is not None and len(logs) > 1:
            raise JobFailed(str(together.error)) from together.error
        logs[0].error = logs[0].error or together.error

    @contextlib.contextmanager
    def _own_reporter(self, logs: list[LogUnderWay]) -> Iterator[Reporter]:
        """A reporter to the progress of this object; tasks that report are throttled."""
        names = [(log.candidate.snapshot.topic_partition, log.candidate.log_dir) for log in logs]
        throttle = self._throttle

        def answer(moved: Moved) -> ReportAnswer:
            if moved.phase is not Phase.VERIFY:  # reads again what the rewrite has counted as written
                size_bytes = moved.read_bytes + moved.written_bytes
                phase = moved.phase.name.lower()
                self._progress.advanced(*names[moved.log], phase, size_bytes, moved.records)
            throttle.charge(moved.read_bytes, moved.written_bytes, lambda: False)
            return GO_ON

        with Channel(answer, driver_host(self._session.master)) as channel:
            yield channel.reporter

    def _run_steps(
        self, job: CleaningJob, reporter: Reporter, before: Ending[Any] | None, *, write: bool
    ) -> None:
        """Steps 4 to 7 of architecture 3. They share a Spark job where that pays."""
        begun: Callable[[], object] = (lambda: None) if before is None else before.begin
        for log in job.logs:
            log.stamp(self._clock.now_ms())
        pipeline = Pipeline(self._session, budget_of(self._request), reporter, begun)
        logs, phase = job.logs, job.watch.phase
        if not self._session.is_up and any(log.plan.work.chunks for log in logs):
            with phase("start"):
                self._session.context()
        with pipeline.together([log.work for log in logs]):
            if write:
                with phase("rewrite"):
                    logs = self._clean_small(logs, pipeline)
            with phase("index"):
                self._index(logs, pipeline)
            if write:
                self._cut(logs)
            with phase("rewrite"):
                if write:
                    for log in logs:
                        log.stamp(self._clock.now_ms())
                    self._check_space(logs, pipeline, before)
                self._rewrite(logs, pipeline, write=write)

    def _clean_small(self, logs: list[LogUnderWay], pipeline: Pipeline) -> list[LogUnderWay]:
        """Steps 4 to 7 at once, of small logs where there is plenty of room: none has been looked into yet. Returns those
        that have still to be rewritten, or to be read.
        """
        most_bytes = round_bytes(self._session.executor().cores, self._request.config)
        small = [
            log for log in logs
            if log.before is None and pipeline.is_small(log.plan.work)
            and (log.plan.work.groups == 1 or log.plan.work.size_bytes <= most_bytes)
        ]  # fmt: skip
        full = self._full([(log, Room.of_any(log.plan)) for log in small])
        fitting = [log for log in small if log.candidate.log_dir not in full]
        cleaned = pipeline.clean_small(*self._works(fitting))
        for log, (indexed, rewritten) in zip(fitting, cleaned, strict=True):
            log.indexed, log.rewritten = indexed, rewritten
            log.error = indexed.error
            if rewritten is not None:
                self._progress.step(steps.mapped(indexed))
                steps.report_rewritten(self._progress, log.plan, rewritten)
        return [log for log in logs if log.rewritten is None]

    def _index(self, logs: list[LogUnderWay], pipeline: Pipeline) -> None:
        """Steps 4 and 5: the newest record of each key; with that the groups are known that change, or merge."""
        unread = [log for log in logs if log.indexed is None]
        for log, indexed in zip(unread, pipeline.index(*self._works(unread)), strict=True):
            log.indexed, log.error = indexed, indexed.error
        for log in logs:
            if log.indexed is not None and log.is_alive and log.before is None:
                log.plan = merge_neighbours(log.plan, log.indexed)
                self._progress.step(steps.mapped(log.indexed))

    def _cut(self, logs: list[LogUnderWay]) -> None:
        """Leave what is no part of this round for later ones. A rescue takes as much as there is room for."""
        for log in [] if self._request.rescues else logs:
            if log.indexed is not None and log.is_alive:
                now = next(log.rounds(self._session.executor().cores, self._request.config))
                log.indexed.later_groups = log.indexed.changed_groups.difference(now)

    def _rewrite(self, logs: list[LogUnderWay], pipeline: Pipeline, *, write: bool) -> None:
        """Steps 6 and 7: groups that change are written, and read back."""
        found = [log.indexed for log in logs if log.indexed is not None]
        for log, rewritten in zip(logs, pipeline.rewrite(found, write=write), strict=True):
            log.rewritten, log.error = rewritten, log.error or rewritten.error
            steps.report_rewritten(self._progress, log.plan, rewritten)

    def _works(self, logs: list[LogUnderWay]) -> tuple[list[LogWork], list[tuple[int, int]]]:
        """The work for the pipeline, and a fingerprint key for each log."""
        return [log.plan.work for log in logs], [(randbits(64), randbits(64)) for _ in logs]

    def _check_space(self, logs: list[LogUnderWay], pipeline: Pipeline, before: Ending[Any] | None) -> None:
        """Reserve room for new files; refuse logs whose do not fit. They are measured exactly only when it is tight."""
        alive = [(log, log.indexed) for log in logs if log.is_alive and log.indexed is not None]
        wanted = [(log, Room.bound(log.plan, indexed)) for log, indexed in alive]
        full = self._full(wanted)
        if not full:
            return
        pipeline.release()
        if before is not None:
            before.wait()
        full = self._full([one for one in wanted if one[0].candidate.log_dir in full])
        tight = [(log, indexed) for log, indexed in alive if log.candidate.log_dir in full]
        found = pipeline.rewrite([indexed for _, indexed in tight], write=False)
        for (log, _), counted in zip(tight, found, strict=True):
            counted.indexed.error = log.error = counted.error or self._reserve(log, counted)

    def _full(self, wanted: Sequence[tuple[LogUnderWay, Room]]) -> set[str]:
        """Log directories without room for what their logs want together, and nothing is reserved there."""
        by_log_dir: dict[str, list[tuple[LogUnderWay, Room]]] = {}
        for log, room in wanted:
            by_log_dir.setdefault(log.candidate.log_dir, []).append((log, room))
        return {
            log_dir
            for log_dir, mine in by_log_dir.items()
            if self._reservations.take(
                {log.plan.work.directory: room.peak_bytes for log, room in mine},
                max(log.plan.work.least_free_bytes for log, _ in mine),
            )
            is not None
            or self._request.spare is not None
            or (self._request.rescues and any(room.linked_bytes for _, room in mine))
            or self._lacks_names(mine)
        }

    def _lacks_names(self, wanted: Sequence[tuple[LogUnderWay, Room]]) -> bool:
        """Whether a file system is so full that not all files of these logs, of one log directory, can be made on it."""
        place, names = wanted[0][0].plan.work.directory, sum(room.names for _, room in wanted)
        left_bytes = space_of(place).free_bytes - sum(room.peak_bytes for _, room in wanted)
        return self._request.rescues and (names > names_left(place) or left_bytes < SWAP_BYTES)

    def _reserve(self, log: LogUnderWay, counted: RewrittenLog) -> CleanerdError | None:
        """Room for a whole log; or, unless its result waits, for as many of its groups as there is room for.

        A rescue writes no group that frees nothing.
        """
        groups = counted.indexed.groups_now
        if not groups:
            return None
        extra, rescues = Room.counted(log.plan, counted), self._request.rescues
        needed_bytes = extra.peak_bytes
        room = self._take(log, needed_bytes)
        if room is None and (self._request.spare or self._lacks_names([(log, extra)])):
            room = needed_bytes
        elif room is None and rescues and extra.linked_bytes:
            room = needed_bytes + SWAP_BYTES  # are free, else it would lack names
        if room is not None and not log.plan.waits:
            if rescues:
                wait_for_deleted()  # what was replaced before may still have its names
            names = names_left(log.plan.work.directory)
            if self._request.spare is not None:
                names = min(names, FILES_OF_GROUP)
            fitting = extra.freeing(room, names) if rescues else extra.fitting(groups, room) or groups[:1]
            if not fitting:
                return LogUncleanable(
                    f"{log.plan.work.directory}: {extra.why_kept or 'nothing would come back'}"
                )
            needed_bytes = extra.peak_of(fitting)
            room = self._take(log, needed_bytes)
            counted.indexed.later_groups = counted.indexed.changed_groups.difference(fitting)
        return None if room is None else no_space(log.plan, extra, needed_bytes, room)

    def _take(self, log: LogUnderWay, size_bytes: int) -> int | None:
        return self._reservations.take({log.plan.work.directory: size_bytes}, log.plan.work.least_free_bytes)

    def _stage_all(self, logs: list[LogUnderWay]) -> None:
        """Side by side: staging is waiting for the disk, which syncs the files of many logs as fast as those of one."""
        with ThreadPoolExecutor(_STAGING_THREADS, "cleanerd-stage") as pool:
            list(pool.map(self._stage, logs))  # raises what `_stage` does

    def _stage(self, log: LogUnderWay) -> None:
        """Stage one log. One that fails, or has failed before, leaves nothing behind."""
        rewritten = log.rewritten
        if log.error is None and rewritten is not None:
            with each_log(log.candidate.snapshot.directory) as boundary:
                log.staged = stage_log(
                    self._files, log.plan, rewritten, before=log.before,
                    commit_by_ms=self._clock.now_ms() + log.plan.commit_within_ms,
                )  # fmt: skip
                self._progress.step(steps.staged(log.plan, rewritten, len(log.staged)))
            log.error = boundary.error
        if log.error is not None or rewritten is None:
            self._discard(log.candidate)

    def _result(
        self, log: LogUnderWay, watch: Stopwatch, made: Callable[[LogUnderWay], LogResult]
    ) -> LogResult:
        """The result of a log: what was `made`, unless the log has failed."""
        if log.error is not None or log.rewritten is None:
            failed = self._failed(log.candidate, log.error or Aborted("stopped"), watch)
            return replace(failed, before=log.size, after=log.size)
        found = made(log)
        return replace(found, statistics=found.statistics.measured(watch))

    def _failed(self, candidate: Candidate, error: CleanerdError, watch: Stopwatch) -> LogResult:
        if isinstance(error, CorruptFile) and is_other_segment(self._files, candidate.snapshot, error.path):
            error = changed_while_read(error)
        least_bytes = error.needs_bytes if isinstance(error, NoSpace) else 0
        statistics = Statistics(least_extra_bytes=least_bytes).measured(watch)
        return replace(candidate.result(of_error(error)), statistics=statistics)

    def _discard(self, candidate: Candidate) -> None:
        try_discard_staged(PartitionDir(self._files, self._directory(candidate)))


def budget_of(request: CleanRequest) -> Budget:
    """Memory of one of the jobs that run at a time; for what is written, that of all, which share the cores."""
    config = request.config
    keys_bytes = int(config.dedupe_buffer_size_bytes * config.io_buffer_load_factor / request.jobs_at_once)
    return Budget(keys_bytes, config.io_buffer_size_bytes, config.chunk_bytes * 5 // 2)
