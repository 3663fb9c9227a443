"""What is to be committed, for whom, and what became of it: what `Committer` and its hosts pass to each other."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Basis
from cleanerd.cleaning.result import CleanRequest
from cleanerd.cleaning.wanted import ConfiguredNow, check_expired, check_wanted
from cleanerd.config.load import Configuration
from cleanerd.errors import Aborted, CleanerdError, LockHeld, PolicyChanged
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import LogDir, Recovered
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
    are left (`StagedGroup.moves_checkpoint`). `by`: with `.lock` held, or by the live broker that has it.
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

    `is_wanted`: another process waited for the lock at the end; `pause_s`: how long to leave it alone now. `recovered`: logs
    whose commit went wrong.
    """

    taken: Sequence[TopicPartition]
    done: Mapping[TopicPartition, Done] = field(default_factory=dict)
    seconds: float = 0.0
    is_wanted: bool = False
    pause_s: float = 0.0
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


class AsRequested(CommitHost):
    """The host of commits in one log directory for a request: it asks by what is configured now."""

    def __init__(self, log_dir: LogDir, request: CleanRequest, configured: ConfiguredNow) -> None:
        self.log_dir, self.request, self.configured = log_dir, request, configured

    def left_alone(
        self, logs: Iterable[TopicPartition], configuration: Configuration | None
    ) -> dict[TopicPartition, str]:
        """As `foreign.left_alone`: which logs may not be touched by a configuration, and why."""
        return left_alone(self.log_dir, logs, configuration, self.request.topics, self.request.assumed)

    def check(self, tp: TopicPartition, round_end: int) -> None:
        """Whether a result is still wanted, by what is known now.

        Raises PolicyChanged; Aborted if that is not known, for it may wait; what else is wrong.
        """
        request, log_dir = self.request, self.log_dir
        try:
            configuration = self.configured.now()
        except CleanerdError as error:
            raise Aborted(str(error)) from error
        now = LogDir.at(log_dir.files, log_dir.path, log_dir.clock, log_dir.log_dirs)
        alone = left_alone(now, [tp], configuration, request.topics, request.assumed, has_begun=True)
        if alone and configuration is not None:
            unknown = Knowledge(now, configuration, request.assumed).why_not_vouched(tp.topic, has_begun=True)
            raise (PolicyChanged if unknown is None else Aborted)(
                f"{log_dir.partition(tp).path}: {alone[tp]}"
            )
        topic_config = request.topic_config if configuration is None else configuration.topic
        check_wanted(log_dir, tp, topic_config(tp.topic), round_end)

    def check_expired(self, tp: TopicPartition) -> None:
        """Whether what has expired may still go: a replica may be away since it was planned."""
        check_expired(self.log_dir.partition(tp).path, self.request.why_tombstones_stay(self.log_dir, tp))
