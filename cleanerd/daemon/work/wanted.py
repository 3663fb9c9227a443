"""The last question before a commit: is the result still wanted, as everything is configured and held now?"""

from collections.abc import Callable
from dataclasses import dataclass

from cleanerd.cleaning.foreign import why_foreign
from cleanerd.cleaning.wanted import check_wanted
from cleanerd.config.load import Configuration
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.states import PartitionStates
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import PolicyChanged
from cleanerd.storage.log_dir import LogDir

UNREAD = "what is configured was rejected, or cannot be read now"
"""Nothing is committed or deleted meanwhile: it may have to stay."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Asks with `.lock` held; thread-safe. `refresh` takes in the cluster's changes since the last look, False: `UNREAD`."""

    states: PartitionStates
    files: Files
    clock: Clock
    configuration: Callable[[], Configuration]
    refresh: Callable[[], bool]
    inventory: Inventory

    def check(self, log: LogId, round_end: int) -> None:
        """Raise PolicyChanged when a cleaning up to `round_end` may no longer be committed, Aborted when not now.

        Asked again are cleanup.policy, topic id, min.compaction.lag.ms, holds and moves. Raises CorruptFile, OSError.
        """
        configuration = self.configuration()
        log_dir, tp = LogDir.at(self.files, log.log_dir, self.clock), log.topic_partition
        reason = why_foreign(log_dir, tp, configuration)
        # it may not be there to be seen
        if reason is None and (target := self.inventory.moving_to(log)) is not None:
            reason = f"{log.directory}: its broker moves it to {target}"
        if reason is not None:
            raise PolicyChanged(reason)
        check_wanted(log_dir, tp, configuration.topic(tp.topic), round_end)
        self.states.begin_commit(log)
