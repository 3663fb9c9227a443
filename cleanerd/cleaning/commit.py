"""Steps 8 and 9 of a cleaning, second half: staged groups take the place of their sources, the checkpoint moves.

Whoever commits need not have cleaned: a result may wait for hours until its broker stops. All that is needed lies in the
manifests.
"""

from collections.abc import Callable

from cleanerd.cleaning.lock import commit_lock
from cleanerd.cleaning.result import Basis
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, CorruptFile, LockHeld, SourceChanged
from cleanerd.format import names
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.policy.commit_plan import epochs_contradiction
from cleanerd.storage.checkpoints import read_leader_epochs, read_offsets, update_cleaner_checkpoint
from cleanerd.storage.commit import commit_group, revalidate
from cleanerd.storage.generation import check_generation
from cleanerd.storage.staged import StagedGroup, discard_staged, live_logs, manifest_names, read_manifests


def _go_on() -> None:
    """Nobody has anything against it."""


def _unheard(_: StagedGroup) -> None:
    """Nobody counts."""


def commit_staged(
    files: Files,
    log_dir: str,
    tp: TopicPartition,
    *,
    is_kafka: bool,
    before: Callable[[], None] = _go_on,
    swapped: Callable[[StagedGroup], None] = _unheard,
) -> int | None:
    """Swap every staged group of a log, oldest first, and record the checkpoint; None when nothing is staged.

    Returns the new checkpoint, the end of the cleaned range. Oldest first: a tombstone may only go after the values
    that it deletes. `before` is called once, with the lock held, before anything is touched; what it raises is passed on.
    `swapped` hears of every group that has taken the place of its sources; it must not raise.

    Raises LockHeld: the result goes on waiting. SourceChanged, CorruptFile: the result no longer fits the log, or was
    never finished, and has been dropped; the message says why. OSError: for `recover` to mend.
    """
    directory = f"{log_dir}/{tp}"
    if not manifest_names(files, directory):
        return None
    with commit_lock(log_dir, is_kafka=is_kafka) as lock:
        try:
            groups = _whole_cleaning(files, directory)
            live = live_logs(files, directory)
            for group in groups:
                basis = Basis(group.generation, group.checkpoint, group.leader_epochs)
                _check_basis(files, log_dir, tp, basis)
                revalidate(files, directory, group, live)
                _check_reach(files, directory, basis, group.round_end)
        except (SourceChanged, CorruptFile):
            discard_staged(files, directory)
            raise
        if not groups:
            return None
        before()
        for group in groups:
            lock.check()
            _commit(files, directory, group, live)
            swapped(group)
        update_cleaner_checkpoint(files, log_dir, {tp: groups[-1].round_end})
    return groups[-1].round_end


def record_unchanged(
    files: Files, log_dir: str, tp: TopicPartition, round_end: int, *, is_kafka: bool, basis: Basis
) -> None:
    """The checkpoint of a log in which nothing had to go. Raises LockHeld, SourceChanged, CorruptFile, OSError.

    `basis`: the log that the cleaning was planned on.
    """
    with commit_lock(log_dir, is_kafka=is_kafka):
        _check_basis(files, log_dir, tp, basis)
        _check_reach(files, f"{log_dir}/{tp}", basis, round_end)
        update_cleaner_checkpoint(files, log_dir, {tp: round_end})


def _check_basis(files: Files, log_dir: str, tp: TopicPartition, basis: Basis) -> None:
    """Raise SourceChanged if the log was truncated, or deleted and made anew, since the cleaning was planned. Needs `.lock`.

    A checkpoint above records that no cleaning has seen would let tombstones among them go before the values that they
    delete. So it moves only from where the cleaning found it.
    """
    check_generation(files, f"{log_dir}/{tp}", basis.generation)
    found = read_offsets(files, f"{log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}").get(tp)
    if found != basis.checkpoint:
        raise SourceChanged(f"{log_dir}/{tp}: the first dirty offset was {basis.checkpoint}, is {found}")


def _check_reach(files: Files, directory: str, basis: Basis, round_end: int) -> None:
    """Raise SourceChanged if the log was cut below the end of the cleaned range by an unclean leader election (spec disk G).

    A cleaning judges with all records of its range: what superseded a record in a staged group may be gone although
    nothing in that group has changed.
    """
    epochs = read_leader_epochs(files, directory)
    reason = epochs_contradiction(basis.leader_epochs, epochs, next_base_offset=round_end)
    if not files.exists(f"{directory}/{SegmentFileName(round_end, FileKind.LOG)}"):
        reason = f"segment {round_end}, which follows the cleaned range, is gone"
    if reason is not None:
        raise SourceChanged(f"{directory}: {reason}")


def _whole_cleaning(files: Files, directory: str) -> list[StagedGroup]:
    """All groups that wait. A cleaning that was interrupted while it staged must not move the checkpoint."""
    groups = read_manifests(files, directory)
    if groups and not groups[-1].is_last:
        raise SourceChanged(f"{directory}: the cleaning was interrupted before it had staged everything")
    return groups


def _commit(files: Files, directory: str, group: StagedGroup, live: list[int]) -> None:
    try:
        commit_group(files, directory, group, live)
    except LockHeld:
        raise
    except CleanerdError:
        discard_staged(files, directory)
        raise
