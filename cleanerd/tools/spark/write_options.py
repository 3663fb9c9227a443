"""Options to write with `kafka-segments`.

================  =============  ==========================================================================================
option            default        meaning
================  =============  ==========================================================================================
`path`            (required)     the log directory; no process may hold its `.lock`
`topic`                          the topic of all rows, if there is no column `topic`
`offsets`         `assign`       from 0 in the order of the rows; `keep`: those of the column `offset`
`compression`     `none`         `gzip`, `snappy`, `lz4` or `zstd`
`batchBytes`      `16384`        records of a batch, before compression
`segmentBytes`    `1073741824`   a new segment begins where the last one would become larger
`topicIds`                       `{"topic": "4eFzbq7dRIeCqPmmJJ3cZA"}` for `partition.metadata`: as the cluster has them. A
                                 broker takes a directory without one for a stray of a deleted topic
================  =============  ==========================================================================================

Columns: `value`; optional `key`, `headers`, `topic`, `partition` (else 0), `timestamp` (else now) and `offset`. Times become
CreateTime, so `timestampType` is ignored. Other columns are refused.

If a partition has other replicas, write the same rows to all of them while their brokers are stopped: a broker fetches what
lies behind its own log, and compares no record before that.

The only mode is `append`: it adds partition directories. Where one of them holds something already, none is added. They get
their names one after the other: a commit that fails in between leaves some partitions whole, and the others absent. The rows
of a partition must come from one task, in order: `repartition("topic", "partition").sortWithinPartitions("offset")`; with
`keep` also from several tasks whose offsets do not overlap.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cleanerd.errors import BadUsage
from cleanerd.format.codecs import Codec
from cleanerd.format.errors import FormatError
from cleanerd.format.names import SEGMENT_MAX_BYTES
from cleanerd.format.uuid_text import parse_uuid

from .options import HEADERS_TYPE, choice, named

_NAMES = ("path", "topic", "offsets", "compression", "batchBytes", "segmentBytes", "topicIds")
_BATCH_BYTES, _SEGMENT_BYTES = 16384, 1 << 30
_BATCH_BYTES_RANGE = (1, 64 << 20)
_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint"),
    "offset": ("bigint", "int"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "timestampType": ("int",),
    "headers": (HEADERS_TYPE,),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options, checked. `topic` None: that of the column; `keeps_offsets`: those of the column."""

    path: str
    topic: str | None
    keeps_offsets: bool
    codec: Codec
    batch_bytes: int
    segment_bytes: int
    topic_ids: Mapping[str, UUID]


def parse_write_options(options: Mapping[str, str], schema: Any) -> WriteOptions:
    """Check the options and the `StructType` of the rows. Raises `BadUsage` naming what makes no sense."""
    values = named(options, _NAMES, "to write there are")
    if not values.get("path"):
        raise BadUsage("option path is required: a log directory")
    offsets = values.get("offsets", "assign")
    if offsets not in {"assign", "keep"}:
        raise BadUsage(f"option offsets: expected assign or keep, found {offsets!r}")
    found = WriteOptions(
        path=values["path"],
        topic=values.get("topic"),
        keeps_offsets=offsets == "keep",
        codec=choice(values, "compression", {codec.name.lower(): codec for codec in Codec}, "none"),
        batch_bytes=_bytes(values, "batchBytes", _BATCH_BYTES, _BATCH_BYTES_RANGE),
        segment_bytes=_bytes(values, "segmentBytes", _SEGMENT_BYTES, (1, SEGMENT_MAX_BYTES)),
        topic_ids=_topic_ids(values.get("topicIds", "{}")),
    )
    _check_columns(found, {field.name: field.dataType.simpleString() for field in schema.fields})
    return found


def _check_columns(options: WriteOptions, columns: Mapping[str, str]) -> None:
    for name, kind in columns.items():
        if kind not in _TYPES.get(name, ()):
            expected = ", ".join(f"{known} {' or '.join(kinds)}" for known, kinds in _TYPES.items())
            raise BadUsage(f"column {name} of type {kind} cannot be written; there are {expected}")
    if "value" not in columns:
        raise BadUsage("the column value is required")
    if ("topic" in columns) == (options.topic is not None):
        raise BadUsage("the topic is either the option topic or the column topic")
    if options.keeps_offsets and "offset" not in columns:
        raise BadUsage("option offsets: to keep them there must be a column offset")


def _bytes(values: Mapping[str, str], name: str, default: int, bounds: tuple[int, int]) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal() or not bounds[0] <= int(text) <= bounds[1]:
        raise BadUsage(f"option {name}: expected {bounds[0]} to {bounds[1]} bytes, found {text!r}")
    return int(text)


def _topic_ids(text: str) -> Mapping[str, UUID]:
    try:
        return {topic: parse_uuid(topic_id) for topic, topic_id in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError, FormatError):
        raise BadUsage(f'option topicIds: expected {{"topic": "22 characters"}}, found {text!r}') from None
