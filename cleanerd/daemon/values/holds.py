"""Holds: pauses by pattern, with an owner, a reason and perhaps an end.

A hold is in force until it is released or expires, for every log whose name matches, also for logs that appear later
(`PartitionStates`). Several may match one log; each is one pause of it. A hold is a plain value, so that it can outlive a
restart.
"""

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
        """A hold that begins now, for `ttl_ms` or until it is released."""
        return Hold(
            uuid4().hex[:12], pattern, owner, reason, now_ms, None if ttl_ms is None else now_ms + ttl_ms
        )

    def matches(self, topic_partition: TopicPartition) -> bool:
        """Whether it is about this partition."""
        return matches(self.pattern, topic_partition.topic, topic_partition.partition)
