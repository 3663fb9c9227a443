"""Feeds inputs in a process of its own, and finds out which of them it did not survive."""

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
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from tests.fuzz.targets import Target

_FORK = multiprocessing.get_context("fork")  # everything is imported and compiled already
_FAILURES_MAX = 3


@dataclass(frozen=True)
class Limits:
    """What one input may take. `seconds` of the clock: a machine may be busy with others."""

    seconds: float = 60.0
    memory_bytes: int = 2 << 30
    """More than the 512 MiB to which a batch may expand, and its copy."""


@dataclass(frozen=True)
class Failure:
    """What a target met; `kind`: exception, traceback, crash or hang."""

    target: str
    seed: int
    kind: str
    text: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --target '{self.target}' --seed {self.seed} --inputs 1"
        return f"{self.kind} of {self.target}: {self.text}\nagain: {again}"


@dataclass
class Fed:
    taken: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: "Fed") -> None:
        self.taken += other.taken
        self.refused += other.refused
        self.failures += other.failures

    def __str__(self) -> str:
        inputs, failed = self.taken + self.refused + len(self.failures), len(self.failures)
        return f"{inputs} inputs: {self.taken} taken, {self.refused} refused, {failed} failed"


def feed(name: str, target: Target, seeds: range, limits: Limits | None = None) -> Fed:
    """Give a target its inputs. What kills the process, or keeps it busy for too long, costs one input."""
    fed, began_s = Fed(), time.monotonic()
    while seeds and len(fed.failures) < _FAILURES_MAX:
        seeds = _feed_some(name, target, seeds, limits or Limits(), fed)
    fed.seconds = time.monotonic() - began_s
    return fed


def _feed_some(name: str, target: Target, seeds: range, limits: Limits, fed: Fed) -> range:
    """Feed until the process ends; returns what is left."""
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(name, target, seeds, limits, theirs))
    process.start()
    theirs.close()
    seed: int | None = None
    with contextlib.suppress(EOFError):
        while True:
            match ours.recv():
                case int(seed):
                    ...
                case Fed() as one:
                    fed.add(one)
    process.join()
    if process.exitcode == 0:
        return range(0)
    assert seed is not None, f"{name}: valid inputs: {process.exitcode}"
    is_hang = process.exitcode == 1  # that is how faulthandler ends a process
    text = f"more than {limits.seconds} s" if is_hang else f"the process ended with {process.exitcode}"
    fed.failures.append(Failure(name, seed, "hang" if is_hang else "crash", text))
    return range(seed + 1, seeds.stop)


def _child(name: str, target: Target, seeds: range, limits: Limits, pipe: Connection) -> None:
    """Sends each seed before its input is fed, and what became of it afterwards."""
    tracebacks = _collect_tracebacks()
    faulthandler.disable()  # the parent reports how it ended
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + limits.memory_bytes,) * 2)
    tempfile.tempdir = tempfile.mkdtemp(prefix="cleanerd-fuzz-")  # also for what targets make for themselves
    directory = Path(tempfile.tempdir, "input")
    directory.mkdir()
    try:
        target.check_valid(directory)
        failures = 0
        for seed in seeds:
            pipe.send(seed)
            faulthandler.dump_traceback_later(limits.seconds, exit=True)
            one = _fed_once(name, target, seed, directory, tracebacks)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(one)
            failures += len(one.failures)
            if failures == _FAILURES_MAX:
                return
            tracebacks.clear()
    finally:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)


def _fed_once(name: str, target: Target, seed: int, directory: Path, tracebacks: list[str]) -> Fed:
    try:
        is_taken = target.feed(target.input(name, seed), directory)
    except Exception:  # noqa: BLE001  # whatever it is, it is a failure of the target
        return Fed(failures=[Failure(name, seed, "exception", traceback.format_exc(limit=-6))])
    if tracebacks:
        return Fed(failures=[Failure(name, seed, "traceback", tracebacks[0])])
    return Fed(taken=int(is_taken), refused=int(not is_taken))


def _collect_tracebacks() -> list[str]:
    """What would be a traceback on the terminal or in the log from now on; nothing is printed."""
    found: list[str] = []
    threading.excepthook = lambda args: found.append(
        f"thread {args.thread and args.thread.name}: {args.exc_type.__name__}: {args.exc_value}"
    )

    def collect(_: object, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if method == "exception" or event.get("exc_info"):
            found.append(f"{event}\n{traceback.format_exc(limit=-4)}")
        raise structlog.DropEvent

    structlog.configure(processors=[collect])
    return found
