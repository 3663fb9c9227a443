"""Whether the broker's cleaner may be kept from a log any longer: who does that has to clean the log.

A log that is due and not cleaned for `GRACE_S` goes back to the broker's cleaner, whatever the reason is: no room, a file
that cannot be read, no Java, a hold, a limit on I/O, cleaning that is off, workers that have too much to do. It comes back
when somebody has cleaned it, or it is no longer due, and nothing is in cleanerd's way. What is not known counts as due.
"""

from dataclasses import dataclass, replace

GRACE_S = 300.0
"""How long a due log may wait; and a job may stand still, if it has not worked for longer than that."""
_CLEANING_MAX_S = 86_400.0
"""A job that would take longer, as it goes, cleans nothing in fact."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job that runs: for `took_s`, without a sign of work for the last `still_s`; bytes are 0 where not known."""

    took_s: float
    still_s: float
    moved_bytes: int
    total_bytes: int

    @property
    def gets_on(self) -> bool:
        """Whether the job is seen to clean its logs. The end of a long one, which syncs files, may show nothing for long."""
        if self.took_s <= GRACE_S:
            return True
        if self.still_s > max(GRACE_S, self.took_s - self.still_s):
            return False
        return self.took_s * self.total_bytes <= _CLEANING_MAX_S * self.moved_bytes or not self.total_bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A log at one look. `is_due`: by its files, None where that is not known. `clean_up_to`: its first dirty offset.

    `obstacle`: why cleanerd would not clean it now; `job`: the one that cleans it. None for none.
    """

    is_due: bool | None
    clean_up_to: int | None
    obstacle: str | None = None
    job: JobSeen | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """The duty to clean a muted log. `due_s`: since when it has been due and not cleaned, by the clock given to `after`;
    None if it is not due. `neglected`: why its lease is not renewed, None if it is.
    """

    due_s: float | None = None
    clean_up_to: int | None = None
    neglected: str | None = None


def first(seen: Seen) -> Account:
    """The account of a log that was muted before this process began; earlier processes may have died without cleaning it."""
    if seen.is_due is False:
        return Account(None, seen.clean_up_to)
    return Account(None, seen.clean_up_to, seen.obstacle or "it was due when cleanerd started")


def after(before: Account, seen: Seen, now_s: float) -> Account:
    """The next account, of one more look."""
    reached, was = seen.clean_up_to, before.clean_up_to
    is_cleaned = reached is not None and was is not None and reached > was
    is_settled = is_cleaned or seen.is_due is False
    due_s = None if seen.is_due is False else now_s
    if before.neglected is not None:
        if is_settled and seen.obstacle is None:
            return Account(due_s, reached)
        return replace(before, neglected=seen.obstacle or before.neglected)
    if is_settled or before.due_s is None:
        return Account(due_s, reached)
    waits = Account(before.due_s, was if reached is None else reached)
    if now_s - before.due_s < GRACE_S or (seen.job is not None and seen.job.gets_on):
        return waits
    why = "no worker has come to it" if seen.job is None else "its cleaning does not get on"
    return replace(waits, neglected=seen.obstacle or why)
