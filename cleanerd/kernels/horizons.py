"""Delete horizons of batches (rule 0.6; spec disk C1: a horizon takes the place of the base timestamp)."""

import numpy as np

from cleanerd.format.head import CONTROL, DELETE_HORIZON

from .native import JIT, njit
from .tables import Table


@njit(**JIT)
def delete_horizon(batch):
    """Delete horizon of a `BATCH` row in ms, -1 none."""
    if batch.magic == 2 and batch.attributes & DELETE_HORIZON != 0 and batch.base_timestamp >= 0:
        return batch.base_timestamp
    return np.int64(-1)


@njit(**JIT)
def earlier(horizon, other):
    """The earlier of two horizons, of which -1 is none."""
    return horizon if other < 0 or 0 <= horizon < other else other


@njit(**JIT)
def _next_horizon(batches, now_ms):
    found = np.int64(-1)
    for i in range(len(batches)):
        horizon = delete_horizon(batches[i])
        if horizon > now_ms:
            found = earlier(horizon, found)
    return found


@njit(**JIT)
def _holds_expired(batches, records, now_ms):
    for i in range(len(records)):
        batch = batches[records[i].batch]
        can_go = batch.attributes & CONTROL != 0 or records[i].value_is_null != 0
        if can_go and 0 <= delete_horizon(batch) <= now_ms:
            return True
    return False


def next_horizon(batches: Table, now_ms: int) -> int:
    """The earliest delete horizon after `now_ms`, -1 when there is none."""
    return int(_next_horizon(batches, now_ms))


def holds_expired(batches: Table, records: Table, now_ms: int) -> bool:
    """Whether one of `records` is a tombstone or a marker whose time has come.

    A batch keeps its horizon when its last tombstone goes (rule 4.28), so its header alone is not enough.
    """
    return bool(_holds_expired(batches, records, now_ms))
