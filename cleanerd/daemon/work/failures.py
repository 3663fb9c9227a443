"""Logs whose cleaning failed: when to try again, and when to give up (rules 7.14, 1.33).

Kafka gives up on a partition at its first error, until the broker restarts. Here it is retried after a pause that doubles;
after `retry_max` failures in a row it is *uncleanable*, with its reason, until `cleanerctl retry`, or until its files or
its configuration change. What may pass by itself (no space, a changed source, a dead JVM) is tried for ever.
"""

import threading
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from cleanerd.cleaning.outcomes import Failed
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.format.names import TopicPartition

KIND = "trouble"
BACKOFF_MAX_MS = 600_000
"""Longest pause after a failure, where cleanerd.retry.backoff.ms is not longer."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a log was not cleaned. `stamp` stands for its files and its configuration when that happened."""

    log_dir: str
    topic: str
    partition: int
    failures: int
    reason: str
    error: str
    since_ms: int
    retry_at_ms: int | None  # None: uncleanable
    stamp: str
    failed_ms: int = 0  # the last time
    remedy: str | None = None

    @property
    def log(self) -> LogId:
        """The log."""
        return LogId(self.log_dir, TopicPartition(self.topic, self.partition))

    @property
    def is_uncleanable(self) -> bool:
        """Whether nothing but a change or a `retry` brings it back."""
        return self.retry_at_ms is None


class Failures:
    """All logs whose cleaning failed; thread-safe, kept in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.RLock()
        self._failures = {
            failure.log: failure for failure in store.all(KIND, TypeAdapter(Failure).validate_python).values()
        }

    def failed(self, log: LogId, outcome: Failed, stamp: str, config: CleanerdConfig, now_ms: int) -> Failure:
        """Record a failure."""
        with self._mutex:
            before = self._failures.get(log)
            failures = before.failures + 1 if before is not None else 1
            pause_ms = min(
                config.retry_backoff_ms << min(failures - 1, 30), max(BACKOFF_MAX_MS, config.retry_backoff_ms)
            )
            gives_up = failures >= config.retry_max and not outcome.is_retryable
            failure = Failure(
                **log.fields(),
                failures=failures,
                reason=outcome.reason,
                error=outcome.error or "",
                since_ms=before.since_ms if before is not None else now_ms,
                retry_at_ms=None if gives_up else now_ms + pause_ms,
                stamp=stamp,
                failed_ms=now_ms,
                remedy=outcome.remedy,
            )
            self._failures[log] = failure
            self._store.put(KIND, log.directory, asdict(failure))
            return failure

    def forget(self, log: LogId) -> bool:
        """The log is fine, gone, or to be tried again; whether it had failed."""
        with self._mutex:
            if self._failures.pop(log, None) is None:
                return False
            self._store.delete(KIND, log.directory)
            return True

    def forget_changed(self, log: LogId, stamp: str) -> bool:
        """Forget that a log is uncleanable, if its files or configuration have changed; True if it was forgotten."""
        with self._mutex:
            failure = self._failures.get(log)
            is_other = failure is not None and failure.is_uncleanable and failure.stamp != stamp
            return is_other and self.forget(log)

    def of(self, log: LogId) -> Failure | None:
        """The failures of a log in a row, None if its last cleaning did not fail."""
        return self._failures.get(log)

    def all(self) -> list[Failure]:
        """All failures."""
        with self._mutex:
            return list(self._failures.values())

    def blocks(self, log: LogId, now_ms: int) -> bool:
        """Whether the log is not to be tried now. A clock that was set back ends a pause."""
        failure = self._failures.get(log)
        if failure is None or failure.retry_at_ms is None:
            return failure is not None
        return failure.failed_ms <= now_ms < failure.retry_at_ms
