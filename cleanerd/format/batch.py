"""Record batches of magic 2 (spec disk C1) in plain Python, and the walk over batches of any magic (B1).

===  ====  ====================  ==========================================================================
off  size  field                 note
===  ====  ====================  ==========================================================================
0    8     base offset           never changes under compaction
8    4     batch length          bytes after this field: whole size - 12
12   4     leader epoch          outside the CRC, because the broker sets it after the producer's CRC
16   1     magic                 2
17   4     CRC-32C               of bytes 21 to the end
21   2     attributes            only the low byte is read, see `head`
23   4     last offset delta     preserved under compaction: it carries the last sequence too
27   8     base timestamp        the delete horizon when bit 6 is set; -1 in an empty batch
35   8     max timestamp         the time of every record when LogAppendTime
43   8     producer id           -1 none
51   2     producer epoch        -1 none
53   4     base sequence         -1 none
57   4     record count          0: a header that compaction kept
61   ...   records               or one compressed blob of all of them
===  ====  ====================  ==========================================================================
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from crc32c import crc32c

from cleanerd.format import head
from cleanerd.format.codecs import Codec, compress, decompress
from cleanerd.format.errors import FormatError
from cleanerd.format.head import HEADER_SIZE, peek_batch
from cleanerd.format.record import Record, decode_records, encode_records

__all__ = [
    "BatchHeader",
    "Record",
    "checksum",
    "codec_of",
    "decode_batch",
    "encode_batch",
    "encode_empty_batch",
    "iterate_batches",
    "parse_header",
]

_CRC = struct.Struct(">I")

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
_MAX_SEQUENCE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes, in their order; `size_bytes` is the whole batch."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> Codec:
        """Raises: `FormatError` for a code that no codec has."""
        return codec_of(self.attributes, head.ATTRIBUTES_AT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record carries the max timestamp."""
        return bool(self.attributes & head.LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & head.TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the record is a marker, never a user's."""
        return bool(self.attributes & head.CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and the marker in this batch may go (rule 0.6)."""
        return self.base_timestamp_ms if self.attributes & head.DELETE_HORIZON else None

    @property
    def last_offset(self) -> int:
        """Last offset that the batch covers, whether or not a record is left there."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset after the batch."""
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last offset, wrapping to 0 after 2^31-1 (rule 0.7)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        sequence = self.base_sequence + self.last_offset_delta
        return sequence if sequence <= _MAX_SEQUENCE else sequence - _MAX_SEQUENCE - 1


def codec_of(attributes: int, position: int) -> Codec:
    """Codec of an attribute byte; `position` is where the byte lies, for the `FormatError`."""
    code = attributes & head.CODEC_MASK
    if code > Codec.ZSTD:
        raise FormatError(position, "a codec of 0 to 4", code)
    return Codec(code)


def checksum(batch: bytes | bytearray | memoryview) -> int:
    """CRC-32C that a whole batch of magic 2 should carry."""
    return int(crc32c(memoryview(batch)[head.ATTRIBUTES_AT :]))


def parse_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read the header of a batch of magic 2; the CRC is not checked, and the rest may be missing.

    Raises: `FormatError` for fewer than 61 bytes, another magic, or impossible sizes and counts.
    """
    if position + HEADER_SIZE > len(data):
        raise FormatError(position, f"a batch header of {HEADER_SIZE} bytes", f"{len(data) - position} bytes")
    base_offset, length, *rest = head.HEADER.unpack_from(data, position)
    header = BatchHeader(base_offset, length + head.LOG_OVERHEAD, *rest)
    if header.magic != 2:
        raise FormatError(position + head.MAGIC_AT, "magic 2", header.magic)
    if header.size_bytes < HEADER_SIZE:
        raise FormatError(
            position + head.LENGTH_AT, f"a batch of at least {HEADER_SIZE} bytes", header.size_bytes
        )
    if header.last_offset_delta < 0:
        raise FormatError(
            position + head.LAST_OFFSET_DELTA_AT, "a last offset delta of 0 or more", header.last_offset_delta
        )
    if header.record_count < 0:
        raise FormatError(position + head.RECORD_COUNT_AT, "a record count of 0 or more", header.record_count)
    return header


def decode_batch(data: bytes | memoryview, position: int = 0) -> tuple[BatchHeader, list[Record]]:
    """Read one whole batch: header and records with absolute offsets and true timestamps.

    Raises: `FormatError` for a torn batch, a wrong CRC, or records that differ from the header (rule 4.37).
    """
    header = parse_header(data, position)
    end = position + header.size_bytes
    if end > len(data):
        raise FormatError(position, f"a batch of {header.size_bytes} bytes", f"{len(data) - position} bytes")
    batch = memoryview(data)[position:end]
    found_crc = checksum(batch)
    if found_crc != header.crc:
        raise FormatError(position + head.CRC_AT, f"CRC {header.crc:#010x}", f"{found_crc:#010x}")
    try:
        records = _decode_body(header, batch[HEADER_SIZE:])
    except FormatError as problem:
        where = f"{problem.expected} at byte {problem.position} of the {header.codec.name} records"
        raise FormatError(position + HEADER_SIZE, where, problem.found) from problem
    return header, records


def _decode_body(header: BatchHeader, body: memoryview) -> list[Record]:
    if header.record_count == 0:
        return []  # the JVM ignores these bytes
    records = decode_records(
        decompress(header.codec, body),
        0,
        header.record_count,
        base_offset=header.base_offset,
        base_timestamp_ms=header.base_timestamp_ms,
    )
    if header.is_log_append_time:
        return [replace(record, timestamp_ms=header.max_timestamp_ms) for record in records]
    return records


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """One batch of magic 2. `last_offset` and `max_timestamp_ms` default to those of the records.

    Requires: at least one record; offsets rising, from `base_offset` or above to `last_offset` or below.
    """
    assert records, "an empty batch is encode_empty_batch's"
    last = records[-1].offset if last_offset is None else last_offset
    assert base_offset <= records[0].offset
    assert records[-1].offset <= last
    base_timestamp_ms = records[0].timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    if max_timestamp_ms is None:
        max_timestamp_ms = max(record.timestamp_ms for record in records)
    attributes = (
        codec
        | (head.LOG_APPEND_TIME if log_append_time else 0)
        | (head.TRANSACTIONAL if transactional else 0)
        | (head.CONTROL if control else 0)
        | (head.DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    plain = encode_records(records, base_offset=base_offset, base_timestamp_ms=base_timestamp_ms)
    header = BatchHeader(
        base_offset=base_offset,
        size_bytes=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - base_offset,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _seal(header, plain if codec == Codec.NONE else compress(codec, plain))


def encode_empty_batch(source: BatchHeader) -> bytes:
    """The bare header that stands for a batch of which nothing is kept (rule 4.30)."""
    kept = head.LOG_APPEND_TIME | head.TRANSACTIONAL | head.CONTROL
    header = replace(
        source, attributes=source.attributes & kept, base_timestamp_ms=NO_TIMESTAMP, record_count=0
    )
    return _seal(header, b"")


def _seal(header: BatchHeader, body: bytes) -> bytes:
    """Header and body with size and CRC filled in."""
    batch = bytearray(HEADER_SIZE + len(body))
    base_offset, _, *rest = astuple(header)
    head.HEADER.pack_into(batch, 0, base_offset, len(batch) - head.LOG_OVERHEAD, *rest)
    batch[HEADER_SIZE:] = body
    _CRC.pack_into(batch, head.CRC_AT, checksum(batch))
    return bytes(batch)


def iterate_batches(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (position, size in bytes, magic) of each whole batch of any magic; stop at a torn tail (B1).

    Raises: `FormatError` for a length below 14, a v2 batch below 61 bytes, or an unknown magic (rule 4.37).
    The zeros of a preallocated segment are such a length: readers of one expect it.
    """
    position = 0
    end = len(data)
    while end - position > head.HEAD_BYTES:  # a byte more than the head, as Kafka's FileLogInputStream wants
        _, size_bytes, magic = peek_batch(data, position)
        if position + size_bytes > end:
            return
        yield position, size_bytes, magic
        position += size_bytes
