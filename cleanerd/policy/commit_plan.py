"""Whether a staged group still fits the log, and in which order its sources may go (spec disk D4, G).

Every `..._contradiction` returns in words what contradicts the commit, or None.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def segments_contradiction(
    planned: Sequence[int], live: Sequence[int], *, base_offset: int, next_base_offset: int
) -> str | None:
    """Compare base offsets: `planned` sources, and all `live` segments of the log, both ascending.

    The sources must be exactly what lies in [base_offset, next_base_offset), and a segment must follow them: the last
    segment of a log is written to, and a broker deletes it if the new segment reaches into it (spec disk D4.4).
    """
    assert base_offset < next_base_offset, "a group spans offsets, also where no record of it stays"
    end = bisect_left(live, next_base_offset)
    inside = list(live[bisect_left(live, base_offset) : end])
    if inside != list(planned):
        return f"the segments in the group were {list(planned)}, are {inside}"
    if end == len(live) or live[end] != next_base_offset:
        return f"segment {next_base_offset}, which follows the group, is gone"
    return None


def epochs_contradiction(
    planned: Sequence[tuple[int, int]], found: Sequence[tuple[int, int]], *, next_base_offset: int
) -> str | None:
    """Compare (epoch, start offset) below the end of the group: an unclean leader election replaces epochs there.

    What retention does to the front is no contradiction: entries vanish there and the first one left starts later.
    """
    before = {epoch: start for epoch, start in planned if start < next_base_offset}
    after = {epoch: start for epoch, start in found if start < next_base_offset}
    if before == after:
        return None
    first = min(after, default=None)
    expected = {epoch: start for epoch, start in before.items() if first is not None and epoch >= first}
    if first in expected and after[first] > expected[first]:
        expected[first] = after[first]
    if first is None or expected != after:
        return f"the leader epochs below {next_base_offset} were {_listed(before)}, are {_listed(after)}"
    return None


def uncovered_sources(bases: Sequence[int], last_offset: int) -> tuple[int, ...]:
    """Sources that a broker's recovery leaves beside a new segment whose last batch ends at `last_offset` (X6).

    It deletes what has a base in [first base, last_offset + 1) and replaces the first base by name; -1 is an empty log.
    """
    return tuple(base for base in bases[1:] if base > last_offset)


def _listed(epochs: Mapping[int, int]) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in sorted(epochs.items())) or "none"
