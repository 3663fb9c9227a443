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
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cleaning.run import clean_once, spark_master
from cleanerd.cli import clean, options, output
from cleanerd.cli.demo_reader import read_and_compare
from cleanerd.cli.demo_traffic import TOPICS, Feed
from cleanerd.cli.progress import NoProgress
from cleanerd.cli.tables import size
from cleanerd.client.segments import live_bases
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.errors import BadUsage
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.pipeline.session import SparkSession

_SETTINGS = ("log.cleanup.policy=compact", "log.segment.bytes=8388608")
_WARM_UP_BATCHES = 8
_LATER_MS = 25 * 3_600_000  # an hour more than the default of delete.retention.ms
_WRITE_PAUSE_S = 0.05
_ROUNDS_PER_ROLL = 20
_POLL_S = 0.05
_PATIENCE_S = 60.0
_PROBLEMS_SHOWN = 10


def run(directory: str | None = None, scale: float = 1.0) -> int:
    """Play the demo, in `directory` if it is to be kept; `scale` times its records. Returns the exit code.

    Raises: `BadUsage` for a directory that is not empty; `Fatal` without Java.
    """
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
                _tell("   Spark starts, and the kernels are compiled, which happens on first use only ...")
            warm.result()
        with Repeat(self._write_on, _WRITE_PAUSE_S), Repeat(self._read, 0):
            _tell("\n2. Clean, while the writer goes on and a reader compares every key with what was committed:")
            self._clean()
            cleaned_to = {result.topic: result.end_offset or 0 for result in self._results}
            self._wait_for_more(cleaned_to)
            _tell("\n3. Clean again as if it were a day later, when tombstones are past their delete horizon:")
            self._clean("--now-ms", str(self._clock.now_ms() + _LATER_MS))
        reads = self._reads
        _tell("\n4. Stop the writer, and compare once more:")
        keys = sum(self._check(feed, cleaned_to[feed.topic.name]) for feed in self._feeds)
        return self._conclude(keys, reads)

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
                feed.roll(self._clock.now_ms())
                feed.close(self._clock.now_ms())
            request = clean.request_from(_parsed(_options(log_dir)))
            self._clean_once(request, progress=NoProgress(), clock=self._clock)

    def _clean_once(self, request: CleanRequest, *, progress: Progress, clock: Clock) -> list[LogResult]:
        """`clean_once` with one Spark session for all calls."""
        if self._session is None:
            self._session = SparkSession(spark_master(request))
        self._results = clean_once(request, progress, clock, session=self._session)
        return self._results

    def _write(self) -> None:
        _tell("1. Write three logs in Kafka's format, with cleanerd.client (no Kafka is needed):")
        started_s = self._clock.monotonic_s()
        for feed in self._feeds:
            for _ in range(max(round(feed.topic.batches * self._scale), 1)):
                feed.send_batch(self._clock.now_ms())
            feed.roll(self._clock.now_ms())
            _tell(f"   {feed.topic.name:17} {feed.records:9,} records  {_extent(feed)}  {feed.topic.about}")
        _tell(f"   {self._clock.monotonic_s() - started_s:.1f} s")

    def _write_on(self) -> None:
        self._rounds += 1
        for feed in self._feeds:
            feed.send_batch(self._clock.now_ms())
            if self._rounds % _ROUNDS_PER_ROLL == 0:
                feed.roll(self._clock.now_ms())

    def _read(self) -> None:
        for feed in self._feeds:
            reading = read_and_compare(feed.directory, feed.truth)
            self._problems += [f"{feed.topic.name}: {problem}" for problem in reading.problems]
            self._reads += 1

    def _clean(self, *more: str) -> None:
        arguments = [*_options(self._log_dir), *more]
        _tell(f"   $ cleanerd clean {shlex.join(arguments)}\n")
        clean.run(_parsed(arguments), self._clean_once)
        self._problems += [
            f"{result.topic}: expected to be committed, found {result.outcome}: {result.reason}"
            for result in self._results
            if result.outcome != "committed"
        ]

    def _wait_for_more(self, cleaned_to: dict[str, int]) -> None:
        """Until every log has something new to clean, and the reader has been through all of them twice.

        Twice, because a read must not begin before one cleaning and end after the next: also from Kafka a consumer
        that takes longer than delete.retention.ms may miss a tombstone.
        """
        deadline_s = self._clock.monotonic_s() + _PATIENCE_S
        reads = self._reads + 2 * len(self._feeds)
        while self._clock.monotonic_s() < deadline_s:
            if self._reads >= reads and all(
                feed.writer.active_base_offset > cleaned_to[feed.topic.name] for feed in self._feeds
            ):
                return
            threading.Event().wait(_POLL_S)

    def _check(self, feed: Feed, cleaned_to: int) -> int:
        """The last read of a log, now that nobody writes; returns the number of its keys."""
        feed.close(self._clock.now_ms())
        reading = read_and_compare(feed.directory, feed.truth)
        latest = feed.truth.latest()
        deleted = {key: found.offset for key, found in latest.items() if found.value is None}
        left = [key for key, offset in deleted.items() if offset < cleaned_to and key in reading.newest]
        problems = [*reading.problems, *(f"{key!r}: deleted, but a tombstone is left" for key in left)]
        self._problems += [f"{feed.topic.name}: {problem}" for problem in problems]
        gone = len(deleted.keys() - reading.newest.keys())
        _tell(
            f"   {feed.topic.name:17} {feed.records:9,} records were written, {reading.records:,} are left; "
            f"of {len(latest):,} keys {len(latest) - len(deleted):,} have their newest value, {len(deleted):,} "
            f"are deleted ({gone:,} without a trace)"
        )
        return len(latest)

    def _conclude(self, keys: int, reads: int) -> int:
        if self._problems:
            shown = self._problems[:_PROBLEMS_SHOWN]
            output.say("\n  ".join([f"THE DEMO FAILED with {len(self._problems)} problems, of these:", *shown]))
            return 1
        _tell(f"\nNo key was lost: {keys:,} keys checked, {reads:,} reads while cleaning.")
        return 0


class Repeat:
    """Calls `step` again and again in a thread of its own while inside a `with` block, `pause_s` apart.

    What the step raises ends the thread, and is raised at the end of the block.
    """

    def __init__(self, step: Callable[[], None], pause_s: float) -> None:
        self._step = step
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done: Future[None] | None = None

    def __enter__(self) -> Self:
        self._done = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        assert self._done is not None
        self._done.result()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._step()


def _options(log_dir: str) -> list[str]:
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    return ["--force", "--log-dir", log_dir, *settings]


def _parsed(arguments: list[str]) -> Namespace:
    """The options of `cleanerd clean`, as its command line has them."""
    parser = ArgumentParser()
    options.add_configuration_options(parser)
    options.add_clean_options(parser)
    return parser.parse_args(arguments)


def _extent(feed: Feed) -> str:
    names = [str(SegmentFileName(base, FileKind.LOG)) for base in live_bases(feed.directory)]
    size_bytes = sum(os.path.getsize(os.path.join(feed.directory, name)) for name in names)
    return f"{size(size_bytes):>8} in {len(names):2} segments"


def _tell(text: str) -> None:
    output.write(text + "\n")
