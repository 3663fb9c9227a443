"""A cooperating writer and a cleaner that know nothing of each other, their steps in any order, each killed anywhere.

The model is the log as a list of records. What must hold after every step:

    the log is the model: offsets rise, nothing truncated comes back, nothing else goes
    a commit removes only what a newer record of the same key in the log supersedes, and tombstones that are the last of
    their key
    a cleaning that was planned before a truncation is never committed, and refusing it changes nothing
    the first dirty offset is not above the active segment
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.generation import read_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from tests.harness.disks.killed import KilledFiles
from tests.harness.disks.simulated import SwitchedOff
from tests.harness.spark.in_process import TP, Cleaning, restart_daemon

KEYS = (b"a", b"b", b"c", b"d")


class Written(NamedTuple):
    """A record, and the last offset of its batch: batches are truncated as a whole."""

    offset: int
    key: bytes
    value: bytes | None
    batch_end: int


class _Files(RealFiles):
    """Nothing here loses power."""

    def fsync(self, path: str) -> None:
        """Not needed."""


FILES = _Files()


class World:
    """One log, one writer, one cleaning at a time; every public method is a step."""

    def __init__(self, log_dir: str, groups_at_once: int | None) -> None:
        self.log_dir = log_dir
        self.groups_at_once = groups_at_once
        self.model: list[Written] = []
        self.cleaning: Cleaning | None = None
        self.is_stale = (
            False  # the cleaning was planned on a log that was truncated since: must not be committed
        )
        self.may_be_refused = False  # some of what was staged may be gone, or of the groups before
        self.now_ms = 1_000
        self.count = 0
        self.happened: Counter[str] = Counter()
        self.reopen()

    def check(self) -> None:
        assert self._read() == _plain(self.model)
        checkpoint = read_checkpoints(FILES, self.log_dir).cleaner.get(TP, 0)
        assert checkpoint <= self.writer.active_base_offset

    def _read(self) -> list[tuple[int, bytes, bytes | None]]:
        found = read_records(self.writer.directory)
        return [(record.offset, record.key or b"", record.value) for record in found]

    # -- the writer ---------------------------------------------------------------------------------------

    def append(self, *batch: tuple[bytes, bool]) -> None:
        self.count += 1
        first = self.writer.log_end_offset
        rows = [ProducerRecord(key, None if gone else b"%d" % self.count, self.now_ms) for key, gone in batch]
        assert Producer(self.writer).send(rows) == first
        end = first + len(batch) - 1
        self.model += [Written(first + n, row.key or b"", row.value, end) for n, row in enumerate(rows)]

    def append_segments(self, *keys: bytes) -> None:
        for key in keys:
            self.append((key, False))
        self.roll()

    def roll(self) -> None:
        self.writer.roll()

    def reopen(self) -> None:
        options = WriterOptions(files=FILES)
        self.writer = LogWriter(
            self.log_dir, "t", 0, segment_bytes=300, index_interval_bytes=100, options=options
        )

    def truncate(self, share: int) -> None:
        """To an offset that is so many sixteenths of the log."""
        offset = self._place(share)
        self._will_truncate(offset)
        self.writer.truncate(offset)
        self.model = self._below(offset)
        assert self.writer.log_end_offset == offset

    def truncate_fully(self, share: int) -> None:
        """A new log, that starts below, inside or above the old one."""
        offset = self.writer.log_end_offset * share // 16
        self._will_truncate(-1)
        self.writer.truncate_fully_and_start_at(offset)
        self.model = []
        assert self.writer.log_end_offset == offset

    def truncate_and_die(self, share: int, operations: int) -> None:
        """The log is a beginning of what it was; the writer that comes next goes on from there."""
        offset = self._place(share)
        was_stale, before = self.is_stale, read_generation(PartitionDir(FILES, self.writer.directory))
        self._will_truncate(offset)
        self.writer._files = KilledFiles(operations)
        with contextlib.suppress(SwitchedOff):
            self.writer.truncate(offset)
        self.reopen()
        left = self._read()
        if read_generation(PartitionDir(FILES, self.writer.directory)) == before:
            self.is_stale = was_stale
            assert left == _plain(self.model), "nothing goes before what was planned is worthless"
        assert left == _plain(self.model)[: len(left)]
        assert len(left) >= len(self._below(offset))
        self.model = self.model[: len(left)]

    def _place(self, share: int) -> int:
        first = min((r.offset for r in self.model), default=self.writer.log_end_offset)
        return max(first, self.writer.log_end_offset * share // 16)

    def _below(self, offset: int) -> list[Written]:
        return [record for record in self.model if record.batch_end < offset]

    def _will_truncate(self, offset: int) -> None:
        if offset < self.writer.log_end_offset:
            self.happened["truncation during a cleaning" if self.cleaning else "truncation"] += 1
            self.is_stale = self.may_be_refused = True

    # -- the cleaner --------------------------------------------------------------------------------------

    def clean(self, steps: int, ms: int) -> None:
        """So many steps of plan, index, stage and commit."""
        self.now_ms += ms
        for _ in range(steps):
            if self.cleaning is None:
                self._plan()
            elif self.cleaning.is_ready:
                self._commit()
            else:
                self._go_on(self.cleaning)

    def die_in_commit(self, operations: int) -> None:
        """If it has got that far: the next daemon finishes it or takes it back, and commits what still waits."""
        cleaning = self.cleaning
        if cleaning is None or not cleaning.staged:
            return
        self.cleaning = None
        with self._refusing(), contextlib.suppress(SwitchedOff):
            cleaning.commit(KilledFiles(operations))
            self.happened["commit killed too late"] += 1
        restart_daemon(FILES, self.log_dir)
        self._committed()
        self.may_be_refused = True
        with self._refusing():
            cleaning.commit()
        self._committed()

    def restart(self) -> None:
        """The daemon; what is staged goes on waiting."""
        restart_daemon(FILES, self.log_dir)

    def _plan(self) -> None:
        cleaning = Cleaning(FILES, self.log_dir, self.now_ms, groups_at_once=self.groups_at_once)
        if cleaning.choose():
            self.cleaning, self.is_stale, self.may_be_refused = cleaning, False, False

    def _go_on(self, cleaning: Cleaning) -> None:
        try:
            if cleaning.indexed is None:
                cleaning.index()
            else:
                cleaning.stage()
        except (SourceChanged, FileNotFoundError):
            assert self.is_stale
            self.happened["source gone while it was read"] += 1
            self.cleaning = None

    def _commit(self) -> None:
        assert self.cleaning is not None
        cleaning, self.cleaning = self.cleaning, None
        with self._refusing():
            checkpoint = cleaning.commit()
            if checkpoint is None:
                assert self.may_be_refused
                self.happened["staged files gone"] += 1
            else:
                assert not self.is_stale
                if cleaning.goes_on():
                    self.happened["round"] += 1
                    self.cleaning = cleaning
                else:
                    self.happened["commit"] += 1
        self._committed()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Nothing is refused without a reason."""
        try:
            yield
        except SourceChanged:
            assert self.may_be_refused
            self.happened["commit refused"] += 1

    def _committed(self) -> None:
        """What a commit took out of the log is what a cleaning may take."""
        left = set(self._read())
        gone = [record for record in self.model if record[:3] not in left]
        kept = [record for record in self.model if record[:3] in left]
        assert not gone or not self.is_stale, f"{gone} went with a cleaning of a log that was truncated"
        for record in gone:
            is_superseded = any(r.key == record.key and r.offset > record.offset for r in self.model)
            older = [r for r in kept if r.key == record.key and r.offset < record.offset]
            assert is_superseded or (record.value is None and not older), f"{record} is lost"
            self.happened["superseded" if is_superseded else "tombstone gone"] += 1
        self.model = kept


def _plain(model: Iterable[Written]) -> list[tuple[int, bytes, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in model]


keys = st.sampled_from(KEYS)
batches = st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=3).map(lambda b: ("append", *b))
segments = st.lists(keys, min_size=3, max_size=8).map(lambda k: ("append_segments", *k))
appends = st.lists(st.one_of(batches, segments, st.just(("roll",))), min_size=1, max_size=4)
cleanings = st.tuples(st.just("clean"), st.integers(1, 3), st.integers(0, 5))
whole_cleanings = st.tuples(st.just("clean"), st.integers(4, 8), st.integers(2, 5))
disturbances = st.one_of(
    batches,
    segments,
    cleanings,
    st.tuples(st.just("truncate"), st.integers(10, 16)),
    st.tuples(st.just("truncate"), st.integers(2, 16)),
    st.tuples(st.just("truncate_fully"), st.integers(0, 20)),
    st.tuples(st.just("truncate_and_die"), st.integers(4, 15), st.integers(0, 25)),
    st.tuples(st.just("die_in_commit"), st.integers(0, 30)),
    st.tuples(st.just("die_in_commit"), st.integers(0, 30)),
    st.just(("reopen",)),
    st.just(("restart",)),
)
chapters = st.one_of(
    st.tuples(appends, st.tuples(whole_cleanings)),
    st.tuples(appends, st.tuples(cleanings), st.lists(disturbances, max_size=2), st.tuples(cleanings)),
).map(lambda parts: [step for part in parts for step in part])
scripts = st.lists(chapters, min_size=3, max_size=7).map(lambda found: [step for c in found for step in c])


def play(script: Iterable[tuple[object, ...]], groups_at_once: int | None) -> World:
    with tempfile.TemporaryDirectory() as log_dir:
        world = World(log_dir, groups_at_once)
        for name, *arguments in script:
            getattr(world, str(name))(*arguments)
            world.check()
        return world


@pytest.mark.soak
def test_any_interleaving_loses_nothing_and_brings_nothing_back() -> None:
    """And what this is about did happen on the way."""
    happened: Counter[str] = Counter()

    @settings(max_examples=240, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scripts, st.sampled_from([None, 1, 1, 2]))
    def explore(script: list[tuple[object, ...]], groups_at_once: int | None) -> None:
        happened.update(play(script, groups_at_once).happened)

    explore()
    for event in (
        "commit",
        "round",
        "staged files gone",
        "truncation during a cleaning",
        "source gone while it was read",
        "superseded",
        "tombstone gone",
    ):
        assert happened[event] >= 2, happened
