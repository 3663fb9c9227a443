"""Keyed fingerprints: SipHash-2-4 with 128 bits of output, as (n, 2) uint64.

The key is drawn anew for every cleaning, so nobody who chooses record keys can make two of them meet; Kafka's MD5 lets
one key delete another (rule 3.2). The all-zero fingerprint means "empty slot" in the set and is moved aside.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from .native import JIT, le64
from .tables import CONTROL, Bytes, Table

Fingerprints = npt.NDArray[np.uint64]

_U = np.uint64


@njit(**JIT)
def _rotl(x, b):
    return (x << _U(b)) | (x >> _U(64 - b))


@njit(**JIT)
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


@njit(**JIT)
def siphash128(buffer, start, length, k0, k1):
    """SipHash-2-4-128 of `buffer[start:start+length]`: (low, high) words of the little-endian digest."""
    v0 = k0 ^ _U(0x736F6D6570736575)
    v1 = k1 ^ _U(0x646F72616E646F6D) ^ _U(0xEE)
    v2 = k0 ^ _U(0x6C7967656E657261)
    v3 = k1 ^ _U(0x7465646279746573)
    position = np.int64(start)
    whole_end = start + (length & ~7)
    while position < whole_end:
        word = le64(buffer, position)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    word = _U(length & 0xFF) << _U(56)
    for i in range(length & 7):
        word |= _U(buffer[position + i]) << _U(8 * i)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _U(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _U(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@njit(**JIT)
def _fingerprint(raw, expanded, batches, records, aborted, k0, k1, out, rows):
    filled = 0
    for i in range(len(records)):
        record = records[i]
        batch = batches[record.batch]
        if record.key_length < 0 or batch.attributes & CONTROL or aborted[record.batch]:
            continue
        buffer = expanded if batch.expanded else raw
        low, high = siphash128(buffer, record.key_start, np.int64(record.key_length), k0, k1)
        if low == 0 and high == 0:
            low = _U(1)
        out[filled, 0] = low
        out[filled, 1] = high
        rows[filled] = i
        filled += 1
    return filled


def fingerprint_records(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    records: Table,
    aborted: npt.NDArray[np.bool_],
    key: tuple[int, int],
) -> tuple[Fingerprints, npt.NDArray[np.int32]]:
    """Fingerprints of the records that compete for their key, in offset order, and their rows in `records`.

    Left out: records without a key, control records (rule 4.51) and records of aborted transactions (3.12b).
    `aborted` has one entry per batch row.
    """
    out = np.empty((len(records), 2), np.uint64)
    rows = np.empty(len(records), np.int32)
    filled = _fingerprint(raw, expanded, batches, records, aborted, _U(key[0]), _U(key[1]), out, rows)
    return out[:filled], rows[:filled]
