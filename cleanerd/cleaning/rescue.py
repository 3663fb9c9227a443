"""A disk is full, and its broker is dead of it or about to be: free what can be freed without losing anything.

====  ================================================================  ===============================================
step  what goes                                                         room that it needs
====  ================================================================  ===============================================
(a)   what a start of the broker would delete (`storage.leftovers`)     none
(b)   retention that has been breached by limits that hold for a        none: names change
      stopped broker (`Knowledge.limits`)
(c)   offset indexes of some closed segments, where there is not even   none; their broker makes them again
      room for a manifest, or that gives a group its room
(d)   superseded records of compacted logs: of each log first the       a group's new segment, beside the old ones
      groups that free the most for the bytes they need
(e)   where none of them fits: the one that frees the most, written on  the group's new segment, on the spare
      another file system, `--spare` (`storage.spare`)
====  ================================================================  ===============================================

Each step ends when enough is free; after (e) comes (d) again, which has room now. (d) is what `cleanerd clean --force` does,
with its checks and its recovery, so a kill or a power failure leaves what that leaves; but no floor of free space holds, and
tombstones and markers stay, and get no delete horizons, which count from when all that they delete has gone: so groups may
be committed in any order. Beside a live broker (a) to (c) are its own, and it swaps the groups of (d) if it can be asked.

`--yes` is the word of the operator that the cluster has changed no settings since the last sign of life of the broker. All
else that `Knowledge` asks for holds as ever.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cleanerd.cleaning.assumed import UNCHANGED
from cleanerd.cleaning.choose import partitions
from cleanerd.cleaning.foreign import left_alone, left_elsewhere
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.one_shot import clean_once, known_log_dir
from cleanerd.cleaning.outcomes import Aborted, Committed, Failed, Held, Planned, Skipped, Staged, Unchanged
from cleanerd.cleaning.rescued import Outcome, Rescued, Step
from cleanerd.cleaning.result import NO_LOG, CleanRequest, LogResult, Progress
from cleanerd.cleaning.retain import retain_log
from cleanerd.cleaning.through_spare import ThroughSpare, why_no_spare
from cleanerd.cleaning.would_help import (
    LEAST_BYTES,
    LEAST_INODES,
    never_done,
    next_help,
    why_alone,
    why_not_writable,
)
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.env.space import (
    floor_bytes,
    lacks_names,
    names_left,
    owed_bytes,
    reserved_bytes,
    space_of,
    wait_for_deleted,
)
from cleanerd.env.trust import open_directory
from cleanerd.errors import (
    CleanerdError,
    DirOffline,
    LockHeld,
    NoSpace,
    each_log,
)
from cleanerd.format.names import CLEANERD_LOCK, TopicPartition, parse_partition_dir
from cleanerd.policy.schedule import in_jobs
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.leftovers import (
    delete_leftovers,
    delete_offset_indexes,
    freed_bytes,
    leftover_files,
    offset_indexes_bytes,
)
from cleanerd.storage.log_dir import CleanedByAnother, LogDir, Owner
from cleanerd.storage.partition_dir import PartitionDir, log_size
from cleanerd.storage.spare import check_resumable, interrupted, read_back, resume
from cleanerd.storage.staged import is_waiting, staged_bytes

_INDEXES = "offset indexes, which are made again"
_DELETED_WAIT_S, _FREED_WAIT_S, _POLL_S = 75.0, 5.0, 0.2
"""How long a live broker may take to delete what a swap has replaced (file.delete.delay.ms is a minute), and XFS to free
what has been deleted, which it does in the background."""


class Rescue:
    """A rescue of the log directories of one node. `request`: as for `clean_once`; `until`: the share of a disk to be free.

    `is_until_asked`: that much is wanted, not only what a start takes.
    """

    def __init__(
        self,
        request: CleanRequest,
        progress: Progress,
        clock: Clock,
        session: LazySpark,
        files: Files,
        until: float,
        spare: str | None,
    ) -> None:
        assumed = request.assumed | {UNCHANGED}
        self._request = replace(request, force=True, rescues=True, assumed=assumed, horizons=False)
        self._progress = progress
        self._clock = clock
        self._session = session
        self._files = files
        self._until = until
        self._spare = spare

    def plan(self, path: str) -> Rescued:
        """Forecast `carry_out` for a log directory; changes nothing. Raises CleanerdError, OSError."""
        found, log_dir, ours = self._look(path)
        for tp in partitions(log_dir, self._request):
            if interrupted(log_dir.partition(tp)):
                with each_log(log_dir.partition(tp).path) as log:
                    _check_resumable(log_dir.partition(tp))
                found.is_interrupted |= log.error is not None
                outcome: Outcome = "planned" if log.error is None else "failed"
                reason = "a rescue was interrupted" if log.error is None else str(log.error)
                found.steps.append(Step("resumed", str(tp), 0, 0, outcome, reason))
        if self._is_enough(found):
            found.free_bytes_after = found.free_bytes
            return found
        starts = dict[TopicPartition, int]()
        if log_dir.owner is not Owner.LIVE_BROKER:
            found.steps += self._foreseen_leftovers(log_dir)
            found.steps += self._retained(log_dir, ours, starts)
        foreseen = map(_foreseen, self._clean(path, ours, starts))
        found.steps += sorted(foreseen, key=lambda step: -step.frees_bytes / max(step.needs_bytes, 1))
        self._fit(log_dir, ours, found)
        is_planned = any(step.outcome == "planned" for step in found.steps)
        found.lacks_names = lacks_names(path) and not is_planned
        self._name_help(log_dir, found)
        return found

    def _name_help(self, log_dir: LogDir, found: Rescued) -> None:
        """What would help next, before what `_look` has found; there is always something."""
        asks = self._request.config.commit_live == "auto"
        found.would_help[:0] = next_help(log_dir, found, self._spare, asks_broker=asks)

    def _fit(self, log_dir: LogDir, ours: Sequence[TopicPartition], found: Rescued) -> None:
        """Which of the foreseen steps there is room for when their turn comes, what makes some, and what is free then."""
        free_bytes, no_spare = found.free_bytes - owed_bytes(log_dir.path), why_no_spare(log_dir, self._spare)
        may, indexes_bytes = self._spare is not None and no_spare is None, self._indexes_bytes(log_dir, ours)
        foreseen, found.steps = found.steps, []
        for step in foreseen:
            if step.outcome == "planned" and step.needs_bytes > max(free_bytes, 0):
                is_little = step.needs_bytes <= LEAST_BYTES
                if step.needs_bytes <= free_bytes + indexes_bytes and (is_little or not may):
                    made_bytes = min(max(step.needs_bytes, LEAST_BYTES) - free_bytes, indexes_bytes)
                    found.add_indexes(Step("indexes", _INDEXES, 0, made_bytes, "planned"))
                    found.steps.append(step)
                    free_bytes, indexes_bytes = free_bytes + made_bytes, indexes_bytes - made_bytes
                elif may:
                    fits = step.needs_bytes <= space_of(self._spare or "").free_bytes
                    found.steps.append(replace(step, name="spare", outcome="planned" if fits else "no_room"))
                else:
                    found.steps.append(replace(step, outcome="no_room", reason=no_spare))
            else:
                found.steps.append(step)
            free_bytes += step.frees_bytes if found.steps[-1].outcome == "planned" else 0
        found.free_bytes_after = max(free_bytes, 0)

    def carry_out(self, path: str) -> Rescued:
        """Free as much as is wanted in a log directory. Raises CleanedByAnother, CleanerdError, OSError."""
        with _alone(path):
            if (reason := why_not_writable(path)) is not None:
                raise DirOffline(reason)
            with _unless_full(), self._log_dir(path).cleaned_by_us():
                pass  # no other cleanerd works there
            resumed = list(self._resumed(path))
            found, log_dir, ours = self._look(path)
            if log_dir.owner is not Owner.LIVE_BROKER and not self._is_enough(found):
                with contextlib.suppress(LockHeld):  # a broker that has started: the rest of these is its own
                    self._without_room(log_dir, ours, found)
            self._compact(log_dir, ours, found)
            found.steps = [*(list(self._resumed(path)) or resumed), *found.steps]  # there may be room now
            wait_for_deleted()
            freed_bytes = sum(step.frees_bytes for step in found.steps if step.outcome == "done")
            if freed_bytes:
                self._has_more(log_dir, min(found.until_bytes, found.free_bytes + freed_bytes) - 1)
            found.free_bytes_after, found.lacks_names = space_of(path).free_bytes, lacks_names(path)
            found.is_interrupted = any(
                interrupted(log_dir.partition(tp)) for tp in partitions(log_dir, self._request)
            )
            self._name_help(log_dir, found)
            return found

    def _without_room(self, log_dir: LogDir, ours: Sequence[TopicPartition], found: Rescued) -> None:
        """(a) to (c). Raises LockHeld, CleanedByAnother, CleanerdError, OSError."""
        with _unless_full():
            with log_dir.lock():
                pass  # else there is no `.lock`, and no room for one: nothing at all may go
            found.steps += self._delete_leftovers(log_dir)
            if not self._is_enough(found):
                has_file = self._files.exists(os.path.join(log_dir.path, CLEANERD_LOCK))
                self._make_writable(log_dir, ours, found, 0 if has_file else LEAST_BYTES)
                with _unless_full():
                    found.steps += self._retained(log_dir, ours)
            if not self._is_enough(found):
                self._make_writable(log_dir, ours, found, LEAST_BYTES)

    def _is_enough(self, found: Rescued) -> bool:
        wait_for_deleted()
        return space_of(found.log_dir).free_bytes >= found.until_bytes and not lacks_names(found.log_dir)

    def _look(self, path: str) -> tuple[Rescued, LogDir, list[TopicPartition]]:
        """The directory, and the logs in it that are ours to touch."""
        request, configuration = self._request, self._request.configuration
        assert configuration is not None, "a rescue is asked for on a command line"
        log_dir = self._log_dir(path)
        space, knowledge = space_of(path), Knowledge(log_dir, configuration, request.assumed)
        start_bytes = floor_bytes(space, 0.0)
        until_bytes = max(int(space.total_bytes * self._until), start_bytes)
        found = Rescued(path, space.free_bytes, start_bytes, until_bytes)
        found.settings_as_of_ms = knowledge.vouched_until_ms
        found.reserved_bytes = 0 if space.free_bytes else reserved_bytes(path)
        logs, why_held = partitions(log_dir, request), request.holds_of(path)
        alone = {tp: str(error) for tp, error in left_elsewhere(log_dir, logs).items()}
        here = [tp for tp in logs if tp not in alone]
        alone |= {tp: reason for tp in here if (reason := why_held(tp)) is not None}
        alone |= left_alone(log_dir, here, configuration, request.topics, request.assumed)
        ours = [tp for tp in logs if tp not in alone]
        found.would_help = [*why_alone(alone), *never_done(log_dir, request, ours)]
        return found, log_dir, sorted(ours, key=lambda tp: -log_size(log_dir.partition(tp))[0])

    def _log_dir(self, path: str) -> LogDir:
        found = known_log_dir(self._request, self._files, self._clock, path)
        if found is None:
            raise DirOffline(f"{path}: holds no log")
        return found

    # -- (a) to (c) ---------------------------------------------------------------------------------------------

    def _foreseen_leftovers(self, log_dir: LogDir) -> Iterator[Step]:
        freed, staged = 0, 0
        for name in self._names(log_dir):
            with contextlib.suppress(CleanerdError, OSError):
                freed += freed_bytes(self._files, leftover_files(log_dir, name))
        for tp in partitions(log_dir, self._request):
            staged += 0 if is_waiting(partition := log_dir.partition(tp)) else staged_bytes(partition)
        if freed + staged:
            text = "what a start of the broker would delete" + (", staged results" if staged else "")
            yield Step("leftovers", text, 0, freed + staged, "planned")

    def _names(self, log_dir: LogDir) -> list[str]:
        """Names of partition directories that nobody holds, in any transition; none if it is not known whose they are."""
        listed = self._files.list_names(log_dir.path) if log_dir.is_known else []
        parsed = {name: parse_partition_dir(name) for name in listed}
        why_held = self._request.holds_of(log_dir.path)
        return [name for name, found in parsed.items() if found is not None and why_held(found[0]) is None]

    def _delete_leftovers(self, log_dir: LogDir) -> Iterator[Step]:
        """Directory by directory, so that a broker that starts meanwhile gets `.lock`."""
        current = [str(tp) for tp in partitions(log_dir, self._request)]
        list(log_dir.recover(current))  # ends what a commit of ours has left, before its names are judged
        freed, is_any = 0, False
        for name in self._names(log_dir):
            with each_log(log_dir.path) as deletion:
                paths = leftover_files(log_dir, name)
                if paths:
                    with log_dir.lock() as lock:
                        lock.check()
                        comes_back = freed_bytes(self._files, paths)
                        delete_leftovers(log_dir, name)
                    freed, is_any = freed + comes_back, True
            if isinstance(deletion.error, LockHeld):
                break
            if deletion.error is not None:
                yield Step("leftovers", name, 0, 0, "failed", str(deletion.error))
        if is_any:
            yield Step("leftovers", "what a start of the broker would have deleted", 0, freed, "done")

    def _make_writable(
        self, log_dir: LogDir, ours: Sequence[TopicPartition], found: Rescued, least_bytes: int
    ) -> bool:
        """So many bytes of room, and names for the files of the first group; whether any index has gone for that."""

        def suffices() -> bool:
            return (
                names_left(log_dir.path) >= LEAST_INODES and space_of(log_dir.path).free_bytes >= least_bytes
            )

        gone, before = 0, space_of(log_dir.path).free_bytes
        for tp in self._with_indexes(log_dir, ours):
            if suffices():
                break
            with log_dir.lock() as lock:
                lock.check()
                with each_log(log_dir.partition(tp).path):
                    for is_gone in delete_offset_indexes(log_dir.partition(tp)):
                        gone += is_gone
                        if suffices() or lock.is_wanted:
                            break
        if gone:
            freed = max(space_of(log_dir.path).free_bytes - before, 0)
            found.add_indexes(Step("indexes", f"{gone} {_INDEXES}", 0, freed, "done"))
        return gone > 0

    def _with_indexes(self, log_dir: LogDir, ours: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Those of these logs whose indexes a broker makes again, and nobody uses."""
        if not log_dir.is_known or log_dir.owner is Owner.LIVE_BROKER:
            return []
        return [tp for tp in ours if self._request.topic_config(tp.topic).compact]

    def _indexes_bytes(self, log_dir: LogDir, ours: Sequence[TopicPartition]) -> int:
        found = 0
        for tp in self._with_indexes(log_dir, ours):
            with each_log(log_dir.partition(tp).path):
                found += offset_indexes_bytes(log_dir.partition(tp))
        return found

    def _more_indexes(
        self, log_dir: LogDir, ours: Sequence[TopicPartition], found: Rescued, least_bytes: int
    ) -> bool:
        """(c) once more, if that makes room for a group that needs so much; whether it has been done."""
        lacks_bytes = least_bytes - space_of(log_dir.path).free_bytes
        if 0 < lacks_bytes <= self._indexes_bytes(log_dir, ours):
            with contextlib.suppress(LockHeld):  # a broker has started
                return self._make_writable(log_dir, ours, found, least_bytes)
        return False

    def _retained(
        self, log_dir: LogDir, ours: Sequence[TopicPartition], starts: dict[TopicPartition, int] | None = None
    ) -> Iterator[Step]:
        """(b). `starts`, of a plan, gets where these logs will start then."""
        dry_run = starts is not None
        configuration = self._request.configuration
        assert configuration is not None
        limits = Knowledge(log_dir, configuration, self._request.assumed).limits
        checkpoints = log_dir.checkpoints()
        with contextlib.nullcontext() if dry_run else log_dir.cleaned_by_us():
            for tp in ours:
                with each_log(log_dir.partition(tp).path) as log:
                    done = retain_log(log_dir, tp, checkpoints, limits(tp.topic), dry_run=dry_run)
                if isinstance(log.error, LockHeld):
                    raise log.error
                if log.error is not None:
                    yield Step("retention", str(tp), 0, 0, "failed", str(log.error))
                elif done is not None:
                    if starts is not None:
                        starts[tp] = done.log_start_offset
                    outcome: Outcome = "planned" if dry_run else "done"
                    yield Step("retention", str(tp), 0, done.frees_bytes, outcome, str(done))

    # -- (d) ----------------------------------------------------------------------------------------------------

    def _compact(self, log_dir: LogDir, ours: Sequence[TopicPartition], found: Rescued) -> None:
        """The largest logs first, before them those whose result waits; again what had no room, as long as more is free."""
        waiting = [tp for tp in ours if is_waiting(log_dir.partition(tp))]
        left = [*waiting, *(tp for tp in ours if tp not in waiting)]
        steps: dict[TopicPartition, Step] = {}
        while left and not self._is_enough(found):
            before, refused, is_any = space_of(log_dir.path).free_bytes, set[TopicPartition](), False
            for job in in_jobs(left, lambda tp: log_size(log_dir.partition(tp))[0]):
                for result in () if self._is_enough(found) else self._clean(log_dir.path, job):
                    if _error_of(result) == CleanedByAnother.__name__:
                        raise CleanedByAnother(result.reason or "")
                    steps[result.topic_partition] = _done(result, steps.get(result.topic_partition))
                    is_any |= (
                        isinstance(result.outcome, Committed) or result.after.bytes < result.before.bytes
                    )
                    if _error_of(result) == NoSpace.__name__ or _groups_left(result):
                        refused.add(result.topic_partition)
            left = [tp for tp in left if tp in refused]
            has_more = is_any and self._has_more(log_dir, before)
            if not left or has_more or self._through_spare(log_dir, left, found):
                continue
            needs = [steps[tp].needs_bytes for tp in left if steps[tp].needs_bytes]
            if not needs or not self._more_indexes(log_dir, ours, found, min(needs)):
                break
        found.steps += steps.values()

    def _through_spare(self, log_dir: LogDir, logs: Sequence[TopicPartition], found: Rescued) -> bool:
        """(e) for the first of these logs of which that frees something; whether it has."""
        if self._spare is None or why_no_spare(log_dir, self._spare) is not None:
            return False
        through = ThroughSpare(
            log_dir, self._request, self._progress, self._clock, self._session, self._files, self._spare
        )
        for tp in logs:
            before_bytes = log_size(log_dir.partition(tp))[0]
            with each_log(log_dir.partition(tp).path) as log:
                result = through.exchange(tp)
                needed = result.statistics.least_extra_bytes
                if isinstance(result.outcome, Staged):
                    freed = max(before_bytes - log_size(log_dir.partition(tp))[0], 0)
                    found.steps.append(Step("spare", str(tp), needed, freed, "done"))
                    return True
                outcome: Outcome = "no_room" if _error_of(result) == NoSpace.__name__ else "failed"
                found.steps.append(Step("spare", str(tp), needed, 0, outcome, result.reason))
            if log.error is not None:
                found.steps.append(Step("spare", str(tp), 0, 0, "failed", str(log.error)))
        return False

    def _resumed(self, path: str) -> Iterator[Step]:
        """End an interrupted step (e) of an earlier rescue before anything else."""
        log_dir = self._log_dir(path)
        for tp in partitions(log_dir, self._request):
            partition = log_dir.partition(tp)
            if not interrupted(partition):
                continue
            with log_dir.lock() as lock:
                lock.check()
                with each_log(partition.path) as log:
                    _check_resumable(partition)
                    resume(partition)
            outcome: Outcome = "done" if log.error is None else "failed"
            yield Step("resumed", str(tp), 0, 0, outcome, None if log.error is None else str(log.error))

    def _has_more(self, log_dir: LogDir, before_bytes: int) -> bool:
        """Whether more is free than before, once what was done has freed its space."""
        wait_for_deleted()
        is_live = log_dir.owner is Owner.LIVE_BROKER
        ends_s = self._clock.monotonic_s() + (_DELETED_WAIT_S if is_live else _FREED_WAIT_S)
        while space_of(log_dir.path).free_bytes <= before_bytes:
            if self._clock.monotonic_s() > ends_s:
                return False
            threading.Event().wait(_POLL_S)
        return True

    def _clean(
        self, path: str, logs: Iterable[TopicPartition], starts: Mapping[TopicPartition, int] | None = None
    ) -> list[LogResult]:
        """Clean these logs, or with `starts`, of a plan, foresee that."""
        of_logs = replace(self._request, log_dirs=(path,), logs=frozenset(logs))
        request = replace(of_logs, starts=starts or {}, dry_run=starts is not None)
        results = clean_once([request], self._progress, self._clock, session=self._session, files=self._files)
        return [one for one in results if one.topic_partition != NO_LOG] if request.logs else []


def _check_resumable(partition: PartitionDir) -> None:
    """As `storage.spare` has it, and raise CorruptFile where the spare does not give back what it was given."""
    spare, group = check_resumable(partition)
    if group is not None:
        read_back(spare)


def _error_of(result: LogResult) -> str | None:
    return result.outcome.error if isinstance(result.outcome, Failed) else None


def _groups_left(result: LogResult) -> int:
    return result.outcome.groups_left if isinstance(result.outcome, Committed | Staged) else 0


def _foreseen(result: LogResult) -> Step:
    name, found = str(result.topic_partition), result.statistics
    if not isinstance(result.outcome, Planned):
        outcome: Outcome = "skipped" if isinstance(result.outcome, Skipped | Held) else "failed"
        return Step("compaction", name, 0, 0, outcome, result.reason)
    outcome = "failed" if found.linked_bytes and not found.frees_bytes else "planned"
    return Step("compaction", name, found.least_extra_bytes, found.frees_bytes, outcome, result.reason)


def _done(result: LogResult, before: Step | None) -> Step:
    """`before`: what an earlier try has come to."""
    outcome: Outcome = "skipped"
    if isinstance(result.outcome, Committed | Unchanged):
        outcome = "done"
    elif _error_of(result) == NoSpace.__name__:
        outcome = "no_room"
    elif isinstance(result.outcome, Failed | Aborted | Staged):  # a broker has started
        outcome = "failed"
    freed = 0 if before is None else before.frees_bytes
    freed += result.statistics.frees_bytes if isinstance(result.outcome, Committed) else 0
    name, needs_bytes = str(result.topic_partition), result.statistics.least_extra_bytes
    return Step("compaction", name, needs_bytes, freed, "done" if freed else outcome, result.reason)


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    """A context in which a directory that has no room for a lock file is no error."""
    try:
        yield
    except DirOffline as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep a second rescue out. The lock is on the directory itself: there may be no room for a file."""
    with open_directory(path, os.O_RDONLY) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CleanedByAnother(f"another rescue works in {path}") from error
        except OSError as error:  # NFS locks no directory: then `.cleanerd.lock` has to do
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield
