"""Keyed fingerprints: SipHash-1-3 with 128 bits of output, as (n, 2) uint64.

A new key is drawn for every cleaning, so that no choice of record keys makes two of them meet; Kafka's MD5 lets one key
delete another (rule 3.2). The all-zero fingerprint means "empty slot" in the set and is moved aside.

One round a word and three at the end are enough here: nothing that the key has touched is ever shown to who chooses record
keys, and the best differential known lets two of them meet with a chance of 2^-167 (Dobraunig, Mendel, Schläffer,
"Differential Cryptanalysis of SipHash", 2014), less than that of any two in 128 bits. 2-4 takes half as long again.

A second, cheaper hash selects the bucket of a record: the rewrite needs the bucket only.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import CONTROL
from cleanerd.policy import winner

from .native import INLINE, JIT, last_bytes, le64, njit
from .tables import Bytes, Table

Fingerprints = npt.NDArray[np.uint64]

MAX_BUCKETS = 1 << 20
_U = np.uint64

may_supersede = njit(**INLINE)(winner.may_supersede)
"""`policy.winner.may_supersede` for kernels."""


@njit(**INLINE)
def _rotl(x, b):
    return (x << _U(b)) | (x >> _U(64 - b))


@njit(**INLINE)
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotl(v1, 13) ^ v0
    v0 = _rotl(v0, 32)
    v2 += v3
    v3 = _rotl(v3, 16) ^ v2
    v0 += v3
    v3 = _rotl(v3, 21) ^ v0
    v2 += v1
    v1 = _rotl(v1, 17) ^ v2
    v2 = _rotl(v2, 32)
    return v0, v1, v2, v3


@njit(**INLINE)
def sip_begin(k0, k1):
    """State of a SipHash-1-3-128 that has taken nothing yet."""
    return (
        k0 ^ _U(0x736F6D6570736575), k1 ^ _U(0x646F72616E646F6D) ^ _U(0xEE), k0 ^ _U(0x6C7967656E657261),
        k1 ^ _U(0x7465646279746573),
    )  # fmt: skip


@njit(**INLINE)
def sip_word(state, word):
    """The state after one more word."""
    v0, v1, v2, v3 = _round(state[0], state[1], state[2], state[3] ^ word)
    return v0 ^ word, v1, v2, v3


@njit(**INLINE)
def sip_bytes(state, buffer, start, length):
    """The state after `buffer[start:start+length]`; the last word has the bytes that are left, and their number."""
    position = np.int64(start)
    whole_end = start + (length & ~7)
    while position < whole_end:
        state = sip_word(state, le64(buffer, position))
        position += 8
    return sip_word(state, (_U(length & 0xFF) << _U(56)) | last_bytes(buffer, start, length))


@njit(**INLINE)
def sip_end(state):
    """(low, high) words of the little-endian digest."""
    v0, v1, v2, v3 = state
    v2 ^= _U(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _U(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@njit(**INLINE)
def siphash128(buffer, start, length, k0, k1):
    """SipHash-1-3-128 of `buffer[start:start+length]`: (low, high) words of the little-endian digest."""
    return sip_end(sip_bytes(sip_begin(k0, k1), buffer, start, length))


@njit(**INLINE)
def bucket_hash(buffer, start, length, k0, k1):
    """64 bits of `buffer[start:start+length]` whose top ones name a bucket: only the spread matters, so a fifth of the cost.

    The key is secret, so no choice of record keys can fill one bucket only.
    """
    multiplier = k1 | _U(1)
    mixed = k0 ^ _U(length)
    position = np.int64(start)
    end = start + length
    while position + 8 <= end:
        mixed = (mixed ^ le64(buffer, position)) * multiplier
        mixed ^= mixed >> _U(32)
        position += 8
    if position < end:
        mixed = (mixed ^ last_bytes(buffer, start, length)) * multiplier
        mixed ^= mixed >> _U(32)
    return mixed * multiplier


@njit(**INLINE)
def bucket_of(hashed, shift):
    """The bucket that the top `64 - shift` bits of a `bucket_hash` name."""
    return np.int64(hashed >> shift) if shift < _U(64) else np.int64(0)


@njit(**INLINE)
def competes(record, batch, aborted):
    """Whether a record takes part in the contest for its key: see `fingerprint_records`."""
    return record.key_length >= 0 and not batch.attributes & CONTROL and not aborted


@njit(**JIT)
def _fingerprint(raw, expanded, batches, records, aborted, first_dirty_offset, k0, k1, shift, out, buckets):
    filled = 0
    clean = 0
    for i in range(len(records)):
        record = records[i]
        batch = batches[record.batch]
        if not competes(record, batch, aborted[record.batch]):
            continue
        buffer = expanded if batch.expanded else raw
        length = np.int64(record.key_length)
        low, high = siphash128(buffer, record.key_start, length, k0, k1)
        if low == 0 and high == 0:
            low = _U(1)
        out[filled, 0] = low
        out[filled, 1] = high
        buckets[filled] = bucket_of(bucket_hash(buffer, record.key_start, length, k0, k1), shift)
        filled += 1
        clean += not may_supersede(record.offset, first_dirty_offset)
    return filled, clean


def bucket_shift(buckets: int) -> np.uint64:
    """How far to shift a `bucket_hash` so that its top bits name one of `buckets`, a power of two."""
    assert buckets & (buckets - 1) == 0
    assert 1 <= buckets <= MAX_BUCKETS
    return _U(64 - (buckets.bit_length() - 1))


def fingerprint_records(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    records: Table,
    aborted: npt.NDArray[np.bool_],
    first_dirty_offset: int,
    key: tuple[int, int],
    buckets: int,
) -> tuple[Fingerprints, npt.NDArray[np.int32], int]:
    """Fingerprints of the records that compete for their key, in offset order.

    Left out: records without a key, control records (rule 4.51) and records of aborted transactions (3.12b).
    `aborted` has one entry per batch row. Returns (fingerprints, the bucket of each, how many lie below
    `first_dirty_offset`).
    """
    out = np.empty((len(records), 2), np.uint64)
    numbers = np.empty(len(records), np.int32)
    filled, clean = _fingerprint(
        raw, expanded, batches, records, aborted, first_dirty_offset, _U(key[0]), _U(key[1]),
        bucket_shift(buckets), out, numbers,
    )  # fmt: skip
    return out[:filled], numbers[:filled], int(clean)


@njit(**JIT)
def _spread(batches, records, aborted, answers, out):
    used = 0
    for i in range(len(records)):
        out[i] = False
        if competes(records[i], batches[records[i].batch], aborted[records[i].batch]):
            out[i] = answers[used]
            used += 1
    return used


def spread(
    batches: Table, records: Table, aborted: npt.NDArray[np.bool_], answers: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """One answer per record, False for those that do not compete: `answers` has one for each that does, in order."""
    if len(answers) == len(records):
        return answers
    out = np.empty(len(records), np.bool_)
    used = _spread(batches, records, aborted, answers, out)
    assert used == len(answers)
    return out


@njit(**JIT)
def _look_up_answers(raw, expanded, batches, records, aborted, k0, k1, shift, answers, cursors, out):
    for i in range(len(records)):
        record = records[i]
        batch = batches[record.batch]
        out[i] = False
        if competes(record, batch, aborted[record.batch]):
            buffer = expanded if batch.expanded else raw
            bucket = bucket_of(
                bucket_hash(buffer, record.key_start, np.int64(record.key_length), k0, k1), shift
            )
            at = cursors[bucket]
            out[i] = at < len(answers) and answers[at]
            cursors[bucket] = at + 1


def look_up_answers(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    records: Table,
    aborted: npt.NDArray[np.bool_],
    key: tuple[int, int],
    answers: npt.NDArray[np.bool_],
    cursors: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """One answer per record, False for those that do not compete: the answers of all buckets back in offset order.

    `answers` holds those of bucket 0, then of bucket 1, ...; `cursors[b]` is the place of the next unused answer of
    bucket b and is moved on: beyond the answers of its bucket when there were too few, which the caller checks at the end.
    """
    out = np.empty(len(records), np.bool_)
    _look_up_answers(
        raw, expanded, batches, records, aborted, _U(key[0]), _U(key[1]), bucket_shift(len(cursors)), answers,
        cursors, out,
    )  # fmt: skip
    return out
