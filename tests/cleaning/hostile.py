"""Logs that ask for more than their share: each is made of an ordinary one, and must not harm those beside it."""

import os
from collections.abc import Callable
from pathlib import Path

from cleanerd.format.names import LEADER_EPOCH_CHECKPOINT, FileKind
from tests.cleaning.damage import batch_starts, overwrite
from tests.cleaning.logs import segment

_TB = 1 << 40


def end_beyond_int64(partition: Path) -> str:
    """The last header of the active segment claims an end at 2^63; the end of a log is taken without its CRC."""
    log = segment(partition, -1)
    start = batch_starts(log)[-1]
    overwrite(log, start, (2**63 - 1).to_bytes(8))
    return f"{log}: at byte {start}"


def sparse_txn_index(partition: Path) -> str:
    return _sparse(segment(partition, 1, FileKind.TXN_INDEX))


def sparse_snapshot(partition: Path) -> str:
    """All of them. A log is replayed where none can be used: that costs time, never safety."""
    for snapshot in partition.glob(f"*{FileKind.PRODUCER_SNAPSHOT.value}"):
        _sparse(snapshot)
    return str(partition)


def sparse_leader_epochs(partition: Path) -> str:
    return _sparse(partition / LEADER_EPOCH_CHECKPOINT)


def _sparse(path: Path) -> str:
    path.touch()
    os.truncate(path, _TB)
    return str(path.parent)


def fifo_as_log(partition: Path) -> str:
    """Opening it would wait for a writer for ever."""
    return _fifo(segment(partition, 1))


def fifo_as_active_log(partition: Path) -> str:
    return _fifo(segment(partition, -1))


def fifo_as_offset_index(partition: Path) -> str:
    return _fifo(segment(partition, 1, FileKind.OFFSET_INDEX))


def fifo_as_time_index(partition: Path) -> str:
    return _fifo(segment(partition, 1, FileKind.TIME_INDEX))


def fifo_as_leader_epochs(partition: Path) -> str:
    return _fifo(partition / LEADER_EPOCH_CHECKPOINT)


def _fifo(path: Path) -> str:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return str(path.parent)


HOSTILE: tuple[Callable[[Path], str], ...] = (
    end_beyond_int64,
    sparse_txn_index,
    sparse_leader_epochs,
    fifo_as_log,
    fifo_as_active_log,
    fifo_as_offset_index,
    fifo_as_time_index,
    fifo_as_leader_epochs,
)
"""Each returns what a report of it names."""
