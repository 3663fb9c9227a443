"""What became of a log: a class for each outcome, with what is known of a log only then.

`word` is its name in the JSON documents, the history, the log and the metrics; `reason` why it has come to that.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cleanerd import errors


@dataclass(frozen=True, slots=True)
class Basis:
    """The state of a log when it was examined; findings hold only as long as it has not changed.

    `round_end`: end of the cleaned range. `generation`: `storage.generation`. `checkpoint`: the first dirty offset.
    `leader_epochs`: (epoch, start offset) below `round_end`. `topic_stamp` (`storage.topic_id`) is not needed where source
    segments have to be the same files.
    """

    round_end: int
    generation: str
    checkpoint: int | None
    leader_epochs: tuple[tuple[int, int], ...]
    topic_stamp: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Was cleaned, and the new segments are in place. `by`: with `.lock` held, or by the live broker that has it; None where
    retention alone took something. `groups_left`: for later rounds; the checkpoint has not moved.
    """

    by: Literal["lock", "swap"] | None = None
    reason: str | None = None
    groups_left: int = 0
    word: ClassVar = "committed"


@dataclass(frozen=True, slots=True)
class Staged:
    """Was cleaned, and the result waits to be committed; beside a broker that may take long."""

    reason: str | None = None
    groups_left: int = 0
    word: ClassVar = "staged"


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Was looked through, and nothing had to go: only the checkpoint moves, if the log still is what `basis` says. With a
    reason it has not moved.
    """

    basis: Basis
    reason: str | None = None
    word: ClassVar = "unchanged"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Was not looked through. `remedy`: what an operator can do about it.

    `next_horizon_ms`: of a log that was looked at for expired delete horizons, when it is worth another look; None as long
    as no cleaning stamps new ones.
    """

    reason: str
    remedy: str | None = None
    next_horizon_ms: int | None = None
    word: ClassVar = "skipped"


@dataclass(frozen=True, slots=True)
class Held:
    """Was left alone, for somebody has paused it (`cleanerctl pause`)."""

    reason: str
    word: ClassVar = "held"


@dataclass(frozen=True, slots=True)
class Planned:
    """Would be cleaned (dry run)."""

    reason: str | None = None
    word: ClassVar = "planned"


@dataclass(frozen=True, slots=True)
class Failed:
    """Could not be cleaned, or was changed by another process; it is as it was. `remedy`: as `Skipped` has it.

    `error`: the class of what went wrong. With `is_retryable` the same work may succeed later by itself.
    """

    reason: str
    error: str | None = None
    is_retryable: bool = False
    remedy: str | None = None
    word: ClassVar = "failed"


@dataclass(frozen=True, slots=True)
class Superseded:
    """Was changed by the live broker that owns its directory before we were done."""

    reason: str
    word: ClassVar = "superseded_by_broker"


@dataclass(frozen=True, slots=True)
class Aborted:
    """Was left as it was: a stop was asked for, or it may no longer be cleaned like this."""

    reason: str
    word: ClassVar = "aborted"


Outcome = Committed | Staged | Unchanged | Skipped | Held | Planned | Failed | Superseded | Aborted


def of_error(error: errors.CleanerdError) -> Failed | Aborted:
    """The outcome of a log whose work `error` has ended."""
    if isinstance(error, errors.Aborted | errors.PolicyChanged):
        return Aborted(str(error))
    is_retryable = isinstance(error, errors.Retryable | errors.DirOffline)
    remedy = error.remedy if isinstance(error, errors.NoSpace) else None
    return Failed(str(error), type(error).__name__, is_retryable, remedy)
