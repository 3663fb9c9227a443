"""One warm session of whatever cleanerd is first on the path; cleans what the lines of its standard input ask for.

`python -P -m tests.bench.worker`: the answer to {"log_dir", "dedupe_bytes", "count_cpu"} is {"seconds", "phases",
"outcomes"}. With `count_cpu` the phases are told in CPU seconds of all processes instead of seconds; "settings", if there
are any, are more keys of a broker. An argument names a file: while it is there, nothing leaves the page cache.
With CLEANERD_BENCH_WORKERS=N the session is on a standalone Spark with so many workers of one core.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.phases import JOB_PHASES
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.spark_master import spark_master
from tests.bench.processes import ProcessTree
from tests.harness.spark.standalone import standalone

TOPIC = "bench"
WORKERS = "CLEANERD_BENCH_WORKERS"
_COMMON = tuple(name for name in JOB_PHASES if name != "examine")
"""Phases that all logs of a job go through together; the examination is not in a result of `clean_once`."""


class CpuClock(SystemClock):
    """Its seconds are those that the processes of this session have computed. Never the same twice."""

    def __init__(self) -> None:
        self._tree = ProcessTree(os.getpid())
        self._calls = 0

    def monotonic_s(self) -> float:
        self._calls += 1
        return self._tree.cpu_seconds() + self._calls * 1e-9


def phases(results: Iterable[LogResult]) -> dict[str, float]:
    """Seconds by phase. Logs of one job carry the same seconds for what they went through together."""
    total = Counter(dict.fromkeys(_COMMON, 0.0))
    jobs = set()
    for result in results:
        # `--against` runs this with an earlier version, whose results have them on their own.
        found = getattr(result, "statistics", result).phase_seconds
        jobs.add(tuple(found.get(name, 0.0) for name in _COMMON))
        total.update({name: s for name, s in found.items() if name not in _COMMON})
    for job in jobs:
        total.update(dict(zip(_COMMON, job, strict=True)))
    return {
        name: seconds for name, seconds in total.items() if seconds or name != "start"
    }  # warm sessions have none


def clean(session: LazySpark, command: dict[str, Any]) -> dict[str, Any]:
    sources = read_sources(
        assignments=[
            ("log.cleaner.dedupe.buffer.size", str(command["dedupe_bytes"])),
            *command.get("settings", {}).items(),
        ],
        topic_assignments=[(TOPIC, "cleanup.policy", "compact")],
    )
    configuration = resolve(sources)
    request = CleanRequest(
        config=configuration.broker,
        topic_config=configuration.topic,
        log_dirs=(command["log_dir"],),
        force=True,
    )
    clock: Clock = CpuClock() if command["count_cpu"] else SystemClock()
    began_s = time.perf_counter()
    results = clean_once([request], Progress(), clock, session=session)
    return {
        "seconds": time.perf_counter() - began_s,
        "phases": phases(results),
        "outcomes": Counter(
            f"{getattr(result.outcome, 'word', result.outcome)} {result.reason or ''}".strip()
            for result in results
        ),
    }


def _keep_cache_while(path: Path) -> None:
    """In this process, and those that are forked from it: while the file is there, nobody asks for pages to go."""
    advise = os.posix_fadvise

    def unless_kept(fd: int, offset: int, length: int, advice: int) -> None:
        if advice != os.POSIX_FADV_DONTNEED or not path.exists():
            advise(fd, offset, length, advice)

    mock.patch.object(os, "posix_fadvise", unless_kept).start()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may get among the answers
    with ExitStack() as stack:
        master = spark_master(resolve(read_sources()).broker)
        workers = int(os.environ.get(WORKERS, "0"))
        if workers:
            directory = Path(stack.enter_context(TemporaryDirectory()))
            master, _ = stack.enter_context(standalone(directory, workers))
        session = LazySpark(master)
        stack.callback(session.stop)
        if sys.argv[1:]:
            _keep_cache_while(Path(sys.argv[1]))
            session.fork()
        for line in sys.stdin:
            print(json.dumps(clean(session, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
