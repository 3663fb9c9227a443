"""Read options of `kafka-segments`, named as in Spark's Kafka source where they mean the same.

=========================  ==============  ================================================================================
option                     default         meaning
=========================  ==============  ================================================================================
`path`                     (required)      log directories or partition directories, separated by commas; globs
`subscribe`                all topics      topics, separated by commas
`subscribePattern`         all topics      a regular expression that a topic's whole name matches
`assign`                   all partitions  `{"topic": [0, 1]}`; only one of these three
`startingOffsets`          `earliest`      `earliest`, or `{"topic": {"0": 23, "1": -2}}`; -2 is earliest.
`endingOffsets`            `latest`        `latest`, or `{"topic": {"0": 50, "1": -1}}`, exclusive; -1 is latest
`startingTimestamp`                        from the first record on that has this time (ms since 1970) or a later one
`endingTimestamp`                          up to the record before the first one that has this time or a later one
`startingOffsetsByTimestamp`               the same by partition, `{"topic": {"0": 1700000000000}}`
`endingOffsetsByTimestamp`                 likewise
`isolation`                `uncommitted`   `committed`: without aborted records, up to the last stable offset
`includeHeaders`           `false`         the column `headers`
`includeControl`           `false`         transaction markers as rows too, and the column `_is_control`
`includeBatch`             `false`         columns of the batch that a record lies in, and of its file (below)
`columns`                  all             only these columns, separated by commas; what is left out is not decoded
`onCorrupt`                `fail`          `skip`: leave damaged batches out
`failOnDataLoss`           `true`          `false`: go on without segments that are deleted while the query runs, and
                                           without offsets below `endingOffsets` that cannot be read yet
`maxBytesPerPartition`     `67108864`      split a segment at entries of its index into parts of about this
=========================  ==============  ================================================================================

A timestamp wins over an offset. Where no record has the time or a later one, it stands for the end of the partition.
A data frame lists the files when it is first used, and keeps that list.

Spark asks a Python data source for all of its columns: `columns`, or a schema (`.schema("key binary, offset bigint")`), says
which are wanted. Nor are filters pushed down: PySpark 4.3 remembers those of the first query on a data frame or a view, and
answers the next one with its rows. The options above narrow what is read.

With `includeBatch` there are `_log_dir`, `_segment` (name of the `.log`), `_batch_base_offset`, `_leader_epoch`,
`_producer_id`, `_producer_epoch`, `_base_sequence`, `_is_transactional`, `_is_control` and `_codec`.
"""

import glob
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from cleanerd.errors import BadUsage
from cleanerd.format.names import MAX_OFFSET, DirKind, TopicPartition, parse_partition_dir
from cleanerd.format.txn_index import Isolation
from cleanerd.tools.insight.records import OnCorrupt

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
COLUMN_TYPES: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": HEADERS_TYPE,
    "_log_dir": "string",
    "_segment": "string",
    "_batch_base_offset": "bigint",
    "_leader_epoch": "int",
    "_producer_id": "bigint",
    "_producer_epoch": "int",
    "_base_sequence": "int",
    "_is_transactional": "boolean",
    "_is_control": "boolean",
    "_codec": "string",
}
"""Every column and its type in Spark, in the order of Spark's Kafka source; those of a batch begin with `_`."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns without further options."""

_T = TypeVar("_T")
EARLIEST, LATEST = -2, -1
_ISOLATIONS: Mapping[str, Isolation] = {
    "uncommitted": "read_uncommitted",
    "read_uncommitted": "read_uncommitted",
    "committed": "read_committed",
    "read_committed": "read_committed",
}
_CORRUPT: Mapping[str, OnCorrupt] = {"fail": "fail", "skip": "skip"}
_BOOLEANS = {"true": True, "false": False}
_MAX_BYTES = 64 << 20
_NAMES = (
    "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "isolation", "includeHeaders",
    "includeControl", "includeBatch", "columns", "onCorrupt", "failOnDataLoss", "maxBytesPerPartition",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of the read: a time for all partitions, times or offsets of some; `otherwise` for the others.

    The first that is set counts.
    """

    timestamp_ms: int | None
    timestamps_ms: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, int]
    otherwise: int

    def offset_of(self, tp: TopicPartition) -> int:
        """`EARLIEST` and `LATEST` too. Means nothing where a timestamp is the bound."""
        return self.offsets.get(tp, self.otherwise)

    def timestamp_of(self, tp: TopicPartition) -> int | None:
        """None where an offset is the bound."""
        return self.timestamps_ms.get(tp) if self.timestamp_ms is None else self.timestamp_ms


@dataclass(frozen=True, slots=True)
class Options:
    """The options, checked. `assigned`: partitions by topic, None for all."""

    paths: tuple[str, ...]
    topics: frozenset[str] | None
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    starting: Bound
    ending: Bound
    isolation: Isolation
    with_control: bool
    columns: tuple[str, ...]
    on_corrupt: OnCorrupt
    fail_on_data_loss: bool
    max_bytes: int

    def selects(self, tp: TopicPartition) -> bool:
        """Whether a partition was asked for."""
        if self.topics is not None:
            return tp.topic in self.topics
        if self.pattern is not None:
            return re.fullmatch(self.pattern, tp.topic) is not None
        return self.assigned is None or tp.partition in self.assigned.get(tp.topic, ())

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """(first offset, offset after the last) of a partition; everything where a timestamp is the bound."""
        start, end = self.starting.offset_of(tp), self.ending.offset_of(tp)
        if self.starting.timestamp_of(tp) is not None:
            start = EARLIEST
        if self.ending.timestamp_of(tp) is not None:
            end = LATEST
        return max(start, 0), MAX_OFFSET if end == LATEST else end

    def partition_dirs(self) -> list[tuple[TopicPartition, str]]:
        """The directories that were asked for, sorted.

        Raises `BadUsage` when a path leads nowhere, or a partition lies in two of them: its records would come twice.
        `OSError`.
        """
        found: dict[str, TopicPartition] = {}
        for path in self.paths:
            matches = sorted(glob.glob(path))
            if not matches:
                raise BadUsage(f"option path: nothing matches {path}")
            for match in matches:
                for directory in _candidates(os.path.abspath(match)):
                    parsed = parse_partition_dir(os.path.basename(directory))
                    if parsed and parsed[1] is DirKind.CURRENT and self.selects(parsed[0]):
                        found[directory] = parsed[0]
        ordered = sorted((tp, directory) for directory, tp in found.items())
        for (tp, one), (other_tp, other) in pairwise(ordered):
            if tp == other_tp:
                raise BadUsage(f"option path: {tp} lies in {one} and in {other}: name one of them")
        return ordered


def _candidates(path: str) -> list[str]:
    """The path itself if it is a partition directory, else the partitions in it."""
    if parse_partition_dir(os.path.basename(path)) is not None and glob.glob(
        os.path.join(glob.escape(path), "*.log")
    ):
        return [path]
    return [entry.path for entry in os.scandir(path) if entry.is_dir()]


def parse_options(options: Mapping[str, str]) -> Options:
    """Check the options; names are taken in any case. Raises `BadUsage` naming the one that makes no sense."""
    values = _named(options)
    if not values.get("path"):
        raise BadUsage("option path is required: log directories or partition directories")
    if sum(name in values for name in ("subscribe", "subscribePattern", "assign")) > 1:
        raise BadUsage("only one of subscribe, subscribePattern and assign makes sense")
    return Options(
        paths=tuple(_words(values["path"])),
        topics=frozenset(_words(values["subscribe"])) if "subscribe" in values else None,
        pattern=_pattern(values.get("subscribePattern")),
        assigned=_assigned(values.get("assign")),
        starting=_bound(values, "starting", "earliest", EARLIEST),
        ending=_bound(values, "ending", "latest", LATEST),
        isolation=_choice(values, "isolation", _ISOLATIONS, "uncommitted"),
        with_control=_choice(values, "includeControl", _BOOLEANS, "false"),
        columns=_columns(values),
        on_corrupt=_choice(values, "onCorrupt", _CORRUPT, "fail"),
        fail_on_data_loss=_choice(values, "failOnDataLoss", _BOOLEANS, "true"),
        max_bytes=_number(values, "maxBytesPerPartition") or _MAX_BYTES,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names, which are taken in any case. Raises `BadUsage` for an unknown one."""
    known = {name.lower(): name for name in _NAMES}
    values: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in known:
            raise BadUsage(f"unknown option {name}; there are {', '.join(_NAMES)}")
        values[known[name.lower()]] = value
    return values


def _choice(values: Mapping[str, str], name: str, choices: Mapping[str, _T], default: str) -> _T:
    """The meaning of an option's value, in upper or lower case. Raises `BadUsage` unless it is one of `choices`."""
    value = values.get(name, default).lower()
    if value not in choices:
        raise BadUsage(f"option {name}: expected one of {', '.join(choices)}, found {value!r}")
    return choices[value]


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is not None and (not text.isdecimal() or int(text) == 0):
        raise BadUsage(f"option {name}: expected a number above 0, found {text!r}")
    return None if text is None else int(text)


def _pattern(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise BadUsage(f"option subscribePattern: {text!r}: {error}") from None
    return text


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    included = set(COLUMNS)
    if _choice(values, "includeHeaders", _BOOLEANS, "false"):
        included.add("headers")
    if _choice(values, "includeControl", _BOOLEANS, "false"):
        included.add("_is_control")
    if _choice(values, "includeBatch", _BOOLEANS, "false"):
        included |= {name for name in COLUMN_TYPES if name.startswith("_")}
    every = tuple(name for name in COLUMN_TYPES if name in included)
    text = values.get("columns")
    wanted = every if text is None else tuple(_words(text))
    unknown = [name for name in wanted if name not in every]
    if unknown or not wanted:
        raise BadUsage(f"option columns: expected some of {', '.join(every)}, found {text!r}")
    return wanted


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadUsage(f"option {name}: expected a JSON object, found {text!r}")
    return found


def _assigned(text: str | None) -> Mapping[str, frozenset[int]] | None:
    if text is None:
        return None
    try:
        return {topic: frozenset(map(int, numbers)) for topic, numbers in _json("assign", text).items()}
    except (TypeError, ValueError):
        raise BadUsage(f'option assign: expected {{"topic": [0, 1]}}, found {text!r}') from None


def _bound(values: Mapping[str, str], side: str, word: str, otherwise: int) -> Bound:
    """`word` stands for `otherwise`."""
    time = values.get(f"{side}Timestamp")
    if time is not None and not time.isdecimal():
        raise BadUsage(f"option {side}Timestamp: expected milliseconds since 1970, found {time!r}")
    name = f"{side}Offsets"
    offsets: Mapping[TopicPartition, int] = {}
    text = values.get(name)
    if text is not None and text.lower() != word:
        offsets = _by_partition(name, text, f"{word} or ")
    by_time = f"{name}ByTimestamp"
    times = _by_partition(by_time, values.get(by_time, "{}"))
    return Bound(None if time is None else int(time), times, offsets, otherwise)


def _by_partition(name: str, text: str, alternative: str = "") -> Mapping[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(partition)): int(number)
            for topic, numbers in _json(name, text).items()
            for partition, number in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise BadUsage(
            f'option {name}: expected {alternative}{{"topic": {{"0": 5}}}}, found {text!r}'
        ) from None
