"""A file object without a buffer, over a descriptor of a simulated disk."""

import io
import os
import stat
from typing import Any


class RawFile(io.RawIOBase):
    """A file that is written through `os`, so that the disk takes part."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return stat.S_ISREG(os.fstat(self._fd).st_mode)

    def seek(self, offset: int, whence: int = 0) -> int:
        return os.lseek(self._fd, offset, whence)

    def write(self, data: Any) -> int:
        return os.write(self._fd, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)
