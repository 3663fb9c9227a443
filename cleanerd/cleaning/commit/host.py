"""What is to be committed, for whom, and what became of it: what `Committer` and its hosts pass to each other."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning.outcomes import Basis
from cleanerd.errors import CleanerdError, LockHeld
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import Recovered
from cleanerd.storage.staged import StagedGroup

_BYTES_PER_UNIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Commit:
    """A log to commit: all groups that wait in its directory.

    `unchanged`: nothing had to go in the range that was cleaned on this basis, and only the first dirty offset moves.
    `gain_bytes`: what the commit frees; `weight`: what its time follows.
    """

    topic_partition: TopicPartition
    gain_bytes: int = 0
    weight: float = 1.0
    unchanged: Basis | None = None

    @classmethod
    def of(cls, tp: TopicPartition, *, freed_bytes: int, segments: int, replaced_bytes: int) -> "Commit":
        """A commit from known sizes, because a broker's start leaves no time to read manifests."""
        return cls(tp, freed_bytes, max(segments + replaced_bytes / _BYTES_PER_UNIT, 1.0))


@dataclass(frozen=True, slots=True)
class Committed:
    """A log whose groups are all in place. `end_offset`: end of the cleaned range, the new first dirty offset unless groups
    are left that had no room (`StagedGroup.moves_checkpoint`). `by`: with `.lock` held, or by the live broker that has it.
    """

    end_offset: int
    by: Literal["lock", "swap"]


Done = Committed | CleanerdError | None
"""What became of a commit; None when nothing was staged.

LockHeld, Aborted: the result, or what is left of it, waits on. SourceChanged, CorruptFile: the result no longer
fits the log, is no longer wanted, or was never finished: it is dropped, and the message has the reason. After all else the
log was recovered.
"""


class TimeUp(LockHeld):
    """The lock has been held for long enough: the groups that are left may be committed once others have had their turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of one hold of the lock, or of one conversation with a live broker, by log, and its seconds.

    `is_wanted`: another process waited for the lock at the end. `recovered`: logs whose commit went wrong.
    """

    taken: Sequence[TopicPartition]
    done: Mapping[TopicPartition, Done] = field(default_factory=dict)
    seconds: float = 0.0
    is_wanted: bool = False
    recovered: Mapping[TopicPartition, Recovered] = field(default_factory=dict)


class CommitHost:
    """The caller's side of a commit: answers questions and takes reports. This base class objects to nothing."""

    def goes_on(self) -> bool:
        """Whether the next slice may begin."""
        return True

    def begin(self, logs: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """A slice begins; returns those of its logs that may be committed now."""
        return logs

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """Called with `.lock` held and nothing touched yet: whether a cleaning up to `round_end` is still wanted.

        SourceChanged drops the result; Aborted leaves it waiting; anything else is what went wrong with the log.
        """

    def check_expired(self, tp: TopicPartition) -> None:
        """Called as `check`, of a result that lacks tombstones or markers whose time had come: whether they may still go."""

    def answered(self, answer: Swapped) -> None:
        """A live broker was asked to swap. Must not raise."""

    def swapped(self, tp: TopicPartition, group: StagedGroup) -> None:
        """A group has taken the place of its sources. Must not raise."""

    def end(self, turn: Turn) -> None:
        """A slice has ended. `turn.done` is empty if the lock was held by another process."""

    def pause(self, seconds: float) -> None:
        """Leave the lock alone for so long."""
        threading.Event().wait(seconds)
