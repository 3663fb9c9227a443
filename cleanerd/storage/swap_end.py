"""Where a swapped segment ends, found out with more care than a broker takes: it looks at no CRC (spec disk D2)."""

import os

from cleanerd.env.files import regular_file
from cleanerd.errors import CorruptFile
from cleanerd.format.batch import checksum, iterate_batches, parse_header
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import CRC_AT
from cleanerd.format.legacy import decode_entry

_READ_BYTES = 1 << 20


def swap_end(path: str) -> int:
    """The offset after the last batch of a `<base>.log.swap`, its base if it is empty.

    Raises CorruptFile unless the whole file is sound batches whose offsets rise from the base on; OSError.
    """
    end = int(os.path.basename(path).partition(".")[0])
    position, want = 0, _READ_BYTES
    with regular_file(path, buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        while position < size_bytes:
            data = os.pread(file.fileno(), want, position)
            with corruption_in(path, position):
                done, end = _walk(data, end)
            if not done and position + len(data) == size_bytes:
                raise CorruptFile(path, position, "a whole batch", f"{len(data)} bytes of a torn one")
            want = _READ_BYTES if done else want * 2
            position += done
    return end


def _walk(data: bytes, end: int) -> tuple[int, int]:
    """Bytes of whole batches at the beginning of `data`, and the offset after the last of them."""
    done = 0
    for position, size, magic in iterate_batches(data):
        first, last = _offsets(data[position : position + size], magic, position)
        if not end <= first <= last:
            raise FormatError(position, f"an offset of {end} or more", f"{first} to {last}")
        done, end = position + size, last + 1
    return done, end


def _offsets(batch: bytes, magic: int, position: int) -> tuple[int, int]:
    """First and last offset of a batch whose CRC is right."""
    try:
        if magic < 2:
            entry = decode_entry(batch)
            return entry.base_offset, entry.last_offset
        header = parse_header(batch)
    except FormatError as error:
        raise FormatError(position + error.position, error.expected, error.found) from error
    if header.crc != checksum(batch):
        raise FormatError(position + CRC_AT, f"CRC {header.crc:#010x}", f"{checksum(batch):#010x}")
    return header.base_offset, header.last_offset
