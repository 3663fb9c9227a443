"""Which of many fingerprints, given in offset order, is the newest of its key: the walk of `policy.winner`.

Kafka keeps key -> newest offset (section 3). Walking from the newest record to the oldest needs no offset at all: the
first time a fingerprint is met it survives, every further time it is superseded. So a set of 16 bytes a key is enough
(Kafka: 24), and the same set afterwards answers for older records that were not put into it (the clean section).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cleanerd.policy.winner import SET_LOAD

from .fingerprint import Fingerprints
from .native import INLINE, JIT, njit, prefetch
from .tables import KeySet

_U = np.uint64
_AHEAD = 16
"""So many fingerprints before its turn, the slot of one is asked for: a set is larger than the nearer caches."""


@njit(**INLINE)
def _slot(low, slots):
    return np.int64(((low >> _U(32)) * slots) >> _U(32))


@njit(**INLINE)
def _probe(table, low, high):
    """Slot of the fingerprint, or of the empty slot where it belongs."""
    slots = np.int64(len(table))
    at = _slot(low, _U(slots))
    while True:
        there_low, there_high = table[at, 0], table[at, 1]
        found = (there_low == low) & (there_high == high)
        # One way out for both answers: a branch on which it is would be mispredicted.
        if found | ((there_low | there_high) == _U(0)):
            return at, found
        at += 1
        if at == slots:
            at = np.int64(0)


@njit(**INLINE)
def _fetch_ahead(fingerprints, i, table):
    if i >= _AHEAD:
        prefetch(table, _slot(fingerprints[i - _AHEAD, 0], _U(len(table))))


@njit(**JIT)
def _mark_superseded(fingerprints, insert_from, table, superseded):
    for i in range(len(fingerprints) - 1, insert_from - 1, -1):
        _fetch_ahead(fingerprints, i, table)
        low, high = fingerprints[i, 0], fingerprints[i, 1]
        at, superseded[i] = _probe(table, low, high)
        table[at, 0] = low
        table[at, 1] = high
    for i in range(insert_from - 1, -1, -1):
        _fetch_ahead(fingerprints, i, table)
        superseded[i] = _probe(table, fingerprints[i, 0], fingerprints[i, 1])[1]


def new_set(keys: int) -> Fingerprints:
    """An empty set with room for `keys` fingerprints."""
    slots = int(keys / SET_LOAD) + 2
    assert slots < 2**32, "a set of 2^32 slots: choose more buckets"
    return np.zeros((slots, 2), np.uint64)


def mark_superseded(
    fingerprints: Fingerprints, insert_from: int, table: Fingerprints
) -> npt.NDArray[np.bool_]:
    """Mark fingerprints, in offset order, that have a newer one of the same key at or after `insert_from`.

    The rows from `insert_from` on (the dirty section) are put into `table`; the rows before it (the clean section)
    are only looked up, as Kafka's map holds only keys of the dirty section (rules 3.9, 4.19). `table` may already hold
    the keys of newer rows.
    """
    assert 0 <= insert_from <= len(fingerprints)
    superseded = np.empty(len(fingerprints), np.bool_)
    _mark_superseded(fingerprints, insert_from, table, superseded)
    return superseded


@njit(**INLINE)
def _hint(low, shift):
    """Word and bit: from the bits that choose the slot, too, so both walk through memory alike."""
    hint = low >> shift
    return np.int64(hint >> _U(6)), hint & _U(63)


@njit(**JIT)
def _set_hints(table, slots, words, shifts, hints):
    for bucket in range(len(shifts)):
        for i in range(slots[bucket], slots[bucket + 1]):
            if (table[i, 0] | table[i, 1]) != _U(0):
                word, bit = _hint(table[i, 0], shifts[bucket])
                hints[words[bucket] + word] |= _U(1) << bit


@njit(**JIT)
def _look_up(fingerprints, buckets, table, slots, words, shifts, hints, found):
    for i in range(len(fingerprints)):
        bucket = buckets[i]
        word, bit = _hint(fingerprints[i, 0], shifts[bucket])
        found[i] = (hints[words[bucket] + word] >> bit) & _U(1)
    for i in range(len(fingerprints)):
        if found[i]:
            own = table[slots[buckets[i]] : slots[buckets[i] + 1]]
            found[i] = _probe(own, fingerprints[i, 0], fingerprints[i, 1])[1]


def key_set(tables: dict[int, Fingerprints], buckets: int) -> KeySet:
    """Merge the filled sets of the buckets that have any key into one to look up; empties `tables`."""
    sizes = [len(tables.get(bucket, _NO_KEYS)) for bucket in range(buckets)]
    bits = [max((8 * size - 1).bit_length(), 6) if size else 6 for size in sizes]  # log2 of how many
    slots, words = _starts(sizes), _starts([1 << (log2 - 6) for log2 in bits])
    shifts = np.array([64 - log2 for log2 in bits], np.uint64)
    table = np.empty((slots[-1], 2), np.uint64)
    for bucket in sorted(tables):  # one by one: both would take twice the memory
        table[slots[bucket] : slots[bucket + 1]] = tables.pop(bucket)
    hints = np.zeros(words[-1], np.uint64)
    _set_hints(table, slots, words, shifts, hints)
    return KeySet(table, slots, hints, words, shifts)


def look_up(
    keys: KeySet, fingerprints: Fingerprints, buckets: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Mark rows of the clean section whose fingerprint is in the set of its bucket: they are superseded."""
    found = np.empty(len(fingerprints), np.bool_)
    _look_up(fingerprints, buckets, keys.table, keys.slots, keys.words, keys.shifts, keys.hints, found)
    return found


_NO_KEYS = np.zeros((0, 2), np.uint64)


def _starts(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(sizes, np.int64))])


@njit(**JIT)
def _survivors(fingerprints, superseded, out):
    filled = 0
    for i in range(len(fingerprints)):
        if not superseded[i]:
            out[filled, 0] = fingerprints[i, 0]
            out[filled, 1] = fingerprints[i, 1]
            filled += 1


def survivors(fingerprints: Fingerprints, superseded: npt.NDArray[np.bool_]) -> Fingerprints:
    """`fingerprints[~superseded]`, several times as fast."""
    out = np.empty((len(fingerprints) - np.count_nonzero(superseded), 2), np.uint64)
    _survivors(fingerprints, superseded, out)
    return out


@njit(**JIT)
def _answer_rest(superseded, answers):
    used = 0
    for i in range(len(superseded)):
        if not superseded[i]:
            superseded[i] = answers[used]
            used += 1


def answer_rest(superseded: npt.NDArray[np.bool_], answers: npt.NDArray[np.bool_]) -> None:
    """`superseded[~superseded] = answers`, several times as fast."""
    assert len(answers) == len(superseded) - np.count_nonzero(superseded)
    _answer_rest(superseded, answers)


@njit(**JIT)
def _scatter(fingerprints, numbers, starts, out):
    for i in range(len(fingerprints)):
        at = starts[numbers[i]]
        out[at, 0] = fingerprints[i, 0]
        out[at, 1] = fingerprints[i, 1]
        starts[numbers[i]] = at + 1


def split_by_bucket(
    fingerprints: Fingerprints, numbers: npt.NDArray[np.int32], buckets: int
) -> dict[int, Fingerprints]:
    """The fingerprints of each bucket that has any, in the order given; `numbers[i]` is the bucket of fingerprint i."""
    counts = np.bincount(numbers, minlength=buckets)
    ends = np.cumsum(counts)
    out = np.empty_like(fingerprints)
    _scatter(fingerprints, numbers, ends - counts, out)
    used = np.flatnonzero(counts)
    return {
        bucket: out[end - count : end]
        for bucket, count, end in zip(used.tolist(), counts[used].tolist(), ends[used].tolist(), strict=True)
    }
