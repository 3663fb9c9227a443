"""One I/O budget for all tasks of all jobs (rules 7.5-7.7): a task reports bytes moved and waits until they are paid.

Each limit earns bytes at its rate. A charge is appended to what was spent before it, and is paid when the limit has
earned as much: charges are paid in the order in which they came, whichever task made them, so none starves; urgent ones go
before all others that wait, which wait that much longer. What is earned ahead of what is spent is at most `BURST_S` of
the rate. Hence, over any interval, urgent or not,

    bytes paid <= rate x interval + max(rate x BURST_S, largest charge)

Limits are independent: a charge that waits for one of them delays none under another.
Kafka checks every 300 ms and then sleeps the excess off, inside its lock; here 300 ms bound what idleness saves up, and
no task sleeps while holding the lock.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cleanerd.config.model import CleanerdConfig
from cleanerd.config.values import DOUBLE_MAX
from cleanerd.env.clock import Clock

BURST_S = 0.3
_WAIT_MAX_S = 0.05  # how late a waiting task notices that it is to stop
_WAIT_MIN_S = 0.001  # shorter waits cost more than they even out; bytes earned meanwhile are not lost

Wait = Callable[[threading.Condition, float], object]
"""Wait on a condition, whose lock is held by the caller, for so many seconds at most."""


class RateLimit(Enum):
    """A kind of I/O with a limit of its own."""

    TOTAL = "total"  # reads plus writes: log.cleaner.io.max.bytes.per.second
    READ = "read"  # cleanerd.io.max.read.bytes.per.second
    WRITE = "write"  # cleanerd.io.max.write.bytes.per.second
    REQUEST_QUEUE = "request_queue"  # reads plus writes, set by `daemon/loops/pacer.py`


class Throttle:
    """Thread-safe. Starts without limits and with nothing saved up."""

    def __init__(self, clock: Clock, wait: Wait = threading.Condition.wait) -> None:
        self._clock = clock
        self._wait = wait
        self._changed = threading.Condition()  # guards the fields below
        self._accounts = {limit: _Account(clock.monotonic_s()) for limit in RateLimit}

    def set_limits(self, *, total: float = math.inf, read: float = math.inf, write: float = math.inf) -> None:
        """Set limits in bytes per second, `math.inf` for none; they hold at once, also for waiting tasks (7.7, C148)."""
        rates = {RateLimit.TOTAL: total, RateLimit.READ: read, RateLimit.WRITE: write}
        if not all(rate > 0 for rate in rates.values()):
            raise ValueError(f"limits must be above 0 bytes per second, found {total}, {read}, {write}")
        self._set(rates)

    def set_request_queue(self, rate: float) -> None:
        """Set the limit that follows the brokers; `set_limits` leaves it alone."""
        self._set({RateLimit.REQUEST_QUEUE: rate})

    def _set(self, rates: dict[RateLimit, float]) -> None:
        with self._changed:
            now_s = self._clock.monotonic_s()
            for limit, rate in rates.items():
                self._accounts[limit].set_rate(rate, now_s)
            self._changed.notify_all()

    def set_configured(self, config: CleanerdConfig, before: CleanerdConfig | None = None) -> None:
        """Adopt the limits of a configuration; if they equal those of `before`, limits set since then stay."""
        rates = _rates(config)
        if before is None or rates != _rates(before):
            self.set_limits(**rates)

    def limits(self) -> dict[RateLimit, float]:
        """Bytes per second, `math.inf` for no limit."""
        with self._changed:
            rates = {limit: account.rate for limit, account in self._accounts.items()}
        return {limit: math.inf if rate == DOUBLE_MAX else rate for limit, rate in rates.items()}

    def limited(self, config: CleanerdConfig) -> CleanerdConfig:
        """A configuration with the limits that hold now: how much work is begun at a time follows them."""
        rates = {limit: min(rate, DOUBLE_MAX) for limit, rate in self.limits().items()}
        return config.but(
            io_max_bytes_per_second=min(rates[RateLimit.TOTAL], rates[RateLimit.REQUEST_QUEUE]),
            io_max_read_bytes_per_second=rates[RateLimit.READ],
            io_max_write_bytes_per_second=rates[RateLimit.WRITE],
        )

    def charge(
        self, read_bytes: int, written_bytes: int, should_stop: Callable[[], bool], *, is_urgent: bool = False
    ) -> None:
        """Account for I/O that was done; returns when it is paid, or soon after `should_stop` returns True.

        I/O of a stopped caller stays charged: the disk was busy with it.
        """
        sizes = {
            RateLimit.TOTAL: read_bytes + written_bytes,
            RateLimit.READ: read_bytes,
            RateLimit.WRITE: written_bytes,
            RateLimit.REQUEST_QUEUE: read_bytes + written_bytes,
        }
        with self._changed:
            now_s = self._clock.monotonic_s()
            due = {
                limit: self._accounts[limit].spend(size, now_s, is_urgent=is_urgent)
                for limit, size in sizes.items()
                if size
            }
        while due and not should_stop():
            with self._changed:
                if not self._wait_for(due):
                    return

    def waited_s(self) -> dict[RateLimit, float]:
        """Seconds that all callers together waited so far, by the limit that was furthest behind."""
        with self._changed:
            return {limit: account.waited_s for limit, account in self._accounts.items()}

    def paid_bytes(self) -> float:
        """Reads plus writes of all callers together since the start, without what the slowest limit has still to earn."""
        with self._changed:
            now_s = self._clock.monotonic_s()
            unpaid = max(account.unpaid(now_s) for account in self._accounts.values())
            return self._accounts[RateLimit.TOTAL].spent - unpaid

    def _wait_for(self, due: "dict[RateLimit, _Charge]") -> bool:
        """Wait a little for the slowest of these, or return False because all are paid. The lock is held."""
        before_s = self._clock.monotonic_s()
        left_s, slowest = max(
            ((self._accounts[limit].seconds_until(charge, before_s), limit) for limit, charge in due.items()),
            key=lambda found: found[0],
        )
        if left_s <= 0:
            return False
        self._wait(self._changed, min(max(left_s, _WAIT_MIN_S), _WAIT_MAX_S))
        self._accounts[slowest].waited_s += self._clock.monotonic_s() - before_s
        return True


@dataclass(slots=True)
class _Charge:
    """Bytes to be paid; `mark` is how many must have been paid in all for these to be among them."""

    size: int
    mark: float
    is_urgent: bool


class _Account:
    """Bytes earned and spent under one limit since the start."""

    def __init__(self, now_s: float) -> None:
        self.waited_s = 0.0
        self.rate = math.inf
        self._earned = 0.0
        self.spent = 0.0
        self._earned_at_s = now_s
        self._waiting = deque[_Charge]()  # in the order of their marks, without those that are paid

    def set_rate(self, rate: float, now_s: float) -> None:
        """Change the rate; the time until now counts at the old one."""
        self._earn(now_s)
        self.rate = rate
        self._earn(now_s)

    def spend(self, size: int, now_s: float, *, is_urgent: bool) -> _Charge:
        """Charge `size` bytes more, behind all others, or, if they are urgent, behind all that are."""
        self._earn(now_s)
        self.spent += size
        charge = _Charge(size, self.spent, is_urgent)
        later = [one for one in self._waiting if not one.is_urgent] if is_urgent else []
        for one in later:
            charge.mark -= one.size
            one.mark += size
        self._waiting.append(charge)
        if later:
            self._waiting = deque(sorted(self._waiting, key=lambda one: one.mark))
        return charge

    def seconds_until(self, charge: _Charge, now_s: float) -> float:
        """When as much will be earned; 0 or less if it is."""
        self._earn(now_s)
        return (charge.mark - self._earned) / self.rate

    def unpaid(self, now_s: float) -> float:
        """Bytes spent that are still to be earned."""
        self._earn(now_s)
        return max(self.spent - self._earned, 0.0)

    def _earn(self, now_s: float) -> None:
        if self.rate == math.inf:
            self._earned = self.spent
        else:
            gained = self.rate * (now_s - self._earned_at_s)
            self._earned = min(self._earned + gained, self.spent + self.rate * BURST_S)
        self._earned_at_s = now_s
        while self._waiting and self._waiting[0].mark <= self._earned:
            self._waiting.popleft()


def _rates(config: CleanerdConfig) -> dict[str, float]:
    return {
        "total": config.io_max_bytes_per_second,
        "read": config.io_max_read_bytes_per_second,
        "write": config.io_max_write_bytes_per_second,
    }
