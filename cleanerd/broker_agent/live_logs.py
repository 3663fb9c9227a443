"""Ask a running broker about its logs, its own cleaner and its queue of requests, and have it close an active segment.

`describe` reports what the broker itself goes by, which its files show later or not at all: high watermark, last stable
offset, recovery point and the configuration of each topic. `roll` has the broker begin a new segment, as when one is full:
with producer snapshot, final time index entry and a flush behind it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from cleanerd.errors import CleanerdError, LockHeld, LogUncleanable, NoWayIn, SourceChanged
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints
from cleanerd.storage.topic_id import LiveIdentity, read_topic_id

from .session import Session

_ANSWER_S = 30.0
_QUEUE_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A segment that the broker has open."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LiveLog:
    """The broker's own description of a log.

    `directory`: name of the partition directory; of a copy in another log directory, `is_future`, it ends in `-future`.
    A log that the broker has put aside (`-stray`, `-delete`) is none of its logs. `segments` ascend, the last one is active.
    All below `recovery_point` is flushed. `first_dirty_offset`: of the broker's checkpoint; `cleaning_state`: what
    occupies the log there (LogCleaningInProgress, LogCleaningAborted, LogCleaningPaused). Both are None for none, and
    where the broker's cleaner is off. `config`: the effective values of the topic by Kafka's names, as text;
    `overridden`: names of those that it has of its own.
    """

    topic_partition: TopicPartition
    directory: str
    identity: LiveIdentity
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

    def error(self, directory: str) -> CleanerdError | None:
        """The error that the outcome stands for, about the log in this directory; None if its active segment is empty."""
        if self.outcome in ("rolled", "unchanged"):
            return None
        return refusal(self.outcome, f"{directory}: not rolled: {self.reason}")


def refusal(outcome: str, message: str) -> CleanerdError:
    """The error for a request that a broker has not carried out."""
    if outcome == "changed":
        return SourceChanged(message)
    return LockHeld(message) if outcome in ("busy", "later") else LogUncleanable(message)


def live_checkpoints(logs: Iterable[LiveLog], on_disk: Checkpoints) -> Checkpoints:
    """The offsets of these logs, and of no others. First dirty offsets are those on disk, as for the broker itself."""
    live = {log.topic_partition: log for log in logs if not log.is_future}
    return Checkpoints(
        cleaner={tp: offset for tp, offset in on_disk.cleaner.items() if tp in live},
        recovery_point={tp: log.recovery_point for tp, log in live.items()},
        log_start={tp: log.log_start_offset for tp, log in live.items()},
        high_watermark={tp: log.high_watermark for tp, log in live.items()},
        last_stable={tp: log.last_stable_offset for tp, log in live.items()},
        identities={tp: log.identity for tp, log in live.items()},
        cleaner_written_ms=on_disk.cleaner_written_ms,
    )


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
        identity=LiveIdentity(row["directory_inode"], row["topic_id"]),
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
        "topic_id": read_topic_id(partition),
    }


@dataclass(frozen=True, slots=True)
class OwnCleaner:
    """The broker's own cleaner. `uncleanable`: logs of a directory that it passes over since it failed on them."""

    dead_threads: int
    uncleanable: frozenset[TopicPartition]

    @classmethod
    def of(cls, session: Session, log_dir: str) -> Self | None:
        """Ask for it; None where the cleaner is off. Raises NoWayIn, as for an agent of before it was asked."""
        answer = session.ask({"request": "cleaner", "log_dir": os.path.realpath(log_dir)}, _ANSWER_S)
        if answer["outcome"] != "cleaner":
            raise NoWayIn(f"the broker's own cleaner is not known: {answer.get('reason')}")
        if answer["dead_threads"] is None:
            return None
        return cls(answer["dead_threads"], frozenset(TopicPartition(*pair) for pair in answer["uncleanable"]))


@dataclass(frozen=True, slots=True)
class RequestQueue:
    """Number of produce and fetch requests since the start of a broker, and their total time in its queue: the delay that
    clients of a busy machine notice.
    """

    requests: int = 0
    waited_us: int = 0

    @classmethod
    def of(cls, session: Session) -> Self:
        """Read the broker's metric `RequestQueueTimeMs`. Raises NoWayIn."""
        answer = session.ask({"request": "request_queue"}, _QUEUE_ANSWER_S)
        if answer["outcome"] != "request_queue":
            raise NoWayIn(f"the broker's request queue is not known: {answer.get('reason')}")
        return cls(answer["requests"], answer["waited_us"])

    def mean_ms_since(self, before: Self) -> float:
        """How long one request waited on average; 0.0 where there was none, also of a broker that has started since."""
        requests = self.requests - before.requests
        return max(self.waited_us - before.waited_us, 0) / 1000 / requests if requests > 0 else 0.0
