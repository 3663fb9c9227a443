"""Who cleans, each a fresh copy of the same bytes: Kafka's own cleaner, a version of cleanerd, and the floor under both.

A side prepares a round outside of its time: the copy is on the disk when the time begins, and in the page cache unless the
workload is cold.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cleanerd.env.page_cache import drop
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT, TopicPartition
from tests.bench.processes import Meter
from tests.bench.worker import TOPIC, WORKERS
from tests.bench.workloads import Built

ROOT = Path(__file__).parent.parent.parent
WARM_UP = -1
"""Number of the round before the first: of a small workload of the same kind."""
_BUFFER_BYTES = 2 << 20


@dataclass(frozen=True)
class Round:
    """What one cleaning took. CPU and memory are those of all processes of the side, 0 where there are none.

    `others_cpu_s`: what the rest of the machine computed meanwhile, per second: the less, the truer the figure.
    """

    seconds: float
    cpu_s: float = 0.0
    peak_bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    others_cpu_s: float = 0.0


class Side(Protocol):
    """A way to clean a workload, in rounds. To be used as a context manager."""

    name: str

    def prepare(self, number: int) -> None: ...

    def run(self, number: int) -> Round: ...

    def cleaned(self, number: int) -> list[Path]:
        """The directories of the logs, in order, as the round left them; none when it leaves no logs."""
        ...

    def drop(self, number: int) -> None:
        """Nobody looks at the round any more."""
        ...


def copy_logs(built: Built, log_dir: Path, topic: str) -> list[Path]:
    targets = [log_dir / f"{topic}-{i}" for i in range(len(built.logs))]
    for i, target in enumerate(targets):
        built.copy(i, target)
    return targets


def write_checkpoint(log_dir: Path, topics: Mapping[str, Built]) -> None:
    ends = {
        TopicPartition(topic, i): log.clean_end
        for topic, built in topics.items()
        for i, log in enumerate(built.logs)
        if log.clean_end
    }
    if ends:
        (log_dir / CLEANER_OFFSET_CHECKPOINT).write_bytes(render_offset_checkpoint(ends))


def empty_logs(directories: Iterable[Path]) -> None:
    for directory in directories:
        for path in directory.glob("*.log"):
            os.truncate(path, 0)


def read_through(paths: Iterable[Path]) -> None:
    """Read every byte with plain system calls into one buffer: the files are in the page cache then."""
    buffer = bytearray(_BUFFER_BYTES)
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            while os.readv(fd, [buffer]):
                pass
        finally:
            os.close(fd)


def evict(paths: Iterable[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            drop(file.fileno(), ((0, path.stat().st_size),))


def place(built: Built, paths: Iterable[Path]) -> None:
    """Have files where a round of the workload finds them: in the page cache, or on the disk alone."""
    (evict if built.workload.is_cold else read_through)(paths)


class Cleanerd:
    """A version of cleanerd, its session warm; or the command, from its start to its end.

    Its session is local, or on a standalone Spark with so many `workers` of one core.
    """

    def __init__(
        self, name: str, tree: Path, built: Built, work: Path, dedupe_bytes: int, workers: int = 0
    ) -> None:
        self.name = name
        self._built = built
        self._work = work / name
        self._dedupe_bytes = dedupe_bytes
        path = os.pathsep.join([str(tree), str(ROOT)])
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", WORKERS: str(workers)}
        self._worker: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the process that drives the session."""
        assert self._worker is not None
        return self._worker.pid

    def __enter__(self) -> "Cleanerd":
        if not self._built.workload.is_command:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.worker"],
                cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            assert self._worker.stdin is not None
            self._worker.stdin.close()
            self._worker.wait()
        shutil.rmtree(self._work, ignore_errors=True)

    def prepare(self, number: int) -> None:
        built = self._built
        log_dir = self._log_dir(number)
        copied = copy_logs(built, log_dir, TOPIC)
        write_checkpoint(log_dir, {TOPIC: built})
        place(built, (path for directory in copied for path in directory.glob("*.log")))

    def run(self, number: int, *, is_extra: bool = False) -> Round:
        """Wall seconds of `clean_once`, everything included; an extra round counts memory and CPU seconds by phase."""
        if self._worker is None:
            return self._run_command(number, is_extra=is_extra)
        with Meter(self.pid, shared_once=is_extra) as meter:
            answer = self._ask(number, count_cpu=is_extra)
        assert set(answer["outcomes"]) == {"committed"}, answer["outcomes"]
        return Round(answer["seconds"], meter.cpu_seconds, meter.peak_bytes, answer["phases"])

    def cleaned(self, number: int) -> list[Path]:
        return [self._log_dir(number) / f"{TOPIC}-{i}" for i in range(len(self._built.logs))]

    def drop(self, number: int) -> None:
        """The bytes, as of a broker's round: new files cost more while ext4 passes over inodes that were freed lately."""
        empty_logs(self.cleaned(number))

    def _log_dir(self, number: int) -> Path:
        return self._work / str(number)

    def _ask(self, number: int, *, count_cpu: bool) -> dict[str, Any]:
        assert self._worker is not None
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        command = {
            "log_dir": str(self._log_dir(number)),
            "dedupe_bytes": self._dedupe_bytes,
            "count_cpu": count_cpu,
        }
        print(json.dumps(command), file=self._worker.stdin, flush=True)
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended with {self._worker.wait()}; what it said is above")
        return dict(json.loads(answer))

    def _run_command(self, number: int, *, is_extra: bool) -> Round:
        command = "import sys; from cleanerd.cli.main import main; sys.exit(main())"
        policy = ["--topic-set", f"{TOPIC}:cleanup.policy=compact", "--force", "-o", "json"]
        arguments = ["clean", "--log-dir", str(self._log_dir(number)), *policy]
        began_s = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", command, *arguments],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            with Meter(process.pid, shared_once=is_extra) as meter:
                output, _ = process.communicate()
            seconds = time.perf_counter() - began_s
        outcomes = {result["outcome"] for result in json.loads(output)["results"]}
        assert outcomes == {"committed"}, outcomes
        return Round(seconds, meter.cpu_seconds, meter.peak_bytes)


class Floor:
    """Reads the input twice and writes as much as is left of it, once, synced: one thread, plain system calls, 2 MiB each.

    `like`: the logs that cleanerd left, which tell how much to write into which file.
    """

    name = "floor"

    def __init__(self, built: Built, work: Path) -> None:
        self._built, self._work = built, work / self.name
        self._sizes: list[int] = []

    def __enter__(self) -> "Floor":
        self._work.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._work, ignore_errors=True)

    def measure(self, like: Iterable[Path]) -> None:
        found = [path for directory in like for path in sorted(directory.glob("*.log"))]
        self._sizes = [size for size in (path.stat().st_size for path in found) if size]

    def prepare(self, number: int) -> None:
        place(self._built, self._built.log_files())

    def run(self, number: int) -> Round:
        inputs, data = self._built.log_files(), bytes(_BUFFER_BYTES)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        read_through(inputs)
        read_through(inputs)
        for i, size in enumerate(self._sizes):
            fd = os.open(self._work / f"{number}-{i}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                for position in range(0, size, len(data)):
                    os.write(fd, memoryview(data)[: size - position])
                os.fsync(fd)
            finally:
                os.close(fd)
        return Round(time.perf_counter() - began_s, time.process_time() - began_cpu_s)

    def cleaned(self, number: int) -> list[Path]:
        return []

    def drop(self, number: int) -> None:
        """What was written."""
        for path in self._work.iterdir():
            path.unlink()


def archived(commit: str, cache: Path) -> Path:
    """A directory with the package `cleanerd` of a commit. Raises CalledProcessError for one that there is not."""
    sha = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    tree = cache / "versions" / sha
    if not tree.exists():
        unfinished = tree.with_name(f"{sha}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", sha, "cleanerd"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(unfinished)], input=archive.stdout, check=True)
        unfinished.rename(tree)
    return tree


def why_not_driven(tree: Path) -> str | None:
    """Why the worker cannot drive the cleanerd of another version: what it calls there has another name. None if it can."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT)]),
        "PYTHONSAFEPATH": "1",
    }
    tried = subprocess.run(
        [sys.executable, "-c", "import tests.bench.worker"],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return None if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]
