"""What `cleaning.committer` and its hosts pass to each other: for whom results are committed, and what became of them."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cleanerd.broker_agent.swap import Swapped
from cleanerd.errors import CleanerdError, LockHeld
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import Recovered
from cleanerd.storage.staged import StagedGroup


class TimeUp(LockHeld):
    """The lock has been held for long enough: the groups that are left may be committed once others have had their turn."""


Committed = int | None | CleanerdError
"""The new first dirty offset, the end of the cleaned range; None when nothing was staged; or what went wrong.

LockHeld, Aborted: the result, or what is left of it, waits on. SourceChanged, CorruptFile: the result no longer
fits the log, is no longer wanted, or was never finished: it is dropped, and the message has the reason. After all else the
log was recovered.
"""

CommittedBy = Literal["lock", "swap"]
"""With `.lock` held, or by the live broker that has it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of one hold of the lock, by log, and its seconds; `by` swap: of one conversation with a live broker.

    `is_wanted`: another process waited for the lock at the end. `recovered`: logs whose commit went wrong.
    """

    taken: Sequence[TopicPartition]
    done: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    seconds: float = 0.0
    is_wanted: bool = False
    recovered: Mapping[TopicPartition, Recovered] = field(default_factory=dict)
    by: CommittedBy = "lock"


class CommitHost:
    """For whom something is committed: answers questions and takes reports on the way. This one objects to nothing."""

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
