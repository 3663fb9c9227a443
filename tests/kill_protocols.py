"""More of what `tests.kills` kills: writers, checkpoints, recoveries, installs, the history. Each says what must be left."""

import os
import pickle
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cleanerd.client.producer import Producer
from cleanerd.client.reader import read_records
from cleanerd.client.writer import LogWriter
from cleanerd.daemon.telemetry.history import HOLD, HistoryFile
from cleanerd.env.files import Files
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.format.uuid_text import parse_uuid
from cleanerd.install.area import Area
from cleanerd.install.driver import Driver
from cleanerd.install.values import PlaceContent, Step
from cleanerd.spark import partition_files
from cleanerd.storage.checkpoints import read_checkpoints, update_cleaner_checkpoint
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.install.cluster import REPLICAS, TOPIC_ID
from tests.install.world import LIMITS, World, fresh_install
from tests.sim.counted import CountedFiles
from tests.spark.test_write import batch, row, some
from tests.spark.test_write import writer as segments_writer
from tests.storage import kill9_child
from tests.storage.kill9_child import FILES, TP

SEGMENT_BYTES = 2200
Records = Mapping[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset."""


@dataclass(frozen=True)
class Protocol:
    """`run` is what is killed; `check` looks at what is left, and what was there before. `prepare`: in how many-th turn."""

    run: Callable[[str, Files], None]
    check: Callable[[Path, Records], None]
    prepare: Callable[[Path, int], None] = lambda *_: None
    is_cleaning: bool = False  # what is left is a log that a cleaning was killed in
    is_at_random: bool = True  # killed at random moments as well as before its operations


def records(log_dir: Path, partition: str = str(TP)) -> Records:
    """Of a partition, as a reader gets them."""
    found = read_records(str(log_dir / partition))
    return {record.offset: (record.key, record.value) for record in found}


# -- a writer ---------------------------------------------------------------------------------------------------

APPENDS = 40


def _append(log_dir: str, files: Files) -> None:
    with LogWriter(
        log_dir, TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES, fsync=True, files=files
    ) as writer:
        producer = Producer(writer)
        for number in range(APPENDS):
            producer.put(b"new", b"%d" % number, 400 + number)


def _is_a_beginning(log_dir: Path, before: Records) -> None:
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES, repair=True) as writer:
        end = writer.log_end_offset
    start = max(before) + 1
    assert start <= end <= start + APPENDS
    new = {start + number: (b"new", b"%d" % number) for number in range(end - start)}
    assert records(log_dir) == {**before, **new}


# -- a checkpoint -----------------------------------------------------------------------------------------------

CHECKPOINTS = 20


def _checkpoint(log_dir: str, files: Files) -> None:
    for offset in range(1, CHECKPOINTS + 1):
        update_cleaner_checkpoint(files, log_dir, {TP: offset})


def _is_one_of_them(log_dir: Path, before: Records) -> None:
    assert read_checkpoints(FILES, str(log_dir)).cleaner.get(TP, 0) in range(CHECKPOINTS + 1)
    update_cleaner_checkpoint(FILES, str(log_dir), {TP: 99})
    assert read_checkpoints(FILES, str(log_dir)).cleaner == {TP: 99}
    assert records(log_dir) == before


# -- a recovery -------------------------------------------------------------------------------------------------


class _Stops(CountedFiles):
    """Real files; what is called after so many operations fails."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError


def begin_commit(log_dir: Path, turn: int) -> None:
    """Stop a cleaning: its operations are some 190, staging included; from 90 on it commits."""
    try:
        kill9_child.clean(str(log_dir), _Stops(90 + turn * 7 % 100))
    except InterruptedError:
        return


def recover_log(log_dir: str, files: Files) -> None:
    """What the next process does first."""
    recover(PartitionDir.of(files, log_dir, TP), is_kafka=False)


# -- an install -------------------------------------------------------------------------------------------------


class _Cluster(World):
    """One whose broker has its log on disk; it lives on when cleanerd is killed."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(is_calm=True)
        self.log_dir, self.told = log_dir, []
        self._kept = Path(log_dir + ".cluster")
        if self._kept.exists():
            vars(self).update(pickle.loads(self._kept.read_bytes()))

    def happen(self, area: Area) -> None:
        """What the broker does next, to its directory as well."""
        install, live = fresh_install(), Path(self.log_dir, str(TP))
        self.place = before = area.place(install)
        self.restart_broker()
        self.tick(1_000)
        if self.place is not before:
            if self.place is PlaceContent.NOTHING:
                live.rename(f"{live}.{random.SystemRandom().getrandbits(128):032x}-delete")
            else:
                _make(live, "fetched")
        self.keep()

    def keep(self) -> None:
        fields = {name: value for name, value in vars(self).items() if name not in ("chance", "told")}
        part = self._kept.with_suffix(".part")
        part.write_bytes(pickle.dumps(fields))
        part.rename(self._kept)

    def ask_for_replicas(self, topic: str, partition: int, replicas: object) -> None:
        super().ask_for_replicas(topic, partition, replicas)  # type: ignore[arg-type]
        self.keep()


def _make(directory: Path, content: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / PARTITION_METADATA).write_bytes(render_partition_metadata(parse_uuid(TOPIC_ID)))
    (directory / "content").write_text(content)


def _no_install(log_dir: Path, _: int) -> None:
    Path(f"{log_dir}.cluster").unlink(missing_ok=True)
    assert not Path(Area(FILES, str(log_dir)).path).exists(), "the last one left something"


def _install(log_dir: str, files: Files) -> None:
    """A whole one, or the rest of one that was killed; nothing when it is over."""
    area, cluster = Area(files, log_dir), _Cluster(log_dir)
    left = area.journal.read()
    driver = Driver(area, cluster, cluster.clock, LIMITS, left or fresh_install())  # type: ignore[arg-type]
    if left is None:
        if cluster.asked:
            return
        area.make()
        _make(Path(area.prepared), "prepared")
        area.mark(area.prepared, driver.install.id)
        area.journal.write(driver.install)
        driver._go(driver.install.to(Step.REMOVING, cluster.clock.now_ms()))
    for _ in range(400):
        if driver.step() is not None:
            return
        cluster.happen(area)
    raise AssertionError(f"never over: {driver.install}")


def _is_installed_or_as_before(log_dir: Path, before: Records) -> None:
    """The next process ends it: the list is the old one, the broker has a whole log, nothing of ours is left."""
    _install(str(log_dir), FILES)
    area, cluster = Area(FILES, str(log_dir)), _Cluster(str(log_dir))
    live = log_dir / str(TP)
    assert area.journal.read() is None
    shutil.rmtree(
        area.path, ignore_errors=True
    )  # killed before the journal: what was prepared is prepared anew
    assert (cluster.replicas, cluster.adding) == (REPLICAS, ())
    if (live / "content").exists():
        assert (live / "content").read_text() in ("prepared", "fetched")
        assert not (live / "cleanerd-install").exists()
    else:
        assert records(log_dir) == before


# -- the history ------------------------------------------------------------------------------------------------

STATES = 40


def _remember(log_dir: str, files: Files) -> None:
    """One state after the other; those that are safe are written down."""
    history = HistoryFile(f"{log_dir}/history.sqlite", max_age_ms=10**12, max_bytes=1 << 24)
    safe = os.open(f"{log_dir}/safe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(STATES):
        if isinstance(files, CountedFiles):
            files.count()
        if history.put(HOLD, f"{number:03}", {"number": number}):
            os.write(safe, b"%d\n" % number)
    history.close()


def _remembers_what_was_safe(log_dir: Path, _: Records) -> None:
    history = HistoryFile(f"{log_dir}/history.sqlite", max_age_ms=10**12, max_bytes=1 << 24)
    found = history.all(HOLD, lambda fields: int(fields["number"]))
    history.close()
    safe = (log_dir / "safe").read_text().split() if (log_dir / "safe").exists() else []
    assert sorted(found.values()) == list(range(len(found)))
    assert set(map(int, safe)) <= set(found.values())


# -- tables that become logs ------------------------------------------------------------------------------------

ROWS = some(150)


def _write_table(log_dir: str, files: Files) -> None:
    with mock.patch.object(partition_files, "RealFiles", return_value=files):
        one = segments_writer(Path(log_dir), segmentBytes="4000", batchBytes="500")
        rows = [row("w", partition, record) for partition in (0, 1) for record in ROWS]
        one.commit([one.write(iter([batch(rows)]))])


def _is_whole_or_not_there(log_dir: Path, before: Records) -> None:
    """Each partition; what is left of others is named as a broker names what it deletes."""
    wanted = {record.offset: (record.key, record.value) for record in ROWS}
    left = {path.name for path in log_dir.iterdir() if path.name.startswith("w-")}
    for name in left & {"w-0", "w-1"}:
        assert records(log_dir, name) == wanted
    assert all(re.fullmatch(r"w-[01]\.[0-9a-f]{32}-delete", name) for name in left - {"w-0", "w-1"})
    assert records(log_dir) == before
    if not left & {"w-0", "w-1"}:
        _write_table(str(log_dir), FILES)
        assert records(log_dir, "w-1") == wanted


def _write_once(log_dir: str, files: Files) -> None:
    if not any(name in ("w-0", "w-1") for name in os.listdir(log_dir)):  # nothing is ever overwritten
        _write_table(log_dir, files)


MORE = {
    "append and roll": Protocol(_append, _is_a_beginning),
    "checkpoint": Protocol(_checkpoint, _is_one_of_them),
    "install": Protocol(_install, _is_installed_or_as_before, _no_install, is_at_random=False),
    "history": Protocol(_remember, _remembers_what_was_safe),
    "kafka-segments writer": Protocol(_write_once, _is_whole_or_not_there),
}
