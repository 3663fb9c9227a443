"""Digests over what a rewrite must not change: the proof that it did nothing but what it should.

A record of magic 0 or 1 has the digest of the same record in magic 2, which it may be rewritten as (rule 4.33). The bytes of
that are not taken from the rewrite, which has to prove itself, but put together here.
"""

import numpy as np
import numpy.typing as npt

from cleanerd.format.head import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

from .horizons import delete_horizon
from .native import INLINE, JIT, be32, crc_step8, last_bytes, le64, njit
from .tables import Action, Bytes, Table

_DROP, _EMPTY, _REBUILD = int(Action.DROP), int(Action.EMPTY), int(Action.REBUILD)
_KEPT_ATTRIBUTES = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


@njit(**INLINE)
def _digest_record(buffer, record):
    """Starts afresh for each record, so that the processor works on several of them at a time."""
    crc = crc_step8(np.uint32(0xFFFFFFFF), np.uint64(record.offset))
    crc = crc_step8(crc, np.uint64(record.timestamp))
    start = record.tail_start
    length = record.end - start
    for at in range(start, start + (length & ~7), 8):
        crc = crc_step8(crc, le64(buffer, np.int64(at)))
    return crc_step8(crc, last_bytes(buffer, start, length))


@njit(**INLINE)
def _take(crc, word, filled, byte):
    """One more byte: (crc, the word that is being filled, bytes in it)."""
    word |= np.uint64(byte) << np.uint64(8 * filled)
    if filled < 7:
        return crc, word, filled + 1
    return crc_step8(crc, word), np.uint64(0), 0


@njit(**JIT)
def _take_field(crc, word, filled, buffer, start, length):
    """A key or value as magic 2 has it: the length (-1 null) as a zig-zag varint, then the bytes."""
    rest = np.uint64(1) if length < 0 else np.uint64(length) << np.uint64(1)
    while rest >= np.uint64(0x80):
        crc, word, filled = _take(crc, word, filled, (rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
    crc, word, filled = _take(crc, word, filled, rest)
    for at in range(start, start + max(length, 0)):
        crc, word, filled = _take(crc, word, filled, buffer[at])
    return crc, word, filled


@njit(**JIT)
def _digest_message(buffer, record):
    """`_digest_record` of a message of magic 0 or 1 as a record without headers."""
    crc = crc_step8(np.uint32(0xFFFFFFFF), np.uint64(record.offset))
    crc = crc_step8(crc, np.uint64(record.timestamp))
    value_at = record.key_start + max(record.key_length, 0)
    value_length = be32(buffer, value_at)
    key = _take_field(crc, np.uint64(0), 0, buffer, record.key_start, record.key_length)
    value = _take_field(key[0], key[1], key[2], buffer, value_at + 4, value_length)
    crc, word, _ = _take(value[0], value[1], value[2], 0)
    return crc_step8(crc, word)


@njit(**JIT)
def _digest_records(crc, raw, expanded, batches, records, verdicts):
    for i in range(len(records)):
        if verdicts[i] != 0:
            continue
        buffer = expanded if batches[records[i].batch].expanded else raw
        if records[i].magic == 2:
            crc = crc_step8(crc, np.uint64(_digest_record(buffer, records[i])))
        else:
            crc = crc_step8(crc, np.uint64(_digest_message(buffer, records[i])))
    return crc


def digest_records(
    digest: int, raw: Bytes, expanded: Bytes, batches: Table, records: Table, verdicts: npt.NDArray[np.uint8]
) -> int:
    """`digest` carried on over offset, timestamp, key, value and headers of every record whose verdict is KEEP (0)."""
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
    """What `digest_batches` will make of the batches that stay; `judged` belongs to `batches[begin:]`."""
    return int(_digest_judged(np.uint32(digest), batches, begin, judged))


def digest_batches(digest: int, batches: Table) -> int:
    """`digest` carried on over every batch: what no rewrite changes in it (rules 4.27, 4.30), and its delete horizon.

    Of magic 0 and 1 that is the magic alone.
    """
    return int(_digest_batches(np.uint32(digest), batches))
