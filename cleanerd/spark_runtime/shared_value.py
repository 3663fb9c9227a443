"""Values that all tasks of a job share: on one machine in a file that all workers map, so that arrays are in memory once."""

import mmap
import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark import Broadcast

from cleanerd.env.files import open_regular
from cleanerd.errors import naming

_WORD_BYTES = 8
_ALIGNED_BYTES = 64  # to where an array begins in memory of its own


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A value in a file: int64 how many parts, where each begins and ends; then what pickle makes of it, and its arrays."""

    path: str

    @staticmethod
    def of(directory: str, value: Any) -> "SharedFile":
        """Write a value to a new file. Raises OSError."""
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        parts = [memoryview(pickled), *(array.raw() for array in arrays)]
        spans, at = np.empty((len(parts), 2), np.int64), _WORD_BYTES * (1 + 2 * len(parts))
        for number, part in enumerate(parts):
            start = -(-at // _ALIGNED_BYTES) * _ALIGNED_BYTES
            at = start + part.nbytes
            spans[number] = start, at
        path = os.path.join(directory, "shared")
        with naming(path), open(path, "xb") as file:
            file.write(np.int64(len(parts)).tobytes())
            file.write(spans.data)
            for (start, _), part in zip(spans.tolist(), parts, strict=True):
                file.seek(start)
                file.write(part)
        return SharedFile(path)

    @property
    def value(self) -> Any:
        """The value; to change its arrays changes nothing for others. Raises OSError."""
        with open_regular(self.path) as fd:
            mapped = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
        (count,) = mapped[:_WORD_BYTES].cast("q")
        ends = mapped[_WORD_BYTES : _WORD_BYTES * (1 + 2 * count)].cast("q").tolist()
        pickled, *arrays = (mapped[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))
        return pickle.loads(pickled, buffers=arrays)  # noqa: S301 - a file of this session's own


@dataclass(frozen=True, slots=True)
class SentValue:
    """A value that travels by itself."""

    value: Any


Shared = SharedFile | SentValue | Broadcast[Any]
"""A reference to a value that all tasks share; `value` loads it."""
