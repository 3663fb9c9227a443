"""Delete horizons on disk, stamped by any cleaner: what a cleaning of a log with nothing dirty would remove.

The batch headers of the clean section are walked. A batch whose horizon has passed is looked into, because it keeps that
horizon when its last tombstone goes (rule 4.28). Newest segments come first: the last cleaning before a log went quiet left
most tombstones there, and the first one that may go ends the walk.
"""

from collections.abc import Sequence

import numpy as np

from cleanerd.env.files import open_regular
from cleanerd.env.pace import Pace
from cleanerd.env.page_cache import borrowed
from cleanerd.kernels.heads import walk_horizons
from cleanerd.kernels.horizons import holds_expired, next_horizon
from cleanerd.pipeline.chunks import Piece, Slice, map_slices, pieces_of
from cleanerd.pipeline.values import Source
from cleanerd.storage.scan import SegmentOnDisk

_CHUNK_BYTES = 1 << 20  # is looked into as a whole when one of its batches has an expired horizon
_NEVER_MS = 2**63 - 1


def read_horizons(segments: Sequence[SegmentOnDisk], now_ms: int, pace: Pace) -> int | None:
    """When a tombstone or marker of a clean section may go: up to `now_ms` if one may now, None if none ever may.

    Newest segment first. An invalid header ends the walk through its segment: a cleaning and `verify` report damage.
    Raises CorruptFile for a damaged batch that was decoded, SourceChanged, OSError, and the errors of `pace`.
    """
    next_ms = _NEVER_MS
    for segment in reversed(segments):
        with open_regular(segment.path) as fd, borrowed(fd, segment.size_bytes):
            starts, horizons = walk_horizons(fd, segment.size_bytes, _CHUNK_BYTES, pace)
            ends = np.append(starts[1:], segment.size_bytes)
            for at in np.flatnonzero(horizons >= 0):
                after_ms = int(horizons[at])
                if after_ms <= now_ms:
                    source = Source(
                        segment.path, segment.identity, int(starts[at]), int(ends[at]), segment.base_offset
                    )
                    after_ms = _look_into(fd, source, now_ms, pace)
                    if after_ms <= now_ms:
                        return after_ms
                next_ms = min(next_ms, after_ms)
    return next_ms if next_ms < _NEVER_MS else None


def _look_into(fd: int, source: Source, now_ms: int, pace: Pace) -> int:
    """As `read_horizons`, from the records of a chunk."""
    next_ms = _NEVER_MS
    for piece in pieces_of(fd, source):
        pace(len(piece.raw))

        def take(part: Slice, piece: Piece = piece) -> bool:
            return holds_expired(piece.batches, part.records, now_ms)

        if any(map_slices(piece, take)):
            return now_ms
        later_ms = next_horizon(piece.batches, now_ms)
        if later_ms >= 0:
            next_ms = min(next_ms, later_ms)
    return next_ms
