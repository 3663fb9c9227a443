"""Ways to damage a log on disk. Each is done to a partition directory and returns what a report of it must name."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import zstandard

from cleanerd.format.batch import iterate_batches
from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind
from tests.cleaning.logs import segment
from tests.kernels.damage import sealed


def batch_starts(path: Path) -> list[int]:
    return [position for position, _, _ in iterate_batches(path.read_bytes())]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def wrong_crc(partition: Path) -> str:
    log = segment(partition, 1)
    start = batch_starts(log)[3]
    overwrite(log, start + 70, b"\xff")
    return f"{log}: at byte {start}"


def torn_batch(partition: Path) -> str:
    """The last one of a closed segment."""
    log = segment(partition, 1)
    start = batch_starts(log)[-1]
    os.truncate(log, log.stat().st_size - 5)
    return f"{log}: at byte {start}"


def wrong_magic(partition: Path) -> str:
    log = segment(partition, 0)
    start = batch_starts(log)[2]
    overwrite(log, start + 16, b"\x07")
    return f"{log}: at byte {start}"


def zeros(partition: Path) -> str:
    """What a file system may show instead of a batch after a power cut."""
    log = segment(partition, 1)
    start = batch_starts(log)[4]
    overwrite(log, start, bytes(200))
    return f"{log}: at byte {start}"


def end_beyond_int64(partition: Path) -> str:
    """The last header of the active segment claims an end at 2^63; the end of a log is taken without its CRC."""
    log = segment(partition, -1)
    start = batch_starts(log)[-1]
    overwrite(log, start, (2**63 - 1).to_bytes(8))
    return f"{log}: at byte {start}"


def zstd_bomb(partition: Path) -> str:
    """The last batch of a closed segment: 32 KiB that stand for a GiB."""
    log = segment(partition, 1)
    start = batch_starts(log)[-1]
    header = bytearray(log.read_bytes()[start : start + 61])
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 30))
    header[8:12] = (len(header) - 12 + len(bomb)).to_bytes(4)
    header[21:23] = int(Codec.ZSTD).to_bytes(2)
    os.truncate(log, start)
    overwrite(log, start, sealed(bytes(header) + bomb))
    return f"{log}: at byte {start}"


def padded_index(partition: Path) -> str:
    """As it was allocated when the segment was active."""
    return _padded(segment(partition, 1, FileKind.OFFSET_INDEX), 10485760)


def padded_time_index(partition: Path) -> str:
    return _padded(segment(partition, 1, FileKind.TIME_INDEX), 10485756)


def padded_with_bytes(partition: Path) -> str:
    """A copy is not sparse."""
    index = segment(partition, 1, FileKind.TIME_INDEX)
    told = _padded(index, 10485756)
    index.write_bytes(index.read_bytes())
    return told


def _padded(index: Path, size: int) -> str:
    used = index.stat().st_size
    os.truncate(index, size)
    return f"{index}: at byte {used}"


def time_index_of_zeros(partition: Path) -> str:
    index = segment(partition, 1, FileKind.TIME_INDEX)
    index.write_bytes(bytes(index.stat().st_size))
    return f"{index}: at byte 0"


def half_index_entry(partition: Path) -> str:
    index = segment(partition, 1, FileKind.OFFSET_INDEX)
    os.truncate(index, index.stat().st_size - 3)
    return f"{index}: at byte {index.stat().st_size}"


def half_time_index_entry(partition: Path) -> str:
    index = segment(partition, 1, FileKind.TIME_INDEX)
    os.truncate(index, index.stat().st_size - 3)
    return f"{index}: at byte {index.stat().st_size}"


def shifted_index(partition: Path) -> str:
    """It names bytes inside of batches: somebody exchanged the log under it."""
    index = segment(partition, 1, FileKind.OFFSET_INDEX)
    content = bytearray(index.read_bytes())
    for at in range(4, len(content), 8):
        content[at : at + 4] = (int.from_bytes(content[at : at + 4]) + 9).to_bytes(4)
    index.write_bytes(content)
    return f"{index}: at byte"


def index_beyond_the_log(partition: Path) -> str:
    index = segment(partition, 1, FileKind.OFFSET_INDEX)
    size = index.stat().st_size
    overwrite(index, size - 4, b"\x7f")
    return f"{index}: at byte {size - 8}"


def txn_index_of_another_version(partition: Path) -> str:
    index = segment(partition, 1, FileKind.TXN_INDEX)
    index.write_bytes(b"\x00\x05" + bytes(32))
    return f"{index}: at byte 0"


def directory_as_log(partition: Path) -> str:
    """It cannot be read, even by root."""
    return _directory_as(segment(partition, 1))


def directory_as_index(partition: Path) -> str:
    return _directory_as(segment(partition, 1, FileKind.OFFSET_INDEX))


def directory_as_time_index(partition: Path) -> str:
    return _directory_as(segment(partition, 1, FileKind.TIME_INDEX))


def _directory_as(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return str(path)


def cleaned_of_a_broker(partition: Path) -> str:
    """Left of the broker's own cleaning, which the broker alone can judge."""
    (partition / f"{0:020d}.log.cleaned").write_bytes(b"half")
    return str(partition)


def bad_sector(partition: Path) -> str:
    """See `unreadable`."""
    return f"{segment(partition, 1, FileKind.OFFSET_INDEX)}: {os.strerror(errno.EIO)}"


def unreadable(call: str, path: str) -> None:
    """One index cannot be read: a hook of files."""
    is_meant = call == "read_to_hole" and "bad_sector" in path
    if is_meant and path == str(segment(Path(path).parent, 1, FileKind.OFFSET_INDEX)):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


DAMAGES: tuple[Callable[[Path], str], ...] = (
    wrong_crc,
    torn_batch,
    wrong_magic,
    zeros,
    end_beyond_int64,
    zstd_bomb,
    txn_index_of_another_version,
    directory_as_log,
    directory_as_index,
    directory_as_time_index,
    cleaned_of_a_broker,
    bad_sector,
)

"""To what cannot be done without."""

HINTS: tuple[Callable[[Path], str], ...] = (
    half_index_entry,
    half_time_index_entry,
    shifted_index,
    index_beyond_the_log,
    padded_index,
    padded_time_index,
    padded_with_bytes,
    time_index_of_zeros,
)
"""To indexes that are rebuilt anyway."""
