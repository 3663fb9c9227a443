"""Which replicas of this node's partitions are in sync, followed through the metadata log (spec disk F3).

Most of what is appended to a metadata log are changes of in-sync replicas; they are no reason to read the configuration
again, so they are followed here. The newest snapshot and what follows it are read once; after that only what was appended,
as `metadata_tail` does it. Whatever else happens (another segment, a truncation, bytes that cannot be read) everything is
read again.

A snapshot has no times of changes, only its own. But each change of a partition raises its epoch: if that is the same as in
an older snapshot, or when all was read before, nothing has changed since. So the partition gets the earlier time. Older
snapshots are read only where that decides, one at a time.

Up to two hundred thousand partitions: only those with a replica on this node are kept.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from cleanerd.env.files import Files, regular_file
from cleanerd.errors import CorruptFile
from cleanerd.format import names
from cleanerd.format.batch import parse_header
from cleanerd.format.errors import FormatError
from cleanerd.format.head import HEADER_SIZE
from cleanerd.format.metadata_records import (
    PartitionChange,
    PartitionRecord,
    RemoveTopicRecord,
    TransactionMark,
    parse_partition_record,
)
from cleanerd.format.names import FileKind, segment_path
from cleanerd.policy.tombstones import ReplicaFacts
from cleanerd.storage.metadata_log import (
    ATTEMPTS_MAX,
    Batch,
    newest_batches,
    snapshot_batches,
    snapshot_names,
)
from cleanerd.storage.metadata_tail import Mark
from cleanerd.storage.partition_dir import bases_of

_NO_EPOCH = -1
"""Of a partition of which only a change was met."""
_NEVER_MS = 2**63 - 1
_Change = PartitionRecord | PartitionChange | RemoveTopicRecord


@dataclass(frozen=True, slots=True)
class _Partition:
    """As `ReplicaFacts`; `removing`, `adding`, `epoch`: as in the records. `is_exact`: `since_ms` is that of a change."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    epoch: int
    since_ms: int
    is_exact: bool

    def facts(self, known_until_ms: int | None) -> ReplicaFacts:
        return ReplicaFacts(
            self.replicas, self.isr, bool(self.removing or self.adding), self.since_ms, known_until_ms
        )

    def is_settled(self, node_id: int) -> bool:
        return self.facts(None).is_settled(node_id)


_NOTHING = _Partition((), (), (), (), _NO_EPOCH, 0, is_exact=False)
_Partitions = dict[UUID, dict[int, _Partition]]


@dataclass(slots=True)
class _State:
    """The partitions of a node after the records so far; `until_ms`: time of the last batch, 0 before the first."""

    node_id: int
    partitions: _Partitions = field(default_factory=dict)
    until_ms: int = 0
    _transaction: list[tuple[_Change, int, bool]] | None = None

    def replay(self, batch: Batch, offset: int = 0, *, is_log: bool) -> None:
        """Apply the records of a batch from `offset` on; `is_log`: False for a snapshot. Raises FormatError."""
        _, header, records = batch
        self.until_ms = header.max_timestamp_ms
        for record in () if header.is_control else records:
            if record.offset >= offset and record.value is not None:
                self._take(parse_partition_record(record.value), header.max_timestamp_ms, is_log)

    def _take(self, record: _Change | TransactionMark | None, at_ms: int, is_log: bool) -> None:
        if isinstance(record, TransactionMark):
            finished, self._transaction = self._transaction or [], None
            if record is TransactionMark.BEGIN:
                self._transaction = []
            for held in finished if record is TransactionMark.END else ():
                self._apply(*held)
        elif record is not None and self._transaction is not None:
            self._transaction.append((record, at_ms, is_log))
        elif record is not None:
            self._apply(record, at_ms, is_log)

    def _apply(self, record: _Change, at_ms: int, is_log: bool) -> None:
        if isinstance(record, RemoveTopicRecord):
            self.partitions.pop(record.topic_id, None)
            return
        of_topic = self.partitions.get(record.topic_id, {})
        before = of_topic.get(record.partition)
        if isinstance(record, PartitionRecord):
            after = _Partition(
                record.replicas, record.isr, record.removing, record.adding, record.epoch, at_ms, is_log
            )
        elif before is None and self.node_id not in (record.replicas or ()):
            return
        else:
            after = _changed(before or _NOTHING, record, at_ms)
        if self.node_id not in after.replicas:
            of_topic.pop(record.partition, None)
            return
        self.partitions.setdefault(record.topic_id, of_topic)[record.partition] = self._dated(before, after)

    def _dated(self, before: _Partition | None, after: _Partition) -> _Partition:
        """The new state, with the time of the old one if no relevant field has changed."""
        if before is None or set(before.replicas) != set(after.replicas):
            return after
        if before.is_settled(self.node_id) != after.is_settled(self.node_id):
            return after
        return _since(after, before)

    def date_back(self, older: "_State") -> None:
        """Give partitions that have not changed since an older state the time that they have there."""
        for topic_id, of_topic in self.partitions.items():
            known = older.partitions.get(topic_id, {})
            for partition, found in of_topic.items():
                before = known.get(partition)
                if before is not None and before.epoch == found.epoch != _NO_EPOCH:
                    of_topic[partition] = _since(found, min(found, before, key=lambda one: one.since_ms))


def _since(found: _Partition, dated: _Partition) -> _Partition:
    return replace(found, since_ms=dated.since_ms, is_exact=dated.is_exact)


def _changed(before: _Partition, change: PartitionChange, at_ms: int) -> _Partition:
    return _Partition(
        before.replicas if change.replicas is None else change.replicas,
        before.isr if change.isr is None else change.isr,
        before.removing if change.removing is None else change.removing,
        before.adding if change.adding is None else change.adding,
        before.epoch if before.epoch == _NO_EPOCH else before.epoch + 1,
        at_ms,
        is_exact=True,
    )


class Replicas:
    """In-sync replicas of the partitions of one node, by the metadata log in `directory`; thread-safe."""

    def __init__(self, files: Files, directory: str, node_id: int) -> None:
        self.node_id = node_id
        self._files = files
        self._directory = directory
        self._mutex = threading.Lock()
        self._state = _State(node_id)
        self._mark: Mark | None = None
        self._is_read = False  # up to the mark, and not beyond
        self._compared = set[str]()  # snapshots
        self._times_ms: dict[str, int] = {}  # of snapshots

    def of(self, topic_id: UUID, partition: int, *, settled_by_ms: int) -> ReplicaFacts | None:
        """The state of a partition now; None if it has no replica here.

        `settled_by_ms`: from which time on it has to be settled for something to go; an older snapshot may show it.
        Raises CorruptFile, FormatError, OSError if the metadata log cannot be read.
        """
        with self._mutex:
            self._refresh()
            found = self._of(topic_id, partition)
            if found is not None and not found.is_exact and found.since_ms > settled_by_ms:
                self._compare(settled_by_ms)
                found = self._of(topic_id, partition)
            return None if found is None else found.facts(self._state.until_ms)

    def _of(self, topic_id: UUID, partition: int) -> _Partition | None:
        return self._state.partitions.get(topic_id, {}).get(partition)

    def _refresh(self) -> None:
        bases = bases_of(self._files.list_names(self._directory))
        segments = [segment_path(self._directory, base, FileKind.LOG) for base in bases]
        if self._mark is not None and _was_truncated(self._mark, segments):
            self._state, self._mark = _State(self.node_id), None  # what followed did not happen
        is_here = self._is_read and self._mark is not None and self._mark.path in segments[-1:]
        if not is_here or not self._read_on(self._mark):
            self._is_read = False
            self._read()
            self._is_read = True

    def _read(self) -> None:
        for attempt in range(ATTEMPTS_MAX):
            try:
                state, mark = self._read_all()
            except FileNotFoundError:  # the broker deleted an old segment or snapshot after the listing
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            else:
                break
        state.date_back(self._state)
        self._state, self._mark = state, mark
        self._compared.clear()

    def _read_all(self) -> tuple[_State, Mark | None]:
        state, last = _State(self.node_id), None
        for path, batch, offset in newest_batches(self._files, self._directory):
            try:
                state.replay(batch, offset, is_log=path.endswith(FileKind.LOG.value))
            except FormatError as problem:
                raise CorruptFile(path, batch[0], problem.expected, problem.found) from problem
            last = (path, batch)
        if last is None or not last[0].endswith(FileKind.LOG.value):
            return state, None
        path, (position, header, _) = last
        with regular_file(path) as file:
            file.seek(position)
            head = file.read(HEADER_SIZE)
        is_same = parse_header(head) == header
        return state, Mark(path, position, head, position + header.size_bytes) if is_same else None

    def _read_on(self, mark: Mark | None) -> bool:
        """Apply the batches after the mark; False if one of them is not as expected."""
        assert mark is not None
        try:
            self._mark, batches = mark.read_on()
            for batch in batches:
                self._state.replay(batch, is_log=True)
        except FormatError:
            return False
        return True

    def _compare(self, settled_by_ms: int) -> None:
        """Look at the newest snapshot that is old enough, or the oldest."""
        snapshots = snapshot_names(self._files.list_names(self._directory))
        old = [name for name in snapshots if self._time_ms(name) <= settled_by_ms] or snapshots[:1]
        if not old or old[-1] in self._compared:
            return
        self._compared.add(old[-1])
        older, path = _State(self.node_id), os.path.join(self._directory, old[-1])
        with suppress(FormatError, FileNotFoundError):  # then nothing older is known
            for batch in snapshot_batches(self._files.read(path, names.SEGMENT_MAX_BYTES)):
                older.replay(batch, is_log=False)
            self._state.date_back(older)

    def _time_ms(self, name: str) -> int:
        """When a snapshot was made; never for one that cannot be read."""
        if name not in self._times_ms:
            with suppress(OSError, FormatError), regular_file(os.path.join(self._directory, name)) as file:
                self._times_ms[name] = parse_header(file.read(HEADER_SIZE)).max_timestamp_ms
        return self._times_ms.get(name, _NEVER_MS)


def _was_truncated(mark: Mark, segments: Sequence[str]) -> bool:
    """Whether something else is where the mark is. A segment that lay before all others was deleted with a snapshot."""
    try:
        return not mark.is_there()
    except FileNotFoundError:
        return not segments or segments[0] < mark.path


class FollowedReplicas:
    """The replicas of the nodes that a process works for; thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._mutex = threading.Lock()
        self._nodes: dict[tuple[str, int], Replicas] = {}

    def of(self, directory: str, node_id: int) -> Replicas:
        """The followed replicas of a node, by the metadata log in `directory`."""
        with self._mutex:
            key = (directory, node_id)
            if key not in self._nodes:
                self._nodes[key] = Replicas(self._files, directory, node_id)
            return self._nodes[key]
