"""What a broker that died had not flushed counts as flushed, once it was synced and read from the disk.

A log is cleaned up to the recovery point of its broker, for what lies behind it may not survive a power failure: then the
older value of a key would have gone for a newer one that is lost. A broker that dies before its first checkpoint, 30 s after
its start, leaves no such point, and one that dies of a full disk an old one.

1. The machine has not booted since a closed segment was written. So all of it is in memory or on the disk.
2. It is synced, with all behind it, before anything of it is looked into, and leaves the page cache. For a sync that failed
   is told once, to the broker that dies of it: the pages count as clean, the next sync of them succeeds and writes nothing,
   and who reads them finds what no disk has. A volume whose thin pool is full does that.
3. Its CRCs are right: a cleaning reads and checks every batch up to the end of its range, before it replaces any. At the
   first wrong one the broker will cut the log, and with it what superseded older records.

The high watermark holds as ever. Beside a live broker its own answer counts, or what it last wrote.
"""

from dataclasses import replace
from itertools import pairwise

from cleanerd.env.files import Files, open_regular
from cleanerd.env.page_cache import drop

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
    if flushed == point:
        return snapshot
    return replace(snapshot, recovery_point=flushed, was_unflushed=True)


def sync_unflushed(files: Files, snapshot: PartitionSnapshot) -> None:
    """Rule 2, for all that lies behind the recovery point of a log. Raises OSError."""
    assert snapshot.recovery_point is not None
    ends = [*(segment.base_offset for segment in snapshot.segments[1:]), snapshot.log_end_offset]
    unflushed = [
        segment.path
        for segment, end in zip(snapshot.segments, ends, strict=True)
        if end > snapshot.recovery_point
    ]
    for path in unflushed:
        files.fsync(path)
    files.fsync_dir(snapshot.directory)
    for path in unflushed:
        with open_regular(path) as fd:
            drop(fd, ((0, files.stat(path).size_bytes),))
