"""DeleteRecords: the log start is raised, durably, never past the high watermark (rules 6.8, 6.12; C126, C127)."""

import os
from pathlib import Path

import pytest

from cleanerd.cleaning.delete_records import OffsetOutOfRange, delete_records
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import LockHeld
from cleanerd.format import names
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.storage.log_dir import LogDir
from tests.cleaning.logs import contents, lock_of_another
from tests.cleaning.retained import (
    FILES,
    OTHER,
    TP,
    UNLIMITED,
    bases,
    log_start_entries,
    run_pass,
    snapshot_of,
    stop_broker,
    write_log,
)


def test_c126_not_past_the_high_watermark(tmp_path: Path) -> None:
    write_log(tmp_path, 100)
    stop_broker(tmp_path, 100, high_watermark=25)
    (tmp_path / names.LOCK).touch()
    before = contents(tmp_path)
    for offset in (26, 100, -1):
        with pytest.raises(OffsetOutOfRange, match="high watermark, which is 25") as caught:
            delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, offset)
        assert (caught.value.offset, caught.value.high_watermark) == (offset, 25)
    assert contents(tmp_path) == before
    assert delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 25) == 25


@pytest.mark.parametrize("kafka", [True, False])
@pytest.mark.parametrize(("start", "remaining"), [(1, 3), (6, 2), (15, 1)])
def test_c127_delete_records(tmp_path: Path, start: int, remaining: int, kafka: bool) -> None:
    """Segments below go with the next pass, whatever the policy; entries of others stay."""
    write_log(tmp_path)
    if kafka:
        stop_broker(tmp_path, 15)
    (tmp_path / names.LOG_START_CHECKPOINT).write_bytes(render_offset_checkpoint({OTHER: 3}))
    assert delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, start) == start
    assert log_start_entries(tmp_path) == {TP: start, OTHER: 3}
    run_pass(tmp_path, UNLIMITED)
    assert len(bases(tmp_path)) == remaining
    assert snapshot_of(tmp_path).log_start_offset == start


def test_delete_records_never_goes_back(tmp_path: Path) -> None:
    write_log(tmp_path)
    assert delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 7) == 7
    assert delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 3) == 7
    assert log_start_entries(tmp_path) == {TP: 7}


def test_delete_records_syncs_what_uses_the_offsets_up(tmp_path: Path) -> None:
    """After a power failure a log that ends below its log start would give deleted offsets to new records."""
    calls: list[tuple[str, str]] = []

    class Watched(RealFiles):
        def fsync(self, path: str) -> None:
            calls.append(("fsync", os.path.relpath(path, tmp_path)))
            super().fsync(path)

        def rename(self, source: str, target: str) -> None:
            calls.append(("rename", os.path.relpath(target, tmp_path)))
            super().rename(source, target)

    write_log(tmp_path)
    delete_records(LogDir.at(Watched(), str(tmp_path), SystemClock()), TP, 10)
    at = calls.index(("rename", names.LOG_START_CHECKPOINT))
    assert ("fsync", f"{TP}/{SegmentFileName(5, FileKind.LOG)}") in calls[:at]
    assert ("fsync", str(TP)) in calls[:at]


def test_delete_records_of_no_log(tmp_path: Path) -> None:
    (tmp_path / str(TP)).mkdir()
    with pytest.raises(OffsetOutOfRange):
        delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 0)


def test_a_live_broker_is_left_alone(tmp_path: Path) -> None:
    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    with lock_of_another(tmp_path / names.LOCK), pytest.raises(LockHeld):
        delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 15)
    assert log_start_entries(tmp_path) == {}
