"""What a broker that died had not flushed counts as flushed, for whoever syncs it before anything follows from it.

A log is cleaned up to the recovery point of its broker, for what lies behind it may not survive a power failure: then the
older value of a key would have gone for a newer one that is lost. A broker that dies before its first checkpoint, 30 s after
its start, leaves no such point, and one that dies of a full disk an old one.

1. The machine has not booted since a closed segment was written. So all of it is in memory or on the disk.
2. Its CRCs are right: a cleaning reads and checks every batch up to the end of its range.
3. `cleaning.stage` syncs it, and all behind it, before the first staged file is declared. From then on it is flushed.

The high watermark holds as ever. Beside a live broker its own answer counts, or what it last wrote.
"""

from dataclasses import replace
from itertools import pairwise

from .scan import PartitionSnapshot


def as_flushed(snapshot: PartitionSnapshot, booted_ms: int) -> PartitionSnapshot:
    """The log of a stopped broker with the recovery point up to which rule 1 holds; 2 and 3 are up to the caller.

    `booted_ms`: when this machine was.
    """
    point = snapshot.recovery_point
    if point is None or snapshot.is_reported:
        return snapshot
    flushed = point
    for segment, following in pairwise(snapshot.segments):
        if following.base_offset <= flushed:
            continue
        if segment.identity.mtime_ms <= booted_ms:
            break
        flushed = following.base_offset
    return snapshot if flushed == point else replace(snapshot, recovery_point=flushed, unflushed_from=point)
