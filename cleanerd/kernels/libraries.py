"""Addresses of the C functions behind `lz4` and `zstandard`, for kernels to call without Python for each batch.

Both packages bring their C library along with its names in sight: `lz4.block._block` has LZ4_*, `zstandard._cffi` ZSTD_*.
Where one of them does not, that of the system is taken; without either, the packages do the work as they always can.
"""

import ctypes
import glob
import os
import threading
from dataclasses import dataclass
from functools import cache

import lz4.block
import zstandard

from cleanerd.format.codecs import ZSTD_LEVEL

_LEVEL, _CONTENT_SIZE = 100, 200  # ZSTD_cParameter
_ZSTD_MIN = 1_04_00  # the first in which ZSTD_compress2 is stable


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the functions that kernels call, 0 for a missing one. Contexts belong to the thread that made them."""

    lz4_decompress: int = 0
    lz4_compress: int = 0
    zstd_decompress: int = 0
    zstd_compress: int = 0
    zstd_reader: int = 0
    zstd_writer: int = 0


@dataclass(frozen=True, slots=True)
class _Zstd:
    library: ctypes.CDLL
    decompress: int
    compress: int


class _ZstdContexts:
    """A context to read with and one to write with: making them costs more than a batch of 16 KiB."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._level: int | None = None
        self.reader: int | None = library.ZSTD_createDCtx()
        self.writer: int | None = library.ZSTD_createCCtx()
        library.ZSTD_CCtx_setParameter(self.writer, _CONTENT_SIZE, 0)
        self.set_level(ZSTD_LEVEL)

    def set_level(self, level: int) -> None:
        """Set the compression level of the writer."""
        if level != self._level:
            self._library.ZSTD_CCtx_setParameter(self.writer, _LEVEL, level)
            self._level = level

    def __del__(self) -> None:
        self._library.ZSTD_freeDCtx(self.reader)
        self._library.ZSTD_freeCCtx(self.writer)


class _OfThread(threading.local):
    contexts: _ZstdContexts | None = None


_of_thread = _OfThread()


def addresses() -> Addresses:
    """Addresses of the functions, and of the contexts of this thread."""
    decompress, compress = _lz4()
    zstd = _zstd()
    if zstd is None:
        return Addresses(decompress, compress)
    contexts = _of_thread.contexts
    if contexts is None:
        contexts = _of_thread.contexts = _ZstdContexts(zstd.library)
    if not contexts.reader or not contexts.writer:
        return Addresses(decompress, compress)
    return Addresses(
        decompress, compress, zstd.decompress, zstd.compress, contexts.reader, contexts.writer
    )  # fmt: skip


def set_zstd_level(level: int) -> None:
    """Set the level of `zstd_compress` for this thread."""
    if _of_thread.contexts is not None:
        _of_thread.contexts.set_level(level)


@cache
def _lz4() -> tuple[int, int]:
    for path in (lz4.block._block.__file__, "liblz4.so.1"):
        library = _opened(path)
        if library is not None and hasattr(library, "LZ4_decompress_safe"):
            return _address(library.LZ4_decompress_safe), _address(library.LZ4_compress_default)
    return 0, 0


@cache
def _zstd() -> _Zstd | None:
    bundled = glob.glob(os.path.join(glob.escape(os.path.dirname(zstandard.__file__)), "_cffi*.so"))
    for path in (*sorted(bundled), "libzstd.so.1"):
        library = _opened(path)
        if library is None or not hasattr(library, "ZSTD_compress2"):
            continue
        if library.ZSTD_versionNumber() < _ZSTD_MIN:
            continue
        for create in (library.ZSTD_createDCtx, library.ZSTD_createCCtx):
            create.restype = ctypes.c_void_p
        for free in (library.ZSTD_freeDCtx, library.ZSTD_freeCCtx):
            free.argtypes = [ctypes.c_void_p]
            free.restype = ctypes.c_size_t
        library.ZSTD_CCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        library.ZSTD_CCtx_setParameter.restype = ctypes.c_size_t
        return _Zstd(library, _address(library.ZSTD_decompressDCtx), _address(library.ZSTD_compress2))
    return None


def _opened(path: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
