"""Hashes of records for digests (`insight.digest`): of what a record says, not of how it is stored.

Keys, values and headers are hashed each by itself, then together with offset and time: no other codec, batch or length of a
varint changes that. A tombstone has the hash 0, as a key that is not there adds nothing.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.kernels.fingerprint import (
    Fingerprints,
    bucket_of,
    sip_begin,
    sip_bytes,
    sip_end,
    sip_word,
)
from cleanerd.kernels.native import INLINE, JIT, be32, le64, njit
from cleanerd.kernels.records import read_varint
from cleanerd.kernels.tables import Bytes, Table

Hashes = npt.NDArray[np.uint64]
"""128 bits each: (n, 2), the low word first."""

_U = np.uint64
_MULTIPLIER = _U(0x9E3779B97F4A7C15)


@njit(**INLINE)
def _take_headers(state, buffer, at, end):
    """The headers, one after the other. Lengths go first: no other headers, and no other value, have the same words."""
    count, at = read_varint(buffer, at, end, 5)
    for _ in range(count):
        length, at = read_varint(buffer, at, end, 5)
        state = sip_bytes(sip_word(state, _U(length)), buffer, at, length)
        length, at = read_varint(buffer, at + length, end, 5)
        length = max(length, -1)
        state = sip_word(state, _U(length))
        length = max(length, 0)
        state = sip_bytes(state, buffer, at, length)
        at += length
    return state


@njit(**INLINE)
def _take_value(state, buffer, start, length):
    """Four words at a time, each in a lane of its own, whose steps are bijections: no word that changes alone is missed."""
    position, end = np.int64(start), np.int64(start + length)
    if length >= 32:
        a, b, c, d = state
        while position + 32 <= end:
            a = (a ^ le64(buffer, position)) * _MULTIPLIER
            b = (b ^ le64(buffer, position + 8)) * _MULTIPLIER
            c = (c ^ le64(buffer, position + 16)) * _MULTIPLIER
            d = (d ^ le64(buffer, position + 24)) * _MULTIPLIER
            a ^= a >> _U(32)
            b ^= b >> _U(32)
            c ^= c >> _U(32)
            d ^= d >> _U(32)
            position += 32
        state = sip_word((a, b, c, d), _U(length))
    return sip_bytes(state, buffer, position, end - position)


@njit(**INLINE)
def _hash(state, buffer, record, with_place):
    """Hash of a record, from the state that its key has left."""
    at = np.int64(record.key_start + max(record.key_length, 0))
    if record.magic == 2:
        length, at = read_varint(buffer, at, record.end, 5)
    else:
        length = np.int64(be32(buffer, at))
        at += 4
    length = max(length, -1)
    if with_place:
        state = sip_word(sip_word(state, _U(record.offset)), _U(record.timestamp))
    state = sip_word(state, _U(length))
    length = max(length, 0)
    state = _take_value(state, buffer, at, length)
    if record.magic == 2 and at + length < record.end - 1:
        state = _take_headers(state, buffer, at + length, record.end)
    return sip_end(state)


@njit(**INLINE)
def _add(sums, row, low, high):
    """Add 128 bits, modulo 2^128."""
    total = sums[row, 0] + low
    sums[row, 1] += high + _U(total < low)
    sums[row, 0] = total


@njit(**JIT)
def _hash_records(
    raw,
    expanded,
    batches,
    records,
    hidden,
    start,
    end,
    with_place,
    k0,
    k1,
    fingerprints,
    hashes,
    chosen,
    no_key,
):
    filled = 0
    for i in range(len(records)):
        record = records[i]
        batch = batches[record.batch]
        if hidden[record.batch] or record.offset < start or record.offset >= end:
            continue
        buffer = expanded if batch.expanded else raw
        if record.key_length < 0:
            low, high = _hash(sip_begin(k0, k1), buffer, record, with_place)
            _add(no_key, 0, low, high)
            no_key[0, 2] += _U(1)
            continue
        state = sip_bytes(sip_begin(k0, k1), buffer, np.int64(record.key_start), np.int64(record.key_length))
        low, high = sip_end(state)
        low |= _U((low == 0) & (high == 0))
        fingerprints[filled, 0] = low
        fingerprints[filled, 1] = high
        hashes[filled, 0] = _U(0)
        hashes[filled, 1] = _U(0)
        if not record.value_is_null:
            hashes[filled, 0], hashes[filled, 1] = _hash(state, buffer, record, with_place)
        chosen[filled] = i
        filled += 1
    return filled


def hash_records(
    raw: Bytes,
    expanded: Bytes,
    batches: Table,
    records: Table,
    hidden: npt.NDArray[np.bool_],
    offsets: tuple[int, int],
    key: tuple[int, int],
    no_key: Hashes,
    *,
    with_place: bool,
) -> tuple[Fingerprints, Hashes, npt.NDArray[np.int64]]:
    """Fingerprints of the keys of records in [`offsets`), hashes of the records, and which rows of `records` they are.

    `hidden` has one entry per batch row. Hashes of records without a key, and their number, are added to `no_key`: one row
    of three words. `with_place`: with offset and time.
    """
    fingerprints, hashes = np.empty((len(records), 2), np.uint64), np.empty((len(records), 2), np.uint64)
    chosen = np.empty(len(records), np.int64)
    filled = _hash_records(
        raw, expanded, batches, records, hidden, *offsets, with_place, _U(key[0]), _U(key[1]),
        fingerprints, hashes, chosen, no_key,
    )  # fmt: skip
    return fingerprints[:filled], hashes[:filled], chosen[:filled]


@njit(**JIT)
def _marker(producer_id, offset, kind, k0, k1):
    state = sip_word(sip_word(sip_begin(k0, k1), _U(producer_id)), _U(offset))
    return sip_end(sip_word(state, _U(kind)))


def marker_hash(producer_id: int, offset: int, kind: int, key: tuple[int, int]) -> int:
    """The hash that the marker of a transaction adds to each of its records that count."""
    low, high = _marker(producer_id, offset, kind, _U(key[0]), _U(key[1]))
    return int(high) << 64 | int(low)


@njit(**JIT)
def _add_markers(hashes, producers, offsets, markers, at, k0, k1):
    for i in range(len(hashes)):
        if producers[i] < 0 or (hashes[i, 0] | hashes[i, 1]) == _U(0):
            producers[i] = -1
            continue
        low, high = np.int64(0), np.int64(len(markers))
        while low < high:
            middle = (low + high) >> 1
            marker = markers[middle]
            if marker.producer_id < producers[i] or (
                marker.producer_id == producers[i] and marker.offset < offsets[i]
            ):
                low = middle + 1
            else:
                high = middle
        if low < len(markers) and markers[low].producer_id == producers[i]:
            marker = markers[low]
            if marker.offset < at:
                of_marker = _marker(marker.producer_id, marker.offset, marker.kind, k0, k1)
                _add(hashes, i, of_marker[0], of_marker[1])
            producers[i] = -1


def add_markers(
    hashes: Hashes,
    producers: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    markers: Table,
    at: int,
    key: tuple[int, int],
) -> None:
    """Add to each hash that of the marker behind its record, of the producer in `producers` (-1: no transaction).

    Tombstones keep 0, and markers from offset `at` on add nothing. `markers`: `EVENT` rows, by producer and offset. Left
    in `producers` are those of records for which there is none.
    """
    _add_markers(hashes, producers, offsets, markers, at, _U(key[0]), _U(key[1]))


@njit(**JIT)
def _add_up(fingerprints, hashes, superseded, shift, sums, counts):
    for i in range(len(fingerprints)):
        if not superseded[i] and (hashes[i, 0] | hashes[i, 1]) != _U(0):
            bucket = bucket_of(fingerprints[i, 0], shift)
            _add(sums, bucket, hashes[i, 0], hashes[i, 1])
            counts[bucket] += 1


def add_up(
    fingerprints: Fingerprints,
    hashes: Hashes,
    superseded: npt.NDArray[np.bool_],
    shift: np.uint64,
    sums: Hashes,
    counts: npt.NDArray[np.int64],
) -> None:
    """Add the hashes of what is not superseded to `sums`, and their number to `counts`, both by bucket (`bucket_of`)."""
    _add_up(fingerprints, hashes, superseded, shift, sums, counts)
