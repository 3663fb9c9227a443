"""Which of many fingerprints, given in offset order, is the newest of its key.

Kafka keeps key -> newest offset (section 3). Walking from the newest record to the oldest needs no offset at all: the
first time a fingerprint is met it survives, every further time it is superseded. So a set of 16 bytes a key is enough
(Kafka: 24), and the same set afterwards answers for older records that were not put into it (the clean section).
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from .fingerprint import Fingerprints
from .native import JIT

_U = np.uint64
BYTES_PER_KEY = 16
_LOAD = 0.6  # linear probing stays short; the budget counts the slots that this leaves empty
BYTES_PER_SLOT_KEY = BYTES_PER_KEY / _LOAD
MAX_BUCKETS = 1 << 20
_RECENT_KEYS = 1 << 15  # half a MiB: stays in the second-level cache


@njit(**JIT)
def _slot(low, slots):
    return np.int64(((low >> _U(32)) * slots) >> _U(32))


@njit(**JIT)
def _probe(table, low, high):
    """Slot of the fingerprint, or of the empty slot where it belongs."""
    slots = _U(len(table))
    at = _slot(low, slots)
    while True:
        if table[at, 0] == low and table[at, 1] == high:
            return at, True
        if table[at, 0] == 0 and table[at, 1] == 0:
            return at, False
        at += 1
        if at == len(table):
            at = 0


@njit(**JIT)
def _mark_superseded(fingerprints, insert_from, table, superseded):
    inserted = 0
    for i in range(len(fingerprints) - 1, -1, -1):
        low, high = fingerprints[i, 0], fingerprints[i, 1]
        at, found = _probe(table, low, high)
        superseded[i] = found
        if not found and i >= insert_from:
            table[at, 0] = low
            table[at, 1] = high
            inserted += 1
    return inserted


def new_set(keys: int) -> Fingerprints:
    """An empty set with room for `keys` fingerprints."""
    slots = int(keys / _LOAD) + 2
    assert slots < 2**32, "a set of 2^32 slots: choose more buckets"
    return np.zeros((slots, 2), np.uint64)


def mark_superseded(
    fingerprints: Fingerprints, insert_from: int, table: Fingerprints
) -> npt.NDArray[np.bool_]:
    """For fingerprints in offset order: True where a newer one of the same key exists at or after `insert_from`.

    The rows from `insert_from` on (the dirty section) are put into `table`; the rows before it (the clean section)
    are only looked up, as Kafka's map holds only keys of the dirty section (rules 3.9, 4.19). `table` may already hold
    the keys of newer rows.
    """
    superseded = np.empty(len(fingerprints), np.bool_)
    _mark_superseded(fingerprints, insert_from, table, superseded)
    return superseded


@njit(**JIT)
def _mark_recent(fingerprints, insert_from, recent, superseded):
    mask = _U(len(recent) - 1)
    for i in range(len(fingerprints) - 1, -1, -1):
        low, high = fingerprints[i, 0], fingerprints[i, 1]
        cell = np.int64(low & mask)
        superseded[i] = recent[cell, 0] == low and recent[cell, 1] == high
        if i >= insert_from:
            recent[cell, 0] = low
            recent[cell, 1] = high


def mark_recent(fingerprints: Fingerprints, insert_from: int) -> npt.NDArray[np.bool_]:
    """As `mark_superseded`, but by a small cache of recent keys: True is certain, False only means "ask further".

    It takes the repeats of hot keys out before they travel.
    """
    superseded = np.zeros(len(fingerprints), np.bool_)
    if insert_from < len(fingerprints):
        _mark_recent(fingerprints, insert_from, np.zeros((_RECENT_KEYS, 2), np.uint64), superseded)
    return superseded


@njit(**JIT)
def _scatter(fingerprints, skip, shift, starts, out):
    for i in range(len(fingerprints)):
        if not skip[i]:
            bucket = np.int64(fingerprints[i, 1] >> shift) if shift < _U(64) else np.int64(0)
            at = starts[bucket]
            out[at, 0] = fingerprints[i, 0]
            out[at, 1] = fingerprints[i, 1]
            starts[bucket] = at + 1


@njit(**JIT)
def _bucket_counts(fingerprints, skip, shift, counts):
    for i in range(len(fingerprints)):
        if not skip[i]:
            counts[np.int64(fingerprints[i, 1] >> shift) if shift < _U(64) else np.int64(0)] += 1


def _shift(buckets: int) -> np.uint64:
    """How far to shift the high word so that its top bits name the bucket."""
    assert buckets & (buckets - 1) == 0
    assert 1 <= buckets <= MAX_BUCKETS
    return _U(64 - (buckets.bit_length() - 1))


def bucket_counts(
    fingerprints: Fingerprints, skip: npt.NDArray[np.bool_], buckets: int
) -> npt.NDArray[np.int64]:
    """How many fingerprints, those marked in `skip` left out, fall into each bucket."""
    counts = np.zeros(buckets, np.int64)
    _bucket_counts(fingerprints, skip, _shift(buckets), counts)
    return counts


def split_by_bucket(
    fingerprints: Fingerprints, skip: npt.NDArray[np.bool_], buckets: int
) -> list[Fingerprints]:
    """The fingerprints of each bucket in the order given, those marked in `skip` left out."""
    counts = bucket_counts(fingerprints, skip, buckets)
    ends = np.cumsum(counts)
    out = np.empty((int(ends[-1]), 2), np.uint64)
    _scatter(fingerprints, skip, _shift(buckets), ends - counts, out)
    return [out[end - count : end] for end, count in zip(ends, counts, strict=True)]


@njit(**JIT)
def _gather_bits(fingerprints, skip, shift, bits, cursors, out):
    for i in range(len(fingerprints)):
        if skip[i]:
            out[i] = True
        else:
            bucket = np.int64(fingerprints[i, 1] >> shift) if shift < _U(64) else np.int64(0)
            at = cursors[bucket]
            out[i] = at < len(bits) and bits[at]
            cursors[bucket] = at + 1


def gather_bits(
    fingerprints: Fingerprints,
    local: npt.NDArray[np.bool_],
    bits: npt.NDArray[np.bool_],
    cursors: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Superseded bits in offset order: True where `local` says so, else the next unused answer of the bucket.

    `bits` holds the answers of bucket 0, then of bucket 1, ...; `cursors[b]` is the place of the next unused answer of
    bucket b and is moved on: beyond the answers of its bucket when there were too few, which the caller checks at the end.
    """
    assert len(local) == len(fingerprints)
    out = np.empty(len(fingerprints), np.bool_)
    _gather_bits(fingerprints, local, _shift(len(cursors)), bits, cursors, out)
    return out
