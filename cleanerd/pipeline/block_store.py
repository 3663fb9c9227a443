"""Where blocks lie between the index step and the resolve step when all tasks run on one machine: in files.

Otherwise each fingerprint passes through the JVM: from one Python worker into it, through a file of Spark's shuffle, and out
of it to the next worker, which takes three times as long as to compute it. So a task writes its fingerprints to a file of
its own, and its answer only says where in it they are. The files live as long as the job, among the session's scratch files.
On a cluster the answer holds the fingerprints themselves.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cleanerd.env.files import open_regular
from cleanerd.policy.winner import FINGERPRINT_BYTES
from cleanerd.storage.file_bytes import read_at

from .index import Block
from .values import PackedBits


class StoredBlock(NamedTuple):
    """A `Block` whose fingerprints, so many, begin at byte `position` of a file. A tuple: thousands of them are pickled."""

    path: str
    position: int
    fingerprints: int
    superseded: PackedBits | None
    clean: int

    @property
    def records(self) -> int:
        """How many there are."""
        return self.fingerprints if self.superseded is None else self.superseded.count

    def load(self) -> Block:
        """The block. Raises OSError, EOFError for a file that ends before it."""
        size_bytes = self.fingerprints * FINGERPRINT_BYTES
        with open_regular(self.path) as fd:
            stored = read_at(fd, self.position, size_bytes)
        if len(stored) < size_bytes:
            raise EOFError(f"{self.path}: ends {size_bytes - len(stored)} bytes before the end of a block")
        fingerprints = stored.view(np.uint64).reshape(-1, 2)
        return Block(self.superseded, fingerprints, self.clean)


Shipped = Block | StoredBlock
"""What travels for a block; `load` makes it one."""


@contextlib.contextmanager
def block_writer(directory: str | None) -> Iterator[Callable[[Block], Shipped]]:
    """What one task ships its blocks with; all of them can be loaded when it is left. Raises OSError."""
    if directory is None:
        yield lambda block: block
        return
    fd, path = tempfile.mkstemp(dir=directory)
    with open(fd, "wb") as file:

        def put(block: Block) -> Shipped:
            position = file.tell()
            file.write(block.fingerprints.reshape(-1).view(np.uint8).data)
            return StoredBlock(path, position, len(block.fingerprints), block.superseded, block.clean)

        yield put
