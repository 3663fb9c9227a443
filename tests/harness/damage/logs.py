"""Ways to damage a log on disk. Each is done to a partition directory and returns what a report of it must name."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind
from tests.harness.damage.batches import sealed
from tests.harness.damage.directories import Written, put, start_of
from tests.harness.logs.troubled import segment


@dataclass(frozen=True)
class Damage:
    """A file of the second segment, or another one, has this content now, made of what it had, as is the byte to name."""

    name: str
    content: Callable[[bytes], bytes]
    position: Callable[[bytes], Any]
    kind: FileKind = FileKind.LOG
    number: int = 1

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, partition: Path) -> str:
        name = segment(partition, self.number, self.kind).name
        path, position = Written(self.name, name, self.content, self.position)(partition)
        return f"{path}: at byte {position}"


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


def zstd_bomb(had: bytes) -> bytes:
    """In place of the last batch, 32 KiB that stand for a GiB."""
    start = start_of(-1)(had)
    header = bytearray(had[start : start + 61])
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 30))
    header[8:12] = (len(header) - 12 + len(bomb)).to_bytes(4)
    header[21:23] = int(Codec.ZSTD).to_bytes(2)
    return had[:start] + sealed(bytes(header) + bomb)


def shifted(had: bytes) -> bytes:
    """An offset index that names bytes inside of batches: somebody exchanged the log under it."""
    content = bytearray(had)
    for at in range(4, len(content), 8):
        content[at : at + 4] = (int.from_bytes(content[at : at + 4]) + 9).to_bytes(4)
    return bytes(content)


def padded_index(partition: Path) -> str:
    """As it was allocated when the segment was active, a sparse file."""
    return _padded(segment(partition, 1, FileKind.OFFSET_INDEX), 10485760)


def padded_time_index(partition: Path) -> str:
    return _padded(segment(partition, 1, FileKind.TIME_INDEX), 10485756)


def _padded(index: Path, size: int) -> str:
    used = index.stat().st_size
    os.truncate(index, size)
    return f"{index}: at byte {used}"


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


wrong_crc = Damage("wrong_crc", put(b"\xff", 3, 70), start_of(3))
end_beyond_int64 = Damage("end_beyond_int64", put((2**63 - 1).to_bytes(8), -1, 0), start_of(-1), number=-1)
"""The last header of the active segment claims an end at 2^63; the end of a log is taken without its CRC."""
_INDEX, _TIME_INDEX = FileKind.OFFSET_INDEX, FileKind.TIME_INDEX

DAMAGES: tuple[Callable[[Path], str], ...] = (
    wrong_crc,
    Damage("torn_batch", lambda had: had[:-5], start_of(-1)),
    Damage("wrong_magic", put(b"\x07", 2, 16), start_of(2), number=0),
    # What a file system may show instead of a batch after a power cut.
    Damage("zeros", put(bytes(200), 4, 0), start_of(4)),
    end_beyond_int64,
    Damage("zstd_bomb", zstd_bomb, start_of(-1)),
    Damage("txn_index_of_another_version", lambda _: b"\0\5" + bytes(32), lambda _: 0, FileKind.TXN_INDEX),
    directory_as_log,
    directory_as_index,
    directory_as_time_index,
    cleaned_of_a_broker,
    bad_sector,
)
"""To what cannot be done without."""

HINTS: tuple[Callable[[Path], str], ...] = (
    Damage("half_index_entry", lambda had: had[:-3], lambda had: len(had) - 3, _INDEX),
    Damage("half_time_index_entry", lambda had: had[:-3], lambda had: len(had) - 3, _TIME_INDEX),
    Damage("shifted_index", shifted, lambda _: "", _INDEX),
    Damage(
        "index_beyond_the_log",
        lambda had: had[:-4] + b"\x7f" + had[-3:],
        lambda had: len(had) - 8,
        _INDEX,
    ),
    padded_index,
    padded_time_index,
    # A copy is not sparse.
    Damage("padded_with_bytes", lambda had: had.ljust(10485756, b"\0"), len, _TIME_INDEX),
    Damage("time_index_of_zeros", lambda had: bytes(len(had)), lambda _: 0, _TIME_INDEX),
)
"""To indexes that are rebuilt anyway."""
