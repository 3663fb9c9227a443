"""One seed from beginning to end."""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator

from tests.harness.clock import Tick
from tests.simulation.disk import Disk
from tests.simulation.rules import Violation
from tests.simulation.stage import START_NS
from tests.simulation.world import World

_NUMBER = itertools.count()
LINES = 60
"""Lines of its end that a failure prints."""


def disk_path() -> str:
    """Where no other run has its files: in memory, if there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    return os.path.join(place, f"cleanerd-simulation-{os.getpid()}-{next(_NUMBER)}")


@contextlib.contextmanager
def empty_disk() -> Iterator[Disk]:
    """One without a world, whose root is a log directory: it is installed, and goes at the end."""
    disk = Disk(disk_path(), Tick(START_NS))
    try:
        with disk.installed():
            yield disk
    finally:
        disk.remove()


def play(seed: int, steps: int, change: Callable[[World], object] = lambda _: None) -> World:
    """One seed, whose world `change` may alter before it begins. Raises Violation, with what came before it."""
    world = World(seed, disk_path())
    change(world)
    try:
        with world.running():
            for _ in range(steps):
                world.step()
            world.end()
    except Exception as error:
        trace = "\n".join(list(world.trace)[-LINES:])
        problem = error if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
        raise Violation(f"{trace}\nseed {seed}, step {world.counts['steps']}: {problem}") from error
    return world
