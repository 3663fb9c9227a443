"""Start to write bytes to the disk before anyone waits for them."""

import ctypes

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start, and wait for nothing
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint


def begin_writeback(fd: int, start: int, size_bytes: int) -> None:
    """Let the system start to write out what lies in bytes [start, start + size_bytes) of an open file.

    A sync at the end then has less to wait for. No more than a hint: nothing is stable before a sync, which also reports
    what went wrong.
    """
    if _sync_file_range is not None and size_bytes > 0:
        _sync_file_range(fd, start, size_bytes, _WRITE)
