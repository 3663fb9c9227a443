"""More of what `tests.kills` kills: writers, checkpoints, recoveries, the history. Each says what must be left."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cleanerd.daemon.store import HOLD, Store
from cleanerd.env.files import Files
from cleanerd.storage.checkpoints import read_checkpoints, update_cleaner_checkpoint
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter, WriterOptions
from cleanerd.tools.spark import partition_files
from tests.sim.counted import CountedFiles, StoppingFiles
from tests.storage import kill9_child
from tests.storage.kill9_child import FILES, TP
from tests.tools.spark.test_write import batch, row, some
from tests.tools.spark.test_write import writer as segments_writer

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


def records(log_dir: Path, partition: str = str(TP)) -> Records:
    """Of a partition, as a reader gets them."""
    found = read_records(str(log_dir / partition))
    return {record.offset: (record.key, record.value) for record in found}


# -- a writer ---------------------------------------------------------------------------------------------------

APPENDS = 40


def _append(log_dir: str, files: Files) -> None:
    options = WriterOptions(fsync=True, files=files)
    with LogWriter(log_dir, TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES, options=options) as writer:
        producer = Producer(writer)
        for number in range(APPENDS):
            producer.put(b"new", b"%d" % number, 400 + number)


def _is_a_beginning(log_dir: Path, before: Records) -> None:
    options = WriterOptions(repair=True)
    with LogWriter(
        str(log_dir), TP.topic, TP.partition, segment_bytes=SEGMENT_BYTES, options=options
    ) as writer:
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


def begin_commit(log_dir: Path, turn: int) -> None:
    """Stop a cleaning: its operations are some 190, staging included; from 90 on it commits."""
    try:
        kill9_child.clean(str(log_dir), StoppingFiles(90 + turn * 7 % 100))
    except InterruptedError:
        return


def recover_log(log_dir: str, files: Files) -> None:
    """What the next process does first."""
    recover(PartitionDir.of(files, log_dir, TP), is_kafka=False)


# -- the history ------------------------------------------------------------------------------------------------

STATES = 40


def _remember(log_dir: str, files: Files) -> None:
    """One state after the other; those that are safe are written down."""
    history = Store(f"{log_dir}/history.sqlite", max_bytes=1 << 24)
    safe = os.open(f"{log_dir}/safe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(STATES):
        if isinstance(files, CountedFiles):
            files.count()
        if history.put(HOLD, f"{number:03}", {"number": number}):
            os.write(safe, b"%d\n" % number)
    history.close()


def _remembers_what_was_safe(log_dir: Path, _: Records) -> None:
    history = Store(f"{log_dir}/history.sqlite", max_bytes=1 << 24)
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
    "history": Protocol(_remember, _remembers_what_was_safe),
    "kafka-segments writer": Protocol(_write_once, _is_whole_or_not_there),
}
