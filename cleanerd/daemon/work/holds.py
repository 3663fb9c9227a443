"""Holds: pauses by pattern, with an owner, a reason and perhaps an end.

A hold is in force from `add` to `release` or `expire`, for every log whose name matches, also for logs that appear
later. Several may match one log; each is one pause of it. A hold is a plain value, so that it can outlive a restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from cleanerd.daemon.values.patterns import matches
from cleanerd.format.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause of every log whose topic-partition name matches `pattern` (see `patterns`)."""

    id: str
    pattern: str
    owner: str
    reason: str
    created_ms: int
    expires_ms: int | None = None  # None: until released

    @staticmethod
    def new(pattern: str, owner: str, reason: str, now_ms: int, ttl_ms: int | None) -> "Hold":
        """One that begins now, for `ttl_ms` or until it is released."""
        return Hold(
            uuid4().hex[:12], pattern, owner, reason, now_ms, None if ttl_ms is None else now_ms + ttl_ms
        )

    def matches(self, topic_partition: TopicPartition) -> bool:
        """Whether it is about this partition."""
        return matches(self.pattern, topic_partition.topic, topic_partition.partition)


class Holds:
    """The holds in force. Not thread-safe: `PartitionStates` guards it."""

    def __init__(self, holds: Iterable[Hold] = ()) -> None:
        self._holds: dict[str, Hold] = {}
        for hold in holds:
            self.add(hold)

    def add(self, hold: Hold) -> None:
        """Put a hold in force. Raises ValueError when its id is taken."""
        if hold.id in self._holds:
            raise ValueError(f"hold {hold.id} is already in force")
        self._holds[hold.id] = hold

    def release(self, hold_id: str) -> Hold | None:
        """End a hold and return it, or None when there is none of that id."""
        return self._holds.pop(hold_id, None)

    def expire(self, now_ms: int) -> list[Hold]:
        """End the holds whose time has come, and return them, to be reported."""
        expired = [h for h in self._holds.values() if h.expires_ms is not None and h.expires_ms <= now_ms]
        for hold in expired:
            del self._holds[hold.id]
        return expired

    def all(self) -> list[Hold]:
        """The holds in force, oldest first."""
        return list(self._holds.values())

    def count(self, topic_partition: TopicPartition) -> int:
        """How many hold this partition."""
        return sum(hold.matches(topic_partition) for hold in self._holds.values())
