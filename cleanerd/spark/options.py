"""Options of the data source `kafka-segments`, named as those of Spark's Kafka source where they mean the same.

========================  ==============  ==================================================================================
option                    default         meaning
========================  ==============  ==================================================================================
`path`                    (required)      log directories or partition directories, separated by commas; globs
`subscribe`               all topics      topics, separated by commas
`subscribePattern`        all topics      a regular expression that a topic's whole name matches
`assign`                  all partitions  `{"topic": [0, 1]}`; only one of these three
`startingOffsets`         `earliest`      `earliest`, or `{"topic": {"0": 23, "1": -2}}`; -2 is earliest
`endingOffsets`           `latest`        `latest`, or `{"topic": {"0": 50, "1": -1}}`, exclusive; -1 is latest
`isolation`               `uncommitted`   `committed`: without aborted records, up to the last stable offset
`includeHeaders`          `false`         the column `headers`
`columns`                 all             only these columns, separated by commas; what is left out is not decoded
`onCorrupt`               `fail`          `skip`: leave damaged batches out
`failOnDataLoss`          `true`          `false`: go on without segments that are deleted while the query runs
`maxBytesPerPartition`    `67108864`      split a segment at entries of its index into parts of about this
========================  ==============  ==================================================================================
"""

import glob
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cleanerd.errors import BadUsage
from cleanerd.format.names import MAX_OFFSET, DirKind, TopicPartition, parse_partition_dir
from cleanerd.insight.records import Isolation, OnCorrupt

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""What there is without `includeHeaders`, in the order of Spark's Kafka source."""

_T = TypeVar("_T")
_EARLIEST, _LATEST = -2, -1
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
    "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "isolation",
    "includeHeaders", "columns", "onCorrupt", "failOnDataLoss", "maxBytesPerPartition",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """The options, checked. `assigned`: partitions by topic, None for all."""

    paths: tuple[str, ...]
    topics: frozenset[str] | None
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    starting: Mapping[TopicPartition, int]
    ending: Mapping[TopicPartition, int]
    isolation: Isolation
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
        """(first offset, offset after the last) of a partition."""
        start, end = self.starting.get(tp, _EARLIEST), self.ending.get(tp, _LATEST)
        return max(start, 0), MAX_OFFSET if end == _LATEST else end

    def partition_dirs(self) -> list[tuple[TopicPartition, str]]:
        """The directories that were asked for, sorted. Raises `BadUsage` when a path leads nowhere, `OSError`."""
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
        return sorted((tp, directory) for directory, tp in found.items())


def _candidates(path: str) -> list[str]:
    """A partition directory, else what lies in a log directory."""
    if parse_partition_dir(os.path.basename(path)) is not None and glob.glob(
        os.path.join(glob.escape(path), "*.log")
    ):
        return [path]
    return [entry.path for entry in os.scandir(path) if entry.is_dir()]


def parse_options(options: Mapping[str, str]) -> Options:
    """Check the options; names are taken in any case. Raises `BadUsage` naming the one that makes no sense."""
    known = {name.lower(): name for name in _NAMES}
    values: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in known:
            raise BadUsage(f"unknown option {name}; there are {', '.join(_NAMES)}")
        values[known[name.lower()]] = value
    if not values.get("path"):
        raise BadUsage("option path is required: log directories or partition directories")
    if sum(name in values for name in ("subscribe", "subscribePattern", "assign")) > 1:
        raise BadUsage("only one of subscribe, subscribePattern and assign makes sense")
    headers = _choice(values, "includeHeaders", _BOOLEANS, "false")
    max_bytes = values.get("maxBytesPerPartition", str(_MAX_BYTES))
    if not max_bytes.isdecimal() or int(max_bytes) == 0:
        raise BadUsage(f"option maxBytesPerPartition: expected a number of bytes, found {max_bytes!r}")
    return Options(
        paths=tuple(_words(values["path"])),
        topics=frozenset(_words(values["subscribe"])) if "subscribe" in values else None,
        pattern=_pattern(values.get("subscribePattern")),
        assigned=_assigned(values.get("assign")),
        starting=_offsets(values, "startingOffsets", "earliest"),
        ending=_offsets(values, "endingOffsets", "latest"),
        isolation=_choice(values, "isolation", _ISOLATIONS, "uncommitted"),
        columns=_columns(values.get("columns"), includes_headers=headers),
        on_corrupt=_choice(values, "onCorrupt", _CORRUPT, "fail"),
        fail_on_data_loss=_choice(values, "failOnDataLoss", _BOOLEANS, "true"),
        max_bytes=int(max_bytes),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _choice(values: Mapping[str, str], name: str, choices: Mapping[str, _T], default: str) -> _T:
    value = values.get(name, default).lower()
    if value not in choices:
        raise BadUsage(f"option {name}: expected one of {', '.join(choices)}, found {value!r}")
    return choices[value]


def _pattern(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise BadUsage(f"option subscribePattern: {text!r}: {error}") from None
    return text


def _columns(text: str | None, *, includes_headers: bool) -> tuple[str, ...]:
    every = (*COLUMNS, "headers") if includes_headers else COLUMNS
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


def _offsets(values: Mapping[str, str], name: str, everything: str) -> Mapping[TopicPartition, int]:
    text = values.get(name, everything)
    if text.lower() == everything:
        return {}
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, offsets in _json(name, text).items()
            for partition, offset in offsets.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise BadUsage(
            f'option {name}: expected {everything} or {{"topic": {{"0": 5}}}}, found {text!r}'
        ) from None
