"""Writers, brokers, cleaners and disks may fail in any order: nothing is lost, nothing comes back, judged from outside.

A few seeds of the simulation, which repeats itself. Thousands of them run at night (CONTRIBUTING).
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.long_life import live
from tests.simulation.play import play

STEPS = 80


@pytest.mark.parametrize("seed", range(4))
def test_a_world_keeps_its_promises(seed: int) -> None:
    """C156, and more: the last value of every key is the one that was written last. `judge` checks it after every step."""
    play(seed, STEPS)


def test_a_seed_gives_the_same_world_to_the_last_operation() -> None:
    """In another process, too, where sets have another order; looks included, which may fail."""
    world = [
        sys.executable,
        "-c",
        f"from tests.simulation.play import play; print(play(12, {STEPS}).digest.hexdigest())",
    ]
    processes = [
        subprocess.Popen(world, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    one, other = (process.communicate()[0] for process in processes)
    assert one == other != b""


@pytest.mark.soak
def test_a_week_leaves_nothing_behind() -> None:
    """Descriptors, threads and the history are at its end what they were after a day or two (a week, seed 1)."""
    days = live(1, 7)
    assert days[-1].judgements > days[0].judgements
    assert max(day.fds for day in days) <= days[0].fds + 3 * 3, "a writer has three files open"
    assert {day.threads for day in days} == {days[0].threads}
    assert max(day.history_bytes for day in days) < 1 << 20
    assert days[-1].rss_bytes < days[0].rss_bytes + (64 << 20)
