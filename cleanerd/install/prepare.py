"""The prepared directory: the log as it will be once its staged result is in place, as far as it is closed.

==========================  ==========================================================================================
file                        where it comes from
==========================  ==========================================================================================
`.log`                      a hard link: of the staged file, or of the live segment where nothing is staged. Closed
                            segments are never written again, and what is deleted under one name stays under the other
`.index`, `.timeindex`,     copies: a broker that loads a directory resizes the indexes of its last segment
`.txnindex`
`<end>.snapshot`            a copy of the snapshot that the broker took when it began the segment `<end>`
`leader-epoch-checkpoint`   the epochs that begin below the end
`partition.metadata`        the topic id
==========================  ==========================================================================================

The end is the highest base of a segment that is not above the high watermark, has a sound producer snapshot, and at which
the segment before it ends: then the broker loads the producer state of exactly this log. What lies above is fetched again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from cleanerd.env.files import Files
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs
from cleanerd.format.errors import FormatError
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.install.area import Area, NotInstallable
from cleanerd.storage.checkpoints import read_checkpoints, read_leader_epochs
from cleanerd.storage.commit import revalidate
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import SegmentOnDisk, quick_log_end_offset, scan_partition
from cleanerd.storage.staged import StagedGroup, read_manifests
from cleanerd.storage.topic_id import topic_id_mismatch


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a prepared directory would be, or is. `tail_bytes`: of the log from its end on, to be fetched again.

    `copied_bytes`: of the files that are no links.
    `segments`: base offset to the files of the segment, by kind: paths in the partition directory. `size_bytes`: of the log.
    """

    directory: str
    size_bytes: int
    end_offset: int
    round_end: int
    freed_bytes: int
    tail_bytes: int
    copied_bytes: int
    segments: Mapping[int, Mapping[FileKind, str]]


def plan(files: Files, log_dir: str, tp: TopicPartition) -> Prepared:
    """What can be prepared of a log whose result is staged. Nothing is touched.

    Raises NotInstallable with the reason; SourceChanged, CorruptFile, OSError as the commit of the result would.
    """
    partition = PartitionDir.of(files, log_dir, tp)
    directory = partition.path
    groups = read_manifests(partition)
    if not groups or not groups[-1].is_last:
        raise NotInstallable(f"{directory}: no whole result is staged")
    for group in groups:
        revalidate(partition, group)
    checkpoints = read_checkpoints(files, log_dir)
    snapshot = scan_partition(files, log_dir, tp, checkpoints, is_kafka=True)
    if snapshot is None:
        raise SourceChanged(f"{directory}: is empty")
    live = {segment.base_offset: segment for segment in snapshot.segments}
    replaced = {source.base_offset for group in groups for source in group.sources}
    start = checkpoints.log_start.get(tp, 0)
    bases = sorted(live)
    followers = dict(pairwise(bases))
    end = _end(partition, live, groups, snapshot.high_watermark)
    kept = {
        base: {kind: segment.sibling(kind) for kind in SEGMENT_KINDS if kind in segment.kinds}
        for base, segment in live.items()
        if base < end and base not in replaced and followers[base] > start
    }
    kept |= {group.base_offset: _staged_files(partition, group) for group in groups}
    copied = [path for found in kept.values() for kind, path in found.items() if kind is not FileKind.LOG]
    return Prepared(
        directory,
        snapshot.size_bytes,
        end,
        groups[-1].round_end,
        sum(s.size_bytes for g in groups for s in g.sources) - sum(g.sizes[FileKind.LOG] for g in groups),
        sum(segment.size_bytes for base, segment in live.items() if base >= end),
        sum(files.stat(path).size_bytes for path in copied),
        dict(sorted(kept.items())),
    )


def _end(
    partition: PartitionDir,
    live: Mapping[int, SegmentOnDisk],
    groups: Sequence[StagedGroup],
    high_watermark: int,
) -> int:
    """Where the prepared log ends (the head of this module). Raises NotInstallable."""
    last, bases = groups[-1], sorted(live)
    for before, base in reversed(list(pairwise(bases))):
        if base < last.next_base_offset:
            break
        is_staged = before >= last.base_offset and before in {s.base_offset for s in last.sources}
        reached = last.last_offset + 1 if is_staged else quick_log_end_offset(partition.files, live[before])
        if base <= high_watermark and reached == base and _has_snapshot(partition, base):
            return base
    raise NotInstallable(
        f"{partition.path}: no segment from {last.next_base_offset} on begins at the end of the one before it, with a "
        f"producer snapshot, and not above the high watermark {high_watermark}"
    )


def _staged_files(partition: PartitionDir, group: StagedGroup) -> dict[FileKind, str]:
    return {kind: partition.path_of(group.staged(kind)) for kind in SEGMENT_KINDS if kind in group.sizes}


def _has_snapshot(partition: PartitionDir, offset: int) -> bool:
    try:
        parse_producer_snapshot(partition.files.read(_snapshot(partition.path, offset)))
    except (FormatError, OSError):
        return False
    return True


def _snapshot(directory: str, offset: int) -> str:
    return os.path.join(directory, str(SegmentFileName(offset, FileKind.PRODUCER_SNAPSHOT)))


def prepare(
    files: Files,
    area: Area,
    prepared: Prepared,
    install_id: str,
    topic_id: UUID,
    alive: Callable[[], object] = lambda: None,
) -> None:
    """Make the directory, complete and synced; `alive` is called with every file.

    Raises NotInstallable, SourceChanged, CorruptFile, OSError.
    """
    source = PartitionDir(files, prepared.directory)
    mismatch = topic_id_mismatch(source, topic_id)
    if mismatch is not None:
        raise NotInstallable(mismatch)
    epochs = [e for e in read_leader_epochs(source) if e.start_offset < prepared.end_offset]
    if not epochs:
        raise NotInstallable(f"{source.path}: without leader epochs the broker would fetch all of it")
    area.make()
    target = area.prepared
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(target)
    os.mkdir(target)
    try:
        files.adopt_owner(target, source.path)
        _fill(files, prepared, target, alive)
        for name, content in (
            (names.LEADER_EPOCH_CHECKPOINT, render_leader_epochs(epochs)),
            (names.PARTITION_METADATA, render_partition_metadata(topic_id)),
        ):
            files.write(os.path.join(target, name), content)
            files.adopt_owner(os.path.join(target, name), source.path_of(name))
        area.mark(target, install_id)
        for name in files.list_names(target):
            alive()
            files.fsync(os.path.join(target, name))
        files.fsync_dir(target)
        files.fsync_dir(area.path)
    except FileNotFoundError as error:
        raise SourceChanged(f"{error.filename}: is gone") from error


def _fill(files: Files, prepared: Prepared, target: str, alive: Callable[[], object]) -> None:
    for base, sources in prepared.segments.items():
        for kind, source in sources.items():
            alive()
            name = os.path.join(target, str(SegmentFileName(base, kind, Suffix.LIVE)))
            if kind is FileKind.LOG:
                try:
                    os.link(source, name)
                except PermissionError as error:
                    raise NotInstallable(
                        f"{source}: expected a file system and an owner that allow hard links: {error.strerror}"
                    ) from error
            else:
                _copy(files, source, name)
    snapshot = _snapshot(prepared.directory, prepared.end_offset)
    _copy(files, snapshot, os.path.join(target, os.path.basename(snapshot)))


def _copy(files: Files, source: str, target: str) -> None:
    files.write(target, files.read(source))
    files.adopt_owner(target, source)
