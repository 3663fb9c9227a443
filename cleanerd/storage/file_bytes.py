"""Bytes of an open file as an array: whole, however few the system hands over at a time."""

import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cleanerd.kernels.tables import Bytes


def read_at(fd: int, position: int, size: int) -> "Bytes":
    """`size` bytes from `position`, fewer at the end of the file. Raises OSError."""
    buffer = np.empty(size, np.uint8)
    view, filled = buffer.data, 0
    while filled < size:
        count = os.preadv(fd, [view[filled:]], position + filled)
        if not count:
            break
        filled += count
    return buffer[:filled]
