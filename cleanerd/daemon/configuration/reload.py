"""One configuration at a time, and how the daemon gets to the next one: serialised, all or nothing.

A reload reads everything again. Refused for any reason, it changes nothing, and the reasons are kept for
`last`. There are two sources of truth, and one must not hold up the other: the cluster's settings of its
topics (metadata log) was accepted there and is adopted even while a mistake stands in a file of ours. A topic
that became compacted must not be retained by time because of a typing error in a rate.

Threads: `reload` may be called from any; `current` and `last` never wait.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cleanerd.config.load import Configuration
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.reload import ReloadPlan, plan_reload
from cleanerd.env.clock import Clock
from cleanerd.errors import BadConfiguration


class ReloadTrigger(Enum):
    """The origin of a request to reload."""

    FILES = "files changed"
    METADATA = "metadata log changed"
    SIGNAL = "SIGHUP"
    REQUEST = "reload requested"


class ReloadStatus(Enum):
    """How a reload ended."""

    ACCEPTED = "accepted"
    UNCHANGED = "unchanged"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The result of one reload.

    `plan` is what was adopted, None for nothing. A rejected reload may have one: that of the metadata log.
    """

    trigger: ReloadTrigger
    at_ms: int
    status: ReloadStatus
    plan: ReloadPlan | None = None
    problems: tuple[str, ...] = ()


class Reloader:
    """Owns `current`, the configuration that holds; `last` is the outcome of the last reload.

    As long as what was read from the files last has been rejected, that is `last`: news of the cluster mend no file.
    `last_success_ms`: when a configuration was last read and found good, the start of the daemon included.

    `load` reads all layers, `read_metadata` the metadata log alone; both raise what they like. `apply` puts a
    plan into effect, whole, or raises and leaves everything as it was. The new configuration is already the
    current one then, so that threads which `apply` starts see it. It must not call `reload`.
    """

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Configuration],
        read_metadata: Callable[[], ClusterMetadata | None],
        apply: Callable[[ReloadPlan], None],
        clock: Clock,
    ) -> None:
        self.current = configuration
        self._load = load
        self._read_metadata = read_metadata
        self._apply = apply
        self._clock = clock
        self._lock = threading.Lock()
        self.last: ReloadOutcome | None = None  # None before the first
        self._rejected: ReloadOutcome | None = None  # the content of the files, as last read
        self._is_unread = False  # it was the metadata log, too, that could not be read then
        self.last_success_ms = clock.now_ms()
        self._counts = Counter[ReloadStatus]()

    @property
    def is_rejected(self) -> bool:
        """Whether the files, as last read, were rejected."""
        return self.last is not None and self.last.status is ReloadStatus.REJECTED

    def count(self, status: ReloadStatus) -> int:
        """Reloads that ended so, since the start."""
        return self._counts[status]

    def reload(self, trigger: ReloadTrigger) -> ReloadOutcome:
        """Read, check and apply the configuration. Never raises: problems are in the outcome, the old one stays active."""
        with self._lock:
            reads_files = trigger is not ReloadTrigger.METADATA or self._is_unread
            outcome = self._attempt(trigger, reads_files=reads_files)
            is_rejected = outcome.status is ReloadStatus.REJECTED
            if reads_files:
                self._rejected = outcome if is_rejected else None
            self.last = outcome if is_rejected else self._rejected or outcome
            self._counts[outcome.status] += 1
            if not self.is_rejected:
                self.last_success_ms = outcome.at_ms
            return outcome

    def _attempt(self, trigger: ReloadTrigger, *, reads_files: bool) -> ReloadOutcome:
        at_ms = self._clock.now_ms()
        if not reads_files:
            plan, problems = self._try(self._refreshed)
        else:
            plan, problems = self._try(self._load)
            more: tuple[str, ...] = ()
            if problems:
                plan, more = self._try(self._refreshed)
                problems += tuple(problem for problem in more if problem not in problems)
            self._is_unread = bool(more)
        if problems:
            return ReloadOutcome(trigger, at_ms, ReloadStatus.REJECTED, plan, problems)
        return ReloadOutcome(trigger, at_ms, ReloadStatus.ACCEPTED if plan else ReloadStatus.UNCHANGED, plan)

    def _refreshed(self) -> Configuration:
        return self.current.with_metadata(self._read_metadata())

    def _try(self, read: Callable[[], Configuration]) -> tuple[ReloadPlan | None, tuple[str, ...]]:
        """Adopt the configuration that `read` returns; returns the plan (None if nothing changes) or the problems."""
        old = self.current
        try:
            new = read()
            plan = plan_reload(old, new)
            self.current = new
            if not plan.is_empty:
                self._apply(plan)
        except BadConfiguration as error:
            problems = tuple(error.problems)
        except Exception as error:  # noqa: BLE001 - the boundary: the daemon keeps its configuration
            problems = (str(error) or repr(error),)
        else:
            return (None if plan.is_empty else plan), ()
        self.current = old
        return None, problems
