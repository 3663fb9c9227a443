"""One log directory in a one-shot cleaning: the steps that `cleaning.one_shot` has in their order.

Whatever happens to one log becomes its result; the others go on.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning import outcomes
from cleanerd.cleaning.batching import one_by_one
from cleanerd.cleaning.choose import Candidate, examine_all, failed_on_disk
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit.checks import Checks
from cleanerd.cleaning.commit.committer import Committer, in_rounds
from cleanerd.cleaning.commit.host import AsRequested, Commit, Committed, Done
from cleanerd.cleaning.commit.slices import OF_A_JOB, SliceSize
from cleanerd.cleaning.foreign import left_elsewhere
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Failed, Held, Outcome, Planned, Skipped, of_error
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress, Size, Statistics
from cleanerd.cleaning.retain import retain_log
from cleanerd.cleaning.roll import roll
from cleanerd.cleaning.wanted import ConfiguredNow
from cleanerd.errors import CleanerdError, JobFailed, LockHeld, each_log
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import urgency
from cleanerd.policy.schedule import in_jobs
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.partition_dir import log_size
from cleanerd.storage.staged import StagedGroup, is_waiting, replaced_bytes

_WAITED = "staged by an earlier cleaning"


@dataclass(slots=True)
class Run:
    """The state of a call of `clean_once` for the directories of a node. `locks`: released when it ends.

    `results`, the newest of each log, are those of all nodes.
    """

    request: CleanRequest
    cleaner: Cleaner
    progress: Progress
    brokers: LiveBrokers
    configured: ConfiguredNow
    results: dict[tuple[TopicPartition, str], LogResult]
    locks: contextlib.ExitStack

    def add(self, result: LogResult) -> None:
        """The newest result of a log, at its end of the account."""
        key = (result.topic_partition, result.log_dir)
        self.results.pop(key, None)
        self.results[key] = result
        self.progress.finished(result)


class Directory(AsRequested):
    """The work of a run on one log directory. `found`: the partitions of the run; `candidates`: logs to clean."""

    def __init__(self, run: Run, log_dir: LogDir, found: list[TopicPartition]) -> None:
        super().__init__(log_dir, run.request, run.configured)
        self._run, self._found, self.path = run, found, log_dir.path
        self.committer = Committer(log_dir, self, SliceSize(OF_A_JOB), run.brokers)
        self.candidates: list[Candidate] = []
        self._waiting: dict[TopicPartition, Sequence[StagedGroup]] = {}  # a dry run takes them for committed

    def fail(self, error: CleanerdError) -> None:
        """The result of every log that has none yet, and the end of what is done here."""
        for tp in [tp for tp in self._found if self._result_of(tp) is None] or [NO_LOG]:
            self._add(LogResult.of_error(tp, self.path, error))
        self._found, self.candidates = [], []

    def prepare(self) -> None:
        """Everything before the first job, in its order. A dry run writes nothing, and so takes no lock either."""
        is_real = not self.request.dry_run
        if is_real:
            self._run.locks.enter_context(self.log_dir.cleaned_by_us())
        self._leave_elsewhere()
        if is_real:
            self._recover()
        self._leave_untouchable()
        self._commit_waiting()
        if is_real:
            self._reset_checkpoints()
            self._roll()
        self._examine()

    # -- before anything is cleaned -----------------------------------------------------------------------------

    def _leave_elsewhere(self) -> None:
        """Leave out logs that lie elsewhere, behind a link, or of which another directory of the same broker has a copy."""
        elsewhere = left_elsewhere(self.log_dir, self._found)
        self._leave_out({tp: of_error(error) for tp, error in elsewhere.items()})

    def _recover(self) -> None:
        """Finish or undo interrupted commits where no broker owns the directory; what cannot be is not looked at further.

        Where one does, a log in the middle of a commit is refused by the scan.
        """
        by_name = {str(tp): tp for tp in self._found}
        with contextlib.suppress(LockHeld):
            for one in self.log_dir.recover(by_name):
                if one.error is not None:
                    self._leave_failed(by_name[one.name], one.error)

    def _leave_untouchable(self) -> None:
        """Leave out logs that somebody has paused, whose daemon may be down, and those that nothing allows us to touch."""
        why_held = self.request.holds_of(self.path)
        self._leave_out({tp: Held(reason) for tp in self._found if (reason := why_held(tp)) is not None})
        alone = self.left_alone(self._found, self.request.configuration)
        self._leave_out({tp: Skipped(reason) for tp, reason in alone.items()})

    def _leave_out(self, logs: Mapping[TopicPartition, Outcome]) -> None:
        for tp, outcome in logs.items():
            self._add_if_wanted(LogResult(tp, self.path, outcome))
        self._found = [tp for tp in self._found if tp not in logs]

    def _leave_failed(self, tp: TopicPartition, error: CleanerdError) -> None:
        self._add(failed_on_disk(self.log_dir, tp, error))
        self._found.remove(tp)

    def _commit_waiting(self) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice; a dry run takes it for committed.

        What no longer fits has been dropped then: its log is cleaned again, and its result reports that. So will be what
        lacks the segments that retention takes before.
        """
        found = (tp for tp in self._found if tp not in self.request.starts)
        waiting = [tp for tp in found if is_waiting(self.log_dir.partition(tp))]
        before = {tp: (self._size(tp), replaced_bytes(self.log_dir.partition(tp))) for tp in waiting}
        is_dry, commits = self.request.dry_run, list(map(Commit, waiting))
        for tp, done in (self._foreseen(commits) if is_dry else self.committer.commit(commits)).items():
            if isinstance(done, Committed):
                outcome = Planned(_WAITED) if is_dry else outcomes.Committed(done.by, _WAITED)
                size, frees = before[tp][0], Statistics(frees_bytes=before[tp][1])
                self._add(
                    LogResult(tp, self.path, outcome, None, done.end_offset, size, self._size(tp), frees)
                )

    def _foreseen(self, commits: Sequence[Commit]) -> dict[TopicPartition, Done]:
        """What would be committed. The groups are kept for `_examine`, which finds the size that they would leave."""
        checks, found = Checks(self.log_dir, self, self._found), dict[TopicPartition, Done]()
        for commit in () if self.log_dir.owner.has_lock else commits:
            tp = commit.topic_partition
            with each_log(self.log_dir.partition(tp).path):
                if (ready := checks.ready(commit)) is not None:
                    self._waiting[tp], found[tp] = ready.groups, Committed(ready.basis.round_end, "lock")
        return found

    def _reset_checkpoints(self) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        checkpoints = self.log_dir.checkpoints()
        for tp in self._found:
            if self.request.topic_config(tp.topic).compact:  # the examination reports what is wrong
                with each_log(self.log_dir.partition(tp).path):
                    self.log_dir.reset_checkpoint(tp, checkpoints)

    def _roll(self) -> None:
        """Close active segments, where that is asked for. A log that cannot be rolled has failed: it was asked for."""
        for tp in list(self._found) if self.request.roll else ():
            if not self.request.topic_config(tp.topic).compact:
                continue
            with each_log(self.log_dir.partition(tp).path) as log:
                roll(self.log_dir, tp, self._run.brokers)
            if log.error is not None:
                self._leave_failed(tp, log.error)

    def _examine(self) -> None:
        """Find the logs to clean; the others have their results."""
        checkpoints = self._run.brokers.checkpoints(self.log_dir, self._found)
        pace_of = self._run.cleaner.pace_of
        for answer in examine_all(
            self.log_dir, self._found, self.request, pace_of, self._waiting, checkpoints
        ):
            if isinstance(answer, Candidate):
                self.candidates.append(answer)
            elif isinstance(answer.outcome, Failed):
                self._add(answer)
            elif (waited := self._result_of(answer.topic_partition)) is None:
                self._add_if_wanted(answer)
            elif self.request.dry_run:
                self._add(replace(waited, after=answer.after))

    # -- cleaning -----------------------------------------------------------------------------------------------

    def owned(self) -> dict[str, str | None]:
        """As `Cleaner.plan` takes it. What is out of reach has no owner, and its logs fail one by one. Never raises: it is
        asked for several directories at once.
        """
        owner = self._owner()
        if owner is None or not owner.has_lock:
            return {}
        why_not: str | None = None
        with each_log(self.path) as asked:
            why_not = self._run.brokers.why_not(self.path) if owner is Owner.LIVE_BROKER else None
        return {self.path: why_not if asked.error is None else str(asked.error)}

    def count(self) -> None:
        """What a cleaning of the candidates would do."""
        count = partial(self._run.cleaner.count, owned=self.owned())
        for job in jobs_of(self.candidates):
            for result in one_by_one(count, job, job_failed):
                self._add(result)

    def take(self, settled: LogResult) -> None:
        """A log is done, unless groups of it are left for later rounds.

        A rescue plans anew what is left: it takes groups in its own order, and small segments are merged, which frees names.
        """
        rescues = self.request.rescues
        self._add(settled if rescues else in_rounds(settled, partial(self._next_round, settled)))

    def _next_round(self, before: LogResult) -> LogResult:
        cleaner = self._run.cleaner
        rest = cleaner.rest(self.log_dir.partition(before.topic_partition).path)
        assert rest is not None, "its groups are left"
        return self.committer.settle(cleaner.end(cleaner.write(rest)))[0]

    # -- retention and the account ------------------------------------------------------------------------------

    def retain(self) -> None:
        """Retention for compacted logs that are not in trouble (rule 1.28); those of a live broker are its own to retain,
        and a rescue has a step for it.

        By what is configured now: a broker may have run, and had to keep them, since the run began.
        """
        if not self._found or self.request.rescues or self.log_dir.owner is Owner.LIVE_BROKER:
            return
        configuration = self.configured.now()
        topic_config = self.request.topic_config
        if configuration is not None:
            topic_config = Knowledge(self.log_dir, configuration, self.request.assumed).limits
        alone = self.left_alone(self._found, configuration)
        checkpoints, dry_run = self.log_dir.checkpoints(), self.request.dry_run
        for tp in self._found:
            result = self._result_of(tp) or LogResult(tp, self.path, Skipped(""))
            config = topic_config(tp.topic)
            if tp in alone or not config.compact or isinstance(result.outcome, Failed | outcomes.Aborted):
                continue
            with each_log(self.log_dir.partition(tp).path) as log:
                retained = retain_log(self.log_dir, tp, checkpoints, config, dry_run=dry_run)
                if retained is not None:
                    self._add(retained.added_to(result, dry_run=dry_run))
            if isinstance(log.error, LockHeld):
                return
            if log.error is not None:
                self._add(result.failed(log.error))

    def _result_of(self, tp: TopicPartition) -> LogResult | None:
        return self._run.results.get((tp, self.path))

    def _add(self, result: LogResult) -> None:
        """The newest result of a log, without a failure if a live broker has only changed the log meanwhile."""
        self._run.add(result.beside_broker() if self._owner() is Owner.LIVE_BROKER else result)

    def _add_if_wanted(self, result: LogResult) -> None:
        """Compacted logs are always reported, others only when they were named."""
        if self.request.topics is not None or self.request.topic_config(result.topic_partition.topic).compact:
            self._add(result)

    def _owner(self) -> Owner | None:
        with contextlib.suppress(CleanerdError, OSError):
            return self.log_dir.owner
        return None

    def _size(self, tp: TopicPartition) -> Size:
        return Size(*log_size(self.log_dir.partition(tp)))


def jobs_of(candidates: list[Candidate]) -> Iterator[list[Candidate]]:
    """Most urgent first, cut into jobs."""
    urgent_first = sorted(candidates, key=lambda candidate: urgency(candidate.range), reverse=True)
    return in_jobs(urgent_first, lambda candidate: candidate.range.size_bytes)


def job_failed(candidate: Candidate, error: JobFailed) -> LogResult:
    """The result of the only log of a job that failed."""
    return candidate.result(of_error(error))
