"""The records of a partition as a consumer reads them, in plain Python.

A read_committed reader first fixes what it will see: the last stable offset, then the aborted transactions.
That order is safe because a writer records an abort before it writes the marker that ends the transaction. A
transactional batch is aborted when its base offset lies between the first offset and the marker of an aborted
transaction of its producer; unlike the bookkeeping of Kafka's consumer this needs no marker to be left in the
log.
"""

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format.batch import Record
from cleanerd.format.names import MAX_OFFSET, FileKind, parse_partition_dir, segment_path
from cleanerd.format.txn_index import AbortedTxn, Isolation
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.index_files import read_txn_index
from cleanerd.storage.producer_state import last_stable_offset
from cleanerd.storage.segments import LIST_ATTEMPTS_MAX, LogBatch, log_batches, settled_bases

_Aborted = dict[int, list[AbortedTxn]]
"""Aborted transactions by producer id, ascending; those of one producer never overlap."""


def read_records(
    partition_dir: str, *, isolation: Isolation = "read_uncommitted", start_offset: int = 0
) -> Iterator[Record]:
    """Records from `start_offset` or the log start on, without control records, to the end of the log or its stable part.

    Segments may be appended, rolled, merged or deleted meanwhile; each offset is seen once or not at all.
    Raises: `CorruptFile` for damage; `SourceChanged` when a commit was begun and never finished.
    """
    start_offset = max(start_offset, _log_start_offset(partition_dir))
    end_offset, aborted = MAX_OFFSET, _Aborted()
    if isolation == "read_committed":
        end_offset = last_stable_offset(partition_dir)
        aborted = _read_aborted(partition_dir)
    for batch in log_batches(partition_dir, start_offset):
        if batch.last_offset >= end_offset:
            return
        if _is_visible(batch, aborted):
            yield from (record for record in batch.records() if record.offset >= start_offset)


def _log_start_offset(partition_dir: str) -> int:
    """The log start offset: records below it are deleted, though their segment may remain."""
    log_dir, name = os.path.split(os.path.abspath(partition_dir))
    parsed = parse_partition_dir(name)
    return 0 if parsed is None else read_checkpoints(RealFiles(), log_dir).log_start.get(parsed[0], 0)


def _is_visible(batch: LogBatch, aborted: _Aborted) -> bool:
    header = batch.header
    if header is None:
        return True
    if header.is_control:
        return False
    if not header.is_transactional:
        return True
    transactions = aborted.get(header.producer_id, [])
    at = bisect_right(transactions, header.base_offset, key=lambda txn: txn.first_offset) - 1
    return at < 0 or header.base_offset > transactions[at].last_offset


def _read_aborted(directory: str) -> _Aborted:
    """All transaction indexes, read while no segment came, went or was exchanged."""
    for _ in range(LIST_ATTEMPTS_MAX):
        try:
            before = _identities(directory)
            found = _read_txn_indexes(directory, list(before))
            if before == _identities(directory):
                return found
        except FileNotFoundError:
            continue
    raise SourceChanged(f"{directory}: segments change again and again")


def _identities(directory: str) -> dict[int, int]:
    """Inode of each live segment by its base offset, ascending."""
    return {
        base: os.stat(segment_path(directory, base, FileKind.LOG)).st_ino for base in settled_bases(directory)
    }


def _read_txn_indexes(directory: str, bases: list[int]) -> _Aborted:
    aborted: _Aborted = defaultdict(list)
    for base in bases:
        path = segment_path(directory, base, FileKind.TXN_INDEX)
        if not os.path.exists(path):
            continue
        for entry in read_txn_index(RealFiles(), path, base, is_written=base == bases[-1]):
            aborted[entry.producer_id].append(entry)
    return aborted
