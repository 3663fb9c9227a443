"""Transactions and producers: the kernels against the tracker and the replay of the twin (rules 4.17, 4.20, A.3, A.4)."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cleanerd.format.batch import Record, decode_batch, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.kernels.judge import Context, mark_aborted
from cleanerd.kernels.scan import scan_batches
from cleanerd.kernels.tables import AbortedTxns, Bytes, EventKind, Table
from cleanerd.kernels.transactions import (
    PRODUCER,
    ReplayState,
    collect_events,
    empty_transactions,
    replay,
)
from tests.harness.kernels import reference
from tests.harness.kernels.real_path import producer_columns
from tests.harness.kernels.reference import Replay, TransactionTracker
from tests.harness.logs.random_log import NOW_MS, RandomLog, with_horizon

TRANSACTIONAL = ("transactional", "marker", "other", "idempotent", "plain")
NO_PRODUCERS = ReplayState(np.zeros(0, PRODUCER), -1)


def table_of(data: bytes) -> tuple[Bytes, Table]:
    raw = np.frombuffer(bytearray(data), np.uint8)
    return raw, scan_batches(raw, 0, len(raw))[0]


def context(new_horizon_ms: int = NOW_MS + 1000) -> Context:
    return Context(NOW_MS, new_horizon_ms, 2**62, producer_columns({}), np.zeros(0, np.int64))


def random_log(seed: int, steps: int = 80) -> RandomLog:
    return RandomLog(random.Random(seed), kinds=TRANSACTIONAL).append(steps)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("pieces", [1, 4])
def test_empty_transactions_against_the_tracker(seed: int, pieces: int) -> None:
    """The same markers are discardable, however the log is cut; repeats left out do not matter."""
    log = random_log(seed)
    columns = AbortedTxns.of(log.aborted)
    cuts = [len(log.batches) * n // pieces for n in range(pieces + 1)]
    parts = []
    for start, end in pairwise(cuts):
        raw, batches = table_of(b"".join(placed.data for placed in log.batches[start:end]))
        parts.append(collect_events(raw, batches, mark_aborted(batches, columns), context()))
    events = np.concatenate(parts)
    tracker, expected = TransactionTracker(log.aborted), []
    for placed in log.batches:
        batch = next(reference.read_batches(placed.data))
        if tracker.is_discardable(batch) and batch.is_control and batch.records:
            expected.append(batch.last_offset)
    assert events["offset"][empty_transactions(events)].tolist() == expected
    kept = ~empty_transactions(events) & (events["kind"] == int(EventKind.ABORT))
    assert events["offset"][kept].tolist() == [txn.last_offset for txn in tracker.output_index]


@pytest.mark.parametrize("seed", range(10))
def test_aborted_batches_against_the_tracker(seed: int) -> None:
    """Data batches of aborted transactions, and no others."""
    log = random_log(seed)
    columns = AbortedTxns.of(log.aborted)
    _, batches = table_of(log.data)
    tracker = TransactionTracker(log.aborted)
    expected = []
    for placed in log.batches:
        batch = next(reference.read_batches(placed.data))
        expected.append(tracker.is_discardable(batch) and not batch.is_control)
    assert mark_aborted(batches, columns).tolist() == expected


def marker(kind: ControlType, offset: int, *, producer_id: int = 1, epoch: int = 0) -> bytes:
    return encode_end_txn_marker(
        kind, offset=offset, timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=epoch
    )


@pytest.mark.parametrize(
    ("horizon_ms", "new_horizon_ms", "changes"),
    [(None, NOW_MS + 1, 1), (None, -1, 0), (NOW_MS + 1, NOW_MS + 1, 0), (NOW_MS, NOW_MS + 1, 2), (0, -1, 2)],
)
def test_what_becomes_of_an_empty_marker(horizon_ms: int | None, new_horizon_ms: int, changes: int) -> None:
    """It gets a horizon, waits for it, goes; or stays as it is where no horizon can be set (4.29)."""
    data = marker(ControlType.COMMIT, 5)
    if horizon_ms is not None:
        data = with_horizon(data, horizon_ms)
    raw, batches = table_of(data)
    events = collect_events(raw, batches, np.zeros(1, np.bool_), context(new_horizon_ms))
    assert events["changes"].tolist() == [changes]


def test_control_batches_that_end_nothing() -> None:
    """Other types, versions below 0, and compressed ones, which nobody writes."""
    good = marker(ControlType.ABORT, 0)
    header, (record,) = decode_batch(good)
    assert record.value is not None
    for key, codec in ((b"\0\0\0\x02", 0), (b"\0\0\xff\xff", 0), (b"\xff\xff\0\0", 0), (record.key, 1)):
        data = encode_batch(
            [Record(0, NOW_MS, key, record.value)],
            base_offset=0,
            producer_id=1,
            producer_epoch=0,
            transactional=True,
            control=True,
            codec=Codec(codec),
        )
        raw, batches = table_of(data)
        events = collect_events(raw, batches, np.zeros(1, np.bool_), context())
        assert events["kind"].tolist() == [EventKind.OTHER]
        assert not empty_transactions(events).any()
        assert len(replay(NO_PRODUCERS, raw, batches, 0, 0).producers) == 0
    assert header.is_control


def as_dict(state: ReplayState) -> dict[int, tuple[int, ...]]:
    names = ("epoch", "last_data_offset", "timestamp", "txn_first_offset")
    return {int(row["producer_id"]): tuple(int(row[name]) for name in names) for row in state.producers}


def twin_as_dict(state: Replay) -> dict[int, tuple[int, ...]]:
    return {
        number: (
            p.epoch,
            -1 if p.last_data_offset is None else p.last_data_offset,
            p.timestamp_ms,
            -1 if p.txn_first_offset is None else p.txn_first_offset,
        )
        for number, p in sorted(state.producers.items())
    }


@pytest.mark.parametrize("seed", range(15))
def test_replay_against_the_twin(seed: int) -> None:
    """In one go and piece by piece, from any offset, with any high watermark."""
    rng = random.Random(seed)
    log = random_log(seed)
    from_offset = rng.choice((0, rng.randrange(log.next_offset)))
    high_watermark = rng.randrange(log.next_offset + 1)
    cut = rng.randrange(len(log.batches))
    state, twin = NO_PRODUCERS, Replay()
    for batches in (log.batches[:cut], log.batches[cut:]):
        data = b"".join(placed.data for placed in batches)
        reference.replay(twin, data, from_offset=from_offset, high_watermark=high_watermark)
        state = replay(state, *table_of(data), from_offset, high_watermark)
    assert as_dict(state) == twin_as_dict(twin)
    expected = -1 if twin.first_unstable_offset is None else twin.first_unstable_offset
    assert state.first_unstable_offset == expected
    assert state.aborts.tolist() == twin.aborts


@pytest.mark.parametrize(("high_watermark", "first_unstable_offset"), [(7, 3), (8, -1)])
def test_a_marker_at_the_high_watermark_is_not_replicated_yet(
    high_watermark: int, first_unstable_offset: int
) -> None:
    """A.3: the transaction that it ends is still undecided."""
    data = encode_batch(
        [Record(3, NOW_MS, b"k", b"v")], base_offset=3, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )  # fmt: skip
    state = replay(NO_PRODUCERS, *table_of(data + marker(ControlType.COMMIT, 7)), 0, high_watermark)
    assert state.first_unstable_offset == first_unstable_offset


def test_many_producers(tmp_path: Path) -> None:
    """The table of ids has room for a producer a batch, and for those of a snapshot."""
    ids = [2**62 + 977 * n for n in range(500)]
    log = b"".join(
        encode_batch(
            [Record(n, n, b"k", b"v")], base_offset=n, producer_id=number, producer_epoch=0, base_sequence=0
        )
        for n, number in enumerate(ids)
    )
    first = replay(NO_PRODUCERS, *table_of(log), 0, 0)
    again = replay(first, *table_of(log), 0, 0)
    assert as_dict(again) == as_dict(first) == {number: (0, n, n, -1) for n, number in enumerate(ids)}
    assert again.producers["producer_id"].tolist() == ids
