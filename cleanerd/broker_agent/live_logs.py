"""What a running broker is asked about its logs, and to close an active segment.

`describe` reports what the broker itself goes by, which its files tell later or not at all: high watermark, last stable
offset, recovery point and the configuration of each topic. `roll` has the broker begin a new segment, as when one is full:
with producer snapshot, final time index entry and a flush behind it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cleanerd.errors import NoWayIn, SourceChanged
from cleanerd.format.errors import FormatError
from cleanerd.format.names import PARTITION_METADATA, TopicPartition
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.uuid_text import render_uuid
from cleanerd.storage.partition_dir import PartitionDir

from .session import Session

_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A segment that the broker has open."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LiveLog:
    """A log as the broker has it.

    `directory`: name of the partition directory; of a copy in another log directory, `is_future`, it ends in `-future`.
    A log that the broker has put aside (`-stray`, `-delete`) is none of its logs. `segments` ascend, the last one is active.
    All below `recovery_point` is flushed. `first_dirty_offset`: of the broker's checkpoint; `cleaning_state`: what
    occupies the log there (LogCleaningInProgress, LogCleaningAborted, LogCleaningPaused). Both are None for none, and
    where the broker's cleaner is off. `config`: the effective values of the topic by Kafka's names, as text;
    `overridden`: names of those that it has of its own.
    """

    topic_partition: TopicPartition
    directory: str
    topic_id: str | None
    is_future: bool
    segments: tuple[LiveSegment, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    recovery_point: int
    first_dirty_offset: int | None
    cleaning_state: str | None
    config: Mapping[str, str]
    overridden: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rolled:
    """The answer to `roll`. `outcome`: rolled; unchanged, the active segment is empty; changed, it is another log; later,
    the broker does not have it open; failed.
    """

    outcome: Literal["rolled", "unchanged", "changed", "later", "failed"]
    reason: str | None
    active_base_offset: int | None


def describe(
    session: Session, log_dir: str, wanted: Iterable[TopicPartition] | None = None
) -> tuple[LiveLog, ...]:
    """The broker's logs in a log directory, by name of their directories; `wanted`: these only, None for all.

    Each is of one moment. Raises NoWayIn.
    """
    request: dict[str, Any] = {"request": "describe", "log_dir": os.path.realpath(log_dir), "from": None}
    request["logs"] = None if wanted is None else [[tp.topic, tp.partition] for tp in wanted]
    found: list[LiveLog] = []
    while True:
        answer = session.ask(request, _ANSWER_S)
        if answer["outcome"] != "described":
            raise NoWayIn(f"{log_dir}: the broker does not describe its logs: {answer.get('reason')}")
        configs = [(one["values"], frozenset(one["overridden"])) for one in answer["configs"]]
        found += [_live_log(row, *configs[row["config"]]) for row in answer["logs"]]
        if answer["next"] is None:
            return tuple(found)
        request["from"] = answer["next"]


def _live_log(row: dict[str, Any], config: Mapping[str, str], overridden: frozenset[str]) -> LiveLog:
    return LiveLog(
        topic_partition=TopicPartition(row["topic"], row["partition"]),
        directory=row["directory"],
        topic_id=row["topic_id"],
        is_future=row["is_future"],
        segments=tuple(LiveSegment(base, size) for base, size in row["segments"]),
        log_start_offset=row["log_start_offset"],
        log_end_offset=row["log_end_offset"],
        high_watermark=row["high_watermark"],
        last_stable_offset=row["last_stable_offset"],
        recovery_point=row["recovery_point"],
        first_dirty_offset=row["first_dirty_offset"],
        cleaning_state=row["cleaning_state"],
        config=config,
        overridden=overridden,
    )


def roll(session: Session, partition: PartitionDir, tp: TopicPartition) -> Rolled:
    """Have the broker close the active segment. Raises NoWayIn, SourceChanged, OSError."""
    answer = session.ask({"request": "roll", **named_log(partition, tp)}, _ANSWER_S)
    return Rolled(answer["outcome"], answer.get("reason"), answer.get("active_base_offset"))


def named_log(partition: PartitionDir, tp: TopicPartition) -> dict[str, Any]:
    """How a request names a log, so that it is no other one. Raises SourceChanged, OSError."""
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "directory": os.path.realpath(partition.path),
        "topic_id": _topic_id(partition),
    }


def _topic_id(partition: PartitionDir) -> str | None:
    """None where there is no file: a broker of old message formats."""
    try:
        content = partition.files.read(partition.path_of(PARTITION_METADATA))
        return render_uuid(parse_partition_metadata(content))
    except FileNotFoundError:
        return None
    except FormatError as problem:
        raise SourceChanged(
            f"{partition.path}/{PARTITION_METADATA}: expected {problem.expected}, found {problem.found}"
        ) from problem
