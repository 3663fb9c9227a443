"""Runs retention: every log.retention.check.interval.ms for logs that are not compacted, every log.cleaner.backoff.ms for
the others.
"""

from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.work.retention import whose_turn
from cleanerd.daemon.workers import Bell, Worker


class Retainer:
    """Looks whose turn it is at every round of the cleaner."""

    def __init__(self, parts: Parts, scanner: Scanner) -> None:
        self._parts = parts
        self._scanner = scanner
        self._retained_s = parts.clock.monotonic_s()
        self.worker = Worker("cleanerd-retention", self.step, Bell(), parts.clock)

    def step(self) -> float:
        """One round."""
        parts, now_s = self._parts, self._parts.clock.monotonic_s()
        configuration = parts.configuration()
        is_time = (now_s - self._retained_s) * 1000 >= configuration.broker.retention_check_interval_ms
        if is_time:
            self._retained_s = now_s
        known = [known for known in map(parts.inventory.facts, parts.inventory.logs()) if known is not None]
        parts.retention.reset_checkpoints([found.log for found in known if found.may_need_reset])
        failed = {failure.log for failure in parts.failures.all()}
        logs = whose_turn(known, configuration, failed, is_time=is_time)
        if logs:
            parts.retention.run(logs)
            self._scanner.refresh()
        return parts.configuration().broker.round_pause_s
