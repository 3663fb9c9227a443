"""What is left after a cleaning: the same on every side, or the side is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cleanerd.env.files import FileStat
from cleanerd.kernels.digest import digest_records
from cleanerd.pipeline.chunks import read_pieces, slices
from cleanerd.pipeline.values import Source


@dataclass(frozen=True)
class Contents:
    """Records of some logs; `digest` is over offset, timestamp, key and value of each, in order."""

    records: int
    digest: int


def contents(directories: Iterable[Path]) -> Contents:
    """Of all live segments. CRCs are checked. Raises CorruptFile."""
    records = digest = 0
    for path in (path for directory in directories for path in sorted(directory.glob("*.log"))):
        stat = path.stat()
        source = Source(str(path), FileStat.of(stat), 0, stat.st_size, int(path.stem))
        for piece in read_pieces(source):
            for part in slices(piece):
                kept = np.zeros(len(part.records), np.uint8)
                digest = digest_records(digest, piece.raw, part.expanded, piece.batches, part.records, kept)
                records += len(part.records)
    return Contents(records, digest)
