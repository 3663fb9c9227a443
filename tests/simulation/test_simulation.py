"""The simulation itself: it repeats itself, it finds what it is there to find, and a few of its seeds in every run.

Thousands of them run at night (CONTRIBUTING).
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from tests.simulation.disk import Disk
from tests.simulation.long_life import live
from tests.simulation.play import disk_path, play
from tests.simulation.rules import Rules
from tests.simulation.stage import START_NS
from tests.simulation.tick import Tick
from tests.simulation.world import World

SEEDS = range(4)
STEPS = 80


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_keeps_its_promises(seed: int) -> None:
    play(seed, STEPS)


@pytest.mark.parametrize("seed", [5, 38])
def test_a_seed_gives_the_same_world_to_the_last_operation(seed: int) -> None:
    first, second = (play(seed, STEPS) for _ in range(2))
    assert list(first.trace) == list(second.trace)
    assert first.digest.hexdigest() == second.digest.hexdigest()
    assert first.counts == second.counts
    assert play(6, STEPS).digest.hexdigest() != first.digest.hexdigest()


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk(disk_path(), Tick(START_NS))
    with made.installed():
        yield made
    made.remove()


def left_after_power_cuts(disk: Disk, prepare: Callable[[str], object]) -> set[tuple[tuple[str, bytes], ...]]:
    """Everything that power cuts after `prepare` leave in a directory."""
    found = set()
    for seed in range(60):
        directory = f"{disk.root}/{seed}"
        FILES.write(f"{disk.root}/anything", b"")
        os.mkdir(directory)
        FILES.fsync_dir(disk.root)
        prepare(directory)
        disk.power_cut(random.Random(seed))
        names = FILES.list_names(directory)
        found.add(tuple((name, Path(directory, name).read_bytes()) for name in names))
    return found


FILES = RealFiles()


def test_a_power_cut_takes_what_was_not_synced(disk: Disk) -> None:
    """Content and names each on their own; all, a beginning, a beginning and zeros, or nothing of a write."""

    def written(directory: str) -> None:
        FILES.write(f"{directory}/a", b"abc")
        FILES.fsync_dir(directory)

    left = left_after_power_cuts(disk, written)
    assert {(("a", content),) for content in (b"", b"a", b"ab", b"abc", b"a\0\0", b"ab\0", b"\0\0\0")} == left


def test_a_power_cut_keeps_what_was_synced_and_loses_names_that_were_not(disk: Disk) -> None:
    def renamed(directory: str) -> None:
        FILES.write(f"{directory}/a", b"old")
        FILES.fsync(f"{directory}/a")
        FILES.fsync_dir(directory)
        FILES.write(f"{directory}/b", b"new")
        FILES.fsync(f"{directory}/b")
        FILES.rename(f"{directory}/b", f"{directory}/a")

    assert left_after_power_cuts(disk, renamed) == {
        (("a", b"old"),), (("a", b"new"),), (("a", b"old"), ("b", b"new")),
    }  # fmt: skip


def test_a_file_keeps_its_identity_over_a_power_cut(disk: Disk) -> None:
    path = f"{disk.root}/a"
    FILES.write(path, b"abc")
    FILES.fsync(path)
    FILES.fsync_dir(disk.root)
    before = FILES.stat(path)
    disk.power_cut(random.Random(1))
    assert FILES.stat(path) == before


def after_a_failed_retention(seed: int, *, is_killed: bool, is_synced: bool) -> int:
    """How many segments a power cut brings back that retention took, when it was killed or could not sync the directory;
    whether somebody could later.
    """
    world = World(seed, disk_path())
    world.is_kafka = False
    with world.running():
        log = world.logs[0]
        world.rules = Rules(delete_retention_ms=0, deletes=True, retention_bytes=0)
        for _ in range(3):
            world.writing.open(log)
            log.append()
            log.end_all()
            assert log.writer is not None
            log.writer.roll()
            log.close()

        def retain() -> None:
            first = f"{log.directory}/{0:020}.log"
            os.rename(first, f"{first}.deleted")
            world.fault_rate = 0.0 if is_killed else 1.0
            FILES.fsync_dir(log.directory)

        world.doing, world.kill_in = "retention", 1 if is_killed else None
        with contextlib.nullcontext() if is_killed else pytest.raises(OSError, match="t0-0"):
            assert not world.act("daemon", retain)
        world.fault_rate, log.is_whole = 0.0, True
        world.judge()
        assert 0 in log.model.gone
        if is_synced:
            FILES.fsync_dir(log.directory)
        world._power_cut()
        log.is_whole = True
        world.judge()
        assert (0 in log.model.gone) != bool(world.counts["segments back"])
        return world.counts["segments back"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_retention_could_not_sync_may_come_back(is_killed: bool) -> None:
    """After a power cut, and not once a sync has succeeded (`storage.delete`, step 0)."""
    after = partial(after_a_failed_retention, is_killed=is_killed)
    assert sum(after(seed, is_synced=False) for seed in range(10))
    assert not sum(after(seed, is_synced=True) for seed in range(10))


@pytest.mark.soak
def test_a_week_leaves_nothing_behind() -> None:
    """Descriptors, threads and the history are at its end what they were after a day or two (a week, seed 1)."""
    days = live(1, 7)
    assert days[-1].judgements > days[0].judgements
    assert max(day.fds for day in days) <= days[0].fds + 3 * 3, "a writer has three files open"
    assert {day.threads for day in days} == {days[0].threads}
    assert max(day.history_bytes for day in days) < 1 << 20
    assert days[-1].rss_bytes < days[0].rss_bytes + (64 << 20)
