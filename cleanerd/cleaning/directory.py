"""One log directory in a one-shot cleaning: the steps that `cleaning.one_shot` has in their order.

Whatever happens to one log becomes its result; the others go on.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.cleaning import outcomes
from cleanerd.cleaning.batching import one_by_one
from cleanerd.cleaning.choose import Candidate, examine_all, failed_on_disk
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.commit.checks import Checks
from cleanerd.cleaning.commit.committer import Committer, in_rounds
from cleanerd.cleaning.commit.host import AsRequested, Commit, Committed
from cleanerd.cleaning.commit.slices import OF_A_JOB, SliceSize
from cleanerd.cleaning.foreign import left_elsewhere
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Failed, Held, Outcome, Planned, Skipped, Unchanged, of_error
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress, Size, Statistics
from cleanerd.cleaning.retain import Retained, retain_log
from cleanerd.cleaning.roll import roll
from cleanerd.cleaning.wanted import ConfiguredNow
from cleanerd.errors import CleanerdError, JobFailed, LockHeld, NoSpace, each_log
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.policy.cleanable import urgency
from cleanerd.policy.schedule import in_jobs
from cleanerd.storage.log_dir import CleanedByAnother, LogDir, Owner
from cleanerd.storage.partition_dir import PartitionDir, log_size
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.storage.staged import StagedGroup, is_waiting, replaced_bytes

_NAMED = 3
_TO_SWAP = "have the broker swap results in, with --set cleanerd.commit.live=auto, or stop it"
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
        """A log is done."""
        self.replace(result)
        self.progress.finished(result)

    def replace(self, result: LogResult) -> None:
        """The newest result of a log, at its end of the account."""
        key = (result.topic_partition, result.log_dir)
        self.results.pop(key, None)
        self.results[key] = result


class Directory(AsRequested):
    """The work of a run on one log directory. `found`: the partitions of the run; `candidates`: logs to clean."""

    def __init__(self, run: Run, log_dir: LogDir, found: list[TopicPartition]) -> None:
        super().__init__(log_dir, run.request, run.configured)
        self._run, self._found, self.path = run, found, log_dir.path
        self.committer = Committer(log_dir, self, SliceSize(OF_A_JOB), run.brokers)
        self.candidates: list[Candidate] = []
        self._waiting: dict[TopicPartition, Sequence[StagedGroup]] = {}  # a dry run takes them for committed

    def attempt(self, step: Callable[["Directory"], None]) -> bool:
        """A step; False when it went wrong as a whole: then nothing more is to be done here."""
        with each_log(self.path) as directory:
            step(self)
        if directory.error is not None:
            self.fail(directory.error)
        return directory.error is None

    def fail(self, error: CleanerdError) -> None:
        """The result of every log that has none yet, and the end of what is done here."""
        remedy = self._by_the_daemon() if isinstance(error, CleanedByAnother) else None
        for tp in [tp for tp in self._found if self._result_of(tp) is None] or [NO_LOG]:
            self._add(LogResult(tp, self.path, of_error(error, remedy)))
        self._found = []

    def _by_the_daemon(self) -> str:
        """Commands that ask the daemon of this directory for the same; its verb takes one topic, one log or a glob."""
        request, options = self.request, ""
        options += " --force" * request.force + " --roll" * request.roll
        named = sorted(map(str, self._found)) if request.partitions else sorted(request.topics or ["'*'"])
        asked = " and ".join(f"`cleanerctl clean {name}{options}`" for name in named[:_NAMED])
        more = f" and so on, {len(named)} in all" if len(named) > _NAMED else ""
        return f"if that is the daemon, have it do this: {asked}{more}"

    # -- before anything is cleaned -----------------------------------------------------------------------------

    def lock(self) -> None:
        """Keep a second cleanerd out until the run ends."""
        self._run.locks.enter_context(self.log_dir.cleaned_by_us())

    def leave_elsewhere(self) -> None:
        """Leave out logs that lie elsewhere, behind a link, or of which another directory of the same broker has a copy."""
        elsewhere = left_elsewhere(self.log_dir, self._found)
        self._leave_out({tp: of_error(error) for tp, error in elsewhere.items()})

    def recover(self) -> None:
        """Finish or undo interrupted commits where no broker owns the directory; what cannot be is not looked at further.

        Where one does, a log in the middle of a commit is refused by the scan.
        """
        by_name = {str(tp): tp for tp in self._found}
        with contextlib.suppress(LockHeld):
            for one in self.log_dir.recover(by_name):
                if one.error is not None:
                    self._leave_failed(by_name[one.name], one.error)

    def leave_untouchable(self) -> None:
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

    def commit_waiting(self) -> None:
        """Commit what earlier cleanings left staged, so that nothing is done twice.

        What no longer fits has been dropped then: its log is cleaned again, and its result reports that.
        """
        before = {tp: self._size(tp) for tp in self._found if is_waiting(self.log_dir.partition(tp))}
        frees = {tp: _frees(self.log_dir.partition(tp)) for tp in before}
        for tp, done in self.committer.commit(list(map(Commit, before))).items():
            if isinstance(done, Committed):
                outcome, end = outcomes.Committed(done.by, _WAITED), done.end_offset
                self._replace(
                    LogResult(tp, self.path, outcome, None, end, before[tp], self._size(tp), frees[tp])
                )

    def foresee_commits(self) -> None:
        """The groups that `commit_waiting` would commit; results that no longer fit would be dropped."""
        checks = Checks(self.log_dir, self, self._found)
        for tp in () if self.log_dir.owner.has_lock else self._found:
            ready = None
            with each_log(self.log_dir.partition(tp).path):
                ready = checks.ready(Commit(tp))
            if ready is not None:
                groups = self._waiting[tp] = ready.groups
                before, end = self._size(tp), ready.basis.round_end
                replaced = sum(source.size_bytes for group in groups for source in group.sources)
                made = sum(group.sizes[FileKind.LOG] for group in groups)
                merged = sum(len(group.sources) - 1 for group in groups)
                after = Size(before.bytes - replaced + made, before.segments - merged)
                frees = _frees(ready.partition)
                self._replace(LogResult(tp, self.path, Planned(_WAITED), None, end, before, after, frees))

    def reset_checkpoints(self) -> None:
        """Before anything is chosen, for logs with nothing to clean as well (1.7)."""
        checkpoints = self.log_dir.checkpoints()
        for tp in self._found:
            if self.request.topic_config(tp.topic).compact:  # the examination reports what is wrong
                with each_log(self.log_dir.partition(tp).path):
                    self.log_dir.reset_checkpoint(tp, checkpoints)

    def roll(self) -> None:
        """Close active segments, where that is asked for. A log that cannot be rolled has failed: it was asked for."""
        for tp in list(self._found) if self.request.roll else ():
            if not self.request.topic_config(tp.topic).compact:
                continue
            with each_log(self.log_dir.partition(tp).path) as log:
                roll(self.log_dir, tp, self._run.brokers)
            if log.error is not None:
                self._leave_failed(tp, log.error)

    def examine(self) -> None:
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
            else:
                self._add_if_wanted(answer)

    # -- cleaning -----------------------------------------------------------------------------------------------

    def is_owned(self) -> bool:
        """Whether another process holds `.lock`. What is out of reach has no owner, and its logs fail one by one."""
        owner = self._owner()
        return owner is not None and owner.has_lock

    def failed_if_full(self, candidates: Sequence[Candidate]) -> list[LogResult]:
        """Failed results for all candidates if nothing more may be staged beside a live broker, else none."""
        with each_log(self.path) as directory:
            owner = self.log_dir.owner
            if not owner.has_lock:
                return []
            why_not = self._run.brokers.why_not(self.path) if owner is Owner.LIVE_BROKER else None
            if not self.request.rescues:
                full = self.log_dir.why_full(self.request.config, waits=why_not is not None)
                if full is not None:
                    raise full
            elif why_not is not None:  # `Cleaner` leaves what a swap needs
                why = f"{self.path}: its broker runs, and what is cleaned would only take room until it stops: {why_not}"
                raise NoSpace(why, remedy=_TO_SWAP)
            return []
        assert directory.error is not None
        return [one.result(of_error(directory.error)) for one in candidates]

    def count(self) -> None:
        """What a cleaning of the candidates would do."""
        count, owned = self._run.cleaner.count, (self.path,) if self.is_owned() else ()
        for job in jobs_of(self.candidates):
            for result in self.failed_if_full(job) or one_by_one(
                partial(count, owned=owned), job, job_failed
            ):
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
                done = retain_log(self.log_dir, tp, checkpoints, config, dry_run=dry_run)
                if done is not None:
                    self._replace(_with_retention(result, *done, dry_run=dry_run))
            if isinstance(log.error, LockHeld):
                return
            if log.error is not None:
                self._replace(result.failed(log.error))

    def _add_if_wanted(self, result: LogResult) -> None:
        """Compacted logs are always reported, others only when they were named; a log with a result has been."""
        tp = result.topic_partition
        is_asked_for = self.request.topics is not None or self.request.topic_config(tp.topic).compact
        if is_asked_for and self._result_of(tp) is None:
            self._add(result)

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
            return self.log_dir.owner
        return None

    def _size(self, tp: TopicPartition) -> Size:
        return Size(*log_size(self.log_dir.partition(tp)))


def _frees(partition: PartitionDir) -> Statistics:
    return Statistics(frees_bytes=replaced_bytes(partition))


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
