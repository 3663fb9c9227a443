"""Which muted logs go back to the broker's cleaner, because cleanerd does not clean them (`policy.lease_duty`)."""

import threading
from collections.abc import Collection

import structlog

from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.policy.lease_duty import GRACE_S, Account, Seen, after, first
from cleanerd.units import duration

_log = structlog.get_logger("cleanerd")


class LeaseDuty:
    """Thread-safe. `given_back`: the reason for each muted log that the last call of `to_lease` left out."""

    def __init__(self, conditions: Conditions, jobs: Jobs) -> None:
        self._conditions = conditions
        self._jobs = jobs
        self._clock = conditions.clock
        self._mutex = threading.Lock()
        self._accounts: dict[LogId, Account] = {}
        self.given_back: dict[LogId, str] = {}

    def begin(self, logs: Collection[LogId]) -> None:
        """Muted from now on: the time for which these logs were due before does not count."""
        with self._mutex:
            self._accounts |= dict.fromkeys(logs, Account())

    def to_lease(self, muted: Collection[LogId]) -> list[LogId]:
        """The muted logs whose lease is to be renewed; logs a warning for each that goes back to the broker's cleaner.

        A log that cleanerd may not change (`Obstacles.barred`) is left out without a warning.
        """
        barred = self._conditions.states.obstacles.barred
        logs = [log for log in muted if barred(log) is None]
        with self._mutex:
            now_s = self._clock.monotonic_s()
            seen = {log: self._seen(log) for log in logs}
            self._accounts = {
                log: after(self._accounts[log], one, now_s) if log in self._accounts else first(one)
                for log, one in seen.items()
            }
            found = {log: one.neglected for log, one in self._accounts.items() if one.neglected is not None}
            self._log_changes(found)
            self.given_back = found
        return [log for log in logs if log not in found]

    def _seen(self, log: LogId) -> Seen:
        is_due, clean_up_to = self._conditions.due_logs.duty(log)
        age_s = self._clock.monotonic_s() - self._conditions.inventory.scanned_s
        if age_s > max(GRACE_S, 2 * self._conditions.configuration().broker.scan_interval_ms / 1000):
            return Seen(None, None, f"its files have not been looked at for {duration(age_s)}")
        return Seen(is_due, clean_up_to, self._conditions.of(log).obstacle, self._jobs.seen(log))

    def _log_changes(self, found: dict[LogId, str]) -> None:
        for log in sorted(found.keys() - self.given_back.keys()):
            _log.warning("lease_given_back", **log.fields(), reason=found[log])
        for log in sorted(self.given_back.keys() & self._accounts.keys() - found.keys()):
            _log.info("lease_taken_back", **log.fields())
