"""Segments that an interrupted cleaning left to be swapped in: what they hold may lie nowhere else."""

from collections.abc import Sequence

from cleanerd.format.names import MAX_OFFSET, FileKind, SegmentFileName, Suffix, parse_segment_file


def waiting_swaps(listed: Sequence[str]) -> list[SegmentFileName]:
    """Each `.log.swap` among these names that a starting broker takes for its segment, or whose sources are `.deleted`.

    Ascending. Others lie at or above a `.cleaned`: the broker deletes them, and their sources are the log (spec disk D2).
    """
    found = [name for name in map(parse_segment_file, listed) if name is not None]
    first_cleaned = min((n.base_offset for n in found if n.suffix is Suffix.CLEANED), default=MAX_OFFSET)
    logs = [name for name in found if name.kind is FileKind.LOG]
    last_deleted = max((n.base_offset for n in logs if n.suffix is Suffix.DELETED), default=-1)
    swaps = [name for name in logs if name.suffix is Suffix.SWAP]
    waiting = [n for n in swaps if n.base_offset < first_cleaned or n.base_offset <= last_deleted]
    return sorted(waiting, key=lambda name: name.base_offset)
