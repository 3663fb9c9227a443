"""Disk space that a cleaning needs beside the segments that it replaces: to the block, and before it writes; and what is
granted to cleanings that run at a time.

The parts of all groups of a round are written first. Then, group by group, each part but the first is appended to the new
`.log` and goes, unless it has been written there, and indexes and the manifest come.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cleanerd.cleaning.plan import CleaningPlan
from cleanerd.env.files import Files
from cleanerd.env.space import SWAP_BYTES, Space, make_room, space_for
from cleanerd.errors import NoSpace
from cleanerd.format import offset_index, time_index, txn_index
from cleanerd.format.head import HEADER_SIZE
from cleanerd.pipeline.segment_indexes import aborted_in
from cleanerd.pipeline.values import IndexedLog, RewrittenLog
from cleanerd.pipeline.whole_log import foreseen
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import staged_bytes
from cleanerd.units import size

_BLOCK_BYTES = 4096  # the unit in which file systems allocate
_MANIFEST_BYTES, _SOURCE_BYTES, _EPOCH_BYTES = 1024, 160, 40  # at most: all else, a source, a leader epoch
FILES_OF_GROUP = 5
"""A segment, three indexes, a manifest."""
_LEGACY_GROWTH_BYTES = 64  # at most, of a message of magic 0 or 1 in magic 2, or a batch in any codec


@dataclass(frozen=True, slots=True)
class _Part:
    """Size of a part, and how many entries it adds to each index at most."""

    size_bytes: int
    offset_entries: int
    time_entries: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Bytes that a group takes: its parts, the largest part that is appended while it still exists, the staged files.

    `replaced_bytes`: of segments that go with its commit; `linked_bytes`: of those that have another name (hard links), and
    stay. All count as files are written: a file system that compresses takes less, of the old and of the new ones.
    """

    parts_bytes: int
    appended_bytes: int
    staged_bytes: int
    replaced_bytes: int
    linked_bytes: int


class Room:
    """Bytes that the groups of a round take, by their numbers."""

    def __init__(self, plan: CleaningPlan, indexed: IndexedLog, parts: Mapping[int, Sequence[_Part]]) -> None:
        self._groups = {
            number: _group(plan, indexed, number, parts.get(number, ())) for number in indexed.groups_now
        }

    @classmethod
    def counted(cls, plan: CleaningPlan, rewritten: RewrittenLog) -> "Room":
        """The room for a rewritten or counted log."""
        parts = {
            number: [
                _Part(part.size_bytes, len(part.entries.positions) + bool(at), len(part.entries.timestamps))
                for at, part in enumerate(found)
            ]
            for number, found in rewritten.parts.items()
        }
        return cls(plan, rewritten.indexed, parts)

    @classmethod
    def of_any(cls, plan: CleaningPlan) -> "Room":
        """An upper bound for any content of the log except v0/v1 batches."""
        work = plan.work
        summaries = [foreseen(chunk) for chunk in work.chunks]
        groups = frozenset(range(work.groups))
        return cls.bound(
            plan,
            IndexedLog(
                work, (0, 0), 1, None, summaries, kept_aborted=[*work.aborted_txns], changed_groups=groups
            ),
        )

    @classmethod
    def bound(cls, plan: CleaningPlan, indexed: IndexedLog) -> "Room":
        """An upper bound before any rewrite: tombstone batches grow by a few bytes, v0/v1 batches and those that get another
        codec by more.
        """
        parts: dict[int, list[_Part]] = {}
        for chunk, summary in zip(indexed.work.chunks, indexed.summaries, strict=True):
            size, growing = summary.bytes, summary.legacy_batches
            if plan.work.recodes:
                growing = summary.batches
                size = max(size, summary.expanded_bytes + HEADER_SIZE * growing)
            size += size // 8 + _LEGACY_GROWTH_BYTES * growing
            entries = min(summary.batches, size // max(plan.work.index_interval_bytes, 1)) + 1
            parts.setdefault(chunk.group, []).append(_Part(size, entries, entries))
        return cls(plan, indexed, parts)

    @property
    def peak_bytes(self) -> int:
        """Peak of all groups of the round together."""
        return self.peak_of(self._groups)

    def first_bytes(self, *, by_group: bool) -> int:
        """Bytes without which nothing can be done: for all groups, or, `by_group`, for the first one."""
        return self.peak_of(sorted(self._groups)[:1]) if by_group else self.peak_bytes

    def peak_of(self, numbers: Collection[int]) -> int:
        """Peak of these groups together, in bytes."""
        groups = [self._groups[number] for number in sorted(numbers)]
        used = peak = sum(group.parts_bytes for group in groups)
        for group in groups:
            peak = max(peak, used + group.appended_bytes)
            used += group.staged_bytes - group.parts_bytes
        return max(peak, used)

    def fitting(self, numbers: Sequence[int], room_bytes: int) -> Sequence[int]:
        """The longest prefix of the groups that fits; empty if the first does not."""
        counts = range(len(numbers) + 1)
        found = bisect_right(counts, room_bytes, key=lambda count: self.peak_of(numbers[:count]))
        return numbers[: max(found - 1, 0)]

    @property
    def least_bytes(self) -> int:
        """Peak of the group that needs least of those that free something; 0 without one."""
        return min((self.peak_of([one]) for one, frees in self._frees.items() if frees > 0), default=0)

    @property
    def frees_bytes(self) -> int:
        """What the commits of those groups free."""
        return sum(frees for frees in self._frees.values() if frees > 0)

    @property
    def linked_bytes(self) -> int:
        """Of the segments that are replaced, what has another name on this disk."""
        return sum(group.linked_bytes for group in self._groups.values())

    def kept_bytes(self, numbers: Iterable[int]) -> int:
        """What the disk lacks once these groups are committed, because of that."""
        linked = [number for number in numbers if self._groups[number].linked_bytes]
        return sum(max(-frees, 0) for number, frees in self._frees.items() if number in linked)

    @property
    def why_kept(self) -> str | None:
        """Why the disk does not get back all that is replaced; None if it does."""
        if not self.linked_bytes:
            return None
        return (
            f"{size(self.linked_bytes)} of it have another name on this disk (hard links, as of a backup), and do not come "
            "back: remove those first"
        )

    @property
    def _frees(self) -> dict[int, int]:
        """What the commit of each group frees; less than nothing if it takes more."""
        return {number: group.replaced_bytes - group.staged_bytes for number, group in self._groups.items()}

    @property
    def names(self) -> int:
        """Files that all groups have together before the first is committed."""
        return FILES_OF_GROUP * len(self._groups)

    def freeing(self, room_bytes: int, names: int) -> Sequence[int]:
        """Groups for which there is room, and files, together, first those that free the most for the bytes they need.

        More than one leave SWAP_BYTES free. Where there is no room for any, the one that needs least; none where no group
        frees anything.
        """
        frees = {number: freed for number, freed in self._frees.items() if freed > 0}
        needs = {number: self.peak_of([number]) for number in frees}
        fitting = list[int]()
        for number in sorted(frees, key=lambda number: (-frees[number] / max(needs[number], 1), number)):
            if needs[number] <= room_bytes - (SWAP_BYTES if fitting else 0):
                fitting.append(number)
                room_bytes -= needs[number]
        return sorted(fitting[: names // FILES_OF_GROUP]) or sorted(frees, key=needs.__getitem__)[:1]


class Reservations:
    """Space granted to concurrent cleanings, by directory: each sees the free space less the grants of the others.

    Thread-safe. Staged files are neither free nor reserved any more.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex = threading.Lock()
        self._grants: dict[str, tuple[int, int]] = {}  # device and bytes, by directory

    def take(self, wanted: Mapping[str, int], least_free_bytes: int) -> int | None:
        """Grant so many bytes to directories of one file system, or none; returns how many there were for them then.

        `least_free_bytes` stay free. Raises OSError.
        """
        path = next(filter(os.path.isdir, wanted), next(iter(wanted)))  # a partition may be deleted meanwhile
        device, total = os.stat(path).st_dev, sum(wanted.values())
        with self._mutex:
            others = sum(
                self._left(directory, granted_bytes)
                for directory, (on, granted_bytes) in self._grants.items()
                if on == device and directory not in wanted
            )

            def available(space: Space) -> int:
                return space.free_bytes - least_free_bytes - others

            room = available(space_for(path, lambda space: available(space) >= total))
            if room < total:
                return max(room, 0)
            self._grants |= {directory: (device, size) for directory, size in wanted.items()}
            return None

    def release(self, directories: Iterable[str]) -> None:
        """Return the grant: all files of the cleaning are staged."""
        with self._mutex:
            for directory in directories:
                self._grants.pop(directory, None)

    def _left(self, directory: str, granted_bytes: int) -> int:
        try:
            staged = staged_bytes(PartitionDir(self._files, directory))
        except OSError:  # the log is gone, or comes and goes while we look
            return granted_bytes
        return max(granted_bytes - staged, 0)


def _group(plan: CleaningPlan, indexed: IndexedLog, number: int, parts: Sequence[_Part]) -> _Group:
    group, epochs = plan.groups[number], len(plan.candidate.leader_epochs)
    aborted = aborted_in(indexed, group.sources[0].base_offset, group.next_base_offset)
    staged = (
        sum(part.size_bytes for part in parts),
        offset_index.ENTRY_BYTES * sum(part.offset_entries for part in parts),
        time_index.ENTRY_BYTES * sum(part.time_entries for part in parts),
        txn_index.ENTRY_BYTES * len(aborted),
        _MANIFEST_BYTES + _SOURCE_BYTES * len(group.sources) + _EPOCH_BYTES * epochs,
    )
    sizes = [_blocks(staged[0])] if plan.work.in_place else [_blocks(part.size_bytes) for part in parts]
    replaced = sum(_blocks(source.size_bytes) for source in group.sources if source.identity.is_last_name)
    linked = sum(source.size_bytes for source in group.sources if not source.identity.is_last_name)
    return _Group(sum(sizes), max(sizes[1:], default=0), sum(map(_blocks, staged)), replaced, linked)


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def no_space(plan: CleaningPlan, extra: Room, first_bytes: int, room_bytes: int) -> NoSpace:
    """A log needs more than there is room for; `first_bytes`: its first group alone, if it may go by itself."""
    snapshot = plan.candidate.snapshot
    first = "" if first_bytes == extra.peak_bytes else f", {size(first_bytes)} for its first group alone"
    return NoSpace(
        f"{snapshot.topic_partition}: needs {size(extra.peak_bytes)} beside the old segments{first}; "
        f"{size(max(room_bytes, 0))} are free on the file system of {plan.work.directory} for it, "
        f"above the {size(plan.work.least_free_bytes)} that stay free",
        make_room(extra.frees_bytes, extra.least_bytes),
        extra.least_bytes,
    )
