"""`cleanerd demo`: write logs, clean them twice while they are written and read, and check that no key was lost.

1. Three logs are written. Meanwhile a few batches of the same kind are cleaned in a directory of their own: Spark
   starts, and kernels are compiled (first use only).
2. A writer goes on with all logs, and a reader compares them with what was committed, again and again. Meanwhile
   `cleanerd clean --force`, twice, the second time with a clock behind the delete horizon, so that tombstones go.
3. Everything is read and compared once more. What differs is named, and the exit code is 1.
"""

import contextlib
import os
import shlex
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cleaning.run import clean_once, spark_master
from cleanerd.cli import clean, options, output
from cleanerd.cli.demo_reader import Reading, read_and_compare
from cleanerd.cli.demo_traffic import TOPICS, Feed
from cleanerd.cli.progress import NoProgress
from cleanerd.cli.repeat import Repeat
from cleanerd.cli.tables import size
from cleanerd.client.segments import live_bases
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.errors import BadUsage, CleanerdError
from cleanerd.pipeline.session import SparkSession

_SETTINGS = ("log.cleanup.policy=compact", "log.segment.bytes=8388608")
_WARM_UP_BATCHES = 8
_LATER_MS = 25 * 3_600_000  # an hour more than delete.retention.ms
_WRITE_PAUSE_S = 0.05
_ROUNDS_PER_ROLL = 20
_POLL_S = 0.05
_PATIENCE_S = 120.0
_PROBLEMS_SHOWN = 10


def run(directory: str | None = None, scale: float = 1.0) -> int:
    """Play the demo, in `directory` if it is to be kept; `scale` times its records. Returns the exit code."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            log_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="cleanerd-demo-"))
        else:
            log_dir = _empty(directory)
        demo = Demo(log_dir, scale)
        stack.callback(demo.stop)
        return demo.play()


def _empty(directory: str) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise BadUsage(f"--directory: expected an empty directory, found files in {directory!r}")
    except OSError as error:
        raise BadUsage(f"--directory: cannot use {directory!r}: {error.strerror}") from error
    return os.path.abspath(directory)


class Demo:
    """One showing, in an empty log directory."""

    def __init__(self, log_dir: str, scale: float) -> None:
        self._log_dir = log_dir
        self._scale = scale
        self._clock = SystemClock()
        self._session: SparkSession | None = None
        self._feeds = [Feed(log_dir, topic, seed) for seed, topic in enumerate(TOPICS)]
        self._results: list[LogResult] = []  # of the last cleaning
        self._rounds = 0  # of the writer that goes on
        self._reads = 0
        self._problems: list[str] = []

    def play(self) -> int:
        """Tell and do everything; returns the exit code."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            warm = pool.submit(self._warm_up)
            self._write()
            if not warm.done():
                _tell("   Waiting for Spark, and for the kernels, which are compiled on first use ...")
            warm.result()
        with Repeat(self._write_on, _WRITE_PAUSE_S), Repeat(self._read, 0):
            _tell("\n2. Clean, while the writer goes on and a reader compares every key with what was committed.")
            is_clean = self._clean()
            cleaned_to = {result.topic: result.end_offset or 0 for result in self._results}
            self._wait_for_more(cleaned_to)
            _tell("\n3. Clean again, as if it were a day later: tombstones are past their delete horizon now.")
            is_clean = self._clean("--now-ms", str(self._clock.now_ms() + _LATER_MS)) and is_clean
        self._check(cleaned_to)
        return self._conclude(is_clean)

    def stop(self) -> None:
        """Let go of Spark."""
        if self._session is not None:
            self._session.stop()

    def _warm_up(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cleanerd-demo-") as log_dir:
            for topic in TOPICS:
                feed = Feed(log_dir, topic, seed=0)
                for _ in range(_WARM_UP_BATCHES):
                    feed.send_batch(self._clock.now_ms())
                feed.close(self._clock.now_ms())
                feed.writer.roll()
            request = clean.request_from(_arguments(_options(log_dir)))
            self._clean_once(request, progress=NoProgress(), clock=self._clock)

    def _write(self) -> None:
        _tell("1. Write three logs, as Kafka does. No Kafka is needed: the writer is cleanerd.client.LogWriter.")
        started = self._clock.monotonic_s()
        for feed in self._feeds:
            for _ in range(max(round(feed.topic.batches * self._scale), 2)):
                feed.send_batch(self._clock.now_ms())
            feed.writer.roll()
            bases = live_bases(feed.directory)
            ...
'''
