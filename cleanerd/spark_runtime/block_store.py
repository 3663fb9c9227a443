"""Blocks in files: how large answers of tasks travel to the next step when all run on one machine.

Otherwise each fingerprint passes through the JVM: from one Python worker into it, through a file of Spark's shuffle, and out
of it to the next worker, which takes three times as long as to compute it. So a task writes them to a file of its own, and
its answer only has where in it they are.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from cleanerd.env.files import open_regular
from cleanerd.storage.file_bytes import read_at

from .pyspark_privates import scratch_root

Bytes = npt.NDArray[np.uint8]


class StoredBytes(NamedTuple):
    """A run of bytes in a file. A tuple: thousands of them are pickled."""

    path: str
    position: int
    nbytes: int

    def load(self) -> Bytes:
        """The bytes. Raises OSError, EOFError for a file that ends before them."""
        with open_regular(self.path) as fd:
            stored = read_at(fd, self.position, self.nbytes)
        if len(stored) < self.nbytes:
            raise EOFError(f"{self.path}: ends {self.nbytes - len(stored)} bytes before the end of a block")
        return stored


class Stored(Protocol):
    """Bytes that lie somewhere else."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        ...

    def load(self) -> Bytes:
        """The bytes. Raises OSError, EOFError."""
        ...


Shipped = Bytes | Stored
"""What travels for the bytes of an array; `load` has them again."""
Put = Callable[[Bytes], Shipped]
"""What a task ships them with."""


def load(shipped: Shipped) -> Bytes:
    """The bytes. Raises OSError, EOFError."""
    return shipped if isinstance(shipped, np.ndarray) else shipped.load()


@contextlib.contextmanager
def travelling() -> Iterator[Put]:
    """Bytes travel with the answers: tasks have no directory in common."""
    yield lambda data: data


@contextlib.contextmanager
def block_file(directory: str) -> Iterator[Callable[[Bytes], StoredBytes]]:
    """Bytes go to a file of one task, and can be loaded when it is left. Raises OSError."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None
        path = ""

        def put(data: Bytes) -> StoredBytes:
            nonlocal file, path
            if file is None:  # most steps put nothing
                fd, path = tempfile.mkstemp(dir=directory)
                file = stack.enter_context(open(fd, "wb"))
            position = file.tell()
            file.write(data.data)
            return StoredBytes(path, position, data.nbytes)

        yield put


@contextlib.contextmanager
def scratch_directory(spark: SparkContext) -> Iterator[str]:
    """A directory for the files of one job, in that of its session, which Spark deletes at its end."""
    directory = tempfile.mkdtemp(dir=scratch_root(spark))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
