"""Decide how to repair an interrupted commit (`storage.commit`), ours or a broker's.

======================  ==================  ==================  =============================================
staged `.log`           `.log.cleaned`      `.log.swap`         remedy for a group with a manifest
======================  ==================  ==================  =============================================
whole group             any                 any                 WAIT: never begun, may still be committed
incomplete group        any                 any                 DISCARD
gone                    ours                none                ROLL_BACK: before the commit point
gone                    none                ours                FINISH: past the commit point
gone                    none                none                FINISH if the live `.log` is ours: indexes and
                                                                garbage are left; else DISCARD: undone by a broker
gone                    not ours            any                 DISCARD: a broker was here since
gone                    any                 not ours            DISCARD
gone                    ours                ours                DISCARD: no state of ours
======================  ==================  ==================  =============================================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Remedy(Enum):
    """The remedy for a group that has a manifest."""

    WAIT = auto()
    DISCARD = auto()
    ROLL_BACK = auto()
    FINISH = auto()


class Found(Enum):
    """A file under the name that the commit gives to the new `.log`."""

    NOTHING = auto()
    OURS = auto()
    FOREIGN = auto()


def choose_remedy(*, staged_log: bool, staged_whole: bool, guard: Found, swap: Found, live: Found) -> Remedy:
    """The table above."""
    if staged_log:
        return Remedy.WAIT if staged_whole else Remedy.DISCARD
    match guard, swap, live:
        case Found.OURS, Found.NOTHING, _:
            return Remedy.ROLL_BACK
        case (Found.NOTHING, Found.OURS, _) | (Found.NOTHING, Found.NOTHING, Found.OURS):
            return Remedy.FINISH
        case _:
            return Remedy.DISCARD


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Base offsets of segments that a broker's own cleaner left, ascending."""

    cleaned: Sequence[int]  # `.cleaned` of any kind
    swaps: Sequence[int]  # `.swap` of any kind
    deleted_logs: Sequence[int]  # `.log.deleted`

    @property
    def first_cleaned(self) -> int | None:
        """Base offset from which on swap files are incomplete (rule 5.12)."""
        return self.cleaned[0] if self.cleaned else None

    def is_valid(self, swap_base: int) -> bool:
        """Whether a swap file is to be adopted (rule 5.12)."""
        return self.first_cleaned is None or swap_base < self.first_cleaned


def objection(leftovers: Leftovers, *, is_kafka: bool) -> str | None:
    """Why a log with such leftovers must be left alone, or None if they can be finished or undone like a broker does.

    Files of a broker are the broker's: it brings them into order when it starts. Where no broker will, its rules are
    followed but for one case (rule 5.19b): to discard swap files whose sources are `.deleted` already loses both.
    """
    if not leftovers.cleaned and not leftovers.swaps:
        return None
    if is_kafka:
        return "a broker's own cleaning was interrupted; start the broker once: it finishes or undoes that"
    invalid = [base for base in leftovers.swaps if not leftovers.is_valid(base)]
    if invalid and any(base >= invalid[0] for base in leftovers.deleted_logs):
        return (
            f"segments from {invalid[0]} on lie there as .swap and as .deleted beside a .cleaned of "
            f"{leftovers.first_cleaned}: decide by hand which of them is the log"
        )
    return None
