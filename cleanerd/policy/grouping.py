"""Which segments become one (rules 4.7, 4.8)."""

from collections.abc import Sequence

from .cleanable import SegmentFacts

MAX_RELATIVE_OFFSET = 2**31 - 1
"""How far above the base of its segment an offset can lie: index entries and record deltas have 32 bits (rule 4.7)."""


def group_segments(
    segments: Sequence[SegmentFacts],
    *,
    segment_bytes: int,
    index_bytes: int,
    first_uncleanable_offset: int,
    cut_at: int | None = None,
) -> list[tuple[SegmentFacts, ...]]:
    """Cut `segments` (ascending) into runs that fit one segment each.

    A run always takes its first segment; the next one joins while the sums of log, offset index and time index bytes
    stay within the limits and the last offset fits the first base (empty segments skip that last test). A segment with the
    base offset `cut_at` begins a run.
    """
    groups: list[list[SegmentFacts]] = []
    limits = (segment_bytes, index_bytes, index_bytes)
    totals = (0, 0, 0)
    for i, segment in enumerate(segments):
        following = segments[i + 1].base_offset if i + 1 < len(segments) else first_uncleanable_offset
        own = (segment.size_bytes, segment.offset_index_bytes, segment.time_index_bytes)
        joined = (totals[0] + own[0], totals[1] + own[1], totals[2] + own[2])
        within = all(total <= limit for total, limit in zip(joined, limits, strict=True))
        if (
            groups
            and within
            and segment.base_offset != cut_at
            and _spans(groups[-1][0], segment, following - 1)
        ):
            groups[-1].append(segment)
            totals = joined
        else:
            groups.append([segment])
            totals = own
    assert sum(map(len, groups)) == len(segments), "each segment is in one group, in order"
    return [tuple(group) for group in groups]


def _spans(first: SegmentFacts, segment: SegmentFacts, last_offset: int) -> bool:
    """Whether the offsets of `segment` can be counted from the base of `first`."""
    return segment.size_bytes == 0 or last_offset - first.base_offset <= MAX_RELATIVE_OFFSET
