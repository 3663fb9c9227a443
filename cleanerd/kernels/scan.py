"""Walk the batches of a chunk of log: headers to `BATCH` rows, bounds and CRCs checked (spec disk B1, C1, C3)."""

import numpy as np

from cleanerd.format.head import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CRC_AT,
    FLAGS_AT,
    HEAD_BYTES,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LEGACY_CRC_AT,
    LEGACY_FLAGS_AT,
    LEGACY_TIMESTAMP_AT,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from cleanerd.format.offset_index import OffsetIndex

from .crc import crc32c, crc32c_of_three
from .native import JIT, be16, be32, be64, njit
from .tables import BATCH, Bytes, ReadStatus, Table

_OK, _TORN, _BAD_SIZE, _BAD_MAGIC = (
    int(ReadStatus.OK),
    int(ReadStatus.TORN),
    int(ReadStatus.BAD_SIZE),
    int(ReadStatus.BAD_MAGIC),
)


@njit(**JIT)
def next_size(buffer, position, end):
    """(total size, status) of the batch at `position`; TORN when it does not end before `end`."""
    if end - position < HEAD_BYTES:
        return 0, _TORN
    size = be32(buffer, position + LENGTH_AT)
    if size < LENGTH_MIN:
        return 0, _BAD_SIZE
    magic = buffer[position + MAGIC_AT]
    if magic > 2:
        return 0, _BAD_MAGIC
    if magic == 2 and size + LOG_OVERHEAD < HEADER_SIZE:
        return 0, _BAD_SIZE
    if position + size + LOG_OVERHEAD > end:
        return 0, _TORN
    return size + LOG_OVERHEAD, _OK


@njit(**JIT)
def _count(buffer, start, end):
    position = np.int64(start)
    batches = 0
    while position < end:
        size, status = next_size(buffer, position, end)
        if status != _OK:
            return batches, position, status
        batches += 1
        position += size
    return batches, position, _OK


@njit(**JIT)
def _fill_v2(buffer, position, size, row):
    row.base_offset = be64(buffer, position)
    row.leader_epoch = be32(buffer, position + LEADER_EPOCH_AT)
    row.attributes = buffer[position + FLAGS_AT]
    row.last_offset = row.base_offset + be32(buffer, position + LAST_OFFSET_DELTA_AT)
    row.base_timestamp = be64(buffer, position + BASE_TIMESTAMP_AT)
    row.max_timestamp = be64(buffer, position + MAX_TIMESTAMP_AT)
    row.producer_id = be64(buffer, position + PRODUCER_ID_AT)
    row.producer_epoch = be16(buffer, position + PRODUCER_EPOCH_AT)
    row.base_sequence = be32(buffer, position + BASE_SEQUENCE_AT)
    row.count = be32(buffer, position + RECORD_COUNT_AT)
    row.payload_start = position + HEADER_SIZE
    row.payload_end = position + size


@njit(**JIT)
def _fill_legacy(buffer, position, size, row):
    row.last_offset = be64(buffer, position)
    row.leader_epoch = -1
    known = CODEC_MASK | LOG_APPEND_TIME if row.magic == 1 else CODEC_MASK  # a legacy batch is never control
    row.attributes = buffer[position + LEGACY_FLAGS_AT] & known
    compressed = row.attributes & CODEC_MASK != 0
    row.base_offset = -1 if compressed else row.last_offset
    row.max_timestamp = be64(buffer, position + LEGACY_TIMESTAMP_AT) if row.magic == 1 else -1
    row.base_timestamp = row.max_timestamp
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1
    row.count = -1 if compressed else 1
    row.payload_start = position
    row.payload_end = position + size


@njit(**JIT)
def _fill(buffer, start, batches):
    position = np.int64(start)
    for i in range(len(batches)):
        row = batches[i]
        size = be32(buffer, position + LENGTH_AT) + LOG_OVERHEAD
        row.position = position
        row.size = size
        row.magic = buffer[position + MAGIC_AT]
        row.expanded = 0
        if row.magic == 2:
            _fill_v2(buffer, position, size, row)
        else:
            _fill_legacy(buffer, position, size, row)
        position += size


@njit(**JIT)
def _crc32_ieee_step(table, crc, byte):
    return (crc >> np.uint32(8)) ^ table[np.int64((crc ^ np.uint32(byte)) & np.uint32(0xFF))]


@njit(**JIT)
def crc32_ieee(table, buffer, start, end):
    """CRC-32 (zlib's) of `buffer[start:end]`, by table: legacy messages only."""
    crc = np.uint32(0xFFFFFFFF)
    for position in range(start, end):
        crc = _crc32_ieee_step(table, crc, buffer[position])
    return crc ^ np.uint32(0xFFFFFFFF)


def _ieee_table():
    table = np.zeros(256, np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        table[byte] = crc
    return table


IEEE_TABLE = _ieee_table()


@njit(**JIT)
def _carried(buffer, row):
    return np.uint32(be32(buffer, row.position + (CRC_AT if row.magic == 2 else LEGACY_CRC_AT)))


@njit(**JIT)
def _computed(buffer, row, table):
    end = row.position + row.size
    if row.magic == 2:
        return crc32c(buffer, row.position + ATTRIBUTES_AT, end)
    return crc32_ieee(table, buffer, row.position + MAGIC_AT, end)


@njit(**JIT)
def _first_bad_of_three(buffer, a, b, c):
    """Which of three batches of magic 2 has a wrong CRC first, 3 none."""
    crc_a, crc_b, crc_c = crc32c_of_three(
        buffer, a.position + ATTRIBUTES_AT, a.position + a.size, b.position + ATTRIBUTES_AT, b.position + b.size,
        c.position + ATTRIBUTES_AT, c.position + c.size,
    )  # fmt: skip
    if crc_a != _carried(buffer, a):
        return 0
    if crc_b != _carried(buffer, b):
        return 1
    return 2 if crc_c != _carried(buffer, c) else 3


@njit(**JIT)
def _first_bad_crc(buffer, batches, table):
    i = 0
    while i < len(batches):
        if i + 2 < len(batches) and batches[i].magic + batches[i + 1].magic + batches[i + 2].magic == 6:
            bad = _first_bad_of_three(buffer, batches[i], batches[i + 1], batches[i + 2])
            if bad < 3:
                return i + bad
            i += 3
        else:
            if _computed(buffer, batches[i], table) != _carried(buffer, batches[i]):
                return i
            i += 1
    return -1


@njit(**JIT)
def _first_bad_order(batches, previous):
    for i in range(len(batches)):
        row = batches[i]
        if row.magic == 2 and (row.last_offset < row.base_offset or row.base_offset <= previous):
            return i
        if row.last_offset <= previous:
            return i
        previous = row.last_offset
    return -1


def first_misplaced(batches: Table, file_position: int, index: OffsetIndex) -> int:
    """First entry of an offset index that points between `batches` without naming one, -1 if there is none.

    It names one if it points at the start of a batch that begins at or below its offset. `batches`, at least one, are laid
    end to end; `file_position` is where their buffer begins in the file.
    """
    starts = batches["position"] + file_position
    low, high = np.searchsorted(index.positions, [starts[0], starts[-1] + int(batches["size"][-1])])
    at = np.searchsorted(starts, index.positions[low:high])
    at[at == len(starts)] = 0
    good = starts[at] == index.positions[low:high]
    good &= batches["base_offset"][at] <= index.offsets[low:high]
    return -1 if good.all() else int(low + np.argmin(good))


def scan_batches(buffer: Bytes, start: int, end: int) -> tuple[Table, int, ReadStatus]:
    """Rows of all whole batches in `buffer[start:end]`.

    Returns (rows, position after the last of them, status): status is OK when that position is `end`, otherwise
    why the walk stopped there.
    """
    assert buffer.dtype == np.uint8
    count, stop, status = _count(buffer, start, end)
    rows = np.zeros(count, BATCH)
    _fill(buffer, start, rows)
    return rows, int(stop), ReadStatus(status)


def first_bad_crc(buffer: Bytes, batches: Table) -> int:
    """Row of the first batch whose CRC is wrong, -1 if all are right."""
    return int(_first_bad_crc(buffer, batches, IEEE_TABLE))


def crcs(buffer: Bytes, batches: Table, row: int) -> tuple[int, int]:
    """(CRC that batch `row` carries, CRC of its bytes)."""
    return int(_carried(buffer, batches[row])), int(_computed(buffer, batches[row], IEEE_TABLE))


def first_bad_order(batches: Table, previous_last_offset: int) -> int:
    """Row of the first batch that does not begin after the one before it ended, -1 if all do (spec disk H)."""
    return int(_first_bad_order(batches, previous_last_offset))


@njit(**JIT)
def _first_compressed(batches):
    for i in range(len(batches)):
        if batches[i].attributes & CODEC_MASK:
            return i
    return len(batches)


def is_plain(batches: Table) -> bool:
    """Whether no batch is compressed."""
    return bool(_first_compressed(batches) == len(batches))


@njit(**JIT)
def _first_with_more(batches, begin, records):
    for i in range(begin, len(batches)):
        if batches[i].count > records:
            return i
    return len(batches)


def first_with_more(batches: Table, begin: int, records: int) -> int:
    """Row of the first batch, from row `begin` on, whose header names more than so many records; `len(batches)` for none."""
    return int(_first_with_more(batches, begin, records))
