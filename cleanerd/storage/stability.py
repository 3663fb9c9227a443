"""Limits that open transactions and producers set: newest usable snapshot, then replay (A.3, A.4; spec disk G).

Compiled, for all batches of a log; `replay` gives the whole state of producers, as a snapshot has it, in plain Python.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cleanerd.env.files import Files, NotRegular
from cleanerd.env.pace import Pace, unpaced
from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.names import FileKind, segment_path
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.tables import Producers
from cleanerd.kernels.transactions import PRODUCER, ReplayState, replay

from .scan import PartitionSnapshot, tail_batches


@dataclass(frozen=True, slots=True)
class Stability:
    """`last_stable_offset` <= high watermark; `producers`: the active ones of the whole log (rule 4.17).

    `open_producer`: whose transaction begins at the last stable offset, None if that comes from something else.
    `aborts`: (producer id, offset of the marker) of transactions that were aborted in the part of the log that was replayed.
    """

    last_stable_offset: int
    producers: Producers
    aborts: frozenset[tuple[int, int]] = frozenset()
    open_producer: int | None = None


def read_stability(
    files: Files, snapshot: PartitionSnapshot, *, now_ms: int, expiration_ms: int, pace: Pace = unpaced
) -> Stability:
    """The limits that open transactions and idempotent producers set to a cleaning.

    Starts from the newest producer snapshot at or below high watermark and recovery point that can be read, else from the
    start of the log, and replays all batch headers behind it: a damaged snapshot costs time, never safety.
    """
    start, state = _newest_usable(files, snapshot)
    ends = [segment.base_offset for segment in snapshot.segments[1:]] + [snapshot.log_end_offset]
    for segment, end in zip(snapshot.segments, ends, strict=True):
        if end > start:
            for raw, batches in tail_batches(files, segment, start, pace):
                state = replay(state, raw, batches, start, snapshot.high_watermark)
    rows = state.producers
    open_txns = rows[rows["txn_first_offset"] >= 0]
    ended_late = [state.first_unstable_offset] if state.first_unstable_offset >= 0 else []
    last_stable = min([snapshot.high_watermark, *open_txns["txn_first_offset"].tolist(), *ended_late])
    holding = open_txns["producer_id"][open_txns["txn_first_offset"] == last_stable]
    active = rows[(rows["txn_first_offset"] >= 0) | (now_ms - rows["timestamp"] < expiration_ms)]
    return Stability(
        last_stable,
        Producers(
            ids=np.ascontiguousarray(active["producer_id"]),
            epochs=np.ascontiguousarray(active["epoch"]),
            last_data_offsets=np.ascontiguousarray(active["last_data_offset"]),
        ),
        frozenset(
            zip(state.aborts["producer_id"].tolist(), state.aborts["marker_offset"].tolist(), strict=True)
        ),
        int(holding[0]) if len(holding) else None,
    )


def check_aborted(snapshot: PartitionSnapshot, stability: Stability, aborted: Iterable[AbortedTxn]) -> None:
    """Raise CorruptFile unless the transaction indexes hold every aborted transaction that the log was seen to hold.

    Those that end below the log start are not among `aborted` (rule 4.22). A power cut can take the entry and leave the
    marker, until the broker or the writer of the log has started again.
    """
    seen = {one for one in stability.aborts if one[1] >= snapshot.log_start_offset}
    missing = seen - {(txn.producer_id, txn.last_offset) for txn in aborted}
    if missing:
        producer, marker = min(missing, key=lambda one: one[1])
        holding = [segment for segment in snapshot.segments if segment.base_offset <= marker][-1]
        expected = f"the transaction of producer {producer} that was aborted at offset {marker}"
        raise CorruptFile(
            holding.sibling(FileKind.TXN_INDEX), 0, expected, "none; start the log's broker or writer once"
        )


def _newest_usable(files: Files, snapshot: PartitionSnapshot) -> tuple[int, ReplayState]:
    limit = snapshot.high_watermark  # unflushed segments are replayed: their indexes may lack entries
    if snapshot.recovery_point is not None:
        limit = min(limit, max(snapshot.recovery_point, snapshot.segments[0].base_offset))
    for offset in reversed(snapshot.producer_snapshots):
        if not snapshot.log_start_offset < offset <= limit:
            continue
        path = segment_path(snapshot.directory, offset, FileKind.PRODUCER_SNAPSHOT)
        try:
            return offset, ReplayState(_rows(parse_producer_snapshot(files.read(path), offset)), -1)
        except (FormatError, FileNotFoundError, NotRegular):
            continue
    return snapshot.segments[0].base_offset, ReplayState(np.zeros(0, PRODUCER), -1)


def _rows(entries: tuple[ProducerEntry, ...]) -> np.ndarray:
    rows = np.zeros(len(entries), PRODUCER)
    for row, entry in zip(rows, sorted(entries, key=lambda e: e.producer_id), strict=True):
        row["producer_id"] = entry.producer_id
        row["epoch"] = entry.producer_epoch
        row["last_data_offset"] = entry.last_offset
        row["timestamp"] = entry.timestamp_ms
        row["txn_first_offset"] = entry.current_txn_first_offset
    return rows
