"""The demo's other process: it owns the logs, writes them, and checks them, while they are cleaned from outside.

A process of its own is what a cooperating writer is in life; the lock of the log directory works between processes, and
the cleaning does not have to share an interpreter with the traffic.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import NamedTuple

from cleanerd.env.clock import SystemClock
from cleanerd.format.batch import Record
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.storage.segments import live_bases
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.demo.topics import TOPICS, Feed, Latest, Truth

_WRITE_PAUSE_S = 0.05
_ROUNDS_PER_ROLL = 20


class Verdict(NamedTuple):
    """Result of the last read of a log. `gone`: deleted keys whose tombstone is gone, too."""

    topic: str
    written: int
    left: int
    keys: int
    deleted: int
    gone: int


class Traffic:
    """A log for each topic, the thread that writes them all, and the thread that reads them all."""

    def __init__(self, log_dir: str) -> None:
        self._clock = SystemClock()
        self._feeds = [Feed(log_dir, topic, seed) for seed, topic in enumerate(TOPICS)]
        self._pool = ThreadPoolExecutor()
        self._threads: list[Future[None]] = []
        self._stop = threading.Event()
        self._rounds = 0
        self._reads = 0
        self._problems: list[str] = []

    def write(self, number: int, scale: float) -> tuple[int, int, int]:
        """Write the first batches of a topic, and roll; records, bytes and segments of the log."""
        feed = self._feeds[number]
        for _ in range(max(round(feed.topic.batches * scale), 1)):
            feed.send_batch(self._clock.now_ms())
        feed.roll(self._clock.now_ms())
        names = [str(SegmentFileName(base, FileKind.LOG)) for base in live_bases(feed.directory)]
        sizes = [os.path.getsize(os.path.join(feed.directory, name)) for name in names]
        return feed.records, sum(sizes), len(sizes)

    def go_on(self) -> None:
        """Start both threads."""
        self._threads = [
            self._pool.submit(self._repeat, self._write_on, _WRITE_PAUSE_S),
            self._pool.submit(self._repeat, self._read, 0),
        ]

    def _repeat(self, step: Callable[[], None], pause_s: float) -> None:
        while not self._stop.wait(pause_s):
            step()

    def _write_on(self) -> None:
        self._rounds += 1
        for feed in self._feeds:
            feed.send_batch(self._clock.now_ms())
            if self._rounds % _ROUNDS_PER_ROLL == 0:
                feed.roll(self._clock.now_ms())

    def _read(self) -> None:
        for feed in self._feeds:
            reading = read_and_compare(feed.directory, feed.truth)
            self._complain(feed, reading.problems)
            self._reads += 1

    def _complain(self, feed: Feed, problems: Iterator[str] | tuple[str, ...]) -> None:
        self._problems += [f"{feed.topic.name}: {problem}" for problem in problems]

    def reads(self) -> int:
        """How often a log was read to its end."""
        return self._reads

    def active_base_offsets(self) -> dict[str, int]:
        """Base offset of the active segment by topic."""
        return {feed.topic.name: feed.writer.active_base_offset for feed in self._feeds}

    def stop(self) -> None:
        """Stop both threads. Raises the error of a thread that ended early."""
        self._stop.set()
        for thread in self._threads:
            thread.result()

    def check(self, number: int, cleaned_to: int) -> Verdict:
        """The last read of a log, now that writing is over. Keys deleted below `cleaned_to` must have left no trace."""
        feed = self._feeds[number]
        feed.close(self._clock.now_ms())
        reading = read_and_compare(feed.directory, feed.truth)
        latest = feed.truth.latest()
        deleted = {key: found.offset for key, found in latest.items() if found.value is None}
        late = [key for key, offset in deleted.items() if offset < cleaned_to and key in reading.newest]
        self._complain(feed, reading.problems)
        self._complain(
            feed, (f"{key!r}: was deleted long ago, and its tombstone is still there" for key in late)
        )
        gone = len(deleted.keys() - reading.newest.keys())
        return Verdict(feed.topic.name, feed.records, reading.records, len(latest), len(deleted), gone)

    def problems(self) -> list[str]:
        """Everything that any read found wrong."""
        return self._problems


class _Manager(BaseManager):
    """Serves one `Traffic`."""


_Manager.register("Traffic", Traffic)


@contextmanager
def traffic_process(log_dir: str) -> Iterator[Traffic]:
    """A `Traffic` whose methods run in a process of its own, which ends with the block."""
    with _Manager(ctx=get_context("spawn")) as manager:
        yield manager.Traffic(log_dir)  # type: ignore[attr-defined]  # a proxy with the same methods


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a log: the newest record of each key, and every difference from the truth."""

    newest: Mapping[bytes, Record]
    records: int
    problems: tuple[str, ...]


def read_and_compare(directory: str, truth: Truth) -> Reading:
    """Read all that is committed; a writer may append and a cleaner may clean meanwhile.

    For every key that was committed before the read began: its newest record, or a newer one, or, when it was deleted,
    nothing. And every record that is seen was written exactly so, at that offset, and never aborted.
    """
    expected = truth.latest()
    newest: dict[bytes, Record] = {}
    problems = []
    records = 0
    for record in _records(directory):
        assert record.key is not None
        newest[record.key] = record
        records += 1
        if not truth.was_committed(record):
            problems.append(
                f"offset {record.offset}: {record.key!r} differs from the record that was committed there"
            )
    problems += _differences(expected, newest)
    return Reading(newest, records, tuple(problems))


def _records(directory: str) -> Iterator[Record]:
    """Records up to the end, then those appended meanwhile: older ones may have been cleaned away because of them."""
    position = 0
    for _ in range(2):
        for record in read_records(directory, isolation="read_committed", start_offset=position):
            yield record
            position = record.offset + 1


def _differences(expected: Mapping[bytes, Latest], newest: Mapping[bytes, Record]) -> Iterator[str]:
    for key, latest in expected.items():
        found = newest.get(key)
        if found is None:
            if latest.value is not None:
                yield f"{key!r}: its newest value at offset {latest.offset} is lost, and so are all older ones"
        elif found.offset < latest.offset:
            yield f"{key!r}: offset {found.offset} is read, but {latest.offset} is newer"
