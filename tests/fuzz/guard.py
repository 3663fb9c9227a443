"""Runs inputs in a process of their own, and says which of them it did not survive."""

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import structlog

from tests.fuzz.targets import Target

_FORK = multiprocessing.get_context("fork")  # everything is imported and compiled already
_LOOK_S = 0.1
_PATIENCE = 6
_FAILURES_MAX = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WARM_UP = -1
_WARM_UP_S = 300.0  # kernels are compiled


@dataclass(frozen=True)
class Limits:
    """What one input may take."""

    seconds: float = 10.0
    memory_bytes: int = 2 << 30
    """More than the 512 MiB to which a batch may expand, and its copy."""


@dataclass(frozen=True)
class Failure:
    """What a target met; `kind`: exception, crash, hang or traceback."""

    target: str
    seed: int
    kind: str
    text: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --target '{self.target}' --seed {self.seed} --inputs 1"
        return f"{self.kind} of {self.target}: {self.text}\nagain: {again}"


@dataclass
class Fed:
    """What became of the inputs of one target."""

    taken: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """How many there were."""
        return self.taken + self.refused + len(self.failures)

    def add(self, other: "Fed") -> None:
        """Count these as well."""
        self.taken += other.taken
        self.refused += other.refused
        self.failures += other.failures

    def __str__(self) -> str:
        return (
            f"{self.inputs} inputs: {self.taken} taken, {self.refused} refused, {len(self.failures)} failed"
        )


def feed(name: str, target: Target, seeds: range, limits: Limits | None = None) -> Fed:
    """Give a target its inputs. What kills the process, or keeps it busy for too long, costs one input."""
    limits, fed, began_s = limits or Limits(), Fed(), time.monotonic()
    left = seeds
    while left and len(fed.failures) < _FAILURES_MAX:
        left = _feed_some(name, target, left, limits, fed)
    fed.seconds = time.monotonic() - began_s
    return fed


def _feed_some(name: str, target: Target, seeds: range, limits: Limits, fed: Fed) -> range:
    """Feed until the process ends; what is left."""
    now: Synchronized[int] = _FORK.Value("q", _WARM_UP)
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(name, target, seeds, limits, now, theirs))
    process.start()
    theirs.close()
    since, seed = _spent(process.pid), now.value
    while process.is_alive():
        for found in _received(ours):
            _count(fed, found)
        if now.value != seed:
            since, seed = _spent(process.pid), now.value
        elif _is_too_long(since, _spent(process.pid), _WARM_UP_S if seed == _WARM_UP else limits.seconds):
            process.kill()
            process.join()
            fed.failures.append(Failure(name, seed, "hang", f"more than {limits.seconds} s"))
        process.join(_LOOK_S)
    for found in _received(ours):
        _count(fed, found)
    if process.exitcode == 0 or now.value == _WARM_UP:
        assert process.exitcode == 0, f"{name}: valid inputs: {process.exitcode}"
        return range(0)
    if not fed.failures or fed.failures[-1].seed != now.value:
        fed.failures.append(Failure(name, now.value, "crash", f"the process ended with {process.exitcode}"))
    return range(now.value + 1, seeds.stop)


def _spent(pid: int | None) -> tuple[float, float]:
    """Seconds of the clock, and of the processor for a process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return time.monotonic(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), 0.0


def _is_too_long(since: tuple[float, float], now: tuple[float, float], limit_s: float) -> bool:
    """A machine that is busy with others, or with its disk, is given patience."""
    return now[1] - since[1] > limit_s or now[0] - since[0] > _PATIENCE * limit_s


def _received(pipe: Any) -> Iterator[Any]:
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        return


def _count(fed: Fed, found: Failure | tuple[int, int]) -> None:
    if isinstance(found, Failure):
        fed.failures.append(found)
    else:
        fed.taken += found[0]
        fed.refused += found[1]


def _child(name: str, target: Target, seeds: range, limits: Limits, now: Any, pipe: Any) -> None:
    told: list[str] = []
    _listen(told)
    faulthandler.disable()  # how it ended is told by the parent
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * _PAGE_BYTES + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    everything = tempfile.tempdir = tempfile.mkdtemp(
        prefix="cleanerd-fuzz-"
    )  # also what targets make for themselves
    directory = Path(everything, "input")
    directory.mkdir()
    try:
        target.check_valid(directory)
        failures = 0
        for seed in seeds:
            now.value = seed
            found = _fed_once(name, target, seed, directory, told)
            pipe.send(found)
            failures += isinstance(found, Failure)
            if failures == _FAILURES_MAX:
                return
            told.clear()
    finally:
        shutil.rmtree(everything, ignore_errors=True)


def _fed_once(name: str, target: Target, seed: int, directory: Path, told: list[str]) -> Any:
    try:
        taken = target.feed(target.input(name, seed), directory)
    except Exception:  # noqa: BLE001  # whatever it is, it is to be told
        return Failure(name, seed, "exception", traceback.format_exc(limit=-6))
    if told:
        return Failure(name, seed, "traceback", told[0])
    return (1, 0) if taken else (0, 1)


def _listen(told: list[str]) -> None:
    """Hear what would be a traceback on the terminal or in the log; nothing is printed."""
    threading.excepthook = lambda args: told.append(
        f"thread {args.thread and args.thread.name}: {args.exc_type.__name__}: {args.exc_value}"
    )

    def note(_: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if method == "exception" or event.get("exc_info"):
            told.append(f"{event}\n{traceback.format_exc(limit=-4)}")
        raise structlog.DropEvent

    structlog.configure(processors=[note])
