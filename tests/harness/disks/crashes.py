"""Every way to interrupt something on a simulated disk, and what may then be found there."""

import os
from collections.abc import Callable, Iterable, Iterator

from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.harness.disks.kafka_startup import start
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY, Scenario, Segment, live_segments, next_offset, read_committed

Action = Callable[[SimDisk], object]
TEMPORARY = (".cleaned", ".swap", ".deleted")


def killed(disk: SimDisk, action: Action) -> Iterator[SimDisk]:
    """A copy of `disk` for every operation before which the process of `action` can be killed, and one with all done."""
    running, states = disk.copy(), list[SimDisk]()
    running.before = states
    action(running)
    assert len(states) == len(running.operations)
    yield from states
    yield running.copy()


def switched_off(disk: SimDisk, seeds: int = 4) -> Iterator[SimDisk]:
    """A copy for everything (or a sample of what) a power cut may leave now."""
    for kept in disk.power_cuts(DIRECTORY, seeds):
        copy = disk.copy()
        copy.power_cut(DIRECTORY, kept, seed=len(kept))
        yield copy


def distinct(disks: Iterable[SimDisk]) -> Iterator[SimDisk]:
    """Each visible state once: most accidents leave the same few."""
    seen = set()
    for disk in disks:
        state = disk.fingerprint(DIRECTORY)
        if state not in seen:
            seen.add(state)
            yield disk


def cleanerd_recovers(disk: SimDisk) -> None:
    assert recover(PartitionDir(disk, DIRECTORY), is_kafka=True) is None


def kafka_starts(disk: SimDisk) -> None:
    report = start(disk, DIRECTORY, next_offset)
    assert not report.zero_indexes, "an index full of zeros would stay for ever (spec disk D4)"
    assert not report.rebuilt


def commits_found(scenario: Scenario, disk: SimDisk, *, by_kafka: bool) -> int:
    """Check that the log is whole and old or new, never a mix; returns how many groups are new."""
    found = live_segments(disk)
    assert read_committed(found) == read_committed(scenario.after(0))
    left = [name for name in disk.list_names(DIRECTORY) if name.endswith(TEMPORARY)]
    assert left == []
    for commits in range(len(scenario.rewrites) + 1):
        if found == scenario.after(commits):
            return commits
        if by_kafka and commits and found in with_survivors(scenario, commits):
            return commits
    raise AssertionError(f"neither old nor new: {found}")


def with_survivors(scenario: Scenario, commits: int) -> list[tuple[Segment, ...]]:
    """X6: the new segment and the newest of the sources that a broker's range does not cover."""
    uncovered = scenario.rewrites[commits - 1].uncovered
    new = scenario.after(commits)
    return [tuple(sorted([*new, *uncovered[n:]], key=lambda s: s.base)) for n in range(len(uncovered))]


def names(disk: SimDisk, *endings: str) -> list[str]:
    """Names of the partition directory with one of these endings."""
    return [name for name in disk.list_names(DIRECTORY) if name.endswith(endings)]


def at(name: str) -> str:
    return os.path.join(DIRECTORY, name)


def exchange(disk: SimDisk, path: str) -> None:
    """The same bytes and the same time under another inode."""
    content, mtime_ns = disk.read(path), disk.stat(path).mtime_ns
    disk.unlink(path)
    disk.put(path, content)
    disk.set_mtime_ns(path, mtime_ns)
