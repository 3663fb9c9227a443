"""A lock file on which the kernel gives us no lease (`F_SETLEASE`): another user's, and CAP_LEASE is not there."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHER_UID = 4711
_CAP_LEASE = 28
_VERSION_3 = 0x20080522


@contextmanager
def without_leases(lock_file: Path) -> Iterator[None]:
    """Give the file away, and this thread no CAP_LEASE, as root has none in a container. Only root can."""
    os.chown(lock_file, OTHER_UID, -1)
    before = _effective()
    _set_effective(before & ~(1 << _CAP_LEASE))
    try:
        yield
    finally:
        _set_effective(before)


def _call(name: str, data: "ctypes.Array[ctypes.c_uint32]") -> None:
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(_VERSION_3, 0)  # 0: this thread
    if getattr(libc, name)(header, data):
        raise OSError(ctypes.get_errno(), name)


def _words() -> "ctypes.Array[ctypes.c_uint32]":
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    _call("capget", data)
    return data


def _effective() -> int:
    return int(_words()[0])


def _set_effective(bits: int) -> None:
    data = _words()
    data[0] = bits
    _call("capset", data)
