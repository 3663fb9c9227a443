"""Shared by offset index and time index: the end of the entries, and flaws in the bytes after them.

Both files are allocated in advance and cut to the length of their entries when the segment is closed (spec disk B5). A power
cut can undo the cut, and a copy of a running broker's files has them as they were. So the entries of every index end at
the first one that none can be. What follows is a *flaw*, unless the segment is still written.
"""

import numpy as np
from numpy.typing import NDArray

from .errors import FormatError, Padded


def used_entries(
    good: NDArray[np.bool_], entries: np.ndarray, size_bytes: int, expected: str
) -> tuple[int, FormatError | None]:
    """(how many entries come before the first that is not `good`, the flaw that ends them; None where the file ends there).

    `entries`: the file up to its first hole, as far as it has whole entries. `size_bytes`: its length.
    """
    used = len(good) if good.all() else int(np.argmin(good))
    position, entry_bytes = used * entries.dtype.itemsize, entries.dtype.itemsize
    if used < len(good) and entries[used:].view(np.uint8).any():
        fields = zip(entries.dtype.names or (), entries[used].tolist(), strict=True)
        found = ", ".join(f"{name} {value}" for name, value in fields)
        return used, FormatError(position, expected, found)
    if size_bytes % entry_bytes:
        return used, FormatError(size_bytes, f"entries of {entry_bytes} bytes", f"{size_bytes} bytes")
    if position < size_bytes:
        return used, Padded(
            position, "entries to the end of the file", f"{size_bytes - position} bytes of zeros"
        )
    return used, None


def whole_entries(data: bytes, entry: np.dtype[np.void]) -> np.ndarray:
    """The entries in `data`, without a last one that is not whole."""
    return np.frombuffer(data, entry, count=len(data) // entry.itemsize)
