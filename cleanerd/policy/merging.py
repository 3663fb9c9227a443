"""Which neighbours of a segment group become one, although nothing of them goes (C065, architecture 3).

Kafka rewrites every group in every cleaning, and so merges whatever fits one segment. Here a group in which nothing
changes is left alone, unless to merge pays:

1. No segment of a run is larger than the others of the run together. So the bytes written are at most twice those of the
   smaller ones, and whatever is written lies in a segment at least twice as large as before: no byte is merged more than
   log2(segment.bytes) times, however many small segments come after it.
2. It at least halves the number of segments of the group.

Empty segments weigh nothing: neighbours that are empty always make a run.
"""

from collections.abc import Sequence
from itertools import pairwise


def merge_runs(sizes_bytes: Sequence[int]) -> list[range]:
    """Places of the segments of one group that become one each, ascending; none unless it pays.

    The runs are the fewest segments that the first rule allows: a segment larger than all others together can be in no
    run, so it divides the group, and what lies on either side of it is weighed alone.
    """
    runs: list[range] = []
    left = [range(len(sizes_bytes))]
    while left:
        part = left.pop()
        if len(part) < 2:
            continue
        total_bytes = sum(sizes_bytes[part.start : part.stop])
        largest = max(part, key=sizes_bytes.__getitem__)
        if 2 * sizes_bytes[largest] <= total_bytes:
            runs.append(part)
        else:  # what is left weighs less than half: this ends after as many rounds as a size has bits
            left += [range(part.start, largest), range(largest + 1, part.stop)]
    segments_after = len(sizes_bytes) - sum(len(run) - 1 for run in runs)
    runs.sort(key=lambda run: run.start)
    assert all(one.stop <= other.start for one, other in pairwise(runs)), "no segment is in two runs"
    assert segments_after > 0 or not sizes_bytes, "no segment goes for nothing"
    return runs if 2 * segments_after <= len(sizes_bytes) else []
