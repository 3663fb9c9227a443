"""When the power fails, what was said to be done is on the disk, and what is left is a whole log.

It fails on a real ext4 before every operation of a commit, a recovery, a retention. What is left is looked at when the
journal was replayed and cleanerd recovered or a broker started, in every order.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import pytest

from cleanerd.cleaning.delete_records import delete_records
from cleanerd.cleaning.retain import retain_log
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError
from cleanerd.format.names import RESCUE
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.segments import live_bases
from cleanerd.tools.client.reader import read_records
from tests.harness.disks import by_hand
from tests.harness.disks.by_hand import FILES, GROUPS, RETAINED, TP, batches, kept_offsets, write_log
from tests.harness.disks.counted import CountedFiles
from tests.harness.disks.ext4 import Ext4
from tests.harness.disks.repairs import PROCESSES, REPAIRS, TIMEOUT_S, Truth, newest, recovers_alone

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LOGS = "logs"
Run = Callable[[str, Files], object]
NOW_MS = 330
CUT = 60
"""Offset of the deletion of records: inside of a segment."""
Disk = TypeVar("Disk", Ext4, "WithSpare")
Records = Mapping[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset."""


class Powered(CountedFiles):
    """Real files; instead of the operation after so many the power fails. -1: never."""

    def __init__(self, disk: "Ext4 | WithSpare", operations: int, *, keeps_names: bool) -> None:
        self.done = 0
        self._disk, self._last, self._keeps_names = disk, operations, keeps_names

    def count(self) -> None:
        if self.done == self._last:
            self._disk.cut(keeps_names=self._keeps_names)
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1


class Forgetful(Powered):
    """The same with a disk that syncs nothing."""

    def fsync(self, path: str) -> None:
        del path
        self.count()


def _child(files: Powered, log_dir: str, run: Run, pipe: Connection) -> None:
    run(log_dir, files)
    pipe.send(files.done)


def cut_in(files: Powered, log_dir: Path, run: Run) -> int | None:
    """Run it in a process until the power fails; operations that it did if it came to its end."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_child, args=(files, str(log_dir), run, theirs))
    process.start()
    theirs.close()
    process.join(TIMEOUT_S)
    assert process.exitcode in (0, -signal.SIGKILL)
    return int(ours.recv()) if process.exitcode == 0 else None


def cut_everywhere(
    original: Disk,
    directory: Path,
    run: Run,
    kind: type[Powered] = Powered,
    first: int = 0,
    *,
    alternates: bool = False,
) -> Iterator[tuple[int, Disk]]:
    """Number of the operation before which the power failed, and the disk as it is then; not mounted.

    `alternates`: between a disk that keeps the names of the last moment and one that does not; else each is cut with both.
    """
    for operation in itertools.count(first):
        for keeps_names in (operation // 5 % 2 == 0,) if alternates else (False, True):
            disk = original.copied(directory)
            with disk.mounted() as place:
                done = cut_in(kind(disk, operation, keeps_names=keeps_names), place / LOGS, run)
            if done is not None:
                return
            yield operation, disk


@pytest.fixture
def original(tmp_path: Path) -> Ext4:
    """A log on a disk of its own; not mounted."""
    disk = Ext4.made(tmp_path)
    with disk.mounted() as place:
        (place / LOGS).mkdir()
        write_log(place / LOGS, seed=7)
    return disk


def test_log_is_worth_the_trouble(tmp_path: Path) -> None:
    """Groups that end early (spec disk X6), an aborted transaction, deleted keys."""
    write_log(tmp_path, seed=7)
    directory = str(tmp_path / str(TP))
    kept = kept_offsets(directory)
    bases = live_bases(directory)[:-1]
    by_segment = [sum(b.last_offset in kept for b in batches(directory, base)) for base in bases]
    last = by_segment[GROUPS[1]]
    assert (last[0] > 0, last[-1], sum(by_segment[GROUPS[2]])) == (True, 0, 0)
    assert not [key for key in newest(tmp_path) if key is not None and key.startswith(b"gone")]
    assert any(name.endswith(".txnindex") for name in os.listdir(directory))


def _recover(log_dir: str, files: Files) -> None:
    recover(PartitionDir.of(files, log_dir, TP), is_kafka=False)


@pytest.mark.fault("the power fails")
def test_commits_and_recoveries_cut_before_every_operation(original: Ext4, tmp_path: Path) -> None:
    with original.mounted() as place:
        truth = Truth(place / LOGS)
    repairs, cuts = itertools.cycle(REPAIRS), 0
    for operation, disk in cut_everywhere(original, tmp_path / "copy", by_hand.clean, alternates=True):
        cuts += 1
        if operation % 4 == 0:
            with disk.mounted() as place:
                files = Powered(disk, operation // 4 % 8, keeps_names=operation // 4 % 2 == 0)
                cuts += cut_in(files, place / LOGS, _recover) is None
        with disk.mounted() as place:
            for repair in next(repairs):
                repair(place / LOGS)
            truth.check(place / LOGS)
    assert cuts >= 175


class WithSpare:
    """Two disks in one machine, whose power fails at once. `is_alike`: whether both have written their journals before."""

    def __init__(self, log: Ext4, spare: Ext4, *, is_alike: bool) -> None:
        self._log, self._spare, self._is_alike = log, spare, is_alike

    def copied(self, directory: Path) -> "WithSpare":
        """Another pair that holds the same; this one is not mounted."""
        log = self._log.copied(directory)
        return WithSpare(log, self._spare.copied(directory / "spare"), is_alike=self._is_alike)

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """Where the log's is."""
        with self._log.mounted() as place, self._spare.mounted():
            yield place

    def cut(self, *, keeps_names: bool) -> None:
        """Of the log's disk; the other one does the same or not."""
        self._log.cut(keeps_names=keeps_names)
        self._spare.cut(keeps_names=keeps_names is self._is_alike)


@pytest.mark.fault("the power fails")
@pytest.mark.parametrize("is_alike", [False, True])
def test_exchanges_through_a_spare_cut_before_every_operation(
    original: Ext4, tmp_path: Path, is_alike: bool
) -> None:
    """A file system each for log and spare, both cut at once; the next rescue ends it, and may be cut as well."""
    (tmp_path / "spare").mkdir()
    pair = WithSpare(original, Ext4.made(tmp_path / "spare", 8 << 20), is_alike=is_alike)
    with pair.mounted() as place:
        by_hand.stage_on_spare(str(place / LOGS))
        truth = Truth(place / LOGS)
    cuts, interrupted = 0, 0
    for operation, disks in cut_everywhere(pair, tmp_path / "copy", by_hand.exchange, alternates=True):
        cuts += 1
        with disks.mounted() as place:
            interrupted += (place / LOGS / str(TP) / RESCUE).exists()
            files = Powered(disks, operation % 7, keeps_names=operation % 2 == 0)
            cuts += cut_in(files, place / LOGS, by_hand.go_on) is None
        with disks.mounted() as place:
            by_hand.go_on(str(place / LOGS), FILES)
            truth.check(place / LOGS)
    assert (cuts > 40, interrupted > 10) == (True, True), (cuts, interrupted)


def records(log_dir: Path) -> Records:
    return {r.offset: (r.key, r.value) for r in read_records(str(log_dir / str(TP)))}


def _retain(log_dir: str, files: Files) -> None:
    now = LogDir.at(files, log_dir, FixedNow(NOW_MS))
    done = retain_log(now, TP, read_checkpoints(FILES, log_dir), RETAINED, dry_run=False)
    assert not isinstance(done, CleanerdError), done


def _is_an_end(log_dir: Path, before: Records) -> None:
    """Whole segments are gone at the beginning, none that was young."""
    found = records(log_dir)
    assert found == {n: r for n, r in before.items() if n >= min(found)}
    assert min(found) <= 112, "the segments from there on hold younger records"


def _delete_records(log_dir: str, files: Files) -> None:
    now = LogDir.at(files, log_dir, FixedNow(NOW_MS))
    assert delete_records(now, TP, CUT, RETAINED).log_start_offset == CUT


def _is_there_from_the_cut_on(log_dir: Path, before: Records) -> None:
    """The log start is the old or the new one; what is gone lies below it."""
    start, found = read_checkpoints(FILES, str(log_dir)).log_start.get(TP, 0), records(log_dir)
    assert start in (0, CUT)
    assert found == {n: r for n, r in before.items() if n >= min(found)}
    assert min(found) <= start


@pytest.mark.fault("the power fails")
@pytest.mark.parametrize(
    ("run", "check"), [(_retain, _is_an_end), (_delete_records, _is_there_from_the_cut_on)]
)
def test_other_protocols_cut_before_every_operation(
    run: Run, check: Callable[[Path, Records], None], original: Ext4, tmp_path: Path
) -> None:
    cuts = 0
    with original.mounted() as place:
        before = records(place / LOGS)
    for _, disk in cut_everywhere(original, tmp_path / "copy", run):
        cuts += 1
        with disk.mounted() as place:
            recovers_alone(place / LOGS)
            check(place / LOGS, before)
    assert cuts > 5


def test_syncs_that_do_nothing_would_be_found(original: Ext4, tmp_path: Path) -> None:
    with original.mounted() as place:
        truth = Truth(place / LOGS)
    late = 150  # the beginning of the commits: what was staged is relied on
    for _, disk in cut_everywhere(original, tmp_path / "copy", by_hand.clean, Forgetful, late):
        with disk.mounted() as place:
            try:
                recovers_alone(place / LOGS)
                truth.check(place / LOGS)
            except Exception:  # noqa: BLE001  # whatever a torn log raises
                return
    pytest.fail("nothing was lost")
