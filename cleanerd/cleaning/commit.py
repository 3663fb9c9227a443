"""Steps 8 and 9 of a cleaning, second half: staged groups take the place of their sources, the checkpoint moves.

The process that commits need not be the one that cleaned: a result may wait for hours until its broker stops. All that is
needed lies in the manifests.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cleanerd.cleaning.boundary import tell_unexpected
from cleanerd.cleaning.checkpoint import record_cleaned
from cleanerd.cleaning.lock import AIM_S, commit_lock, pause_after
from cleanerd.cleaning.recovery import recover_log
from cleanerd.cleaning.result import Basis
from cleanerd.cleaning.siblings import moving
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import (
    Aborted,
    CleanerdError,
    CorruptFile,
    InternalError,
    LockHeld,
    LogUncleanable,
    PolicyChanged,
    SourceChanged,
    from_os_error,
    guarded,
)
from cleanerd.format import names
from cleanerd.format.names import FileKind, TopicPartition, segment_path
from cleanerd.policy.commit_plan import epochs_contradiction
from cleanerd.storage.checkpoints import read_leader_epochs, read_offsets
from cleanerd.storage.commit import commit_steps, revalidate
from cleanerd.storage.generation import check_generation
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import Acted
from cleanerd.storage.staged import StagedGroup, discard_staged, live_logs, manifest_names, read_manifests

CommitCheck = Callable[[int], None]
"""Called with the end of the cleaned range when `.lock` is held and nothing is touched yet; what it raises is passed on."""


def no_objection(_: int) -> None:
    """Nothing but the files decides."""


def _unheard(_: StagedGroup) -> None:
    """For callers that do not count."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A log with a staged result.

    `check` says whether the result is still wanted: SourceChanged drops it, everything else leaves it waiting. `swapped`
    is called with every group that has taken the place of its sources; it must not raise.
    """

    topic_partition: TopicPartition
    check: CommitCheck = no_objection
    swapped: Callable[[StagedGroup], None] = _unheard


_IN_ORDER = (Aborted, CorruptFile, LockHeld, SourceChanged)
"""After these nothing is left to recover: the result waits untouched, or was dropped."""


class TimeUp(LockHeld):
    """The lock has been held for long enough: the groups that are left may be committed once others have had their turn."""


Committed = int | None | CleanerdError
"""The new first dirty offset; None when nothing was staged; or what went wrong (`commit_staged` tells)."""


def commit_staged(
    files: Files,
    log_dir: str,
    tp: TopicPartition,
    clock: Clock,
    *,
    is_kafka: bool,
    log_dirs: Sequence[str] = (),
    check: CommitCheck = no_objection,
    swapped: Callable[[StagedGroup], None] = _unheard,
) -> int | None:
    """Swap every staged group of a log, oldest first, and record the checkpoint; None when nothing is staged.

    Returns the new checkpoint, the end of the cleaned range. `log_dirs`: all of the broker's.
    The checkpoint stays where it is if there was no room for all groups of the cleaning (`StagedGroup.moves_checkpoint`).
    The lock is let go between groups as often as `commit_together` asks for it.

    Raises LockHeld: the result, or the rest of it, goes on waiting. SourceChanged, CorruptFile: the result no longer fits
    the log, is no longer wanted, or was never finished, and has been dropped; the message says why. All else: for `recover`.
    """
    if not manifest_names(PartitionDir.of(files, log_dir, tp)):
        return None
    one_turn = functools.partial(hold, files, log_dir, clock=clock, is_kafka=is_kafka, log_dirs=log_dirs)
    done: Committed = None
    for turn in turns(one_turn, [Waiting(tp, check, swapped)]):
        done = turn.done[tp]
    if isinstance(done, CleanerdError):
        raise done
    return done


@dataclass(frozen=True, slots=True)
class Turn:
    """What one hold of the lock came to: each log, how long the lock was held, how long to leave it alone now.

    `is_wanted`: another process waited for the lock at the end. `left`: what kept a commit that went wrong from being
    finished or taken back; the next start will do that.
    """

    done: Mapping[TopicPartition, Committed]
    seconds: float
    pause_s: float
    is_wanted: bool
    left: Mapping[TopicPartition, CleanerdError] = field(default_factory=dict)


def turns(turn: Callable[[Sequence[Waiting]], Turn], waiting: Sequence[Waiting]) -> Iterator[Turn]:
    """A `turn` for all of them, then others for those whose time was up, until each has its answer.

    After each the lock is left alone for a while, so that others can take it. Raises what `turn` raises.
    """
    while waiting:
        ended = turn(waiting)
        yield ended
        waiting = [one for one in waiting if isinstance(ended.done[one.topic_partition], TimeUp)]
        threading.Event().wait(ended.pause_s)


def hold(
    files: Files,
    log_dir: str,
    waiting: Sequence[Waiting],
    clock: Clock,
    *,
    is_kafka: bool,
    log_dirs: Sequence[str],
) -> Turn:
    """`commit_together` under one hold of the lock. Raises LockHeld, DirOffline: nothing was done."""
    with commit_lock(log_dir, is_kafka=is_kafka) as lock:
        began_s = clock.monotonic_s()
        done = commit_together(files, log_dir, waiting, lock, clock, is_kafka=is_kafka, log_dirs=log_dirs)
        seconds = clock.monotonic_s() - began_s
        return Turn(done, seconds, pause_after(lock, seconds), lock.is_wanted)


def commit_waiting(
    files: Files,
    log_dir: str,
    waiting: Sequence[Waiting],
    clock: Clock,
    *,
    is_kafka: bool,
    log_dirs: Sequence[str],
    acted: Acted = lambda _: None,
) -> Turn:
    """Commit what waits in logs of a directory under one hold of its lock, and take back what went wrong in one of them.

    `acted` is called with what that took, as by `recover`. Raises LockHeld, DirOffline: nothing was done.
    """
    turn = hold(files, log_dir, waiting, clock, is_kafka=is_kafka, log_dirs=log_dirs)
    left = {}
    for tp, found in turn.done.items():
        if isinstance(found, InternalError):
            tell_unexpected(found)
        if isinstance(found, CleanerdError) and not isinstance(found, _IN_ORDER):
            error = recover_log(files, log_dir, tp, is_kafka=is_kafka, acted=acted)
            if error is not None:
                left[tp] = error
    return replace(turn, left=left)


def commit_together(
    files: Files,
    log_dir: str,
    waiting: Sequence[Waiting],
    lock: LogDirLock,
    clock: Clock,
    *,
    is_kafka: bool,
    log_dirs: Sequence[str],
) -> dict[TopicPartition, Committed]:
    """As `commit_staged` for several logs of a directory whose `lock` is held, side by side.

    Each step is taken in all of them, then all are synced, which a file system with a journal does at once, and their
    checkpoint is written once. No group but the first of a log is begun later than `AIM_S` after the first ones: the rest
    waits, and its result is TimeUp. What goes wrong with one log is its own. Never raises for a log.
    """
    ends_s = clock.monotonic_s() + AIM_S
    unless_moved = _unless_moved(files, log_dir, log_dirs, is_kafka=is_kafka)
    done: dict[TopicPartition, Committed] = {one.topic_partition: None for one in waiting}
    ends: dict[TopicPartition, int] = {}
    under_way = {
        one.topic_partition: _steps(
            files,
            log_dir,
            replace(one, check=unless_moved(one.check, one.topic_partition)),
            lambda: _make_way(lock, is_kafka=is_kafka),
            lambda: clock.monotonic_s() >= ends_s,
        )
        for one in waiting
    }

    while under_way:
        for tp, steps in list(under_way.items()):
            found = guarded(functools.partial(next, steps, _Ended(None)), f"{log_dir}/{tp}")
            if found is not None:
                done[tp] = found.round_end if isinstance(found, _Ended) else found
                if isinstance(found, _Ended) and found.round_end is not None and found.moves_checkpoint:
                    ends[tp] = found.round_end
                del under_way[tp]
        synced = [f"{log_dir}/{tp}" for tp in under_way]
        for tp, directory, failure in zip(list(under_way), synced, files.fsync_dirs(synced), strict=True):
            if failure is not None:
                done[tp] = from_os_error(failure, directory)
                del under_way[tp]
    record = functools.partial(record_cleaned, files, log_dir, ends, log_dirs=log_dirs, is_kafka=is_kafka)
    error = guarded(record, log_dir)
    return done if error is None else done | dict.fromkeys(ends, error)


def _unless_moved(
    files: Files, log_dir: str, log_dirs: Sequence[str], *, is_kafka: bool
) -> Callable[[CommitCheck, TopicPartition], CommitCheck]:
    """Adds to the check of a log that it is not on its way to another log directory (rule 2.10)."""
    found = guarded(functools.partial(moving, files, log_dir, log_dirs, is_kafka=is_kafka), log_dir)

    def check_of(check: CommitCheck, tp: TopicPartition) -> CommitCheck:
        def both(round_end: int) -> None:
            if isinstance(found, CleanerdError):
                raise found
            if tp in found:
                raise PolicyChanged(f"{log_dir}/{tp}: its broker moves it to {found[tp]}")
            check(round_end)

        return both

    return check_of


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last thing that `_steps` yields; the end of the cleaned range, None when nothing was staged."""

    round_end: int | None
    moves_checkpoint: bool = True


def _steps(
    files: Files, log_dir: str, one: Waiting, make_way: Callable[[], None], is_time_up: Callable[[], bool]
) -> Iterator[_Ended | None]:
    """The commit of a log; at every yield of None its directory has to be synced."""
    tp, directory = one.topic_partition, f"{log_dir}/{one.topic_partition}"
    make_way()
    try:
        groups, live = waiting_groups(files, log_dir, tp, one.check)
    except (SourceChanged, CorruptFile):
        discard_staged(PartitionDir(files, directory))
        raise
    if not groups:
        return
    for group in groups:
        make_way()
        if group is not groups[0] and is_time_up():
            raise TimeUp("the rest of its groups is committed in a moment", None)
        try:
            yield from commit_steps(PartitionDir(files, directory), group, live)
        except (SourceChanged, LogUncleanable):
            discard_staged(PartitionDir(files, directory))
            raise
        one.swapped(group)
    yield _Ended(groups[-1].round_end, groups[-1].moves_checkpoint)


def waiting_groups(
    files: Files, log_dir: str, tp: TopicPartition, check: CommitCheck = no_objection
) -> tuple[list[StagedGroup], list[int]]:
    """The groups that a commit would swap now, none for none, and `live_logs`; without `.lock` that may change any time.

    Raises SourceChanged, CorruptFile where it would drop them; what `check` raises; OSError.
    """
    directory = f"{log_dir}/{tp}"
    groups = _whole_cleaning(files, directory)
    if not groups:
        return [], []
    live = live_logs(PartitionDir(files, directory))
    for group in groups:
        basis = Basis(group.generation, group.checkpoint, group.leader_epochs)
        _check_basis(files, log_dir, tp, basis)
        revalidate(PartitionDir(files, directory), group, live)
        _check_reach(files, directory, basis, group.round_end)
    check(groups[-1].round_end)
    return groups, live


def _make_way(lock: LogDirLock, *, is_kafka: bool) -> None:
    """Raise LockHeld when another process has taken the lock file away or waits for it: a broker that starts.

    Between two groups a commit may end: the rest of the cleaning goes on waiting. Where no broker is, a writer wants the
    lock for the moment of a roll: TimeUp, and the rest is committed in a moment.
    """
    lock.check()
    if lock.is_wanted and not is_kafka:
        raise TimeUp("a writer waits for the lock: it is committed in a moment", None)
    if lock.is_wanted:
        raise LockHeld("another process waits for the lock, a broker may be starting", None)


def record_unchanged(
    files: Files,
    log_dir: str,
    tp: TopicPartition,
    round_end: int,
    *,
    is_kafka: bool,
    basis: Basis,
    log_dirs: Sequence[str] = (),
    check: CommitCheck = no_objection,
) -> None:
    """The checkpoint of a log in which nothing had to go. Raises LockHeld, SourceChanged, CorruptFile, OSError.

    `basis`: the log that the cleaning was planned on. `check`, `log_dirs`: as in `commit_staged`.
    """
    with commit_lock(log_dir, is_kafka=is_kafka):
        _check_basis(files, log_dir, tp, basis)
        _check_reach(files, f"{log_dir}/{tp}", basis, round_end)
        _unless_moved(files, log_dir, log_dirs, is_kafka=is_kafka)(check, tp)(round_end)
        record_cleaned(files, log_dir, {tp: round_end}, log_dirs=log_dirs, is_kafka=is_kafka)


def _check_basis(files: Files, log_dir: str, tp: TopicPartition, basis: Basis) -> None:
    """Raise SourceChanged if the log was truncated, or created again, since the cleaning was planned. Needs `.lock`.

    A checkpoint above records that no cleaning has seen would let tombstones among them go before the values that they
    delete. So it moves only from where the cleaning found it.
    """
    check_generation(PartitionDir.of(files, log_dir, tp), basis.generation)
    found = read_offsets(files, f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}").get(tp)
    if found != basis.checkpoint:
        raise SourceChanged(f"{log_dir}/{tp}: the first dirty offset was {basis.checkpoint}, is {found}")


def _check_reach(files: Files, directory: str, basis: Basis, round_end: int) -> None:
    """Raise SourceChanged if the log was cut below the end of the cleaned range by an unclean leader election (spec disk G).

    A cleaning judges with all records of its range: what superseded a record in a staged group may be gone although
    nothing in that group has changed.
    """
    epochs = read_leader_epochs(PartitionDir(files, directory))
    reason = epochs_contradiction(basis.leader_epochs, epochs, next_base_offset=round_end)
    if not files.exists(segment_path(directory, round_end, FileKind.LOG)):
        reason = f"segment {round_end}, which follows the cleaned range, is gone"
    if reason is not None:
        raise SourceChanged(f"{directory}: {reason}")


def _whole_cleaning(files: Files, directory: str) -> list[StagedGroup]:
    """All groups that wait. A cleaning that was interrupted while it staged must not move the checkpoint."""
    groups = read_manifests(PartitionDir(files, directory))
    if groups and not groups[-1].is_last:
        raise SourceChanged(f"{directory}: the cleaning was interrupted before it had staged everything")
    return groups
