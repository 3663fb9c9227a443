"""Replicas that a broker moves to another log directory, remembered: a directory that fails cannot be asked after a restart
(2.10).
"""

import contextlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import structlog

from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.store import MOVING, Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import Files
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import futures

_log = structlog.get_logger("cleanerd")


class Moves:
    """Keeps in the store which replicas are on their way to which log directory."""

    def __init__(self, log_dirs: Sequence[str], store: Store, inventory: Inventory, files: Files) -> None:
        self._log_dirs = log_dirs
        self._store = store
        self._inventory = inventory
        self._files = files
        self._moving = dict(store.all(MOVING, _partitions))  # as the store has it
        for log_dir, moving in self._moving.items():
            inventory.remember_futures(log_dir, moving)

    def remember(self, were_offline: Set[str] = frozenset()) -> None:
        """Store the moves that the last scan found. In directories that `were_offline`, warn of moves that began unseen."""
        for log_dir in self._log_dirs:
            moving = self._inventory.futures(log_dir)
            if moving == self._moving.get(log_dir, frozenset()):
                continue
            if log_dir in were_offline:
                self._report_unseen(log_dir, moving - self._moving.get(log_dir, frozenset()))
            if moving:
                partitions = sorted([tp.topic, tp.partition] for tp in moving)
                self._store.put(MOVING, log_dir, {"partitions": partitions})
            else:
                self._store.delete(MOVING, log_dir)
            self._moving[log_dir] = moving

    def _report_unseen(self, log_dir: str, partitions: frozenset[TopicPartition]) -> None:
        """Moves that began before a directory failed and nobody had looked: their logs may have been cleaned since."""
        with contextlib.suppress(OSError):
            for name in self._files.list_names(log_dir):
                for tp in partitions.intersection(futures([name])):
                    log = LogId(log_dir, tp)
                    _log.warning("move_unseen", **log.fields(), path=f"{log_dir}/{name}")


def _partitions(state: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(str(topic), int(partition)) for topic, partition in state["partitions"])
