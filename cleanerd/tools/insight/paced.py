"""Reads at a rate in bytes per second: beside a live broker the disk is not ours."""

import math

from cleanerd.cleaning.throttle import Throttle
from cleanerd.env.clock import Clock
from cleanerd.kernels.tables import Bytes
from cleanerd.storage.file_bytes import read_at


class PacedReads:
    """For one thread at a time. `bytes_per_s`: `math.inf` for no limit. Nothing is saved up before the first read."""

    def __init__(self, clock: Clock, bytes_per_s: float = math.inf) -> None:
        self._throttle = Throttle(clock)
        self._throttle.set_limits(read=bytes_per_s)

    def pace(self, read_bytes: int) -> None:
        """So much was read; returns when it is paid for."""
        self._throttle.charge(read_bytes, 0, lambda: False)

    def read_at(self, fd: int, position: int, size: int) -> Bytes:
        """As `storage.file_bytes.read_at`, paid for."""
        found = read_at(fd, position, size)
        self.pace(len(found))
        return found
