"""The index files of a segment as they lie on disk: one reader of each for everyone (spec disk B9).

=============  =====================================================================================================
file           what damage to it means
=============  =====================================================================================================
`.index`       nothing is taken on its word, so its sound entries are used, and the `.log` is read for the rest
`.timeindex`   it counts as none: age is the mtime of the `.log` (rule 1.10), and what deletes by age asks the `.log`
`.txnindex`    an error: records of a transaction that is missing in it would count as committed (spec disk B6)
=============  =====================================================================================================
"""

from functools import lru_cache

from cleanerd.env.files import Files, FileStat, open_regular, regular_file
from cleanerd.format import offset_index
from cleanerd.format.errors import FormatError, corruption_in
from cleanerd.format.head import HEADER_SIZE, LEGACY_TIMESTAMP_AT, MAX_TIMESTAMP_AT, peek_batch
from cleanerd.format.offset_index import OffsetIndex, parse_offset_index
from cleanerd.format.time_index import TimeIndex, parse_time_index
from cleanerd.format.txn_index import ENTRY_BYTES, AbortedTxn, parse_txn_index
from cleanerd.storage.file_bytes import read_at


def read_offset_index(files: Files, path: str, base_offset: int) -> OffsetIndex:
    """The sound entries of an offset index, and its flaw. Raises OSError, also if it is no regular file."""
    data, size_bytes = files.read_to_hole(path)
    return parse_offset_index(data, base_offset, size_bytes)


def read_offset_entries(path: str, base_offset: int, first: int, count: int) -> OffsetIndex:
    """`count` entries of an offset index, from number `first` on, up to the first unsound one. Raises OSError."""
    if not count:  # there may be no file
        return parse_offset_index(b"", base_offset)
    with open_regular(path) as fd:
        data = read_at(fd, first * offset_index.ENTRY_BYTES, count * offset_index.ENTRY_BYTES)
    return parse_offset_index(data.tobytes(), base_offset)


def read_time_index(files: Files, path: str, base_offset: int) -> TimeIndex:
    """The sound entries of a time index, and its flaw. Raises OSError, also if it is no regular file."""
    data, size_bytes = files.read_to_hole(path)
    return parse_time_index(data, base_offset, size_bytes)


def read_txn_index(files: Files, path: str, base_offset: int, *, is_written: bool) -> tuple[AbortedTxn, ...]:
    """All entries of a transaction index. `is_written`: its writer may be in the middle of one.

    Raises CorruptFile, OSError.
    """
    data = files.read(path)
    if is_written:
        data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    with corruption_in(path):
        return parse_txn_index(data, base_offset)


def max_timestamp_ms(head: bytes, magic: int) -> int:
    """Largest timestamp of the batch with this head; -1 if it has none, or `head` is too short."""
    at = MAX_TIMESTAMP_AT if magic == 2 else LEGACY_TIMESTAMP_AT
    if magic == 0 or len(head) < at + 8:
        return -1
    return int.from_bytes(head[at : at + 8], "big", signed=True)


@lru_cache(maxsize=256)  # a retention pass asks for the same few again and again
def largest_timestamp_ms(path: str, identity: FileStat) -> int:
    """Largest timestamp in the batch headers of a `.log` with this identity; its mtime where it has none (rule 1.10).

    What the time index should hold, and what a broker finds when it rebuilds one. Bytes that are no batch may hide later
    ones: the answer is not below the mtime then. Raises OSError.
    """
    largest, position = walk_headers(path, identity)
    is_whole = position == identity.size_bytes and largest >= 0
    return largest if is_whole else max(largest, identity.mtime_ms)


def walk_headers(path: str, identity: FileStat) -> tuple[int, int]:
    """(Largest timestamp in the batch headers of a `.log` with this identity, -1 for none; where the last whole batch ends).

    Reads 4 KiB for each batch at most. Raises OSError.
    """
    largest, position = -1, 0
    with regular_file(path, buffering=4096) as file:
        while position < identity.size_bytes:
            file.seek(position)
            head = file.read(HEADER_SIZE)
            try:
                _, size_bytes, magic = peek_batch(head)
            except FormatError:
                break
            if position + size_bytes > identity.size_bytes:
                break
            largest = max(largest, max_timestamp_ms(head, magic))
            position += size_bytes
    return largest, position
