"""Between steps 5 and 6 of a cleaning: choose small neighbouring segments to merge, although they lose no record."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from cleanerd.cleaning.plan import CleaningPlan, Group
from cleanerd.pipeline.values import IndexedLog
from cleanerd.policy.merging import merge_runs


def merge_neighbours(plan: CleaningPlan, indexed: IndexedLog) -> CleaningPlan:
    """Cut groups in which nothing changes where small neighbours are worth merging (`policy.merging`).

    Each run is a group of its own then, which changes: every batch of it is copied as it is. `indexed` is brought in
    line with the plan that is returned.
    """
    groups: list[Group] = []
    changed = set()
    for number, group in enumerate(plan.groups):
        if number in indexed.changed_groups:
            changed.add(len(groups))
            groups.append(group)
            continue
        runs = set(merge_runs([segment.size_bytes for segment in group.sources]))
        for part in _parts(len(group.sources), runs):
            if part in runs:
                changed.add(len(groups))
            rest = group.sources[part.stop :]
            groups.append(
                Group(
                    group.sources[part.start : part.stop],
                    rest[0].base_offset if rest else group.next_base_offset,
                )
            )
    # A group that is lost here would be a hole in the log; one out of order would let a tombstone go before its values.
    assert [s for group in groups for s in group.sources] == [
        s for group in plan.groups for s in group.sources
    ]
    assert all(
        one.next_base_offset == other.sources[0].base_offset for one, other in itertools.pairwise(groups)
    )
    number_of = {s.base_offset: number for number, group in enumerate(groups) for s in group.sources}
    chunks = tuple(replace(chunk, group=number_of[chunk.source.min_offset]) for chunk in plan.work.chunks)
    # are in `changed`
    work = replace(plan.work, chunks=chunks, groups=len(groups), renewed_groups=frozenset())
    indexed.work, indexed.changed_groups = work, frozenset(changed)
    return replace(plan, groups=tuple(groups), work=work)


def _parts(count: int, runs: Iterable[range]) -> list[range]:
    """The runs and what lies between them, in order: together the places 0 to `count`."""
    cuts = sorted({0, count, *(run.start for run in runs), *(run.stop for run in runs)})
    return [range(begin, end) for begin, end in itertools.pairwise(cuts)]
