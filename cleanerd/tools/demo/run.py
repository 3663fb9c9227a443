"""`cleanerd demo`: write logs, clean them twice while they are written and read, and check that no key was lost.

1. A process of its own writes three logs. Meanwhile a few batches of the same kind are cleaned elsewhere: Spark starts,
   and kernels are compiled (first use only).
2. That process goes on: a thread writes, another compares all logs with what was committed, again and again. Meanwhile
   `cleanerd clean --force`, twice, the second time with a clock behind the delete horizon, so that tombstones go.
3. Everything is read and compared once more. What differs is named, and the exit code is 1.
"""

import os
import shlex
import tempfile
import threading
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.outcomes import Committed
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress
from cleanerd.cli import clean, output
from cleanerd.cli.main import make_parser
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import Clock, SystemClock
from cleanerd.errors import BadUsage
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.spark_master import spark_place
from cleanerd.tools.demo.process import Traffic, traffic_process
from cleanerd.tools.demo.topics import ORDERS, TOPICS, Feed
from cleanerd.units import size

_SETTINGS = ("log.cleanup.policy=compact", "log.segment.bytes=16777216")
_WARM_UP_BATCHES = 8
_LATER_MS = 25 * 3_600_000  # an hour more than the default of delete.retention.ms
_POLL_S = 0.05
_PATIENCE_S = 60.0
_PROBLEMS_SHOWN = 10


def run(arguments: Namespace) -> int:
    """Play the demo; returns the exit code."""
    return play(arguments.directory)


def play(directory: str | None = None, *, scale: float = 1.0, session: LazySpark | None = None) -> int:
    """Play the demo, in `directory` if it is to be kept; `scale` times its records. Returns the exit code.

    A given `session` stays open. Raises: `BadUsage` for a directory that is not empty; `Fatal` without Java.
    """
    with ExitStack() as stack:
        if directory is None:
            log_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="cleanerd-demo-"))
        else:
            log_dir = _empty(directory)
        if session is None:
            place = spark_place(resolve(read_sources()).broker)
            session = LazySpark(place.master, dict(place.conf))
            stack.callback(session.stop)
        traffic = stack.enter_context(traffic_process(log_dir))
        return Demo(log_dir, traffic, session).play(scale)


def _empty(directory: str) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise BadUsage(f"--directory: expected an empty directory, found files in {directory!r}")
    except OSError as error:
        raise BadUsage(f"--directory: cannot use {directory!r}: {error.strerror}") from error
    return os.path.abspath(directory)


class Demo:
    """One showing, in an empty log directory that belongs to `traffic`."""

    def __init__(self, log_dir: str, traffic: Traffic, session: LazySpark) -> None:
        self._log_dir = log_dir
        self._traffic = traffic
        self._session = session
        self._clock = SystemClock()
        self._results: list[LogResult] = []  # of the last cleaning
        self._problems: list[str] = []

    def play(self, scale: float) -> int:
        """Run the demo and report each step; return the exit code."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            warm = pool.submit(self._warm_up)
            self._write(scale)
            if not warm.done():
                _print("   Waiting for Spark, and on first use for the compiler ...")
            warm.result()
        self._traffic.go_on()
        _print("\n2. Clean, while a writer goes on and a reader compares every key with what was committed:")
        self._clean()
        cleaned_to = {result.topic_partition.topic: result.end_offset or 0 for result in self._results}
        self._wait_for_more(cleaned_to)
        _print("\n3. Clean again as if it were a day later, when tombstones are past their delete horizon:")
        self._clean("--now-ms", str(self._clock.now_ms() + _LATER_MS), "--assume", "now")
        self._traffic.stop()
        return self._conclude(cleaned_to)

    def _warm_up(self) -> None:
        """Clean one topic only, so that one task compiles every kernel, once."""
        with tempfile.TemporaryDirectory(prefix="cleanerd-demo-") as log_dir:
            feed = Feed(log_dir, ORDERS, seed=0)
            for _ in range(_WARM_UP_BATCHES):
                feed.send_batch(self._clock.now_ms())
            feed.roll(self._clock.now_ms())
            feed.close(self._clock.now_ms())
            requests, _ = clean.requests_from(_parsed(_options(log_dir)))
            self._clean_once(requests, Progress(), self._clock)

    def _clean_once(
        self, requests: Sequence[CleanRequest], progress: Progress, clock: Clock
    ) -> list[LogResult]:
        self._results = clean_once(requests, progress, clock, session=self._session)
        return self._results

    def _write(self, scale: float) -> None:
        _print("1. Write three logs in Kafka's format, with cleanerd.tools.client (no Kafka is needed):")
        started_s = self._clock.monotonic_s()
        for number, topic in enumerate(TOPICS):
            records, size_bytes, segments = self._traffic.write(number, scale)
            much = f"{records:9,} records {size(size_bytes):>8} in {segments:2} segments"
            _print(f"   {topic.name:17} {much}   {topic.about}")
        _print(f"   {self._clock.monotonic_s() - started_s:.1f} s")

    def _clean(self, *more: str) -> None:
        arguments = [*_options(self._log_dir), *more]
        _print(f"   $ cleanerd clean {shlex.join(arguments)}\n")
        clean.run(_parsed(arguments), self._clean_once)
        self._problems += [
            f"{result.topic_partition.topic}: expected to be committed, found {result.outcome.word}: {result.reason}"
            for result in self._results
            if not isinstance(result.outcome, Committed)
        ]

    def _wait_for_more(self, cleaned_to: dict[str, int]) -> None:
        """Wait until every log has something new to clean and the reader has read all of them twice.

        Twice, because no read may begin before one cleaning and end after the next: also from Kafka a consumer that
        takes longer than delete.retention.ms may miss a tombstone.
        """
        deadline_s = self._clock.monotonic_s() + _PATIENCE_S
        reads = self._traffic.reads() + 2 * len(TOPICS)
        while self._clock.monotonic_s() < deadline_s:
            if self._traffic.reads() >= reads and all(
                base_offset > cleaned_to.get(topic, 0)
                for topic, base_offset in self._traffic.active_base_offsets().items()
            ):
                return
            threading.Event().wait(_POLL_S)

    def _conclude(self, cleaned_to: dict[str, int]) -> int:
        _print("\n4. The writer stops. Compare once more:")
        keys = 0
        for number, topic in enumerate(TOPICS):
            found = self._traffic.check(number, cleaned_to.get(topic.name, 0))
            keys += found.keys
            _print(
                f"   {topic.name:17} {found.left:7,} of {found.written:7,} records are left; {found.keys:,} keys: "
                f"{found.keys - found.deleted:,} with their newest value, {found.deleted:,} deleted "
                f"({found.gone:,} without a trace)"
            )
        self._problems += self._traffic.problems()
        if self._problems:
            shown = self._problems[:_PROBLEMS_SHOWN]
            output.print_message("\n  ".join([f"THE DEMO FAILED, {len(self._problems)} problems:", *shown]))
            return 1
        _print(f"\nNo key was lost: {keys:,} keys checked, {self._traffic.reads():,} reads while cleaning.")
        return 0


def _options(log_dir: str) -> list[str]:
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    return ["--force", "--log-dir", log_dir, *settings]


def _parsed(arguments: list[str]) -> Namespace:
    """The options of `cleanerd clean`, as its command line has them."""
    return make_parser().parse_args(["clean", *arguments])


def _print(text: str) -> None:
    output.write(text + "\n")
