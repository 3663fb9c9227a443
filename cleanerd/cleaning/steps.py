"""Results of the steps of a cleaning, in their order. Kafka's cleaner logs each of them, too.

========  ==================================================================================================
step      numbers
========  ==================================================================================================
plan      the range of offsets, the segments in it and their bytes, the groups that they make
map       records read, and groups in which something goes: what a cleaning writes again
rewrite   one for each such group: base offsets of its segments, and of the one that takes their place
stage     groups that wait for the commit, and their bytes
swap      one for each group that is committed, as rewrite
end       the new first dirty offset
========  ==================================================================================================
"""

from typing import TYPE_CHECKING

from cleanerd.cleaning.result import Progress, Step
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.pipeline.values import IndexedLog, RewrittenLog
from cleanerd.storage.staged import StagedGroup

if TYPE_CHECKING:  # the daemon logs steps, and loads no compiled code
    from cleanerd.cleaning.plan import CleaningPlan


def planned(plan: "CleaningPlan") -> Step:
    """Step 3 of architecture 3."""
    work = plan.work
    numbers = {
        "first_dirty_offset": work.first_dirty_offset,
        "round_end": work.round_end,
        "segments": sum(len(group.sources) for group in plan.groups),
        "groups": len(plan.groups),
        "bytes": work.size_bytes,
    }
    return Step(work.topic_partition, "plan", numbers)


def mapped(indexed: IndexedLog) -> Step:
    """Steps 4 and 5. Where chunks are looked up with the rewrite, records are those read before it."""
    numbers = {"records": indexed.records_read, "changed_groups": len(indexed.changed_groups)}
    return Step(indexed.work.topic_partition, "map", numbers)


def report_rewritten(progress: Progress, plan: "CleaningPlan", found: RewrittenLog) -> None:
    """Steps 6 and 7, group by group."""
    for number in sorted(found.parts):
        group, parts = plan.groups[number], found.parts[number]
        numbers = {
            "segments": [source.base_offset for source in group.sources],
            "into": group.sources[0].base_offset,
            "bytes_before": sum(source.size_bytes for source in group.sources),
            "bytes_after": sum(part.size_bytes for part in parts),
            "records_read": sum(part.records_read for part in parts),
            "records_kept": sum(part.records_kept for part in parts),
        }
        progress.step(Step(plan.work.topic_partition, "rewrite", numbers))


def staged(plan: "CleaningPlan", found: RewrittenLog, groups: int) -> Step:
    """Step 8, first half."""
    size = sum(part.size_bytes for parts in found.parts.values() for part in parts)
    return Step(plan.work.topic_partition, "stage", {"groups": groups, "bytes": size})


def swapped(tp: TopicPartition, group: StagedGroup) -> Step:
    """Step 8, second half."""
    return Step(
        tp,
        "swap",
        {
            "segments": [source.base_offset for source in group.sources],
            "into": group.base_offset,
            "bytes_before": sum(source.size_bytes for source in group.sources),
            "bytes_after": group.sizes[FileKind.LOG],
        },
    )


def ended(tp: TopicPartition, first_dirty_offset: int) -> Step:
    """Step 9."""
    return Step(tp, "end", {"first_dirty_offset": first_dirty_offset})
