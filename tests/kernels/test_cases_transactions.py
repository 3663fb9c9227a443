"""Conformance cases C073-C090: idempotent producers and transactions, over several rounds.

Each round runs the real path and must agree with the twin; the asserted numbers are upstream's. Rounds are full ones
(no map fills up here), which C077 says for itself. Re-appending duplicates (C073) is the broker's affair: what it needs
for that, the last sequence of every producer, is asserted.
"""

from pathlib import Path

import pytest

from cleanerd.format.txn_index import AbortedTxn
from tests.harness.kernels.small_log import LARGE_MS, SmallLog

MAX_MS = 2**63 - 1


@pytest.fixture
def log(tmp_path: Path) -> SmallLog:
    return SmallLog(tmp_path)


def test_c073_duplicate_check_after_cleaning(log: SmallLog) -> None:
    """The last batch of every producer stays, so that its sequence stays known."""
    log.append(1, 2, 3, pid=1)
    log.append(3, 1, 4, pid=2)
    log.append(1, 4, pid=3)
    log.clean(0)
    assert log.batch_ends == [2, 5, 7]
    assert log.last_sequences == {1: 2, 2: 2, 3: 1}
    assert (log.keys, log.offsets) == ([2, 3, 1, 4], [1, 3, 6, 7])
    log.append(2, pid=4)
    log.clean(8)
    assert log.last_sequences == {1: 2, 2: 2, 3: 1, 4: 0}
    assert (log.batch_ends, log.keys, log.offsets) == ([2, 5, 7, 8], [3, 1, 4, 2], [3, 6, 7, 8])


def test_c074_producer_last_sequence_retained(log: SmallLog) -> None:
    """Only the last batch of a producer is kept empty."""
    log.append(0)
    for pid, key in ((1, 0), (2, 0), (3, 0), (2, 1)):
        log.append(key, pid=pid)
    log.clean(0)
    assert log.batch_ends == [1, 3, 4]
    assert log.last_sequences == {1: 0, 2: 1, 3: 0}
    assert (log.keys, log.offsets) == ([0, 1], [3, 4])


def test_c075_last_sequence_retained_even_if_aborted(log: SmallLog) -> None:
    """Data of an aborted transaction leaves its sequence behind."""
    log.produce(1, 1)
    log.produce(1, 2, 3)
    log.abort(1)
    log.clean(0)
    assert log.batch_ends == [2, 3]
    assert log.last_sequences == {1: 2}
    assert (log.keys, log.offsets) == ([], [3])
    log.produce(1, 1, 5)
    log.clean(0)
    assert log.batch_ends == [3, 5]
    assert log.last_sequences == {1: 4}
    assert (log.keys, log.offsets) == ([1, 5], [3, 4, 5])


def test_c076_basic_transaction_aware_cleaning(log: SmallLog) -> None:
    """Aborted data goes, and never counts as the newest of its key."""
    log.produce(1, 1, 2)
    log.produce(2, 2, 3)
    log.produce(1, 3, 4)
    log.abort(1)
    log.commit(2)
    log.produce(1, 2)
    log.commit(1)
    aborted = list(log.aborted)
    log.clean(0)
    assert (log.keys, log.offsets) == ([3, 2], [3, 6, 7, 8, 9])
    assert log.aborted == aborted


def test_c077_multi_pass_with_aborted_transactions(tmp_path: Path) -> None:
    """Upstream's log with a map for all keys: its first pass is our first, its third leaves the same batches."""
    log = SmallLog(tmp_path, retention_ms=50_000)
    log.produce(1, 1, 2)
    log.produce(2, 2, 3)
    log.produce(1, 3, 4)
    log.commit(1)
    log.commit(2)
    log.produce(1, 2, 3)
    log.abort(1)
    log.produce(2, 4, 5)
    log.produce(1, 5, 6)
    log.commit(1)
    log.abort(2)
    log.produce(2, 6, 7)
    log.commit(2)
    index = [AbortedTxn(1, 8, 10, 11), AbortedTxn(2, 11, 16, 17)]
    assert log.aborted == index
    log.clean(0, 1_000_000)
    assert log.batch_bases == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert log.offsets == [0, 2, 4, 5, 6, 7, 10, 13, 15, 16, 17, 18, 19]
    assert log.aborted == index
    log.clean(20, 1_000_000)
    assert log.batch_bases == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert log.aborted == []
    log.clean(20, 1_050_000 - 1)
    assert log.batch_bases == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    log.clean(20, 1_050_000)
    assert log.batch_bases == [0, 2, 4, 6, 7, 13, 15, 17, 19]
    assert log.aborted == []


@pytest.mark.trap("transaction state across groups and partial segments")
def test_c078_transactions_spanning_segments(log: SmallLog) -> None:
    """Aborted data goes segment by segment as the range moves on; the marker may lie beyond it."""
    log.produce(1, 1)
    log.produce(2, 2)
    log.produce(3, 3)
    log.roll()
    log.produce(1, 4)
    log.produce(2, 5)
    log.abort(1)
    log.abort(2)
    log.commit(3)
    log.roll()
    log.clean(0, segments=1)
    assert log.keys == [3, 4, 5]
    log.append(3)
    log.clean(3)
    assert (log.keys, log.offsets) == ([3], [5, 6, 7, 8])
    assert [txn.producer_id for txn in log.aborted] == [1, 2]


@pytest.mark.trap("control batches treated as keyed")
def test_c079_commit_marker_removal(log: SmallLog) -> None:
    """Rule 4.21: data gone, next pass sets the horizon, the first pass past it removes the marker."""
    log.produce(1, 1)
    log.produce(1, 2, 3)
    log.commit(1)
    log.produce(1, 2)
    log.commit(1)
    log.clean(0)
    assert (log.keys, log.offsets) == ([1, 3, 2], [0, 2, 3, 4, 5])
    log.produce(1, 1, 3)
    log.commit(1)
    log.clean(6)
    assert (log.keys, log.offsets) == ([2, 1, 3], [3, 4, 5, 6, 7, 8])
    log.clean(9)
    assert (log.keys, log.offsets) == ([2, 1, 3], [3, 4, 5, 6, 7, 8])
    log.clean(9, MAX_MS)
    assert (log.keys, log.offsets) == ([2, 1, 3], [4, 5, 6, 7, 8])


def test_c080_batches_deleted_unread(log: SmallLog) -> None:
    """Slices of which nothing stays are no end of the log."""
    log.produce(1, 1)
    log.abort(1)
    log.produce(1, 2)
    log.produce(1, 2)
    log.commit(1)
    log.clean(0)
    assert (log.keys, log.offsets) == ([2], [1, 3, 4])
    log.clean_twice(5)
    assert (log.keys, log.offsets) == ([2], [3, 4])


def test_c081_commit_marker_retention_with_empty_batch(log: SmallLog) -> None:
    """An empty batch that holds the last sequence keeps the marker of its transaction."""
    log.produce(1, 2, 3)
    log.roll()
    log.produce(2, 2, 3)
    log.commit(2)
    log.roll()
    log.append(2)
    log.append(3)
    log.commit(1)
    for first_dirty in (0, 8):
        log.clean(first_dirty)
        assert (log.keys, log.offsets, log.batch_ends) == ([2, 3], [4, 5, 6, 7], [1, 3, 4, 5, 6, 7])
    log.produce(2, 1)
    log.commit(2)
    log.clean(8)
    assert (log.keys, log.offsets, log.batch_ends) == ([2, 3, 1], [4, 5, 6, 7, 8, 9], [1, 4, 5, 6, 7, 8, 9])
    log.clean_twice(10)
    assert (log.keys, log.offsets, log.batch_ends) == ([2, 3, 1], [5, 6, 7, 8, 9], [1, 5, 6, 7, 8, 9])


def test_c082_empty_control_batch(log: SmallLog) -> None:
    """A marker that is all that is known of its producer stays as a header, and stays in later rounds."""
    log.commit(1)
    log.append(2)
    log.append(3)
    log.clean_twice(0)
    assert (log.keys, log.offsets, log.batch_ends) == ([2, 3], [1, 2], [0, 1, 2])
    before = [batch.data for batch in log.batches()]
    log.clean(3, MAX_MS)
    assert [batch.data for batch in log.batches()] == before


@pytest.mark.trap("transaction state across groups and partial segments")
def test_c083_committed_transaction_spanning_segments(log: SmallLog) -> None:
    """Data in one segment keeps the marker in the next."""
    log.produce(1, 1)
    log.roll()
    log.commit(1)
    log.clean_twice(0)
    assert (log.keys, log.offsets, log.batch_ends) == ([1], [0, 1], [0, 1])


@pytest.mark.trap("transaction state across groups and partial segments")
def test_c084_aborted_transaction_spanning_segments(log: SmallLog) -> None:
    """So does an empty batch of it."""
    log.produce(1, 1)
    log.roll()
    log.abort(1)
    for now_ms in (LARGE_MS, MAX_MS):
        log.clean(0, now_ms)
        assert (log.keys, log.offsets, log.batch_ends) == ([], [1], [0, 1])


def test_c085_abort_marker_removal(log: SmallLog) -> None:
    """One round for the data, one for the horizon, one for the marker."""
    log.produce(1, 1)
    log.produce(1, 2, 3)
    log.abort(1)
    log.produce(1, 3)
    log.commit(1)
    log.clean(0)
    assert (log.keys, log.offsets) == ([3], [3, 4, 5])
    log.clean_twice(6)
    assert (log.keys, log.offsets) == ([3], [4, 5])


def test_c086_sequence_reuse(log: SmallLog) -> None:
    """Two transactions with equal sequences: the last batch is found by its offset."""
    log.produce(1, 1)
    log.commit(1)
    log.sequences[1] = 0
    log.produce(1, 2)
    log.commit(1)
    log.append(1)
    log.append(2)
    log.clean(0)
    assert (log.keys, log.offsets, log.batch_ends) == ([1, 2], [1, 3, 4, 5], [1, 2, 3, 4, 5])
    log.clean_twice(6)
    assert (log.offsets, log.batch_ends) == ([3, 4, 5], [2, 3, 4, 5])


def test_c087_abort_marker_retention_with_empty_batch(log: SmallLog) -> None:
    """The index entry lives as long as the marker is needed."""
    log.produce(1, 2, 3)
    log.abort(1)
    index = [AbortedTxn(1, 0, 2, 3)]
    log.clean(0)
    for _ in range(2):
        assert (log.keys, log.offsets, log.batch_ends) == ([], [2], [1, 2])
        assert log.aborted == index
        log.clean_twice(3)
    log.produce(1, 1)
    log.clean(3)
    assert (log.keys, log.offsets, log.batch_ends) == ([1], [2, 3], [2, 3])
    assert log.aborted == index
    log.clean_twice(4)
    assert (log.keys, log.offsets, log.batch_ends) == ([1], [3], [3])
    assert log.aborted == []


def test_c088_keys_like_marker_keys(log: SmallLog) -> None:
    """Rule 4.51: the key of a marker never meets the keys of records."""
    for pid, key in ((1, 1), (2, b"\0\0\0\x01")):
        log.produce(pid, key)
        log.commit(pid)
    log.clean(0)
    assert (log.batch_ends, log.offsets) == ([0, 1, 2, 3], [0, 1, 2, 3])


@pytest.mark.parametrize(("count", "dropped", "last_sequence"), [(4, (0, 3), 3), (2, (0, 1), 1)])
def test_c089_c090_sequence_of_a_compacted_batch(
    count: int, dropped: tuple[int, ...], last_sequence: int, log: SmallLog
) -> None:
    """Read back from a batch that lost its last record, and from an empty header."""
    log.append_each([99] * 23)
    log.append(*range(count), pid=1)
    log.append_each(dropped)
    log.clean(0)
    assert log.last_sequences == {1: last_sequence}
    batch = next(batch for batch in log.batches() if batch.producer_id == 1)
    assert (batch.base_offset, batch.last_offset) == (23, 22 + count)
    assert [record.offset - 23 for record in batch.records] == [k for k in range(count) if k not in dropped]


def test_d18_producer_whose_last_batch_is_active(log: SmallLog) -> None:
    """None of its batches in the cleaned range is kept empty."""
    log.append(1, pid=1)
    log.append(1)
    log.roll()
    log.append(5, pid=1)
    log.clean(0, segments=1)
    assert log.batch_ends == [1, 2]
