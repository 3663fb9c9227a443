"""Producer state from disk: the newest usable snapshot, then the batches behind it (spec disk D2.7, G)."""

import os

from cleanerd.env.files import READ_MAX_BYTES, NotRegular, read_regular
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.names import FileKind, segment_path
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.storage.partition_dir import bases_of
from cleanerd.storage.producer_state import ProducerState
from cleanerd.storage.segments import LogBatch, live_bases, log_batches


def producers_at(directory: str, offset: int) -> ProducerState:
    """The state just below `offset`, which is the base offset of a segment. Raises: as `log_batches`."""
    start, state = _newest_snapshot(directory, offset)
    if start == offset:  # the common case, which needs no other segment
        return state
    for batch in log_batches(directory, start):
        if batch.last_offset >= offset:
            break
        apply(state, batch)
    return state


def apply(state: ProducerState, batch: LogBatch) -> None:
    """Move `state` on by a batch read from disk; magic 0 and 1 know no producers. Raises `CorruptFile`."""
    if batch.header is None:
        return
    with corruption_in(batch.path, batch.position):
        state.apply(batch.header, batch.data)


def last_stable_offset(directory: str) -> int:
    """First offset that a read_committed consumer cannot have yet: of an open transaction, else the log end.

    Raises: `CorruptFile`.
    """
    bases = live_bases(directory)
    if not bases:
        return 0
    state, end = producers_at(directory, bases[-1]), bases[-1]
    for batch in log_batches(directory, end):
        apply(state, batch)
        end = batch.last_offset + 1
    return end if state.first_open_offset is None else state.first_open_offset


def snapshot_offsets(directory: str) -> list[int]:
    """Offsets of the producer snapshots, ascending."""
    return bases_of(os.listdir(directory), FileKind.PRODUCER_SNAPSHOT)


def _newest_snapshot(directory: str, limit: int) -> tuple[int, ProducerState]:
    """The newest readable one at or below `limit`; a damaged one costs a longer replay, nothing else."""
    for offset in reversed(snapshot_offsets(directory)):
        path = segment_path(directory, offset, FileKind.PRODUCER_SNAPSHOT)
        if offset <= limit:
            try:
                return offset, ProducerState(
                    parse_producer_snapshot(read_regular(path, READ_MAX_BYTES), offset)
                )
            except (FormatError, FileNotFoundError, NotRegular):
                continue
    return 0, ProducerState()
