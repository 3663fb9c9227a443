"""Whether the kernels and the twin agree, and where they do not.

Every byte has to be the same, but for the compressed form of a body: which of its many valid forms a library writes is no
rule, and may depend on the processor. Its content is compared, byte for byte, and the checksum is checked.
"""

from collections.abc import Iterator
from dataclasses import replace

from cleanerd.format.batch import checksum, iterate_batches, parse_header
from cleanerd.format.codecs import Codec, decompress
from cleanerd.format.head import CRC_AT, HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD
from tests.harness.kernels.reference import Cleaned


def assert_agree(found: Cleaned, expected: Cleaned, what: object = "") -> None:
    """Raise AssertionError that names the first batch that differs, its position and both forms of it."""
    assert len(found.segments) == len(expected.segments), what
    for number, (mine, twins) in enumerate(zip(found.segments, expected.segments, strict=True)):
        if mine == twins:
            continue
        pairs = zip(_batches(mine), _batches(twins), strict=False)
        for (position, my_head, my_body), (_, twins_head, twins_body) in pairs:
            where = f"{what}: segment {number}, batch at {position}"
            assert my_head == twins_head, f"{where}: {my_head.hex()} instead of {twins_head.hex()}"
            assert my_body == twins_body, f"{where}: {my_body.hex()} instead of {twins_body.hex()}"
        mine_bases, twins_bases = ([head[:8].hex() for _, head, _ in _batches(s)] for s in (mine, twins))
        assert mine_bases == twins_bases, f"{what}: segment {number}"
    rest = [replace(one, segments=[]) for one in (found, expected)]
    assert rest[0] == rest[1], what


def _batches(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(position, head, body) of all batches, which are of magic 2; a compressed one without size and checksum, expanded."""
    end = 0
    for position, size_bytes, _ in iterate_batches(data):
        end = position + size_bytes
        batch = data[position:end]
        header = parse_header(batch)
        assert header.crc == checksum(batch), f"the batch at {position}: {batch.hex()}"
        head, body = batch[:HEADER_SIZE], batch[HEADER_SIZE:]
        if header.codec != Codec.NONE and body:
            head = head[:LENGTH_AT] + head[LOG_OVERHEAD:CRC_AT] + head[CRC_AT + 4 :]
            body = decompress(header.codec, body)
        yield position, head, body
    assert end == len(data), f"after the last batch: {data[end:].hex()}"
