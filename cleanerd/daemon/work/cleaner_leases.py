"""Logs from which the agent keeps the cleaner of the live broker beside us, for as long as this is renewed.

A daemon that stops, is killed or loses the broker renews nothing, and the broker's cleaner takes over within `LEASE_MS`.
After a start, of either, the leases begin again with the next renewal.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.leases import lease
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.lease_duty import LeaseDuty
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import each_log
from cleanerd.storage.partition_dir import PartitionDir

LEASE_MS = 60_000
_RENEW_S = 15.0


class CleanerLeases:
    """Thread-safe. `held`: the logs that were leased at the last renewal."""

    def __init__(
        self,
        brokers: LiveBrokers,
        inventory: Inventory,
        files: Files,
        clock: Clock,
        duty: LeaseDuty,
    ) -> None:
        self._brokers = brokers
        self._inventory = inventory
        self._files = files
        self._clock = clock
        self.duty = duty
        self._holder = os.urandom(8).hex()
        self._renewing = threading.Lock()
        self._renewed_s = clock.monotonic_s()
        self.held: frozenset[LogId] = frozenset()

    def renew_if_due(self, topics: Collection[str]) -> None:
        """As `renew`, when the time has come."""
        if (topics or self.held) and self._clock.monotonic_s() - self._renewed_s >= _RENEW_S:
            self.renew(topics)

    def renew(self, topics: Collection[str], new: Collection[str] = ()) -> dict[str, str]:
        """Keep brokers' cleaners from the logs of these topics that cleanerd cleans (`LeaseDuty`), and from no others that
        we had; why not, by topic. `new`: those that are muted from now on.
        """
        with self._renewing:
            self._renewed_s = self._clock.monotonic_s()
            wanted = defaultdict[str, list[LogId]](list, {log.log_dir: [] for log in self.held})
            muted = [log for log in self._inventory.logs() if log.topic_partition.topic in topics]
            self.duty.begin([log for log in muted if log.topic_partition.topic in new])
            for log in self.duty.to_lease(muted):
                wanted[log.log_dir].append(log)
            refused: dict[LogId, str] = {}
            for log_dir, logs in wanted.items():
                refused |= self._lease(log_dir, logs)
            self.held = frozenset(log for logs in wanted.values() for log in logs if log not in refused)
            return {log.topic_partition.topic: reason for log, reason in refused.items()}

    def _lease(self, log_dir: str, logs: Sequence[LogId]) -> dict[LogId, str]:
        named = [(PartitionDir(self._files, log.directory), log.topic_partition) for log in logs]
        with each_log(log_dir) as asked:
            refused = lease(self._brokers.session(log_dir), f"{self._holder} {log_dir}", named, LEASE_MS)
            return {LogId(log_dir, tp): reason for tp, reason in refused.items()}
        return dict.fromkeys(logs, str(asked.error))
