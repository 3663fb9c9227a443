"""Records of the coordinators: keys and values of `__consumer_offsets` and `__transaction_state`.

A key is its type as int16, then its fields. A value is its version as int16, then the fields that this version has; null is
a tombstone. Versions from `_Schema.flexible` on have compact lengths (unsigned varint, plus one) and tagged fields (count,
then tag, size and bytes each) at the end of each structure; before, strings have int16 lengths, bytes and arrays int32 ones.

===================  ====  =====================  =================================================================
topic                type  key                    value that is decoded
===================  ====  =====================  =================================================================
__consumer_offsets   0, 1  group topic partition  offset, leader epoch, metadata, time of the commit, topic id
__consumer_offsets   2     group                  group with protocol, generation, leader and members
__consumer_offsets   3     groupId                group epoch
__consumer_offsets   4-23  groupId memberId       not decoded: assignments, subscriptions
__transaction_state  0     transactionalId        producer id and epoch, state, partitions, times
===================  ====  =====================  =================================================================

Names of fields are Kafka's own. Source: the message definitions (`*Key.json`, `*Value.json`) of Kafka 4.3.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cleanerd.format.errors import FormatError
from cleanerd.format.record import decode_unsigned_varint

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
)  # fmt: skip
"""By the number `transactionStatus`."""
OFFSET_COMMITS = (0, 1)
"""Types of keys."""
CLASSIC_GROUP, CONSUMER_GROUP = 2, 3
GROUPS = {CLASSIC_GROUP: "classic", CONSUMER_GROUP: "consumer", 11: "share", 17: "streams"}
MEMBERS = (5, 10, 19)

_INTEGERS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_LATEST = 2**15 - 1


class _Field(NamedTuple):
    """A field from version `since` to `until`; `tag` is -1 for one that stands in order. A type `[]x` is an array."""

    name: str
    kind: str
    since: int = 0
    until: int = _LATEST
    tag: int = -1
    fields: "Sequence[_Field]" = ()


class _Schema(NamedTuple):
    flexible: int
    versions: int
    fields: Sequence[_Field]


_GROUP = _Field("groupId", "string")
_MEMBER = _Field("memberId", "string")
_OFFSET_KEY = (_Field("group", "string"), _Field("topic", "string"), _Field("partition", "int32"))
_KEYS: Mapping[str, Mapping[int, Sequence[_Field]]] = {
    CONSUMER_OFFSETS: {
        0: _OFFSET_KEY,
        1: _OFFSET_KEY,
        CLASSIC_GROUP: (_Field("group", "string"),),
        **dict.fromkeys((3, 4, 6, 11, 12, 15, 17, 20, 23), (_GROUP,)),
        **dict.fromkeys((5, 7, 8, 10, 13, 14, 19, 21, 22), (_GROUP, _MEMBER)),
        16: (_GROUP, _Field("regularExpression", "string")),
    },
    TRANSACTION_STATE: {0: (_Field("transactionalId", "string"),)},
}
_OFFSET_VALUE = (
    _Field("offset", "int64"),
    _Field("leaderEpoch", "int32", 3),
    _Field("metadata", "string"),
    _Field("commitTimestamp", "int64"),
    _Field("expireTimestamp", "int64", 1, 1),
    _Field("topicId", "uuid", 4, tag=0),
)
_MEMBERS = (
    _Field("memberId", "string"),
    _Field("groupInstanceId", "string", 3),
    _Field("clientId", "string"),
    _Field("clientHost", "string"),
    _Field("rebalanceTimeout", "int32", 1),
    _Field("sessionTimeout", "int32"),
    _Field("subscription", "bytes"),
    _Field("assignment", "bytes"),
)
_GROUP_VALUE = (
    _Field("protocolType", "string"),
    _Field("generation", "int32"),
    _Field("protocol", "string"),
    _Field("leader", "string"),
    _Field("currentStateTimestamp", "int64", 2),
    _Field("members", "[]struct", fields=_MEMBERS),
)
_TRANSACTION_VALUE = (
    _Field("producerId", "int64"),
    _Field("previousProducerId", "int64", 1, tag=0),
    _Field("nextProducerId", "int64", 1, tag=1),
    _Field("producerEpoch", "int16"),
    _Field("transactionTimeoutMs", "int32"),
    _Field("transactionStatus", "int8"),
    _Field(
        "transactionPartitions", "[]struct",
        fields=(_Field("topic", "string"), _Field("partitionIds", "[]int32")),
    ),
    _Field("transactionLastUpdateTimestampMs", "int64"),
    _Field("transactionStartTimestampMs", "int64"),
    _Field("clientTransactionVersion", "int16", 1, tag=2),
    _Field("nextProducerEpoch", "int16", 1, tag=3),
)  # fmt: skip
_VALUES: Mapping[str, Mapping[int, _Schema]] = {
    CONSUMER_OFFSETS: {
        0: _Schema(1, 0, _OFFSET_VALUE),
        1: _Schema(4, 4, _OFFSET_VALUE),
        CLASSIC_GROUP: _Schema(4, 4, _GROUP_VALUE),
        CONSUMER_GROUP: _Schema(
            0, 0, (_Field("epoch", "int32"), _Field("metadataHash", "int64", tag=0))
        ),
    },
    TRANSACTION_STATE: {0: _Schema(1, 1, _TRANSACTION_VALUE)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A record, decoded. `version` and `value` are None for a tombstone; a value of a type not decoded here is empty."""

    type: int
    key: Mapping[str, Any]
    version: int | None
    value: Mapping[str, Any] | None


def parse_coordinator_record(topic: str, key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Read one record of an internal topic.

    Raises: `FormatError` for an unknown type or version, or malformed fields.
    """
    kind, fields = parse_coordinator_key(topic, key)
    schema = _VALUES[topic].get(kind)
    if value is None:
        return CoordinatorRecord(kind, fields, None, None)
    if schema is None:
        return CoordinatorRecord(kind, fields, _Reader(value, _LATEST).version(_LATEST), {})
    reader = _Reader(value, schema.flexible)
    version = reader.version(schema.versions)
    return CoordinatorRecord(kind, fields, version, reader.whole(schema.fields))


def parse_coordinator_key(topic: str, key: bytes) -> tuple[int, Mapping[str, Any]]:
    """Type and fields of a key. Raises `FormatError`."""
    reader = _Reader(key, flexible_from=_LATEST)
    kind = reader.version(_LATEST)
    fields = _KEYS[topic].get(kind)
    if fields is None:
        raise FormatError(0, f"a type of key of {topic}", kind)
    found = reader.whole(fields)
    if None in found.values():
        raise FormatError(0, "a key without null", found)
    return kind, found


class _Reader:
    """Walks over one key or value; `FormatError` at its end."""

    def __init__(self, data: bytes, flexible_from: int) -> None:
        self._data = data
        self._position = 0
        self._flexible_from = flexible_from
        self._version = 0

    @property
    def _is_flexible(self) -> bool:
        return self._version >= self._flexible_from

    def version(self, latest: int) -> int:
        """The number at the front. It is the version that the fields are read by, unless it is the type of a key."""
        found = self._integer(2)
        if not 0 <= found <= latest:
            raise FormatError(0, f"a version up to {latest}", found)
        if latest != _LATEST:
            self._version = found
        return found

    def whole(self, fields: Sequence[_Field]) -> dict[str, Any]:
        """The fields, and nothing behind them."""
        try:
            found = self._struct(fields)
        except (IndexError, UnicodeDecodeError, ValueError) as problem:
            if isinstance(problem, FormatError):
                raise
            raise FormatError(self._position, "a whole record", problem) from problem
        if self._position != len(self._data):
            raise FormatError(self._position, "the end", f"{len(self._data) - self._position} bytes more")
        return found

    def _struct(self, fields: Sequence[_Field]) -> dict[str, Any]:
        present = [field for field in fields if field.since <= self._version <= field.until]
        found = {field.name: self._value(field.kind, field) for field in present if field.tag < 0}
        if self._is_flexible:
            tagged = {field.tag: field for field in present if field.tag >= 0}
            for _ in range(self._unsigned()):
                tag, size = self._unsigned(), self._unsigned()
                end = self._position + size
                if tag in tagged:
                    found[tagged[tag].name] = self._value(tagged[tag].kind, tagged[tag])
                    if self._position != end:
                        raise FormatError(self._position, f"tag {tag} of {size} bytes", "another size")
                else:
                    self._take(size)
        return found

    def _value(self, kind: str, field: _Field) -> Any:
        if kind in _INTEGERS:
            return self._integer(_INTEGERS[kind])
        if kind == "uuid":
            return base64.urlsafe_b64encode(self._take(16)).decode().rstrip("=")
        if kind == "struct":
            return self._struct(field.fields)
        length = self._length(2 if kind == "string" else 4)
        if length < 0:
            return None
        if kind == "string":
            return self._take(length).decode()
        if kind == "bytes":
            return base64.b64encode(self._take(length)).decode()
        if length > len(self._data):  # each element takes a byte at least
            raise FormatError(self._position, "as many elements as fit", length)
        return [self._value(kind[2:], field) for _ in range(length)]

    def _length(self, width: int) -> int:
        return self._unsigned() - 1 if self._is_flexible else self._integer(width)

    def _unsigned(self) -> int:
        value, self._position = decode_unsigned_varint(self._data, self._position)
        return value

    def _integer(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big", signed=True)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise FormatError(self._position, f"{size} bytes", f"{len(self._data) - self._position}")
        taken, self._position = self._data[self._position : end], end
        return taken
