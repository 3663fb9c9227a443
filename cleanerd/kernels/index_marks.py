"""Which batches of a segment get an index entry (spec disk B4)."""

import numpy as np
import numpy.typing as npt

from .native import JIT, njit
from .tables import Table


@njit(**JIT)
def _index_marks(written, interval_bytes, out):
    last_mark = np.int64(0)
    for i in range(len(written)):
        if written[i].position - last_mark > interval_bytes:
            out[i] = True
            last_mark = written[i].position


def index_marks(written: Table, interval_bytes: int) -> npt.NDArray[np.bool_]:
    """True for every batch that begins more than `interval_bytes` after the last marked one (or after the start)."""
    out = np.zeros(len(written), np.bool_)
    _index_marks(written, interval_bytes, out)
    return out
