"""Where the CPU time of cleanerd's Python processes goes, by py-spy: two hundred samples a second of each that computes.

A function of a library is told with the function of cleanerd that it works for: `pipeline/chunks.py _expand > decompress`.
Compiled kernels are told by the wrapper that calls them. A thread that waits for the disk counts, one that waits for another
process does not.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_RATE_HZ = 200
_SHOWN = 15
_START_S = 3.0
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]*?)(?::\d+)?\)$")
_PACKAGE = "cleanerd/"
_WAITING = re.compile(
    r"\b(?:_receive|Reporter\._ask|read_int|SocketIO\.readinto|socket\.accept|manager|poll|FinalizerWorker\.run"
    r"|Channel\._serve|_worker"
    r"|\w*\.send_command|selectors?\.\w+) \("
)
"""Functions that wait for another process: the sampler cannot tell that from computing."""


def hottest(stacks: Iterable[str]) -> list[tuple[str, float]]:
    """(function, share of all samples), the hottest first. A stack is `frame;frame;... count`, the innermost last."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if not _WAITING.search(frames[-1]):
            counts[_name(frames)] += int(count)
    total = counts.total()
    return [(name, count / total) for name, count in counts.most_common(_SHOWN)]


def _name(frames: list[str]) -> str:
    for i, frame in enumerate(reversed(frames)):
        found = _FRAME.match(frame)
        if found and _PACKAGE in found["file"]:
            ours = f"{found['file'].rpartition(_PACKAGE)[2]} {found['function']}"
            inner = _FRAME.match(frames[-1])
            return ours if not i or inner is None else f"{ours} > {inner['function']}"
    found = _FRAME.match(frames[-1])
    return "not cleanerd: " + (
        f"{found['file'].rpartition('/')[2]} {found['function']}" if found else frames[-1]
    )


@contextmanager
def sampled(pid: int) -> Iterator[list[tuple[str, float]]]:
    """Samples the process and its descendants inside the `with`; the list is filled at its end.

    Raises RuntimeError without py-spy, or when it may not look.
    """
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise RuntimeError("--profile needs py-spy: pip install '.[bench]'")
    hot: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        stacks = Path(directory, "stacks")
        command = [
            program,
            "record",
            "--subprocesses",
            "-r",
            str(_RATE_HZ),
            "-d",
            "unlimited",
        ]
        command += ["-f", "raw", "-o", str(stacks), "-p", str(pid)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as spy:
            time.sleep(_START_S)  # noqa: TID251  # it does not tell when it has begun
            yield hot
            spy.send_signal(signal.SIGINT)
            _, said = spy.communicate()
        if not stacks.exists():
            raise RuntimeError(f"py-spy says: {said.strip()}")
        hot += hottest(stacks.read_text().splitlines())
