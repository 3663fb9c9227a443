"""Digests over the parts of records and batches that a rewrite must not change; equal digests prove that it did not.

A record of magic 0 or 1 has the digest of the same record in magic 2, which it may be rewritten as (rule 4.33). The bytes of
that are not taken from the rewrite, which has to prove itself, but put together here.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

from .crc import crc_step8
from .horizons import delete_horizon
from .native import INLINE, JIT, be32, last_bytes, le64, njit
from .tables import Action, Bytes, Table

_DROP, _EMPTY, _REBUILD = int(Action.DROP), int(Action.EMPTY), int(Action.REBUILD)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


@njit(**INLINE)
def _digest_record(buffer, record):
    """Three CRCs, of every third word: the instruction takes three cycles, but a new one can begin in each."""
    a, b, c = _begin(record)
    start = record.tail_start
    length = record.end - start
    at, end = start, start + (length & ~7)
    while at + 24 <= end:
        a = crc_step8(a, le64(buffer, np.int64(at)))
        b = crc_step8(b, le64(buffer, np.int64(at + 8)))
        c = crc_step8(c, le64(buffer, np.int64(at + 16)))
        at += 24
    if at + 8 <= end:
        a = crc_step8(a, le64(buffer, np.int64(at)))
    if at + 16 <= end:
        b = crc_step8(b, le64(buffer, np.int64(at + 8)))
    return _end(a, b, c, last_bytes(buffer, start, length))


@njit(**INLINE)
def _begin(record):
    none = np.uint32(0xFFFFFFFF)
    return crc_step8(none, np.uint64(record.offset)), crc_step8(none, np.uint64(record.timestamp)), none


@njit(**INLINE)
def _end(a, b, c, last_word):
    """Mix three numbers into 64 bits. A CRC is linear, so changes of two of the numbers could cancel each other out."""
    return (np.uint64(a) * _MULTIPLIER + np.uint64(b)) * _MULTIPLIER + np.uint64(crc_step8(c, last_word))


@njit(**INLINE)
def _take(state, byte):
    """Add a byte. The state: the CRC of the next word, those of the two after it, that word, its bytes, words so far."""
    a, b, c, word, filled, words = state
    word |= np.uint64(byte) << np.uint64(8 * filled)
    if filled < 7:
        return a, b, c, word, filled + 1, words
    return b, c, crc_step8(a, word), np.uint64(0), 0, words + 1


@njit(**JIT)
def _take_field(state, buffer, start, length):
    """A key or value as magic 2 has it: the length (-1 null) as a zig-zag varint, then the bytes."""
    rest = np.uint64(1) if length < 0 else np.uint64(length) << np.uint64(1)
    while rest >= np.uint64(0x80):
        state = _take(state, (rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
    state = _take(state, rest)
    for at in range(start, start + max(length, 0)):
        state = _take(state, buffer[at])
    return state


@njit(**JIT)
def _digest_message(buffer, record):
    """`_digest_record` of a message of magic 0 or 1 as a record without headers."""
    a, b, c = _begin(record)
    value_at = record.key_start + max(record.key_length, 0)
    state = (a, b, c, np.uint64(0), 0, 0)
    state = _take_field(state, buffer, record.key_start, record.key_length)
    state = _take_field(state, buffer, value_at + 4, be32(buffer, value_at))
    a, b, c, word, _, words = _take(state, 0)
    if words % 3 == 1:
        a, b, c = c, a, b
    elif words % 3 == 2:
        a, b, c = b, c, a
    return _end(a, b, c, word)


@njit(**JIT)
def _digest_records(crc, raw, expanded, batches, records, verdicts):
    for i in range(len(records)):
        if verdicts[i] != 0:
            continue
        buffer = expanded if batches[records[i].batch].expanded else raw
        if records[i].magic == 2:
            crc = crc_step8(crc, _digest_record(buffer, records[i]))
        else:
            crc = crc_step8(crc, _digest_message(buffer, records[i]))
    return crc


def digest_records(
    digest: int, raw: Bytes, expanded: Bytes, batches: Table, records: Table, verdicts: npt.NDArray[np.uint8]
) -> int:
    """Extend `digest` over offset, timestamp, key, value and headers of every record with verdict KEEP (0)."""
    return int(_digest_records(np.uint32(digest), raw, expanded, batches, records, verdicts))


@njit(**JIT)
def _digest_batch(crc, batch, magic, base_offset, last_offset, horizon):
    crc = crc_step8(crc, np.uint64(magic))
    if magic < 2:
        return crc
    crc = crc_step8(crc, np.uint64(batch.attributes & _KEPT_ATTRIBUTES))
    crc = crc_step8(crc, np.uint64(base_offset))
    crc = crc_step8(crc, np.uint64(last_offset))
    crc = crc_step8(crc, np.uint64(batch.leader_epoch))
    crc = crc_step8(crc, np.uint64(batch.producer_id))
    crc = crc_step8(crc, np.uint64(batch.producer_epoch))
    crc = crc_step8(crc, np.uint64(batch.base_sequence))
    return crc_step8(crc, np.uint64(horizon))


@njit(**JIT)
def _digest_judged(crc, batches, begin, judged):
    for j in range(len(judged)):
        row = judged[j]
        batch = batches[begin + j]
        if row.action == _DROP:
            continue
        horizon = np.int64(-1) if row.action == _EMPTY else row.horizon
        if row.action == _REBUILD and batch.magic < 2:
            crc = _digest_batch(crc, batch, 2, row.first_kept, row.last_kept, horizon)
        else:
            crc = _digest_batch(crc, batch, batch.magic, batch.base_offset, batch.last_offset, horizon)
    return crc


@njit(**JIT)
def _digest_batches(crc, batches):
    for i in range(len(batches)):
        batch = batches[i]
        horizon = delete_horizon(batch)
        crc = _digest_batch(crc, batch, batch.magic, batch.base_offset, batch.last_offset, horizon)
    return crc


def digest_judged(digest: int, batches: Table, begin: int, judged: Table) -> int:
    """Predict `digest_batches` of the batches that stay; `judged` belongs to `batches[begin:]`."""
    return int(_digest_judged(np.uint32(digest), batches, begin, judged))


def digest_batches(digest: int, batches: Table) -> int:
    """Extend `digest` over the fields of a batch that no rewrite changes (rules 4.27, 4.30), and its delete horizon.

    Of magic 0 and 1 that is the magic alone.
    """
    return int(_digest_batches(np.uint32(digest), batches))
