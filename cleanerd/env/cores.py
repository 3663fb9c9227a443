"""How many cores this process may use."""

import contextlib
import os
from pathlib import PurePosixPath


def usable_cores(own: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> int:
    """Number of cores this process may use: its affinity, limited by `cpu.max` of its cgroup (v2) and those above.

    So is the CPU limit of a container, and CPUQuota= of a unit. `own`: the file that names the cgroup, below `mount`.
    """
    answer_for_the_kernel()
    cores = len(os.sched_getaffinity(0))
    path = PurePosixPath(_cgroup(own).lstrip("/"))
    for cgroup in (path, *path.parents):
        with contextlib.suppress(OSError, ValueError), open(os.path.join(mount, cgroup, "cpu.max")) as file:
            quota, period = map(int, file.read().split())  # "max" is no number
            cores = min(cores, max(-(-quota // period), 1))
    return cores


def answer_for_the_kernel() -> None:
    """If a sandbox refuses `sched_getaffinity`, make it answer all cores: numba calls it when it is imported."""
    try:
        os.sched_getaffinity(0)
    except OSError:
        everywhere = frozenset(range(os.cpu_count() or 1))
        os.sched_getaffinity = lambda _: set(everywhere)


def _cgroup(own: str) -> str:
    with contextlib.suppress(OSError), open(own) as file:
        for line in file:
            if line.startswith("0::"):
                return line.rstrip("\n").removeprefix("0::")
    return "/"
