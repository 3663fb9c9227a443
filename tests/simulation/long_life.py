"""A month by simulation: `python -m tests.simulation.long_life [--days N] [--seed K]`.

A daemon and its writers or its broker live on, with everything that happens in other worlds, ten minutes from step to step.
What a process may leak is counted each day: descriptors, threads, memory, disk, history.
"""

import argparse
import ctypes
import gc
import os
import random
import sys
import threading
from dataclasses import astuple, dataclass

from tests.simulation.play import disk_path
from tests.simulation.world import World

STEPS_A_DAY = 144


@dataclass(frozen=True)
class Figures:
    """What a day ends with."""

    day: int
    steps: int
    judgements: int
    fds: int
    threads: int
    rss_bytes: int
    disk_bytes: int
    history_bytes: int


def figures(world: World, day: int) -> Figures:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # the judge's garbage is not the daemon's memory
    with open("/proc/self/statm", encoding="ascii") as file:
        rss_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    systems = world.disk.systems
    used_bytes = sum(world.disk.used_bytes(one) - systems.room(one).others_bytes for one in world.log_dirs)
    state = [entry for entry in os.scandir(world.state) if entry.name.startswith("history")]
    return Figures(
        day, world.counts["steps"], world.counts["judgements"], len(os.listdir("/proc/self/fd")),
        threading.active_count(), rss_bytes, used_bytes,
        sum(entry.stat().st_size for entry in state),
    )  # fmt: skip


def live(seed: int, days: int) -> list[Figures]:
    """The figures of each day. Raises Violation."""
    world = World(seed, disk_path())
    found = []
    with world.running():
        for day in range(1, days + 1):
            for _ in range(STEPS_A_DAY):
                world.clock.pass_s(86_400 / STEPS_A_DAY)
                world.step()
            for log in world.logs:
                log.model.forget()  # else what the judge remembers would hide what the daemon does
            found.append(figures(world, day))
        world.end()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.long_life")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    for day in live(options.seed, options.days):
        print(*astuple(day), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
