"""One log directory in a one-shot cleaning: what comes before its logs are cleaned, and after.

Whatever happens to one log becomes its result; the others go on.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning import outcomes
from cleanerd.cleaning.batching import in_jobs, one_by_one
from cleanerd.cleaning.choose import Candidate, examine_all, failed_on_disk
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit.checks import Checks
from cleanerd.cleaning.commit.committer import Committer, in_rounds
from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed
from cleanerd.cleaning.commit.slices import OF_A_JOB, SliceSize
from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Failed, Held, Planned, Skipped, Unchanged, of_error
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress, Size
from cleanerd.cleaning.retain import Retained, retain_log
from cleanerd.cleaning.roll import roll
from cleanerd.cleaning.wanted import ConfiguredNow, check_expired, check_wanted
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    JobFailed,
    LockHeld,
    LogUncleanable,
    NoSpace,
    PolicyChanged,
    each_log,
)
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.policy.cleanable import urgency
from cleanerd.storage.log_dir import CleanedByAnother, LogDir, Owner, why_two_copies
from cleanerd.storage.partition_dir import check_no_link, log_size
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.storage.staged import StagedGroup, is_waiting

_T = TypeVar("_T")
_NAMED = 3
_TO_SWAP = "have the broker swap results in, with --set cleanerd.commit.live=auto, or stop it"
_WAITED = "staged by an earlier cleaning"


@dataclass(slots=True)
class Run:
    """The state that a call of `clean_once` shares between the directories of a node.

    `results`, the newest of each log, are those of all nodes.
    """

    request: CleanRequest
    cleaner: Cleaner
    progress: Progress
    brokers: LiveBrokers
    configured: ConfiguredNow
    results: dict[tuple[TopicPartition, str], LogResult]

    def add(self, result: LogResult) -> None:
        """A log is done."""
        self.replace(result)
        self.progress.finished(result)

    def replace(self, result: LogResult) -> None:
        """The newest result of a log, at its end of the account."""
        key = (result.topic_partition, result.log_dir)
        self.results.pop(key, None)
        self.results[key] = result


class Directory(CommitHost):
    """The work of a run on one log directory. `found`: the partitions of the run."""

    def __init__(self, run: Run, log_dir: LogDir, found: list[TopicPartition]) -> None:
        self._run = run
        self._request = run.request
        self._cleaner = run.cleaner
        self._log_dir = log_dir
        self.path = log_dir.path
        self._found = found
        self.committer = Committer(log_dir, self, SliceSize(OF_A_JOB), run.brokers)

    def attempt(self, step: Callable[[], _T]) -> _T | None:
        """A step of it, or what went wrong with it as a whole: then nothing more is done to it."""
        with each_log(self.path) as directory:
            return step()
        assert directory.error is not None
        self.fail(directory.error)
        return None

    def fail(self, error: CleanerdError) -> None:
        """The result of every log that has none yet, and the end of what is done here."""
        remedy = self._by_the_daemon() if isinstance(error, CleanedByAnother) else None
        for tp in [tp for tp in self._found if self._result_of(tp) is None] or [NO_LOG]:
            self._add(LogResult(tp, self.path, of_error(error, remedy)))
        self._found = []

    def _by_the_daemon(self) -> str:
        """Commands that ask the daemon of this directory for the same; its verb takes one topic, one log or a glob."""
        request, options = self._request, ""
        options += " --force" * request.force + " --roll" * request.roll
        named = sorted(map(str, self._found)) if request.partitions else sorted(request.topics or ["'*'"])
        asked = " and ".join(f"`cleanerctl clean {name}{options}`" for name in named[:_NAMED])
        more = f" and so on, {len(named)} in all" if len(named) > _NAMED else ""
        return f"if that is the daemon, have it do this: {asked}{more}"

    def prepare(self, stack: contextlib.ExitStack) -> list[Candidate]:
        """All that comes before the cleaning; what is to be cleaned. Until `stack` is left no second cleanerd gets in."""
        stack.enter_context(self._log_dir.cleaned_by_us())
        self._leave_copies()
        self._recover()
        self._leave_held()
        self._leave_alone()
        self._commit_waiting()
        self._reset_checkpoints()
        self._roll()
        return self._candidates({})

    def _leave_copies(self) -> None:
        """Leave out logs that lie elsewhere, behind a link, or of which another directory of the same broker has a copy."""
        for tp in list(self._found):
            with each_log(self.path) as log:
                check_no_link(self._log_dir.partition(tp).path)
            if log.error is not None:
                self._add_if_wanted(LogResult.of_error(tp, self.path, log.error))
                self._found.remove(tp)
        twice = self._log_dir.copies(self._found)
        self._found = [tp for tp in self._found if tp not in twice]
        for tp, other in twice.items():
            error = LogUncleanable(why_two_copies(other))
            self._add_if_wanted(LogResult.of_error(tp, self.path, error))

    def _recover(self) -> None:
        """Finish or undo interrupted commits where no broker owns the directory; what cannot be is not looked at further.

        Where one does, a log in the middle of a commit is refused by the scan.
        """
        by_name = {str(tp): tp for tp in self._found}
        with contextlib.suppress(LockHeld):
            for one in self._log_dir.recover(by_name):
                if one.error is not None:
                    self._add(failed_on_disk(self._log_dir, by_name[one.name], one.error))
        self._found = [tp for tp in self._found if self._result_of(tp) is None]

    def _leave_held(self) -> None:
        """Leave out logs that somebody has paused, whose daemon may be down."""
        why_held = self._request.holds_of(self.path)
        held = {tp: reason for tp in self._found if (reason := why_held(tp)) is not None}
        for tp, reason in held.items():
            self._add_if_wanted(LogResult(tp, self.path, Held(reason)))
        self._found = [tp for tp in self._found if tp not in held]

    def _leave_alone(self) -> None:
        """Leave out logs that nothing allows us to touch."""
        request = self._request
        alone = left_alone(self._log_dir, self._found, request.configuration, request.topics, request.assumed)
        for tp, reason in alone.items():
            self._add_if_wanted(LogResult(tp, self.path, Skipped(reason)))
        self._found = [tp for tp in self._found if tp not in alone]

    def _commit_waiting(self) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice.

        What no longer fits has been dropped then: its log is cleaned again, and its result reports that.
        """
        waiting = [tp for tp in self._found if is_waiting(self._log_dir.partition(tp))]
        before = {tp: self._size(tp) for tp in waiting}
        for tp, done in self.committer.commit(list(map(Commit, waiting))).items():
            if isinstance(done, Committed):
                outcome, after = outcomes.Committed(done.by, _WAITED), self._size(tp)
                self._replace(
                    LogResult(
                        tp, self.path, outcome, end_offset=done.end_offset, before=before[tp], after=after
                    )
                )

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """Whether a result is still wanted, by what is known now.

        Raises PolicyChanged; Aborted if that is not known, for it may wait; what else is wrong.
        """
        request = self._request
        try:
            configuration = self._run.configured.now()
        except CleanerdError as error:
            raise Aborted(str(error)) from error
        now = LogDir.at(self._log_dir.files, self.path, self._log_dir.clock, self._log_dir.log_dirs)
        alone = left_alone(now, [tp], configuration, request.topics, request.assumed, has_begun=True)
        if alone and configuration is not None:
            unknown = Knowledge(now, configuration, request.assumed).why_not_vouched(tp.topic, has_begun=True)
            raise (PolicyChanged if unknown is None else Aborted)(
                f"{self._log_dir.partition(tp).path}: {alone[tp]}"
            )
        topic_config = request.topic_config if configuration is None else configuration.topic
        check_wanted(self._log_dir, tp, topic_config(tp.topic), round_end)

    def check_expired(self, tp: TopicPartition) -> None:
        """Whether what has expired may still go: a replica may be away since it was planned."""
        check_expired(self._log_dir.partition(tp).path, self._request.why_tombstones_stay(self._log_dir, tp))

    def _reset_checkpoints(self) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        checkpoints = self._log_dir.checkpoints()
        for tp in self._found:
            if self._request.topic_config(tp.topic).compact:  # the examination reports what is wrong
                with each_log(self._log_dir.partition(tp).path):
                    self._log_dir.reset_checkpoint(tp, checkpoints)

    def _roll(self) -> None:
        """Close active segments, where that is asked for. A log that cannot be rolled has failed: it was asked for."""
        for tp in list(self._found) if self._request.roll else ():
            if not self._request.topic_config(tp.topic).compact:
                continue
            with each_log(self._log_dir.partition(tp).path) as log:
                roll(self._log_dir, tp, self._run.brokers)
            if log.error is not None:
                self._add(failed_on_disk(self._log_dir, tp, log.error))
                self._found.remove(tp)

    # -- cleaning -----------------------------------------------------------------------------------------------

    def is_owned(self) -> bool:
        """Whether another process holds `.lock`. What is out of reach has no owner, and its logs fail one by one."""
        owner = self._owner()
        return owner is not None and owner.has_lock

    def take(self, settled: LogResult) -> None:
        """A log is done, unless there was no room for all of its groups."""
        self._add(in_rounds(settled, partial(self._clean_again, settled)))

    def _clean_again(self, before: LogResult) -> LogResult:
        """A log of which only some groups could be cleaned, whatever its dirty ratio is now."""
        tp, forced = before.topic_partition, replace(self._request, force=True)
        with each_log(self.path) as again:
            (answer,) = self._examined([tp], forced, {})
        if again.error is not None:
            return before.failed(again.error)
        if isinstance(answer, LogResult):
            return answer
        return self.committer.settle(one_by_one(self._cleaner.stage, [answer], job_failed))[0]

    def failed_if_full(self, candidates: Sequence[Candidate]) -> list[LogResult]:
        """Failed results for all candidates if nothing more may be staged beside a live broker, else none."""
        with each_log(self.path) as directory:
            owner = self._log_dir.owner
            if not owner.has_lock:
                return []
            why_not = self._run.brokers.why_not(self.path) if owner is Owner.LIVE_BROKER else None
            if not self._request.rescues:
                full = self._log_dir.why_full(self._request.config, waits=why_not is not None)
                if full is not None:
                    raise full
            elif why_not is not None:  # `Cleaner` leaves what a swap needs
                why = f"{self.path}: its broker runs, and what is cleaned would only take room until it stops: {why_not}"
                raise NoSpace(why, remedy=_TO_SWAP)
            return []
        assert directory.error is not None
        return [one.result(of_error(directory.error)) for one in candidates]

    def _candidates(self, waiting: Mapping[TopicPartition, Sequence[StagedGroup]]) -> list[Candidate]:
        """The logs to clean; results of the others are added. `waiting`: staged groups that count as committed."""
        candidates = []
        for answer in self._examined(self._found, self._request, waiting):
            if isinstance(answer, Candidate):
                candidates.append(answer)
            elif isinstance(answer.outcome, Failed):
                self._add(answer)
            else:
                self._add_if_wanted(answer)
        return candidates

    def _examined(
        self,
        tps: Sequence[TopicPartition],
        request: CleanRequest,
        waiting: Mapping[TopicPartition, Sequence[StagedGroup]],
    ) -> Iterator[Candidate | LogResult]:
        checkpoints = self._run.brokers.checkpoints(self._log_dir, tps)
        return examine_all(self._log_dir, tps, request, self._cleaner.pace_of, waiting, checkpoints)

    def _add_if_wanted(self, result: LogResult) -> None:
        """Compacted logs are always reported, others only when they were named; a log with a result has been."""
        tp = result.topic_partition
        is_asked_for = self._request.topics is not None or self._request.topic_config(tp.topic).compact
        if is_asked_for and self._result_of(tp) is None:
            self._add(result)

    # -- a dry run ----------------------------------------------------------------------------------------------

    def count(self) -> None:
        """A dry run: it writes nothing, so it takes no lock either."""
        self._leave_copies()
        self._leave_held()
        self._leave_alone()
        is_owned = self._log_dir.owner.has_lock
        count = partial(self._cleaner.count, is_owned=is_owned)
        for job in jobs_of(self._candidates({} if is_owned else self._foresee_commits())):
            for result in self.failed_if_full(job) or one_by_one(count, job, job_failed):
                self._add(result)
        self.retain()

    def _foresee_commits(self) -> dict[TopicPartition, Sequence[StagedGroup]]:
        """The groups that `_commit_waiting` would commit; results that no longer fit would be dropped."""
        waiting = {}
        checks = Checks(self._log_dir, self, self._found)
        for tp in self._found:
            ready = None
            with each_log(self._log_dir.partition(tp).path):
                ready = checks.ready(Commit(tp))
            if ready is not None:
                groups = waiting[tp] = ready.groups
                before, end = self._size(tp), ready.basis.round_end
                replaced = sum(source.size_bytes for group in groups for source in group.sources)
                made = sum(group.sizes[FileKind.LOG] for group in groups)
                merged = sum(len(group.sources) - 1 for group in groups)
                after = Size(before.bytes - replaced + made, before.segments - merged)
                planned = Planned(_WAITED)
                self._replace(LogResult(tp, self.path, planned, end_offset=end, before=before, after=after))
        return waiting

    def _size(self, tp: TopicPartition) -> Size:
        return Size(*log_size(self._log_dir.partition(tp)))

    # -- retention and the account ------------------------------------------------------------------------------

    def retain(self) -> None:
        """Retention for compacted logs that are not in trouble (rule 1.28); those of a live broker are its own to retain.

        By what is configured now: a broker may have run, and had to keep them, since the run began.
        """
        if not self._found or self._log_dir.owner is Owner.LIVE_BROKER:
            return
        configuration = self._run.configured.now()
        topic_config = self._request.topic_config
        if configuration is not None:
            topic_config = Knowledge(self._log_dir, configuration, self._request.assumed).limits
        alone = left_alone(
            self._log_dir, self._found, configuration, self._request.topics, self._request.assumed
        )
        checkpoints, dry_run = self._log_dir.checkpoints(), self._request.dry_run
        for tp in self._found:
            result = self._result_of(tp) or LogResult(tp, self.path, Skipped(""))
            config = topic_config(tp.topic)
            if tp in alone or not config.compact or isinstance(result.outcome, Failed | outcomes.Aborted):
                continue
            with each_log(self._log_dir.partition(tp).path) as log:
                done = retain_log(self._log_dir, tp, checkpoints, config, dry_run=dry_run)
                if done is not None:
                    self._replace(_with_retention(result, *done, dry_run=dry_run))
            if isinstance(log.error, LockHeld):
                return
            if log.error is not None:
                self._replace(result.failed(log.error))

    def _result_of(self, tp: TopicPartition) -> LogResult | None:
        return self._run.results.get((tp, self.path))

    def _replace(self, result: LogResult) -> None:
        self._run.replace(self._as_seen(result))

    def _add(self, result: LogResult) -> None:
        self._run.add(self._as_seen(result))

    def _as_seen(self, result: LogResult) -> LogResult:
        """The result, without a failure if a live broker has only changed the log meanwhile."""
        return result.beside_broker() if self._owner() is Owner.LIVE_BROKER else result

    def _owner(self) -> Owner | None:
        with contextlib.suppress(CleanerdError, OSError):
            return self._log_dir.owner
        return None


def jobs_of(candidates: list[Candidate]) -> Iterator[list[Candidate]]:
    """Most urgent first, cut into jobs."""
    urgent_first = sorted(candidates, key=lambda candidate: urgency(candidate.range), reverse=True)
    return in_jobs(urgent_first, lambda candidate: candidate.range.size_bytes)


def job_failed(candidate: Candidate, error: JobFailed) -> LogResult:
    """The result of the only log of a job that failed."""
    return candidate.result(of_error(error))


def _with_retention(
    result: LogResult, snapshot: PartitionSnapshot, retained: Retained, *, dry_run: bool
) -> LogResult:
    """The result of a log after retention took segments from it."""
    outcome, found = result.outcome, Size(snapshot.size_bytes, len(snapshot.segments))
    if isinstance(outcome, Skipped | Unchanged):
        outcome = Planned(str(retained)) if dry_run else outcomes.Committed(reason=str(retained))
    else:
        outcome = replace(outcome, reason="; ".join(filter(None, (outcome.reason, str(retained)))))
    after = Size(found.bytes - retained.bytes, found.segments - retained.segments + retained.rolled)
    before = result.before if result.before.bytes else found
    return replace(result, outcome=outcome, before=before, after=after)
