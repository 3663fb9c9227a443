"""Reading the KRaft metadata log: the cluster's topics and configuration (spec disk F).

1. Take the newest snapshot `<20-digit end offset>-<10-digit epoch>.checkpoint` that is complete: its last
   batch is the SNAPSHOT_FOOTER control batch. Without any, start from nothing at offset 0.
2. Replay the log batches from its end offset on. Records between the marks of a metadata transaction count
   when it ends, not at all when it is aborted or unfinished.

Invariants: offsets have no gap from the snapshot to the last whole batch. Only the very last batch of the
last segment may be torn or unreadable: a live broker may be writing it. Anything else is an error, never a
shorter answer: a lost override could cost data. A damaged length looks like a torn batch, to Kafka too; here it is one
only if no sound batch follows. Offsets never fall from batch to batch: no CRC covers the base offset, and records
below the start of the reading do not count.

The high watermark of this log is not on disk (F4): its last records may still be undone by the quorum (`read_vouched`).
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from cleanerd.config.model import CleanerdConfig, ClusterMetadata
from cleanerd.env.files import Files
from cleanerd.errors import BadUsage, CleanerdError, CorruptFile, DirOffline, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import BatchHeader, Record, decode_batch, iterate_batches, parse_header
from cleanerd.format.control import ControlType, parse_control_key
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import LENGTH_AT, LOG_OVERHEAD, MAGIC_AT
from cleanerd.format.meta_properties import MetaProperties, parse_meta_properties
from cleanerd.format.metadata_records import (
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    BrokerRecord,
    ConfigRecord,
    MetadataRecord,
    QuorumState,
    RemoveTopicRecord,
    TopicRecord,
    TransactionMark,
    parse_leader_change,
    parse_metadata_record,
    parse_quorum_state,
    parse_voters,
)
from cleanerd.format.names import FileKind, SegmentFileName, parse_segment_file, segment_path
from cleanerd.storage.doubts import Doubts, Tail
from cleanerd.storage.index_files import read_offset_index
from cleanerd.storage.partition_dir import bases_of, list_segments

ATTEMPTS_MAX = 3
"""How often a directory is listed again when files vanish while they are read."""

_RELEASES = (
    (1, "3.0"), (2, "3.1"), (3, "3.2"), (4, "3.3"), (8, "3.4"), (9, "3.5"), (12, "3.6"), (15, "3.7"), (20, "3.8"),
    (21, "3.9"), (22, "4.0"), (26, "4.1"), (28, "4.2"), (30, "4.3"), (31, "4.4"), (34, None),
)  # fmt: skip
"""From which metadata.version on which release (F3): a broker names the highest that it knows."""
_QUORUM_STATE = "quorum-state"
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_Node = tuple[str | None, int | None]
Batch = tuple[int, BatchHeader, list[Record]]
"""Its position in the file first."""


def find_metadata(files: Files, log_dirs: Iterable[str], metadata_log_dir: str) -> ClusterMetadata | None:
    """The metadata log of `log_dirs`: in one of them, else in a `metadata_log_dir` of the same cluster.

    None where there is none. Raises: `BadUsage` for directories of different nodes; as `read_metadata` else. A directory
    that cannot be read is passed over, unless what is looked for may lie there.
    """
    owners, failures = _owners(files, log_dirs)
    nodes = {_node(owner) for owner in owners.values() if owner}
    if len(nodes) > 1:
        raise BadUsage(f"log directories of different nodes in one run: {', '.join(sorted(owners))}")
    elsewhere = _owner(files, metadata_log_dir)
    if elsewhere and elsewhere.cluster_id in {cluster_id for cluster_id, _ in nodes}:
        owners.setdefault(metadata_log_dir, elsewhere)
    for log_dir, owner in owners.items():
        directory = os.path.join(log_dir, f"{names.CLUSTER_METADATA_TOPIC}-0")
        if files.exists(directory):
            # of a controller's directory on the same host the broker is another node
            node_id = owner.node_id if owner and _node(owner) in nodes else None
            return read_metadata(files, directory, node_id)
    for log_dir, failure in failures.items():
        if _may_hide_metadata(files, log_dir, is_brokers=bool(nodes)):
            raise failure
    return None


def why_other_node(files: Files, log_dir: str, config: CleanerdConfig) -> str | None:
    """Why a broker with this configuration would not start with one of its own directories: it belongs to another node.

    None for a directory that is not in its log.dirs, names no node, or cannot be read.
    """
    ours = {os.path.realpath(path) for path in config.log_dirs}
    owner = None
    with contextlib.suppress(CleanerdError, OSError):
        owner = _owner(files, log_dir)
    if owner is None or config.own_id is None or os.path.realpath(log_dir) not in ours:
        return None
    remedy = "(meta.properties): no broker starts with it; find out whose volume it is"
    if owner.node_id not in (None, config.own_id):
        wanted = f"a directory of node {config.own_id} (node.id, broker.id)"
        return f"{log_dir}: expected {wanted}, found one of node {owner.node_id} {remedy}"
    clusters = {path: one.cluster_id for path, one in _owners(files, config.log_dirs)[0].items() if one}
    for path, cluster_id in clusters.items():
        if None not in (cluster_id, owner.cluster_id) and cluster_id != owner.cluster_id:
            return f"{log_dir}: expected cluster {cluster_id}, as {path}, found {owner.cluster_id} {remedy}"
    return None


def by_node(files: Files, log_dirs: Sequence[str]) -> list[tuple[str, ...]]:
    """Group log directories by the node that they belong to.

    Where there are several nodes, directories of nobody are apart, and so is each that cannot be read. One of those that may
    have the metadata is with each node that has none of its own: nobody knows whose it is, and `find_metadata` raises.
    """
    owners, failures = _owners(files, log_dirs)
    nodes: dict[_Node | None, list[str]] = {}
    for log_dir, owner in owners.items():
        nodes.setdefault(_node(owner) if owner else None, []).append(log_dir)
    if len(nodes.keys() - {None}) < 2:
        return [tuple(log_dirs)]
    may_have_metadata = partial(_may_hide_metadata, files, is_brokers=True)
    hiding = list(filter(may_have_metadata, failures))
    for node in nodes.keys() - {None}:
        if not any(map(may_have_metadata, nodes[node])):
            nodes[node] += hiding
    together = {log_dir for own in nodes.values() for log_dir in own}
    return [*map(tuple, nodes.values()), *((log_dir,) for log_dir in failures if log_dir not in together)]


def _owners(
    files: Files, log_dirs: Iterable[str]
) -> tuple[dict[str, MetaProperties | None], dict[str, CleanerdError]]:
    """The owner of each directory, None for nobody's; and the errors of those that cannot be read."""
    owners: dict[str, MetaProperties | None] = {}
    failures: dict[str, CleanerdError] = {}
    for log_dir in log_dirs:
        try:
            owners[log_dir] = _owner(files, log_dir)
        except (DirOffline, CorruptFile) as error:
            failures[log_dir] = error
    return owners, failures


def _node(owner: MetaProperties) -> _Node:
    return owner.cluster_id, owner.node_id


def _may_hide_metadata(files: Files, log_dir: str, *, is_brokers: bool) -> bool:
    """Whether a directory that cannot be read may have the metadata, or name its owner; `is_brokers`: it is a broker's."""
    try:
        return files.exists(
            os.path.join(
                log_dir, f"{names.CLUSTER_METADATA_TOPIC}-0" if is_brokers else names.META_PROPERTIES
            )
        )
    except OSError:
        return is_brokers


def read_metadata(files: Files, directory: str, node_id: int | None = None) -> ClusterMetadata:
    """Read a metadata log, also a live one.

    Raises: `CorruptFile` for unreadable bytes or a gap, `DirOffline` for a system error (snapshots have mode
    0400: the broker's user or root may read them), `SourceChanged` if files keep vanishing.
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            stamp = _stamp(files, directory)
            image = _read_once(files, directory)
            state = _quorum_state(files, directory)
            voters = image.tail.voters or (None if state is None else state.voters)
        except FileNotFoundError:
            continue  # the broker deleted an old segment or snapshot after the listing
        except OSError as error:
            raise _offline(directory, error) from error
        _tails[directory] = (stamp, image.tail)
        release = None if node_id is None else image.releases.get(node_id)
        return ClusterMetadata(
            image.topic_ids(),
            image.topic_configs,
            image.broker_configs,
            directory,
            node_id,
            release,
            has_other_voters=voters is None or node_id is None or voters != {node_id},
        )
    raise SourceChanged(f"{directory}: files vanished during each of {ATTEMPTS_MAX} readings")


@dataclass(frozen=True, slots=True)
class Vouched:
    """How far the metadata log of a stopped node vouches for settings: until when, and which of them are uncertain."""

    until_ms: int
    doubts: Doubts


def read_vouched(files: Files, metadata: ClusterMetadata, log_dirs: Iterable[str]) -> Vouched:
    """How far the metadata log in `metadata.directory` vouches now; `log_dirs`: all known directories of its node.

    The last sign of life is the timestamp of the last batch: the active controller appends one twice a second
    (metadata.max.idle.interval.ms), and no copy changes it. But its clock may be ahead of the one here: it is not later than
    the file was written. Raises as `read_metadata`. A second look at what has not changed costs next to nothing.
    """
    directory = metadata.directory
    try:
        stamp = _stamp(files, directory)
        if _tails.get(directory, ((), None))[0] != stamp:
            read_metadata(files, directory, metadata.node_id)
        stamp, tail = _tails[directory]
        state = _quorum_state(files, directory)
    except OSError as error:
        raise _offline(directory, error) from error
    voters = tail.voters or (None if state is None else state.voters) or frozenset()
    leader = tail.leader
    if leader is None and state is not None and state.leader_epoch == tail.epoch:
        leader = state.leader
    return Vouched(
        min(tail.seen_ms, *(written_ms for _, _, written_ms in stamp)) if stamp else tail.seen_ms,
        tail.doubts(files, log_dirs, metadata.node_id, voters, leader),
    )


_Stamp = tuple[tuple[str, int, int], ...]
_tails: dict[str, tuple[_Stamp, Tail]] = {}
"""By directory: what the last reading of a log has left, and the name, size and modification time of its last segment."""


def last_appended_ms(files: Files, directory: str) -> int:
    """When a metadata log was written last, 0 for none. A broker that reaches its controllers appends twice a second.

    Raises DirOffline.
    """
    try:
        return max((written_ms for _, _, written_ms in _stamp(files, directory)), default=0)
    except OSError as error:
        raise _offline(directory, error) from error


def _stamp(files: Files, directory: str) -> _Stamp:
    """A stamp of a metadata log that changes with its content. Raises OSError."""
    listing = files.list_names(directory)
    bases = bases_of(listing)
    if not bases:
        return ()
    path = segment_path(directory, bases[-1], FileKind.LOG)
    found = files.stat(path)
    return ((path, found.size_bytes, found.mtime_ms),)


class _Image:
    """The state after the records replayed so far (F4)."""

    def __init__(self) -> None:
        self.tail = Tail()
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.releases: dict[int, str | None] = {}  # by broker, as which it was last started
        self._names: dict[UUID, str] = {}
        self._transaction: list[MetadataRecord] | None = None

    def topic_ids(self) -> dict[str, UUID]:
        return {name: topic_id for topic_id, name in self._names.items()}

    def replay(self, record: MetadataRecord, end_offset: int) -> None:
        """Apply one record, in log order; its batch ends at `end_offset`."""
        if record is TransactionMark.BEGIN:
            self._transaction = []
        elif isinstance(record, TransactionMark):
            finished, self._transaction = self._transaction or [], None
            for held in finished if record is TransactionMark.END else []:
                self._apply(held, end_offset)
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._apply(record, end_offset)

    def _apply(self, record: MetadataRecord, end_offset: int) -> None:
        if isinstance(record, TopicRecord):
            self._names[record.topic_id] = record.name
            self.tail.created(end_offset, record.name, record.topic_id)
        elif isinstance(record, RemoveTopicRecord):
            name = self._names.pop(record.topic_id, "")
            self.topic_configs.pop(name, None)
            self.tail.removed(end_offset, name)
        elif isinstance(record, ConfigRecord):
            self._configure(record)
            self.tail.configured(end_offset, record)
        elif isinstance(record, BrokerRecord):
            self.releases[record.broker_id] = _release(record.metadata_level)

    def _configure(self, record: ConfigRecord) -> None:
        resources = {RESOURCE_TOPIC: self.topic_configs, RESOURCE_BROKER: self.broker_configs}
        resource = resources.get(record.resource_type, {}).setdefault(record.resource_name, {})
        if record.value is None:
            resource.pop(record.name, None)
        else:
            resource[record.name] = record.value


def _release(metadata_level: int | None) -> str | None:
    known = [release for level, release in _RELEASES if level <= (metadata_level or 0)]
    return known[-1] if known else None


def _read_once(files: Files, directory: str) -> _Image:
    image = _Image()
    for path, batch, offset in newest_batches(files, directory):
        _replay_batch(image, path, batch, offset)
    return image


def newest_batches(files: Files, directory: str) -> Iterator[tuple[str, Batch, int]]:
    """The batches of the newest complete snapshot, then those of the log behind it, each with its file and with the offset
    from which on its records count.

    Raises CorruptFile, FileNotFoundError if files vanish meanwhile, OSError.
    """
    listing = list_segments(files, directory)
    offset = 0
    for name in reversed(snapshot_names(listing)):
        path = os.path.join(directory, name)
        batches = snapshot_batches(files.read(path, names.SEGMENT_MAX_BYTES))
        yield from ((path, batch, 0) for batch in batches)
        if batches:
            offset = int(name.partition("-")[0])
            break
    segments = _segments_from(offset, listing)
    for name in segments:
        path = os.path.join(directory, name)
        data = files.read(path, names.SEGMENT_MAX_BYTES)
        start = index_position(files, path, offset) if name == segments[0] else 0
        start = start if starts_batch(data, start, offset) else 0
        for batch in _log_batches(path, data, start, offset, is_last=name == segments[-1]):
            yield path, batch, offset
            offset = batch[1].next_offset


def snapshot_names(listing: Iterable[str]) -> list[str]:
    """Names of the snapshots in a metadata log, oldest first."""
    return sorted(filter(_SNAPSHOT.fullmatch, listing))


def snapshot_batches(data: bytes) -> list[Batch]:
    """All batches of a snapshot that is sound up to its footer; none of any other.

    An older snapshot and more of the log hold the same.
    """
    try:
        batches = [(position, *decode_batch(data, position)) for position, _, _ in iterate_batches(data)]
        ends = [0, *(header.next_offset for _, header, _ in batches)]
        is_in_order = all(
            header.base_offset >= end for (_, header, _), end in zip(batches, ends, strict=False)
        )
        last_keys = [records[-1].key for _, header, records in batches[-1:] if header.is_control and records]
        is_complete = [parse_control_key(key) for key in last_keys] == [ControlType.SNAPSHOT_FOOTER]
    except FormatError:
        return []
    return batches if is_complete and is_in_order else []


def _segments_from(offset: int, listing: list[str]) -> list[str]:
    """Names of the log files from the one with `offset` on, in order."""
    bases = bases_of(listing)
    below = [base for base in bases if base <= offset]
    return [str(SegmentFileName(base, FileKind.LOG)) for base in below[-1:] + bases[len(below) :]]


def _log_batches(path: str, data: bytes, start: int, offset: int, *, is_last: bool) -> Iterator[Batch]:
    """Batches from byte `start` on that reach `offset` or lie above it, without a gap."""
    view, end, next_offset = memoryview(data)[start:], 0, 0
    try:
        for position, size_bytes, _ in iterate_batches(view):
            header = parse_header(view, position)
            if header.base_offset < next_offset:
                raise CorruptFile(path, start + position, f"an offset from {next_offset}", header.base_offset)
            next_offset = header.next_offset
            if header.base_offset > offset:
                raise CorruptFile(path, start + position, f"a batch at offset {offset}", header.base_offset)
            if header.next_offset > offset:
                yield start + position, *decode_batch(view, position)
                offset = header.next_offset
            end = position + size_bytes
    except FormatError as problem:
        if not (is_last and _is_last_batch(data[start + end :])):
            raise CorruptFile(path, start + problem.position, problem.expected, problem.found) from problem
    else:
        if end < len(view) and not (is_last and _is_last_batch(data[start + end :])):
            raise CorruptFile(path, start + end, "a whole batch", f"{len(view) - end} bytes")


def _is_last_batch(tail: bytes) -> bool:
    """Whether unreadable bytes can be one unfinished append: a single batch with none after it, or blocks never written."""
    whole_size_bytes = LOG_OVERHEAD + int.from_bytes(tail[LENGTH_AT:LOG_OVERHEAD], signed=True)
    return not any(tail) or (whole_size_bytes >= len(tail) and not _holds_batch(tail))


def _holds_batch(tail: bytes) -> bool:
    """Whether a sound batch begins behind the first byte."""
    magic = tail.find(2, MAGIC_AT + 1)
    while magic >= 0:
        if starts_batch(tail, magic - MAGIC_AT):
            return True
        magic = tail.find(2, magic + 1)
    return False


def index_position(files: Files, log_path: str, offset: int = names.MAX_OFFSET) -> int:
    """Position at which to start in a segment of the metadata log; 0 without a usable index. Never raises.

    A quiet controller writes 170 000 batches a day, and the segment that holds the end of the newest snapshot is up to a
    week old. Without the index each reading would walk over all of them.
    """
    directory, _, name = log_path.rpartition("/")
    segment = parse_segment_file(name)
    assert segment is not None, "the path of a log file"
    path = f"{directory}/{name.removesuffix(FileKind.LOG.value)}{FileKind.OFFSET_INDEX.value}"
    try:
        return read_offset_index(files, path, segment.base_offset).lookup(offset)
    except OSError:
        return 0


def starts_batch(data: bytes | memoryview, position: int, offset: int = names.MAX_OFFSET) -> bool:
    """Whether a sound batch lies at `position` and begins at or before `offset`."""
    try:
        header, _ = decode_batch(data, position)
    except FormatError:
        return False
    return header.base_offset <= offset


def _replay_batch(image: _Image, path: str, batch: Batch, offset: int) -> None:
    """Replay the records of a batch from `offset` on."""
    position, header, records = batch
    image.tail.batch(header.leader_epoch, header.max_timestamp_ms, is_control=header.is_control)
    for record in records:
        if record.offset < offset:
            continue
        try:
            if header.is_control:
                kind = parse_control_key(record.key)
                if kind is ControlType.KRAFT_VOTERS:
                    image.tail.voters = parse_voters(record.value or b"")
                elif kind is ControlType.SNAPSHOT_FOOTER:
                    image.tail.covered()
                elif kind is ControlType.LEADER_CHANGE:
                    image.tail.leader = parse_leader_change(record.value or b"")
                continue
            parsed = parse_metadata_record(record.value or b"")
        except FormatError as problem:
            where = f"{problem.expected} at byte {problem.position} of the record at offset {record.offset}"
            raise CorruptFile(path, position, where, problem.found) from problem
        if parsed is not None:
            image.replay(parsed, header.next_offset)


def _quorum_state(files: Files, directory: str) -> QuorumState | None:
    """The content of `quorum-state`; its voters are those before kraft.version 1, after which it is not written again."""
    path = os.path.join(directory, _QUORUM_STATE)
    if not files.exists(path):
        return None
    with corruption_in(path):
        return parse_quorum_state(files.read(path))


def _owner(files: Files, log_dir: str) -> MetaProperties | None:
    """The Kafka node that owns a log directory; None if none does."""
    path = os.path.join(log_dir, names.META_PROPERTIES)
    try:
        if not files.exists(path):
            return None
        with corruption_in(path):
            return parse_meta_properties(files.read(path))
    except OSError as error:
        raise _offline(path, error) from error


def _offline(path: str, error: OSError) -> DirOffline:
    return DirOffline(f"{error.filename or path}: cannot be read: {error.strerror}")
