"""Which segments become one (rules 4.7, 4.8)."""

from collections.abc import Sequence

from .cleanable import SegmentFacts

MAX_RELATIVE_OFFSET = 2**31 - 1


def group_segments(
    segments: Sequence[SegmentFacts], *, segment_bytes: int, index_bytes: int, first_uncleanable_offset: int
) -> list[tuple[SegmentFacts, ...]]:
    """Cut `segments` (ascending) into runs that fit one segment each.

    A run always takes its first segment; the next one joins while the sums of log, offset index and time index bytes
    stay within the limits and the last offset fits the first base (empty segments skip that last test).
    """
    groups: list[list[SegmentFacts]] = []
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else first_uncleanable_offset
        if groups and _fits([*groups[-1], segment], following - 1, segment_bytes, index_bytes):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [tuple(group) for group in groups]


def _fits(group: Sequence[SegmentFacts], last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
    return (
        sum(s.size_bytes for s in group) <= segment_bytes
        and sum(s.offset_index_bytes for s in group) <= index_bytes
        and sum(s.time_index_bytes for s in group) <= index_bytes
        and (group[-1].size_bytes == 0 or last_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET)
    )
