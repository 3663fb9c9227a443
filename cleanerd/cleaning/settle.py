"""The end of a cleaning: what is staged is committed, what is unchanged is recorded, and what went wrong is taken back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cleanerd.cleaning.boundary import attempt, tell_unexpected
from cleanerd.cleaning.commit import (
    CommitCheck,
    Committed,
    TimeUp,
    Waiting,
    commit_staged,
    hold,
    no_objection,
    record_unchanged,
    turns,
)
from cleanerd.cleaning.phases import Stopwatch
from cleanerd.cleaning.recovery import recover_log
from cleanerd.cleaning.result import LogResult
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import Aborted, CleanerdError, InternalError, LockHeld
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import Acted
from cleanerd.storage.staged import StagedGroup, discard_staged

_UNTRIED = TimeUp("its turn has not come", None)


def settle(
    files: Files,
    result: LogResult,
    clock: Clock,
    *,
    is_kafka: bool,
    log_dirs: Sequence[str],
    check: CommitCheck = no_objection,
    swapped: Callable[[StagedGroup], None] = lambda _: None,
    acted: Acted = lambda _: None,
) -> LogResult:
    """What became of a log that is staged or unchanged; any other result is passed through. Never raises.

    `log_dirs`, `check` and `swapped` as `commit_staged` takes them. While another process holds `.lock`, it waits. After
    a failure nothing of it is left: the log is what it was, or, past the commit point of a group, has that group.
    """
    if result.outcome not in ("staged", "unchanged"):
        return result
    log_dir, tp, watch = result.log_dir, result.topic_partition, Stopwatch(clock)

    def commit() -> None:
        with watch.phase("commit"):
            commit_staged(
                files, log_dir, tp, clock, is_kafka=is_kafka, log_dirs=log_dirs, check=check, swapped=swapped
            )

    def record() -> None:
        assert result.end_offset is not None
        assert result.basis is not None
        with watch.phase("checkpoint"):
            record_unchanged(
                files, log_dir, tp, result.end_offset,
                is_kafka=is_kafka, basis=result.basis, log_dirs=log_dirs, check=check,
            )  # fmt: skip

    error = attempt(commit if result.outcome == "staged" else record, f"{log_dir}/{tp}")
    return _settled(files, result, watch, error, is_kafka=is_kafka, acted=acted)


def settle_together(
    files: Files, results: Sequence[LogResult], clock: Clock, *, is_kafka: bool, log_dirs: Sequence[str]
) -> list[LogResult]:
    """`settle` for logs of one directory, those that are staged under the same holds of its lock: they share their syncs.

    Each reports its share of the seconds.
    """
    staged = [result for result in results if result.outcome == "staged"]
    waiting = [Waiting(result.topic_partition) for result in staged]
    watch, done = Stopwatch(clock), dict[TopicPartition, Committed]()

    def is_left(one: Waiting) -> bool:
        return isinstance(done.get(one.topic_partition, _UNTRIED), TimeUp)

    def commit(log_dir: str) -> None:
        turn = partial(hold, files, log_dir, clock=clock, is_kafka=is_kafka, log_dirs=log_dirs)
        with watch.phase("commit"):
            for ended in turns(turn, waiting):
                done.update(ended.done)

    if staged:
        error = attempt(partial(commit, staged[0].log_dir), staged[0].log_dir)
        if isinstance(error, CleanerdError):
            done.update({one.topic_partition: error for one in waiting if is_left(one)})
        watch.phase_seconds = {name: s / len(staged) for name, s in watch.phase_seconds.items()}

    def settled(result: LogResult) -> LogResult:
        if result.outcome != "staged":
            return settle(files, result, clock, is_kafka=is_kafka, log_dirs=log_dirs)
        found = done[result.topic_partition]
        if isinstance(found, InternalError):
            tell_unexpected(found)
        error = found if isinstance(found, CleanerdError) else None
        return _settled(files, result, watch, error, is_kafka=is_kafka)

    return [settled(result) for result in results]


def _settled(
    files: Files,
    result: LogResult,
    watch: Stopwatch,
    error: CleanerdError | None,
    *,
    is_kafka: bool,
    acted: Acted = lambda _: None,
) -> LogResult:
    """The end of the account of a log; after an error, of the log as well."""
    log_dir, tp, is_staged = result.log_dir, result.topic_partition, result.outcome == "staged"
    if error is None:
        return result.after(watch, "committed" if is_staged else None)
    if isinstance(error, LockHeld):
        what = "waits for the lock" if is_staged else "checkpoint not written"
        return replace(result, reason=f"{what}: {error}")
    if not isinstance(error, Aborted):  # an abort came before anything was touched
        recover_log(files, log_dir, tp, is_kafka=is_kafka, acted=acted)
    attempt(lambda: discard_staged(PartitionDir.of(files, log_dir, tp)), f"{log_dir}/{tp}")
    return result.failed(error)


def in_rounds(first: LogResult, again: Callable[[], LogResult]) -> LogResult:
    """A log for whose groups there is no room at a time: cleaned `again` after each commit, as long as that gets on.

    What was committed changes no more, so each round is about the groups that are left; the last one moves the checkpoint.
    """
    result = first
    while result.outcome == "committed" and result.groups_left:
        left = result.groups_left
        result = result.then(again())
        if result.groups_left >= left:
            break  # the log grows faster than it is cleaned: the next cleaning goes on
    return result
