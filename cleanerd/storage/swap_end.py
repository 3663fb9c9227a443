"""Where a swapped segment ends, found with more care than a broker takes: it checks no CRC (spec disk D2)."""

import os

from cleanerd.errors import CorruptFile
from cleanerd.format.batch import checksum
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import CRC_AT
from cleanerd.format.legacy import decode_entry
from cleanerd.format.names import Suffix

from .segments import LogBatch, OpenSegment


def swap_end(path: str) -> int:
    """The offset after the last batch of a `<base>.log.swap`, its base if it is empty.

    Raises CorruptFile unless the whole file is sound batches whose offsets rise from the base on; OSError.
    """
    directory, name = os.path.split(path)
    end = int(name.partition(".")[0])
    with OpenSegment(directory, end, Suffix.SWAP) as segment:
        for batch in segment.batches():
            with corruption_in(path, batch.position):
                first, last = _offsets(batch)
                if not end <= first <= last:
                    raise FormatError(0, f"an offset of {end} or more", f"{first} to {last}")
            end = last + 1
        if segment.position < segment.size_bytes:
            raise CorruptFile(path, segment.position, "a whole batch", "a torn one")
    return end


def _offsets(batch: LogBatch) -> tuple[int, int]:
    """First and last offset of a batch whose CRC is right."""
    if batch.header is None:
        entry = decode_entry(batch.data)
        return entry.base_offset, entry.last_offset
    if batch.header.crc != checksum(batch.data):
        raise FormatError(CRC_AT, f"CRC {batch.header.crc:#010x}", f"{checksum(batch.data):#010x}")
    return batch.header.base_offset, batch.header.last_offset
