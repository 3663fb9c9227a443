"""Which way results take effect in a log directory now, for all who show it: `cleaning.committer` takes it."""

from dataclasses import dataclass
from typing import Literal

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.daemon.work.ownership import Ownership
from cleanerd.storage.log_dir import Owner


@dataclass(frozen=True, slots=True)
class Way:
    """lock: it is free, or a writer lets go of it in a moment; swap: by the live broker; restart: when that broker, which
    cannot be asked for this `reason`, has stopped. `pid`: of who holds the lock, 0 where the kernel does not name it.
    """

    committed_by: Literal["lock", "swap", "restart"]
    pid: int | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """What becomes of a result."""
        if self.committed_by == "lock":
            return "it is committed when .lock is free"
        process = f"process {self.pid or 'unknown'}, a running broker,"
        if self.committed_by == "swap":
            return f"{process} swaps it in"
        return f"it waits until {process} stops ({self.reason})"


@dataclass(frozen=True, slots=True)
class Ways:
    """Thread-safe."""

    ownership: Ownership
    brokers: LiveBrokers

    def of(self, log_dir: str) -> Way:
        """By what is known, without asking a broker: swap also before the first try."""
        pid = self.ownership.owner_of(log_dir)
        if self.ownership.owner(log_dir) is not Owner.LIVE_BROKER:
            return Way("lock", pid)
        reason = self.brokers.known_refusal(log_dir)
        return Way("swap" if reason is None else "restart", pid, reason)
