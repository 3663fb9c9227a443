"""The page cache is the broker's: pages that were not in it before cleanerd read them leave it afterwards."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator

_BLOCK_BYTES = 2 << 20
"""A block is cold when none of its pages is cached. The system reads ahead in pieces that are smaller."""
_WINDOW_BYTES = 1 << 30  # per call: mincore takes a byte of memory for each page

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start, and wait for nothing
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
_LOW_BITS = bytes(byte & 1 for byte in range(256))  # the others are reserved
_FAILED = ctypes.c_void_p(-1).value

Ranges = tuple[tuple[int, int], ...]
"""Byte ranges [start, end) of a file, ascending and disjoint."""


def cold_ranges(fd: int, file_bytes: int) -> Ranges:
    """Blocks among the first `file_bytes` of a file that have no page in the page cache; reads nothing from disk.

    Empty if the system does not tell: mincore(2) answers only the owner of a file and those who may write it.
    """
    ranges: list[tuple[int, int]] = []
    for start, length in _stored(fd, file_bytes):
        resident = resident_pages(fd, start, length)
        per_block = _BLOCK_BYTES // mmap.PAGESIZE
        for at in range(0, len(resident), per_block):
            if b"\1" in resident[at : at + per_block]:
                continue
            begin = start + at * mmap.PAGESIZE
            end = min(begin + _BLOCK_BYTES, start + length)
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = ranges[-1][0], end
            else:
                ranges.append((begin, end))
    return tuple(ranges)


def _stored(fd: int, file_bytes: int) -> Iterator[tuple[int, int]]:
    """Windows of a file that take room on the disk, as (start, length); a hole of a sparse file costs nothing."""
    start = 0
    while start < file_bytes:
        try:
            start = max(os.lseek(fd, start, os.SEEK_DATA) // mmap.PAGESIZE * mmap.PAGESIZE, start)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), start + _WINDOW_BYTES, file_bytes)
        except OSError:  # only a hole is left, or it is no file
            return
        if end <= start:
            return
        yield start, end - start
        start = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE


def resident_pages(fd: int, start: int, length: int) -> bytes | bytearray:
    """One for each cached page, zero for each other; empty if the system does not tell. `start` is that of a page."""
    pages = bytearray(-(-length // mmap.PAGESIZE))
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address == _FAILED:
        return b""
    try:  # no page is touched, so a file that is truncated meanwhile does no harm
        buffer = (ctypes.c_char * len(pages)).from_buffer(pages)
        known = _libc.mincore(address, length, buffer) == 0
        del buffer
    finally:
        _libc.munmap(address, length)
    return pages.translate(_LOW_BITS) if known else b""


def within(ranges: Ranges, start: int, end: int) -> Ranges:
    """The parts of ranges that lie in [start, end)."""
    clipped = ((max(begin, start), min(stop, end)) for begin, stop in ranges)
    return tuple((begin, stop) for begin, stop in clipped if begin < stop)


def size_bytes(ranges: Ranges) -> int:
    """Bytes of all ranges together."""
    return sum(end - start for start, end in ranges)


def drop(fd: int, ranges: Ranges) -> None:
    """Take ranges of a file out of the page cache; pages that are not yet on disk, or locked, stay."""
    with contextlib.suppress(OSError):  # no more than advice
        for start, end in ranges:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def borrowed(fd: int, file_bytes: int) -> Iterator[None]:
    """A context that drops, at its end, cached pages of the first `file_bytes` of a file that were not cached before."""
    cold = cold_ranges(fd, file_bytes)
    try:
        yield
    finally:
        drop(fd, cold)


def begin_writeback(fd: int, start: int, size_bytes: int) -> None:
    """Ask the system to start writing bytes [start, start + size_bytes) of an open file to disk.

    Only a hint that makes the final sync shorter: nothing is durable, and no error is reported, before that sync.
    """
    if _sync_file_range is not None and size_bytes > 0:
        _sync_file_range(fd, start, size_bytes, _WRITE)
