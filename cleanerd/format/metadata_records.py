"""Records of the KRaft metadata log that matter to configuration (spec disk F2, F3).

A record of `__cluster_metadata` has no key; its value is one frame:

==================  ===================================================================
field               note
==================  ===================================================================
frame version       unsigned varint, 1
api key             unsigned varint, see below
version             unsigned varint, of the message; all flexible
message             fields in order, then tagged fields; nothing may follow
==================  ===================================================================

=======  ===================  ==========================================================================
api key  record               fields
=======  ===================  ==========================================================================
0        `BrokerRecord`       broker id: int32; in versions 2 to 4 a bool; incarnation: uuid; epoch: int64;
                              end points (name, host: string; port, protocol: int16); features (name: string;
                              from and to which level: int16); the rest is skipped, and so are later versions
2        `TopicRecord`        name: string; topic id: uuid
3        `PartitionRecord`    see `parse_partition_record`
4        `ConfigRecord`       resource type: int8; resource name, name: string; value: string or null
5        `PartitionChange`    see `parse_partition_record`
9        `RemoveTopicRecord`  topic id: uuid
23-25    `TransactionMark`    begin, end, abort; only tagged fields
=======  ===================  ==========================================================================

A string is its length plus one as unsigned varint (0: null) and UTF-8; tagged fields are a count, then tag,
size and bytes each. All other api keys are skipped whole.
"""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from cleanerd.format.errors import FormatError
from cleanerd.format.record import decode_unsigned_varint

_REGISTER_BROKER, _REGISTER_BROKER_MAX = 0, 4
_PARTITION, _PARTITION_CHANGE, _REMOVE_TOPIC = 3, 5, 9
RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic exists."""

    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic is gone, and with it its configuration (F4)."""

    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """One value of one resource; None deletes it (F4)."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker has started; `metadata_level`: the highest metadata.version that its release knows, None: it names none."""

    broker_id: int
    metadata_level: int | None


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition as it is, also in a snapshot. `removing` and `adding`: a reassignment is under way."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A change of a partition; None for values that stay. Each change raises the partition epoch by one."""

    topic_id: UUID
    partition: int
    replicas: tuple[int, ...] | None = None
    isr: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None


class TransactionMark(IntEnum):
    """Border of a metadata transaction; the value is the api key."""

    BEGIN = 23
    END = 24
    ABORT = 25


MetadataRecord = TopicRecord | RemoveTopicRecord | ConfigRecord | BrokerRecord | TransactionMark


def parse_metadata_record(frame: bytes) -> MetadataRecord | None:
    """Read one frame; None for a record that is not about configuration.

    Raises: `FormatError` for another frame version, an unknown version of a known record, or malformed
    fields.
    """
    reader = _Reader(frame)
    try:
        return _parse(reader)
    except (IndexError, UnicodeDecodeError) as problem:
        raise FormatError(reader.position, "a whole metadata record", problem) from problem


def parse_partition_record(
    frame: bytes,
) -> PartitionRecord | PartitionChange | RemoveTopicRecord | TransactionMark | None:
    """Read one frame; None for a record that does not change the replicas of a partition (F3).

    PartitionRecord, versions 0 to 2: partition: int32; topic id: uuid; replicas, in-sync, removing, adding: arrays of int32;
    leader, leader epoch, partition epoch: int32; directories: uuids, from version 1 on. PartitionChangeRecord: partition and
    topic id; all else in tagged fields, 0 in-sync replicas, 2 replicas, 3 removing, 4 adding.

    Raises: `FormatError` as `parse_metadata_record`. Of a later version only what follows these fields may be another.
    """
    reader = _Reader(frame)
    try:
        reader.expect("frame version", 1)
        api_key = reader.unsigned_varint()
        if api_key == _PARTITION:
            return _partition(reader)
        if api_key == _PARTITION_CHANGE:
            return _partition_change(reader)
    except IndexError as problem:
        raise FormatError(reader.position, "a whole metadata record", problem) from problem
    if api_key != _REMOVE_TOPIC and api_key not in tuple(TransactionMark):
        return None
    found = parse_metadata_record(frame)
    assert isinstance(found, RemoveTopicRecord | TransactionMark)
    return found


def _partition(reader: "_Reader") -> PartitionRecord:
    reader.unsigned_varint()  # version
    partition, topic_id = reader.int32(), reader.uuid()
    replicas, isr, removing, adding = (reader.int32s() or () for _ in range(4))
    reader.take(8)  # leader and its epoch
    return PartitionRecord(topic_id, partition, replicas, isr, removing, adding, reader.int32())


_CHANGES = {0: "isr", 2: "replicas", 3: "removing", 4: "adding"}


def _partition_change(reader: "_Reader") -> PartitionChange:
    reader.unsigned_varint()  # version
    partition, topic_id = reader.int32(), reader.uuid()
    changed: dict[str, tuple[int, ...] | None] = {}
    for _ in range(reader.unsigned_varint()):
        tag, size_bytes = reader.unsigned_varint(), reader.unsigned_varint()
        value = _Reader(reader.take(size_bytes))
        if tag in _CHANGES:
            changed[_CHANGES[tag]] = value.int32s()
    return PartitionChange(topic_id, partition, **changed)


def parse_voters(value: bytes) -> frozenset[int]:
    """Ids of the nodes in a KRAFT_VOTERS control record (C2). Raises: `FormatError` for malformed fields."""
    reader, voters = _Reader(value), set()
    try:
        reader.int16()  # version
        for _ in reader.elements():
            voters.add(reader.int32())
            reader.uuid()
            for _ in reader.elements():
                reader.string(), reader.string(), reader.take(2)
            reader.take(4)  # which versions of the feature it knows
            reader.skip_tagged_fields()
    except (IndexError, UnicodeDecodeError) as problem:
        raise FormatError(reader.position, "a whole record of voters", problem) from problem
    return frozenset(voters)


def parse_leader_change(value: bytes) -> int | None:
    """Id of the node that leads an epoch, in a LEADER_CHANGE control record (C2); None for one that is cut off."""
    reader = _Reader(value)
    try:
        reader.int16()  # version
        return reader.int32()
    except IndexError:
        return None


@dataclass(frozen=True, slots=True)
class QuorumState:
    """A `quorum-state` file (A8). `voters`: none in that of a broker that knows only where to ask; None: the log has them.

    `leader`: of `leader_epoch`, None while there is none.
    """

    voters: frozenset[int] | None
    leader: int | None = None
    leader_epoch: int = -1


def parse_quorum_state(data: bytes) -> QuorumState:
    """Read a `quorum-state` file. Raises: `FormatError`."""
    try:
        state = json.loads(data)
        voters, leader = state.get("currentVoters"), int(state.get("leaderId", -1))
        return QuorumState(
            None if voters is None else frozenset(int(voter["voterId"]) for voter in voters),
            None if leader < 0 else leader,
            int(state.get("leaderEpoch", -1)),
        )
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as problem:
        raise FormatError(0, "the JSON of a quorum's state", repr(problem)) from problem


def _parse(reader: "_Reader") -> MetadataRecord | None:
    reader.expect("frame version", 1)
    api_key = reader.unsigned_varint()
    if api_key == _REGISTER_BROKER:
        return _broker(reader)
    if api_key not in _MESSAGES:
        return None
    reader.expect("message version", 0)
    record = _MESSAGES[api_key](reader)
    reader.skip_tagged_fields()
    reader.expect_end()
    return record


class _Reader:
    """Walks over one frame; `IndexError` at its end."""

    def __init__(self, frame: bytes) -> None:
        self.position = 0
        self._frame = frame

    def unsigned_varint(self) -> int:
        value, self.position = decode_unsigned_varint(self._frame, self.position)
        return value

    def expect(self, what: str, expected: int) -> None:
        start = self.position
        found = self.unsigned_varint()
        if found != expected:
            raise FormatError(start, f"{what} {expected}", found)

    def take(self, size_bytes: int) -> bytes:
        end = self.position + size_bytes
        if end > len(self._frame):
            raise IndexError(f"a frame of {len(self._frame)} bytes")
        taken = self._frame[self.position : end]
        self.position = end
        return taken

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def int8(self) -> int:
        return int.from_bytes(self.take(1), signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def int32s(self) -> tuple[int, ...] | None:
        """An array; None for null."""
        count = self.unsigned_varint() - 1
        return None if count < 0 else struct.unpack(f">{count}i", self.take(4 * count))

    def elements(self) -> Iterator[None]:
        """One step for each element of an array; each ends with tagged fields, which are skipped."""
        for _ in range(self.unsigned_varint() - 1):
            yield
            self.skip_tagged_fields()

    def nullable_string(self) -> str | None:
        length = self.unsigned_varint()
        return self.take(length - 1).decode() if length else None

    def string(self) -> str:
        start = self.position
        text = self.nullable_string()
        if text is None:
            raise FormatError(start, "a string", "null")
        return text

    def skip_tagged_fields(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.take(self.unsigned_varint())

    def expect_end(self) -> None:
        left = len(self._frame) - self.position
        if left:
            raise FormatError(self.position, "the end of the frame", f"{left} bytes more")


def _broker(reader: _Reader) -> BrokerRecord | None:
    version = reader.unsigned_varint()
    if version > _REGISTER_BROKER_MAX:
        return None
    broker_id = reader.int32()
    reader.take((version >= 2) + 16 + 8)
    for _ in reader.elements():
        reader.string(), reader.string(), reader.take(4)
    levels = {}
    for _ in reader.elements():
        name, _, levels[name] = reader.string(), reader.int16(), reader.int16()
    return BrokerRecord(broker_id, levels.get("metadata.version"))


_MESSAGES: dict[int, Callable[[_Reader], MetadataRecord]] = {
    2: lambda reader: TopicRecord(reader.string(), reader.uuid()),
    4: lambda reader: ConfigRecord(reader.int8(), reader.string(), reader.string(), reader.nullable_string()),
    _REMOVE_TOPIC: lambda reader: RemoveTopicRecord(reader.uuid()),
    TransactionMark.BEGIN: lambda _: TransactionMark.BEGIN,
    TransactionMark.END: lambda _: TransactionMark.END,
    TransactionMark.ABORT: lambda _: TransactionMark.ABORT,
}
