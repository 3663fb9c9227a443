"""One shot: clean what a request asks for, log directory by log directory (architecture 3, 6).

Per directory: guard against a second cleanerd, recover what an interrupted commit left, commit what an earlier run staged,
examine every partition, clean the candidates job by job, then give compacted logs their retention pass (rule 1.28). Whatever
happens to one log becomes its result; the others go on.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning.batching import in_jobs, one_by_one
from cleanerd.cleaning.choose import Candidate, examine_all, failed_on_disk, in_order, log_size, partitions
from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.cleaning.committer import CommitHost, Committer, has_result, in_rounds
from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.overlap import Ending, one_ahead
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.result import CleaningOutcome, CleanRequest, LogResult, Progress
from cleanerd.cleaning.retain import Retained, retain_log
from cleanerd.cleaning.roll import roll
from cleanerd.cleaning.room import ForeseenSpace
from cleanerd.cleaning.slices import SliceSize, Weighed
from cleanerd.cleaning.wanted import check_wanted, configured_now
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, RealFiles
from cleanerd.errors import CleanerdError, JobFailed, LockHeld, LogUncleanable, attempt, guarded
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir, Owner, why_two_copies
from cleanerd.storage.no_log_dir import why_no_log_dir
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.storage.staged import StagedGroup, staged_bytes

_COMMITTED_TOGETHER = 16
"""Logs under the first hold of the lock; its duration decides how many the next ones take."""
_NO_LOG = TopicPartition("", -1)
"""Stands for the log directory as a whole."""


def clean_once(
    request: CleanRequest,
    progress: Progress,
    clock: Clock,
    *,
    session: LazySpark,
    files: Files | None = None,
) -> list[LogResult]:
    """Clean once and return a result per log. The session stays open; it is used only if there is something to clean."""
    files = files or RealFiles()
    brokers = LiveBrokers(files, clock, lambda: request.config)
    run = _Run(request, Cleaner(request, progress, clock, files, session), progress, brokers)
    with contextlib.closing(brokers):
        for path in request.log_dirs:
            found = attempt(partial(_look, files, path, clock, request), path)
            if isinstance(found, CleanerdError):
                run.add(LogResult.of(_NO_LOG, path).failed(found))
            elif found is not None:  # else the command line warns of it
                _Directory(run, *found).clean()
    return list(run.results.values())


def _look(
    files: Files, path: str, clock: Clock, request: CleanRequest
) -> tuple[LogDir, list[TopicPartition]] | None:
    """A directory and the partitions that the run is about; None for what is no log directory."""
    if why_no_log_dir(files, path) is not None:
        return None
    log_dir = LogDir.at(files, path, clock, request.all_log_dirs)
    return log_dir, partitions(log_dir, request)


@dataclass(slots=True)
class _Run:
    """What one call of `clean_once` carries from directory to directory; `results`: one per log, the newest."""

    request: CleanRequest
    cleaner: Cleaner
    progress: Progress
    brokers: LiveBrokers
    space: ForeseenSpace = field(default_factory=ForeseenSpace)
    results: dict[tuple[str, int, str], LogResult] = field(default_factory=dict)

    def add(self, result: LogResult) -> None:
        """A log is done."""
        self.replace(result)
        self.progress.finished(result)

    def replace(self, result: LogResult) -> None:
        """The newest result of a log, at its end of the account."""
        key = (result.topic, result.partition, result.log_dir)
        self.results.pop(key, None)
        self.results[key] = result


class _Directory(CommitHost):
    """One log directory on its way through a run. `found`: the partitions that the run is about."""

    def __init__(self, run: _Run, log_dir: LogDir, found: list[TopicPartition]) -> None:
        self._run = run
        self._request = run.request
        self._cleaner = run.cleaner
        self._log_dir = log_dir
        self._found = found
        self._topic_config = run.request.topic_config
        self._committer = Committer(log_dir, self, SliceSize(_COMMITTED_TOGETHER), run.brokers)

    def clean(self) -> None:
        """All of it; what goes wrong with it as a whole is the result of every log that has none yet."""
        error = attempt(self._all, self._log_dir.path)
        if error is not None:
            for tp in [tp for tp in self._found if self._result_of(tp) is None] or [_NO_LOG]:
                self._add(LogResult.of(tp, self._log_dir.path).failed(error))

    def _all(self) -> None:
        twice = self._log_dir.copies(self._found)
        self._found = [tp for tp in self._found if tp not in twice]
        for tp, other in twice.items():
            result = LogResult.of(tp, self._log_dir.path).failed(LogUncleanable(why_two_copies(other)))
            if self._is_news(result):
                self._add(result)
        if self._request.dry_run:
            self._count()
        else:
            self._sequence()

    def _sequence(self) -> None:
        with self._log_dir.cleaned_by_us():
            self._recover()
            self._leave_alone()
            self._commit_waiting()
            self._reset_checkpoints()
            self._roll()
            self._clean_jobs()
            self._retain()

    def _recover(self) -> None:
        """Finish or undo interrupted commits where no broker owns the directory; what cannot be is not looked at further.

        Where one does, a log in the middle of a commit is refused by the scan.
        """
        by_name = {str(tp): tp for tp in self._found}
        with contextlib.suppress(LockHeld):
            for one in self._log_dir.recover(by_name):
                tp = by_name[one.name]
                if isinstance(one.reason, CleanerdError):
                    self._add(failed_on_disk(self._log_dir, tp, one.reason))
                elif one.reason is not None:
                    self._add(LogResult.of(tp, self._log_dir.path, "failed", one.reason))
        self._found = [tp for tp in self._found if self._result_of(tp) is None]

    def _leave_alone(self) -> None:
        """Leave out logs that nothing allows us to touch."""
        request = self._request
        alone = left_alone(self._log_dir, self._found, request.configuration, request.topics or frozenset())
        for tp, reason in alone.items():
            skipped = LogResult.of(tp, self._log_dir.path, "skipped", reason)
            if self._is_news(skipped):
                self._add(skipped)
        self._found = [tp for tp in self._found if tp not in alone]

    def _commit_waiting(self) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice.

        What no longer fits has been dropped then: its log is cleaned again, and its result reports that.
        """
        waiting = [tp for tp in self._found if has_result(self._log_dir, tp)]
        before = {tp: log_size(self._log_dir.partition(tp)) for tp in waiting}
        for tp, end in self._committer.commit(list(map(Weighed, waiting))).items():
            if isinstance(end, int):
                after = log_size(self._log_dir.partition(tp))
                done = self._waited("committed", tp, end, before[tp], after)
                self._replace(replace(done, committed_by=self._committer.ways.get(tp)))

    def begin(self, logs: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Beside a live broker policies may have changed since the run began."""
        if self._is_live():
            self._topic_config = configured_now(self._request, self._log_dir.files)
        return logs

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """Whether a result is still wanted."""
        check_wanted(self._log_dir, tp, self._topic_config(tp.topic), round_end)

    def _reset_checkpoints(self) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        checkpoints = self._log_dir.checkpoints()
        for tp in self._found:
            if self._request.topic_config(tp.topic).compact:  # the examination reports what is wrong
                reset = partial(self._log_dir.reset_checkpoint, tp, checkpoints)
                attempt(reset, self._log_dir.partition(tp).path)

    def _roll(self) -> None:
        """Close active segments, where that is asked for. A log that cannot be rolled has failed: it was asked for."""
        for tp in list(self._found) if self._request.roll else ():
            if not self._request.topic_config(tp.topic).compact:
                continue
            error = attempt(
                partial(roll, self._log_dir, tp, self._run.brokers), self._log_dir.partition(tp).path
            )
            if error is not None:
                self._add(failed_on_disk(self._log_dir, tp, error))
                self._found.remove(tp)

    # -- cleaning -----------------------------------------------------------------------------------------------

    def _clean_jobs(self) -> None:
        """Job by job: while one is written, the one before it is staged and committed, and the one behind it planned."""
        jobs = one_ahead(self._plan, self._jobs({}))
        written: list[CleaningJob] = []
        with contextlib.closing(jobs), ThreadPoolExecutor(1, "cleanerd-commit") as pool:
            for candidates, planned in jobs:
                ending = Ending(pool, partial(self._end, written))
                try:
                    done = guarded(partial(self._write, candidates, planned, ending), self._log_dir.path)
                    self._take(ending.result())
                except BaseException:
                    ending.begin()
                    self._cleaner.give_up(candidates)
                    raise
                if isinstance(done, CleanerdError):
                    raise done
                written = done
            self._take(self._end(written))

    def _plan(self, candidates: list[Candidate]) -> CleaningJob | None:
        """Ahead of time; not beside a broker, where a result that waits may be all that will ever be staged."""
        return None if self._log_dir.owner.has_lock else self._cleaner.plan(candidates)

    def _write(
        self,
        candidates: list[Candidate],
        planned: "Future[CleaningJob | None]",
        ending: Ending[list[LogResult]],
    ) -> list[CleaningJob]:
        ahead, is_owned = planned.result(), self._log_dir.owner.has_lock
        if is_owned:  # what others have staged counts against a limit
            ending.wait()
            skipped = self._skipped_if_full(candidates)
            if skipped:
                return [self._ended(skipped)]

        def write(some: Sequence[Candidate]) -> list[CleaningJob]:
            if ahead is not None and some is candidates and not is_owned:
                job = ahead
            else:
                job = self._cleaner.plan(some, is_owned=is_owned)
            return [self._cleaner.write(job, before=ending)]

        return one_by_one(write, candidates, lambda one, error: self._ended([_job_failed(one, error)]))

    def _ended(self, results: list[LogResult]) -> CleaningJob:
        """Nothing is written of these logs."""
        return CleaningJob([], is_owned=False, watch=Stopwatch(self._log_dir.clock), logs=[], results=results)

    def _end(self, written: list[CleaningJob]) -> list[LogResult]:
        """Stage and commit what a job has written."""
        return self._committer.settle([result for one in written for result in self._cleaner.end(one)])

    def _take(self, settled: list[LogResult]) -> None:
        for result in settled:
            self._add(in_rounds(result, partial(self._clean_again, result)))

    def _clean_again(self, before: LogResult) -> LogResult:
        """A log of which only some groups could be cleaned, whatever its dirty ratio is now."""
        tp, forced = before.topic_partition, replace(self._request, force=True)
        found = attempt(lambda: [*self._examined([tp], forced)], self._log_dir.path)
        if isinstance(found, CleanerdError):
            return before.failed(found)
        (answer,) = found
        if isinstance(answer, LogResult):
            return answer
        return self._committer.settle(one_by_one(self._cleaner.stage, [answer], _job_failed))[0]

    def _skipped_if_full(self, candidates: list[Candidate]) -> list[LogResult]:
        """Their results if nothing more may be staged beside a live broker, none if something may."""
        if not self._log_dir.owner.has_lock:
            return []

        def staged() -> int:
            return sum(staged_bytes(self._log_dir.partition(tp)) for tp in self._found)

        reason = self._log_dir.why_full(staged, self._request.config)
        return [] if reason is None else [one.result("skipped", reason) for one in candidates]

    def _jobs(self, waiting: Mapping[TopicPartition, Sequence[StagedGroup]]) -> Iterator[list[Candidate]]:
        """What to clean together. `waiting`: staged groups that count as committed."""
        candidates = []
        for answer in self._examined(self._found, self._request, waiting):
            if isinstance(answer, Candidate):
                candidates.append(answer)
            elif answer.outcome == "failed" or self._is_news(answer):
                self._add(answer)
        return in_jobs(in_order(candidates), lambda candidate: candidate.size_bytes)

    def _examined(
        self,
        found: Iterable[TopicPartition],
        request: CleanRequest,
        waiting: Mapping[TopicPartition, Sequence[StagedGroup]] | None = None,
    ) -> Iterator[Candidate | LogResult]:
        tps = list(found)
        checkpoints = self._run.brokers.checkpoints(self._log_dir, tps)
        return examine_all(self._log_dir, tps, request, self._cleaner.pace_of, waiting, checkpoints)

    def _is_news(self, skipped: LogResult) -> bool:
        """Compacted logs are always reported, others only when they were named; a log with a result has been."""
        tp = skipped.topic_partition
        is_asked_for = self._request.topics is not None or self._request.topic_config(tp.topic).compact
        return is_asked_for and self._result_of(tp) is None

    # -- a dry run ----------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """A dry run: it writes nothing, so it takes no lock either."""
        self._leave_alone()
        is_owned = self._log_dir.owner.has_lock
        count = partial(self._cleaner.count, space=self._run.space, is_owned=is_owned)
        for job in self._jobs({} if is_owned else self._foresee_commits()):
            for result in self._skipped_if_full(job) or one_by_one(count, job, _job_failed):
                self._add(result)
        self._retain()

    def _foresee_commits(self) -> dict[TopicPartition, list[StagedGroup]]:
        """What `_commit_waiting` would commit; what no longer fits would be dropped."""
        waiting, space = {}, self._run.space
        around = self._committer.look_around(self._found)
        for tp in self._found:
            partition = self._log_dir.partition(tp)
            answer = attempt(partial(self._committer.waiting_groups, tp, around), partition.path)
            if isinstance(answer, CleanerdError):
                dropped_bytes = attempt(partial(staged_bytes, partition), partition.path)
                space.take(partition.path, -dropped_bytes if isinstance(dropped_bytes, int) else 0)
            elif groups := answer[0]:
                waiting[tp] = groups
                before, segments = log_size(partition)
                replaced = sum(source.size_bytes for group in groups for source in group.sources)
                after = before - replaced + sum(group.sizes[FileKind.LOG] for group in groups)
                merged = sum(len(group.sources) - 1 for group in groups)
                space.take(partition.path, -replaced)
                end, now = groups[-1].round_end, (after, segments - merged)
                self._replace(self._waited("planned", tp, end, (before, segments), now))
        return waiting

    def _waited(
        self,
        outcome: CleaningOutcome,
        tp: TopicPartition,
        end: int,
        before: tuple[int, int],
        after: tuple[int, int],
    ) -> LogResult:
        """The account of a log whose staged result is, or would be, committed; `before`, `after`: bytes and segments."""
        return replace(
            LogResult.of(tp, self._log_dir.path, outcome, "staged by an earlier cleaning"),
            end_offset=end,
            bytes_before=before[0], segments_before=before[1], bytes_after=after[0], segments_after=after[1],
        )  # fmt: skip

    # -- retention and the account ------------------------------------------------------------------------------

    def _retain(self) -> None:
        """Retention for compacted logs that are not in trouble (rule 1.28); those of a live broker are its own to retain."""
        if self._log_dir.owner is Owner.LIVE_BROKER:
            return
        checkpoints, dry_run = self._log_dir.checkpoints(), self._request.dry_run
        for tp in self._found:
            result = self._result_of(tp) or LogResult.of(tp, self._log_dir.path)
            config = self._request.topic_config(tp.topic)
            if not config.compact or result.outcome in ("failed", "aborted"):
                continue
            done = retain_log(self._log_dir, tp, checkpoints, config, dry_run=dry_run)
            if isinstance(done, LockHeld):
                return
            if isinstance(done, CleanerdError):
                self._replace(result.failed(done))
            elif done is not None:
                self._replace(_with_retention(result, *done, "planned" if dry_run else "committed"))

    def _result_of(self, tp: TopicPartition) -> LogResult | None:
        return self._run.results.get((tp.topic, tp.partition, self._log_dir.path))

    def _replace(self, result: LogResult) -> None:
        self._run.replace(self._as_seen(result))

    def _add(self, result: LogResult) -> None:
        self._run.add(self._as_seen(result))

    def _as_seen(self, result: LogResult) -> LogResult:
        """What a live broker changed meanwhile is no failure of ours."""
        return result.beside_broker() if self._is_live() else result

    def _is_live(self) -> bool:
        """Whether a live broker owns the directory. One that is out of reach has none."""
        return guarded(lambda: self._log_dir.owner, self._log_dir.path) is Owner.LIVE_BROKER


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
