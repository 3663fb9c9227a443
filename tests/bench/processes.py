"""CPU time and memory of a process with all its descendants, read from /proc."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KINDS = ("daemon", "engine", "JVM", "workers")
"""Of the processes of a daemon, from itself down: workers are what the JVM or the engine has begun."""
THREAD_NAME_LENGTH = 15
_REFRESH_S = 0.5  # to look for new descendants costs milliseconds


class ProcessTree:
    """A process and its descendants. What a descendant used stays in the account when its parent has waited for it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids: list[int] = []
        self._next_refresh_s = 0.0

    def cpu_seconds(self) -> float:
        """User and system time so far, in the resolution of the kernel's ticks (10 ms)."""
        return sum(map(_cpu_seconds, self._members()))

    def rss_bytes(self) -> int:
        """Resident bytes of all members now; a page that several share is counted in each."""
        sizes = (_read(pid, "statm").split() for pid in self._members())
        return sum(int(fields[1]) * PAGE_BYTES for fields in sizes if fields)

    def pss_bytes(self) -> int:
        """Resident bytes of all members now, without counting a page twice. Costs milliseconds, of members as well."""
        lines = (line.split() for pid in self._members() for line in _read(pid, "smaps_rollup").splitlines())
        return sum(int(fields[1]) * 1024 for fields in lines if fields[0] == "Pss:")

    def _members(self) -> list[int]:
        if time.monotonic() >= self._next_refresh_s:
            self._pids = [process.pid for process in members(self._pid)]
            self._next_refresh_s = time.monotonic() + _REFRESH_S
        return self._pids


def members(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def seconds_by_kind(daemon_pid: int) -> dict[str, float]:
    """CPU time of a daemon of cleanerd with all that it has begun, by `KINDS`; of what has ended it is its parent's."""
    found = dict.fromkeys(KINDS, 0.0)
    for process in members(daemon_pid):
        with suppress(psutil.NoSuchProcess):
            if process.pid == daemon_pid:
                kind = "daemon"
            elif process.name() == "java":
                kind = "JVM"
            else:
                kind = "engine" if process.ppid() == daemon_pid else "workers"
            found[kind] += _cpu_seconds(process.pid)
    return found


def thread_seconds(pid: int, name: str) -> float:
    """CPU time of the threads of a process whose name begins so; of a longer name Linux keeps the beginning.

    Raises LookupError where there is none: that is not the same as one that has done nothing.
    """
    tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    found = [task for task in tasks if _read(task, "comm").startswith(name[:THREAD_NAME_LENGTH])]
    if not found:
        raise LookupError(f"process {pid} has no thread {name}*")
    return sum(sum(_ticks(f"{pid}/task/{task}")[:2]) for task in found) / TICKS_PER_S


def _cpu_seconds(pid: int) -> float:
    return sum(_ticks(str(pid))) / TICKS_PER_S


def _ticks(task: str) -> list[int]:
    """User and system time, then those of children that it has waited for; none of one that is gone."""
    return list(map(int, _read(task, "stat").rpartition(")")[2].split()[11:15]))


def _read(task: int | str, name: str) -> str:
    """Content of a file in /proc, empty for a process that is gone."""
    try:
        return Path(f"/proc/{task}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Meter:
    """What a process and its descendants use inside a `with`: sampled ten times a second.

    `shared_once`: memory that several share is counted once, which costs some of the seconds that are measured.
    """

    def __init__(self, pid: int, *, shared_once: bool = False) -> None:
        self.peak_bytes = 0
        self.cpu_seconds = 0.0
        self._tree = ProcessTree(pid)
        self._memory = self._tree.pss_bytes if shared_once else self._tree.rss_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Meter":
        self._began_s = self._tree.cpu_seconds()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self._sample()

    def _sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._memory())
        self.cpu_seconds = max(self.cpu_seconds, self._tree.cpu_seconds() - self._began_s)


def busy_seconds() -> float:
    """Seconds that all cores of the machine together were not idle since it started, stolen ones included."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
