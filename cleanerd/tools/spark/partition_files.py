"""New partition directories, from staged batches to a log directory that a broker loads.

A task stages each partition in a directory of its own beside the final one, named as a broker names a log that it deletes
(`orders-3.<32 digits>-delete`): whatever dies, the next start of a broker removes what was left. The digits begin with those
of the job. Every segment is read back, and everything in there is synced, before the task reports that it is done.

Commit, by the driver, under `.lock`:

1. No partition directory may be there that holds anything, and every segment that was staged must be: whoever starts a
   broker meanwhile, or runs a daemon, has them deleted. Checked for all before anything is done.
2. Parts of one partition by several tasks are moved into the first of them, which is synced.
3. Checkpoint entries of an earlier log of that name go; the new log gets its generation.
4. The directory is renamed to its final name; then the log directory is synced.

Power that fails between renames leaves some partitions whole, and the others not there at all.
"""

import os
import re
import secrets
import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from cleanerd.env.files import Files, RealFiles
from cleanerd.env.trust import open_directory
from cleanerd.errors import BadUsage, CorruptFile
from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs
from cleanerd.format.names import TopicPartition, deleted_dir_name
from cleanerd.format.offset_index import INDEX_INTERVAL_BYTES
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.storage.checkpoints import forget_partition
from cleanerd.storage.generation import begin_log
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.partition_dir import PartitionDir, bases_of
from cleanerd.tools.insight.new_segment import NewSegment
from cleanerd.tools.kernels.encode import RecordColumns, encode_columns

from .write_options import WriteOptions


@dataclass(frozen=True, slots=True, order=True)
class StagedPart:
    """What a task made of a partition: offsets [`first_offset`, `end_offset`) in so many `segments` in `directory`."""

    topic_partition: TopicPartition
    first_offset: int
    end_offset: int
    directory: str
    segments: int


class StagedPartition:
    """Takes the records of one partition, in order."""

    def __init__(self, options: WriteOptions, tp: TopicPartition, job: str) -> None:
        self._options = options
        self._tp = tp
        self._files = RealFiles()
        self.directory = os.path.join(options.path, deleted_dir_name(tp, job + secrets.token_hex(8)))
        os.mkdir(self.directory)
        self._segment: NewSegment | None = None
        self.end_offset = 0
        self._first_offset = -1
        self._appended = self._read_back = self._segments = 0

    def append(self, records: RecordColumns) -> None:
        """Encode and write records that follow the last ones. Raises as `close_segment`."""
        if self._first_offset < 0:
            self._first_offset = int(records.offsets[0])
        raw, rows = encode_columns(records, self._options.codec, self._options.batch_bytes)
        begin = 0
        while begin < len(rows):
            segment = self._segment
            count = 0 if segment is None else segment.fitting(rows[begin:], self._options.segment_bytes)
            if segment is None or count == 0:
                self.close_segment()
                at = int(rows["position"][begin])
                base_offset = int.from_bytes(raw[at : at + 8].tobytes())
                self._segment = NewSegment(self._files, self.directory, base_offset, "")
                continue
            segment.append(raw, rows[begin : begin + count])
            begin += count
        self.end_offset = int(records.offsets[-1]) + 1
        self._appended += len(records.offsets)

    def close_segment(self) -> None:
        """Finish the open segment, if there is one; the next records begin another.

        Raises: `CorruptFile` when it does not read back as it was written; `OSError`.
        """
        if self._segment is not None:
            self._segment.close(INDEX_INTERVAL_BYTES)
            self._read_back += self._segment.read_back()
            self._segment.publish()
            self._segments += 1
            self._segment = None

    def finish(self) -> StagedPart:
        """Everything that goes with the segments; all of it is synced. Raises as `close_segment`."""
        self.close_segment()
        if self._read_back != self._appended:
            raise CorruptFile(self.directory, 0, f"{self._appended} records", self._read_back)
        self._write(names.LEADER_EPOCH_CHECKPOINT, render_leader_epochs([(0, self._first_offset)]))
        topic_id = self._options.topic_ids.get(self._tp.topic)
        if topic_id is not None:
            self._write(names.PARTITION_METADATA, render_partition_metadata(topic_id))
        _adopt_owner(self._files, self._options.path, self.directory)
        self._files.fsync_dir(self.directory)
        return StagedPart(self._tp, self._first_offset, self.end_offset, self.directory, self._segments)

    def discard(self) -> None:
        """Delete all that was written."""
        if self._segment is not None:
            self._segment.abandon()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, name: str, content: bytes) -> None:
        path = os.path.join(self.directory, name)
        self._files.write(path, content)
        self._files.fsync(path)


def _adopt_owner(files: Files, log_dir: str, directory: str) -> None:
    """The broker that the log directory belongs to must be able to use the files (spec disk D4.6)."""
    theirs = os.path.join(log_dir, names.META_PROPERTIES)
    if files.exists(theirs):
        for name in files.list_names(directory):
            files.adopt_owner(os.path.join(directory, name), theirs)
        found = os.stat(log_dir)
        with open_directory(directory, os.O_RDONLY) as mine:
            if found.st_uid != os.fstat(mine).st_uid:
                os.fchown(mine, found.st_uid, found.st_gid)


def commit_staged(log_dir: str, staged: Iterable[StagedPart]) -> None:
    """Give all partitions their names: see the head of this module.

    Raises: `BadUsage` for a partition that is there already, or of which tasks wrote the same offsets; `CorruptFile` for one
    of which segments are gone; `LockHeld`; nothing was changed then. `CorruptFile` for a checkpoint that cannot be read,
    `OSError`.
    """
    files = RealFiles()
    parts = {tp: list(some) for tp, some in groupby(sorted(staged), lambda part: part.topic_partition)}
    with LogDirLock(log_dir):
        for tp, some in parts.items():
            _check_new(os.path.join(log_dir, str(tp)), some)
            for part in some:
                _check_whole(files, part)
        for tp, some in parts.items():
            directory = _joined(files, some)
            forget_partition(files, log_dir, tp)
            begin_log(PartitionDir(files, directory), uuid.uuid4().hex, like=_like(log_dir))
            files.rename(directory, os.path.join(log_dir, str(tp)))
        files.fsync_dir(log_dir)


def _like(log_dir: str) -> str:
    """A file with the owner that the files of the log directory have."""
    theirs = os.path.join(log_dir, names.META_PROPERTIES)
    return theirs if os.path.exists(theirs) else os.path.join(log_dir, names.LOCK)


def _check_new(target: str, parts: Sequence[StagedPart]) -> None:
    if os.path.lexists(target) and (
        not os.path.isdir(target) or os.path.islink(target) or os.listdir(target)
    ):
        raise BadUsage(f"{target}: holds something already, and nothing is ever overwritten")
    for before, after in pairwise(parts):
        if before.end_offset > after.first_offset:
            raise BadUsage(
                f"{before.topic_partition}: several tasks wrote it; repartition the rows by topic and partition before"
            )


def _check_whole(files: Files, part: StagedPart) -> None:
    found = len(bases_of(files.list_names(part.directory)))
    if found != part.segments:
        raise CorruptFile(part.directory, 0, f"{part.segments} segments", found)


def _joined(files: Files, parts: Sequence[StagedPart]) -> str:
    """One directory with the segments of all parts."""
    directory = parts[0].directory
    for part in parts[1:]:
        for name in files.list_names(part.directory):
            if names.parse_segment_file(name) is not None:
                files.rename(os.path.join(part.directory, name), os.path.join(directory, name))
        files.fsync_dir(directory)
    return directory


def discard_job(log_dir: str, job: str) -> None:
    """Remove everything that tasks of a job have staged and that was not committed."""
    ours = re.compile(rf".*\.{job}[0-9a-f]{{16}}-delete")
    for name in os.listdir(log_dir):
        if ours.fullmatch(name):
            shutil.rmtree(os.path.join(log_dir, name), ignore_errors=True)
