"""Runs retention: every log.retention.check.interval.ms for logs that are not compacted, every log.cleaner.backoff.ms for
the others.
"""

from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.retention import RetentionPasses, whose_turn


class Retainer:
    """Looks whose turn it is at every round of the cleaner."""

    def __init__(self, conditions: Conditions, passes: RetentionPasses, scanner: Scanner) -> None:
        self._conditions = conditions
        self._passes = passes
        self._scanner = scanner
        self._retained_s = conditions.clock.monotonic_s()

    def step(self) -> float:
        """One round."""
        configuration, now_s = self._conditions.configuration(), self._conditions.clock.monotonic_s()
        is_time = (now_s - self._retained_s) * 1000 >= configuration.broker.retention_check_interval_ms
        if is_time:
            self._retained_s = now_s
        inventory = self._conditions.inventory
        known = [known for known in map(inventory.facts, inventory.logs()) if known is not None]
        self._passes.reset_checkpoints([found.log for found in known if found.may_need_reset])
        failed = {failure.log for failure in self._conditions.failures.all()}
        logs = whose_turn(known, configuration, failed, is_time=is_time)
        if logs:
            self._passes.run(logs)
            self._scanner.refresh()
        return configuration.broker.round_pause_s
