"""Files of a directory that may hold anything: FIFOs, devices, sparse terabytes, dangling links.

Opening never blocks, reading takes regular files only, and no read takes more memory than its caller allows.
"""

import errno
import os

import numpy as np

from cleanerd.env.files import READ_MAX_BYTES, RealFiles, open_regular, read_to_hole
from cleanerd.kernels.tables import Bytes
from cleanerd.storage.file_bytes import read_at

SMALL_BYTES = 64 << 20
"""Limit in bytes for files that are no segment and no index; a producer snapshot has 46 bytes a producer."""

_SECTOR_BYTES = 4096  # a page: less is never read from a disk


def read_around_bad_sectors(fd: int, position: int, size: int) -> Bytes:
    """As `read_at`, with zeros for unreadable sectors."""
    try:
        return read_at(fd, position, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    buffer = np.zeros(min(size, max(file_size(fd) - position, 0)), np.uint8)
    at = position
    while at < position + len(buffer):
        end = min((at // _SECTOR_BYTES + 1) * _SECTOR_BYTES, position + len(buffer))
        try:
            found = read_at(fd, at, end - at)
            buffer[at - position : at - position + len(found)] = found
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        at = end
    return buffer


def read_small(path: str, max_bytes: int) -> bytes:
    """Read a whole file. Raises `NotRegular`, and `OSError` (EFBIG) for a file of more than `max_bytes`."""
    with open_regular(path, follow_links=True) as fd:
        content = read_at(fd, 0, max_bytes + 1).tobytes()
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"a file of more than {max_bytes} bytes", path)
    return content


class CarefulFiles(RealFiles):
    """The operating system's files, of which only regular ones of a moderate size are read."""

    def read(self, path: str, max_bytes: int = SMALL_BYTES) -> bytes:
        """Read a whole file. Raises as `read_small`."""
        return read_small(path, max_bytes)

    def read_to_hole(self, path: str, max_bytes: int = READ_MAX_BYTES) -> tuple[bytes, int]:
        """Content up to the first hole, and the size."""
        return read_to_hole(path, max_bytes, follow_links=True)


def file_size(fd: int) -> int:
    """Bytes of an open file now."""
    return os.fstat(fd).st_size


def next_data(fd: int, position: int, end: int) -> int:
    """First byte from `position` on that is stored: skips the hole of a sparse file; `end` when only a hole is left."""
    try:
        return min(os.lseek(fd, position, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        return position  # the file system does not know
