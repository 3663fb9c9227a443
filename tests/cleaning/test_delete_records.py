"""DeleteRecords: the log start is raised, durably, never past the high watermark, and what lies below it goes, nothing else.

Rules 6.3, 6.8, 6.12; C126, C127.
"""

import os
from pathlib import Path

import pytest

from cleanerd.cleaning.delete_records import DeletionForbidden, OffsetOutOfRange, delete_records
from cleanerd.cleaning.retain import Retained
from cleanerd.config.model import TopicConfig
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import LockHeld
from cleanerd.format import names
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.storage.log_dir import LogDir
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.retained import (
    EXPIRED,
    FILES,
    OTHER,
    TP,
    UNLIMITED,
    bases,
    log_start_entries,
    segment_path,
    snapshot_of,
    stop_broker,
    write_log,
)
from tests.harness.logs.troubled import contents, lock_of_another


def delete(
    log_dir: Path, offset: int, config: TopicConfig, *, tp: TopicPartition = TP, files: RealFiles = FILES
) -> Retained:
    return delete_records(LogDir.at(files, str(log_dir), SystemClock()), tp, offset, config)


def test_c126_not_past_the_high_watermark(tmp_path: Path) -> None:
    write_log(tmp_path, 100)
    stop_broker(tmp_path, 100, high_watermark=25)
    (tmp_path / names.LOCK).touch()
    before = contents(tmp_path)
    for offset in (26, 100, -1):
        with pytest.raises(OffsetOutOfRange, match="high watermark, which is 25") as caught:
            delete(tmp_path, offset, EXPIRED)
        assert (caught.value.offset, caught.value.high_watermark) == (offset, 25)
    assert contents(tmp_path) == before
    assert delete(tmp_path, 25, EXPIRED).log_start_offset == 25


@pytest.mark.parametrize("policy", [("delete",), ("compact", "delete"), ()])
@pytest.mark.parametrize("kafka", [True, False])
@pytest.mark.parametrize(("start", "remaining"), [(1, 3), (6, 2), (15, 1)])
def test_c127_delete_records(
    tmp_path: Path, start: int, remaining: int, kafka: bool, policy: tuple[str, ...]
) -> None:
    """Only what lies below goes, though every segment has expired and is one too many; entries of others stay."""
    write_log(tmp_path)
    if kafka:
        stop_broker(tmp_path, 15)
    (tmp_path / names.LOG_START_CHECKPOINT).write_bytes(render_offset_checkpoint({OTHER: 3}))
    config = EXPIRED.but(retention_bytes=0, cleanup_policy=policy)
    size_bytes = segment_path(tmp_path, 0).stat().st_size
    deleted = delete(tmp_path, start, config)
    assert (deleted.log_start_offset, deleted.segments) == (start, 3 - remaining)
    assert deleted.bytes == pytest.approx((3 - remaining) * size_bytes, abs=8)
    for offset in (start, start - 1):  # it never goes back
        again = delete(tmp_path, offset, config)
        assert (again.log_start_offset, again.segments) == (start, 0)
    assert log_start_entries(tmp_path) == {TP: start, OTHER: 3}
    assert bases(tmp_path) == [0, 5, 10][-remaining:]
    assert snapshot_of(tmp_path).log_start_offset == start


def test_kip_1161_which_policies_allow_it(tmp_path: Path) -> None:
    """As in Kafka 4.3: `compact` without `delete` does not, an empty policy does."""
    write_log(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(DeletionForbidden, match="compact without delete"):
        delete(tmp_path, 6, EXPIRED.but(cleanup_policy=("compact",)))
    for topic in names.INTERNAL_TOPICS:
        with pytest.raises(DeletionForbidden, match="internal topic"):
            delete(tmp_path, 6, EXPIRED, tp=TopicPartition(topic, 0))
    assert contents(tmp_path) == before
    assert delete(tmp_path, 6, EXPIRED.but(cleanup_policy=())).segments == 1


def test_what_the_broker_has_still_to_recover_stays(tmp_path: Path) -> None:
    """As in a retention pass (6.2): the indexes of a broker that crashed prove nothing. The log start holds all the same."""
    write_log(tmp_path)
    stop_broker(tmp_path, 7, high_watermark=15)
    deleted = delete(tmp_path, 12, UNLIMITED)
    assert (deleted.log_start_offset, deleted.segments) == (12, 1)
    assert (bases(tmp_path), log_start_entries(tmp_path)) == ([5, 10], {TP: 12})


def test_delete_records_syncs_what_uses_the_offsets_up(tmp_path: Path) -> None:
    """After a power failure a log that ends below its log start would give deleted offsets to new records."""
    calls = list[tuple[str, str]]()
    watched = HookedFiles(lambda call, path: calls.append((call, os.path.relpath(path, tmp_path))))
    write_log(tmp_path)
    delete(tmp_path, 9, UNLIMITED, files=watched)
    at = calls.index(("rename", names.LOG_START_CHECKPOINT))
    assert ("fsync", f"{TP}/{SegmentFileName(5, FileKind.LOG)}") in calls[:at]
    assert ("fsync_dir", str(TP)) in calls[:at]
    assert not [path for call, path in calls[:at] if call == "rename" and path.startswith(str(TP))]
    assert [path for call, path in calls[at:] if call == "rename" and path.startswith(str(TP))]


def test_delete_records_of_no_log(tmp_path: Path) -> None:
    (tmp_path / str(TP)).mkdir()
    with pytest.raises(OffsetOutOfRange):
        delete(tmp_path, 0, UNLIMITED)


def test_a_live_broker_is_left_alone(tmp_path: Path) -> None:
    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    with lock_of_another(tmp_path / names.LOCK), pytest.raises(LockHeld):
        delete(tmp_path, 15, UNLIMITED)
    assert log_start_entries(tmp_path) == {}
