"""One shot: clean what a request asks for, log directory by log directory (architecture 3, 6).

Per directory: guard against a second cleanerd, recover what an interrupted commit left, read the checkpoints, examine every
partition, clean the candidates job by job, then give compacted logs their retention pass (rule 1.28). Whatever happens to
one log becomes its result; the others go on.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from cleanerd.cleaning.batching import in_jobs
from cleanerd.cleaning.boundary import attempt, one_by_one
from cleanerd.cleaning.choose import Candidate, examine_all, failed_on_disk, in_order, log_size, partitions
from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.cleaning.commit import Turn, Waiting, commit_waiting, turns, waiting_groups
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.recovery import recover_dir
from cleanerd.cleaning.reset import reset_checkpoint
from cleanerd.cleaning.result import CleaningOutcome, CleanRequest, LogResult, Progress
from cleanerd.cleaning.retain import Retained, retain_log
from cleanerd.cleaning.room import ForeseenSpace
from cleanerd.cleaning.settle import in_rounds, settle_together
from cleanerd.cleaning.staging_limits import why_full
from cleanerd.cleaning.wanted import check_wanted
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import CleanerdError, DirOffline, JobFailed, LockHeld, guarded
from cleanerd.format import names
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.pipeline.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.lock import LogDirLock, probe
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import PartitionSnapshot, is_kafka_dir
from cleanerd.storage.staged import StagedGroup, manifest_names, staged_bytes

_T = TypeVar("_T")
_COMMITTED_TOGETHER = 16
"""Logs under one hold of the lock: more would share their syncs, but a broker that starts would wait for longer."""
_NO_LOG = TopicPartition("", -1)
"""Stands for the log directory as a whole."""


def clean_once(
    request: CleanRequest,
    progress: Progress,
    clock: Clock,
    *,
    session: LazySpark,
    files: Files | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> list[LogResult]:
    """Clean once and return a result per log. The session stays open; it is used only if there is something to clean."""
    files = files or RealFiles()
    cleaner = Cleaner(request, progress, clock, files, session, entropy)
    run = _Run(request, cleaner, progress, clock, files)
    for log_dir in request.log_dirs:
        run.clean_log_dir(log_dir)
    return run.results


class _Run:
    """What one call of `clean_once` carries from directory to directory."""

    def __init__(
        self,
        request: CleanRequest,
        cleaner: Cleaner,
        progress: Progress,
        clock: Clock,
        files: Files,
    ) -> None:
        self._results: dict[tuple[str, int, str], LogResult] = {}
        self._request = request
        self._progress = progress
        self._clock = clock
        self._files = files
        self._space = ForeseenSpace()
        self._cleaner = cleaner

    @property
    def results(self) -> list[LogResult]:
        """What became of every log so far."""
        return list(self._results.values())

    def clean_log_dir(self, log_dir: str) -> None:
        """One log directory; what goes wrong with it as a whole is the result of every log that has none yet."""
        found = attempt(lambda: partitions(self._files, log_dir, self._request), log_dir)
        if isinstance(found, CleanerdError):
            self._add(LogResult.of(_NO_LOG, log_dir).failed(found))
            return
        sequence = self._count if self._request.dry_run else self._clean
        error = attempt(lambda: sequence(log_dir, found), log_dir)
        if error is not None:
            for tp in [tp for tp in found if self._result_of(tp, log_dir) is None] or [_NO_LOG]:
                self._add(LogResult.of(tp, log_dir).failed(error))

    def _clean(self, log_dir: str, found: list[TopicPartition]) -> None:
        with _guard(log_dir):
            is_kafka = is_kafka_dir(self._files, log_dir)
            found = self._recover(log_dir, found, is_kafka=is_kafka)
            self._commit_waiting(log_dir, found, is_kafka=is_kafka)
            self._reset_checkpoints(log_dir, found, is_kafka=is_kafka)
            self._clean_jobs(log_dir, found, is_kafka=is_kafka)
            self._retain(log_dir, found, is_kafka=is_kafka)

    def _clean_jobs(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Job by job: while one is written, the one before it is staged and committed, and the one behind it planned."""
        end, take = partial(self._end, is_kafka=is_kafka), partial(self._take, is_kafka=is_kafka)
        full = partial(self._skipped_if_full, log_dir, found)
        jobs = _one_ahead(partial(self._plan, log_dir), self._jobs(log_dir, found, {}))
        written: list[CleaningJob] = []
        with contextlib.closing(jobs), ThreadPoolExecutor(1, "cleanerd-commit") as pool:
            for candidates, planned in jobs:
                ending = _Ending(pool, partial(end, written))
                try:
                    done = guarded(partial(self._write, candidates, planned, full, ending), log_dir)
                    take(ending.result())
                except BaseException:
                    ending.begin()
                    self._cleaner.give_up(candidates)
                    raise
                if isinstance(done, CleanerdError):
                    raise done
                written = done
            take(end(written))

    def _plan(self, log_dir: str, candidates: list[Candidate]) -> CleaningJob | None:
        """Ahead of time; not beside a broker, where a result that waits may be all that will ever be staged."""
        return None if _is_owned(log_dir) else self._cleaner.plan(candidates)

    def _write(
        self,
        candidates: list[Candidate],
        planned: "Future[CleaningJob | None]",
        full: Callable[[list[Candidate]], list[LogResult]],
        ending: "_Ending[list[LogResult]]",
    ) -> list[CleaningJob]:
        ahead, is_owned = planned.result(), _is_owned(candidates[0].snapshot.log_dir)
        if is_owned:  # what others have staged counts against a limit
            ending.wait()
            skipped = full(candidates)
            if skipped:
                return [self._ended(skipped)]

        def write(some: Sequence[Candidate]) -> list[CleaningJob]:
            if ahead is not None and some is candidates and not is_owned:
                job = ahead
            else:
                job = self._cleaner.plan(some, is_owned=is_owned)
            return [self._cleaner.write(job, make_room=ending.wait, begun=ending.begin)]

        return one_by_one(write, candidates, lambda one, error: self._ended([_job_failed(one, error)]))

    def _ended(self, results: list[LogResult]) -> CleaningJob:
        """Nothing is written of these logs."""
        return CleaningJob([], is_owned=False, watch=Stopwatch(self._clock), results=results)

    def _end(self, written: list[CleaningJob], *, is_kafka: bool) -> list[LogResult]:
        """Stage and commit what a job has written."""
        staged = [result for one in written for result in self._cleaner.end(one)]
        slices = range(0, len(staged), _COMMITTED_TOGETHER)
        some = (staged[first : first + _COMMITTED_TOGETHER] for first in slices)
        return [settled for one in some for settled in self._settle(one, is_kafka=is_kafka)]

    def _take(self, settled: list[LogResult], *, is_kafka: bool) -> None:
        for result in settled:
            self._add(in_rounds(result, partial(self._clean_again, result, is_kafka=is_kafka)))

    def _clean_again(self, before: LogResult, *, is_kafka: bool) -> LogResult:
        """A log of which only some groups could be cleaned, whatever its dirty ratio is now."""
        log_dir, tp = before.log_dir, before.topic_partition
        forced = replace(self._request, force=True)
        found = attempt(lambda: [*self._examined(log_dir, [tp], forced)], log_dir)
        if isinstance(found, CleanerdError):
            return before.failed(found)
        (answer,) = found
        if isinstance(answer, LogResult):
            return answer
        staged = one_by_one(self._cleaner.stage, [answer], _job_failed)
        return self._settle(staged, is_kafka=is_kafka)[0]

    def _skipped_if_full(
        self, log_dir: str, found: list[TopicPartition], candidates: list[Candidate]
    ) -> list[LogResult]:
        """Their results if nothing more may be staged beside a live broker, none if something may."""
        if not _is_owned(log_dir):
            return []

        def staged() -> int:
            return sum(staged_bytes(PartitionDir.of(self._files, log_dir, tp)) for tp in found)

        reason = why_full(log_dir, staged, self._request.config)
        return [] if reason is None else [one.result("skipped", reason) for one in candidates]

    def _settle(self, staged: Sequence[LogResult], *, is_kafka: bool) -> list[LogResult]:
        log_dirs = self._request.all_log_dirs
        return settle_together(self._files, staged, self._clock, is_kafka=is_kafka, log_dirs=log_dirs)

    def _count(self, log_dir: str, found: list[TopicPartition]) -> None:
        """A dry run: it writes nothing, so it takes no lock either."""
        is_kafka, is_owned = is_kafka_dir(self._files, log_dir), _is_owned(log_dir)
        waiting = {} if is_owned else self._foresee_commits(log_dir, found, is_kafka=is_kafka)
        count = partial(self._cleaner.count, space=self._space, is_owned=is_owned)
        for job in self._jobs(log_dir, found, waiting):
            skipped = self._skipped_if_full(log_dir, found, job)
            for result in skipped or one_by_one(count, job, _job_failed):
                self._add(result)
        self._retain(log_dir, found, is_kafka=is_kafka)

    def _foresee_commits(
        self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool
    ) -> dict[TopicPartition, list[StagedGroup]]:
        """What `_commit_waiting` would commit; what no longer fits would be dropped."""
        waiting = {}
        for tp in found:
            partition = PartitionDir.of(self._files, log_dir, tp)
            directory = partition.path
            check = partial(self._check_wanted, log_dir, tp, is_kafka)
            look = partial(waiting_groups, self._files, log_dir, tp, check)
            answer = attempt(look, directory)
            if isinstance(answer, CleanerdError):
                attempt(partial(self._count_discarded, partition), directory)
            elif answer[0]:
                waiting[tp] = answer[0]
                before, segments = log_size(partition)
                replaced = sum(source.size_bytes for group in answer[0] for source in group.sources)
                after = before - replaced + sum(group.sizes[FileKind.LOG] for group in answer[0])
                merged = sum(len(group.sources) - 1 for group in answer[0])
                self._space.take(directory, -replaced)
                self._replace(
                    _waited(
                        "planned",
                        tp,
                        log_dir,
                        answer[0][-1].round_end,
                        (before, segments),
                        (after, segments - merged),
                    )
                )
        return waiting

    def _recover(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> list[TopicPartition]:
        """Finish or undo interrupted commits where no broker owns the directory; returns what may be looked at.

        Where one does, a log in the middle of a commit is refused by the scan.
        """
        by_name = {str(tp): tp for tp in found}

        def recovered(name: str, reason: str | CleanerdError | None) -> None:
            if isinstance(reason, CleanerdError):
                self._add(failed_on_disk(self._files, by_name[name], log_dir, reason))
            elif reason is not None:
                self._add(LogResult.of(by_name[name], log_dir, "failed", reason))

        with contextlib.suppress(LockHeld):
            recover_dir(self._files, log_dir, by_name, self._clock, recovered, is_kafka=is_kafka)
        return [tp for tp in found if self._result_of(tp, log_dir) is None]

    def _commit_waiting(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice.

        What no longer fits has been dropped then: its log is cleaned again, and its result says so. Log by log: the daemon
        commits hundreds beside a broker that is starting and waits for the lock, so it sizes slices of many logs that share
        their syncs (`daemon.work.slices`). Here no hold is longer than the commit of one log, and nothing waits for the
        last.
        """
        for tp in found:
            partition = PartitionDir.of(self._files, log_dir, tp)
            directory = partition.path
            if not attempt(partial(manifest_names, partition), directory):
                continue
            before = log_size(partition)
            one = Waiting(tp, partial(self._check_wanted, log_dir, tp, is_kafka))
            commit = partial(
                commit_waiting, self._files, log_dir, clock=self._clock,
                is_kafka=is_kafka, log_dirs=self._request.all_log_dirs,
            )  # fmt: skip
            ended = attempt(partial(_all_turns, commit, one), directory)
            round_end = None if isinstance(ended, CleanerdError) else ended[-1].done[tp]
            if isinstance(round_end, int):
                after = log_size(partition)
                self._replace(_waited("committed", tp, log_dir, round_end, before, after))

    def _count_discarded(self, partition: PartitionDir) -> None:
        self._space.take(partition.path, -staged_bytes(partition))

    def _check_wanted(self, log_dir: str, tp: TopicPartition, is_kafka: bool, round_end: int) -> None:
        config, now_ms = self._request.topic_config(tp.topic), self._clock.now_ms()
        check_wanted(self._files, log_dir, tp, config, round_end, is_kafka=is_kafka, now_ms=now_ms)

    def _reset_checkpoints(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        checkpoints = read_checkpoints(self._files, log_dir)
        for tp in found:
            if self._request.topic_config(tp.topic).compact:  # the examination tells what is wrong
                reset = partial(
                    reset_checkpoint, self._files, log_dir, tp, checkpoints,
                    is_kafka=is_kafka, now_ms=self._clock.now_ms(),
                )  # fmt: skip
                attempt(reset, os.path.join(log_dir, str(tp)))

    def _jobs(
        self,
        log_dir: str,
        found: list[TopicPartition],
        waiting: Mapping[TopicPartition, Sequence[StagedGroup]],
    ) -> Iterator[list[Candidate]]:
        """What to clean together. `waiting`: staged groups that count as committed."""
        candidates = in_order(self._examine(log_dir, found, waiting))
        return in_jobs(candidates, lambda candidate: candidate.size_bytes, self._request.config)

    def _examine(
        self,
        log_dir: str,
        found: list[TopicPartition],
        waiting: Mapping[TopicPartition, Sequence[StagedGroup]],
    ) -> list[Candidate]:
        candidates: list[Candidate] = []
        for answer in self._examined(log_dir, found, self._request, waiting):
            if isinstance(answer, Candidate):
                candidates.append(answer)
            elif answer.outcome == "failed" or self._is_news(answer):
                self._add(answer)
        return candidates

    def _examined(
        self,
        log_dir: str,
        found: Iterable[TopicPartition],
        request: CleanRequest,
        waiting: Mapping[TopicPartition, Sequence[StagedGroup]] | None = None,
    ) -> Iterator[Candidate | LogResult]:
        pace_of = self._cleaner.pace_of
        return examine_all(self._files, log_dir, found, request, self._clock, pace_of, waiting)

    def _result_of(self, tp: TopicPartition, log_dir: str) -> LogResult | None:
        return self._results.get((tp.topic, tp.partition, log_dir))

    def _is_news(self, skipped: LogResult) -> bool:
        """Compacted logs are always reported, others only when they were named; a log with a result has been."""
        tp = skipped.topic_partition
        is_asked_for = self._request.topics is not None or self._request.topic_config(tp.topic).compact
        return is_asked_for and self._result_of(tp, skipped.log_dir) is None

    def _retain(self, log_dir: str, found: list[TopicPartition], *, is_kafka: bool) -> None:
        """Retention for compacted logs that are not in trouble (rule 1.28)."""
        checkpoints = read_checkpoints(self._files, log_dir)
        for tp in found:
            result = self._result_of(tp, log_dir) or LogResult.of(tp, log_dir)
            config = self._request.topic_config(tp.topic)
            if not config.compact or result.outcome in ("failed", "aborted"):
                continue
            done = retain_log(
                self._files, log_dir, tp, checkpoints, config,
                is_kafka=is_kafka, now_ms=self._clock.now_ms(), dry_run=self._request.dry_run,
            )  # fmt: skip
            if isinstance(done, LockHeld):
                return
            if isinstance(done, CleanerdError):
                self._replace(result.failed(done))
            elif done is not None:
                outcome: CleaningOutcome = "planned" if self._request.dry_run else "committed"
                self._replace(_with_retention(result, *done, outcome))

    def _replace(self, result: LogResult) -> None:
        """One result per log: the newest, at its end of the account."""
        if _has_live_broker(self._files, result.log_dir):
            result = result.beside_broker()
        key = (result.topic, result.partition, result.log_dir)
        self._results.pop(key, None)
        self._results[key] = result

    def _add(self, result: LogResult) -> None:
        self._replace(result)
        self._progress.finished(result)


class _Ending(Generic[_T]):
    """The end of a job, in a thread of the pool: from `begin` on, or as soon as its `result` is asked for.

    It is not to be in the way of the next one, which the cores wait for.
    """

    def __init__(self, pool: ThreadPoolExecutor, end: Callable[[], _T]) -> None:
        self._pool = pool
        self._end = end
        self._future: Future[_T] | None = None

    def begin(self) -> "Future[_T]":
        """Only the first time."""
        self._future = self._future or self._pool.submit(self._end)
        return self._future

    def wait(self) -> None:
        """Until it is over, however it ended."""
        wait([self.begin()])

    def result(self) -> _T:
        """Raises what the end does."""
        return self.begin().result()


def _one_ahead(
    plan: Callable[[list[Candidate]], _T], jobs: Iterable[list[Candidate]]
) -> Generator[tuple[list[Candidate], "Future[_T]"]]:
    """Each job with its plan. While the caller is at one, the next one is planned."""
    with ThreadPoolExecutor(1, "cleanerd-plan") as pool:
        ready: list[tuple[list[Candidate], Future[_T]]] = []
        for job in jobs:
            ready.append((job, pool.submit(plan, job)))
            if len(ready) > 1:
                yield ready.pop(0)
        yield from ready


@contextlib.contextmanager
def _guard(log_dir: str) -> Iterator[None]:
    """No second cleanerd in the same directory."""
    lock = LogDirLock(log_dir, names.CLEANERD_LOCK)
    try:
        lock.__enter__()
    except LockHeld as error:
        raise DirOffline(f"another cleanerd works in {log_dir} (process {error.pid})") from error
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _is_owned(log_dir: str) -> bool:
    """Whether a broker lives in a log directory."""
    return probe(log_dir) not in (None, os.getpid())


def _has_live_broker(files: Files, log_dir: str) -> bool:
    """Whether a log directory is that of a broker, and it runs. One that is out of reach has none."""
    is_live = attempt(lambda: is_kafka_dir(files, log_dir) and _is_owned(log_dir), log_dir)
    return is_live is True


def _all_turns(commit: Callable[[Sequence[Waiting]], Turn], one: Waiting) -> list[Turn]:
    return list(turns(commit, [one]))


def _waited(
    outcome: CleaningOutcome,
    tp: TopicPartition,
    log_dir: str,
    end: int,
    before: tuple[int, int],
    after: tuple[int, int],
) -> LogResult:
    """The account of a log whose staged result is, or would be, committed; `before`, `after`: bytes and segments."""
    return replace(
        LogResult.of(tp, log_dir, outcome, "staged by an earlier cleaning"),
        end_offset=end,
        bytes_before=before[0], segments_before=before[1], bytes_after=after[0], segments_after=after[1],
    )  # fmt: skip


def _job_failed(candidate: Candidate, error: JobFailed) -> LogResult:
    return candidate.result("failed", None).failed(error)


def _with_retention(
    result: LogResult, snapshot: PartitionSnapshot, retained: Retained, outcome: CleaningOutcome
) -> LogResult:
    """The result of a log after retention took segments from it."""
    skipped = result.outcome in ("skipped", "unchanged")
    return replace(
        result,
        outcome=outcome if skipped else result.outcome,
        reason=str(retained) if skipped or not result.reason else f"{result.reason}; {retained}",
        bytes_before=result.bytes_before or snapshot.size_bytes,
        bytes_after=snapshot.size_bytes - retained.bytes,
        segments_before=result.segments_before or len(snapshot.segments),
        segments_after=len(snapshot.segments) - retained.segments + retained.rolled,
    )
