"""Delete horizons of batches (rule 0.6; spec disk C1: a horizon takes the place of the base timestamp)."""

import numpy as np

from cleanerd.format.head import DELETE_HORIZON

from .native import JIT, njit
from .tables import Action, Table

_DROP, _EMPTY = int(Action.DROP), int(Action.EMPTY)


@njit(**JIT)
def delete_horizon(batch):
    """Delete horizon of a `BATCH` row in ms, -1 none."""
    if batch.magic == 2 and batch.attributes & DELETE_HORIZON != 0 and batch.base_timestamp >= 0:
        return batch.base_timestamp
    return np.int64(-1)


@njit(**JIT)
def _earlier(known, horizon):
    return horizon if known < 0 or horizon < known else known


@njit(**JIT)
def _next_horizon(batches, known, now_ms):
    for i in range(len(batches)):
        horizon = delete_horizon(batches[i])
        if horizon > now_ms and horizon >= 0:
            known = _earlier(known, horizon)
    return known


@njit(**JIT)
def _next_written_horizon(judged, known):
    for i in range(len(judged)):
        row = judged[i]
        if row.action not in (_DROP, _EMPTY) and row.horizon >= 0:
            known = _earlier(known, row.horizon)
    return known


def next_horizon(batches: Table, known_ms: int, now_ms: int) -> int:
    """The earliest of `known_ms` (-1 none) and the delete horizons of `batches` after `now_ms`; -1 when there is none."""
    return int(_next_horizon(batches, known_ms, now_ms))


def next_written_horizon(judged: Table, known_ms: int) -> int:
    """The earliest of `known_ms` (-1 none) and the delete horizons that judged batches are written with; -1 none."""
    return int(_next_written_horizon(judged, known_ms))
