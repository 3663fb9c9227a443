"""Retention on real files (rules 5.6-5.8, 6.7-6.12); accidents are in test_retain_accidents.py.

Which segments go is in tests/policy/test_retention.py; which logs get a pass, and from whom, in
tests/daemon/test_retention.py.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.cleaning import retain as retain_module
from cleanerd.cleaning.delete_records import delete_records
from cleanerd.cleaning.retain import retain, retain_log
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.errors import CorruptFile, LockHeld, LogUncleanable, SourceChanged
from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.policy.retention import Breach
from cleanerd.storage.checkpoints import read_checkpoints, read_leader_epochs, update_checkpoint
from cleanerd.storage.lock import LogDirLock
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.producer_state import producers_at
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.retained import (
    EXPIRED,
    FILES,
    NOW_MS,
    OLD_MS,
    OTHER,
    SEGMENT_KINDS,
    TP,
    UNLIMITED,
    append,
    bases,
    log_start_entries,
    offsets,
    run_pass,
    segment_path,
    snapshot_of,
    stop_broker,
    write_log,
)
from tests.harness.logs.troubled import contents, leave_to_nobody, lock_of_another

# -- cases ------------------------------------------------------------------------------------------------


def test_c124_high_watermark_and_epochs(tmp_path: Path) -> None:
    directory = write_log(tmp_path, 100)
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_bytes(render_leader_epochs([(0, 40), (1, 90)]))
    stop_broker(tmp_path, 100, high_watermark=0)
    assert run_pass(tmp_path, EXPIRED) is None
    for high_watermark in range(25, 31):
        stop_broker(tmp_path, 100, high_watermark=high_watermark)
        run_pass(tmp_path, EXPIRED)
        assert bases(tmp_path)[0] <= high_watermark
        assert bases(tmp_path)[0] == high_watermark // 5 * 5
    stop_broker(tmp_path, 100)
    retained = run_pass(tmp_path, EXPIRED)
    assert (retained.segments, retained.rolled, retained.log_start_offset) == (14, True, 100)
    assert bases(tmp_path) == [100]
    assert read_leader_epochs(PartitionDir(FILES, str(directory))) == ((1, 100),)


@pytest.mark.parametrize("empty_active", [False, True])
def test_c134_producer_snapshots_go_with_their_segments(tmp_path: Path, empty_active: bool) -> None:
    write_log(tmp_path, 3, 1, roll=empty_active)
    stop_broker(tmp_path, 3)
    assert bases(tmp_path, FileKind.PRODUCER_SNAPSHOT) == [1, 2, 3]
    run_pass(tmp_path, UNLIMITED.but(retention_bytes=0))
    assert bases(tmp_path, FileKind.PRODUCER_SNAPSHOT) == [3]
    assert (bases(tmp_path), snapshot_of(tmp_path).log_start_offset) == ([3], 3)


def test_c134_a_moved_log_start_takes_snapshots_along(tmp_path: Path) -> None:
    write_log(tmp_path, 3, 1)
    stop_broker(tmp_path, 3)
    segment_path(tmp_path, 3, FileKind.PRODUCER_SNAPSHOT).unlink()
    delete_records(LogDir.at(FILES, str(tmp_path), SystemClock()), TP, 3, UNLIMITED)
    assert bases(tmp_path, FileKind.PRODUCER_SNAPSHOT) == [2]


@pytest.mark.parametrize("snapshots", ["as the broker left them", "none", "damaged"])
def test_c137_producers_outlive_their_segments(tmp_path: Path, snapshots: str) -> None:
    """Also when the state at the log end has to be found out by reading the log once more."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        Producer(writer, producer_id=1).put(b"a", b"1", OLD_MS)
        writer.roll()
        Producer(writer, producer_id=2).put(b"b", b"1", OLD_MS)
        expected = writer.producers
    stop_broker(tmp_path, 2)
    for path in (tmp_path / str(TP)).glob("*.snapshot"):
        if snapshots == "none":
            path.unlink()
        elif snapshots == "damaged":
            path.write_bytes(path.read_bytes()[:-1])
    retained = run_pass(tmp_path, EXPIRED)
    assert retained.rolled
    assert {entry.producer_id for entry in expected} == {1, 2}
    assert producers_at(str(tmp_path / str(TP)), 2).entries == expected


def test_c138_expired_segments(tmp_path: Path) -> None:
    """Records without timestamps live as long as their files; four files a segment; what comes next is appended."""
    directory = write_log(tmp_path, 200, 20, timestamp_ms=-1)
    for path in directory.iterdir():
        os.utime(path, ns=(NOW_MS * 1_000_000, NOW_MS * 1_000_000))
    stop_broker(tmp_path, 200)
    config = UNLIMITED.but(retention_ms=600_000)
    assert run_pass(tmp_path, config, NOW_MS + 600_000) is None
    retained = run_pass(tmp_path, config, NOW_MS + 600_001)
    assert (retained.segments, retained.reasons) == (10, (Breach.TIME,))
    left = {path.name for path in directory.iterdir()} - {names.GENERATION}
    assert left == {f"{200:020d}{kind}" for kind in SEGMENT_KINDS}
    assert offsets(tmp_path) == []
    leave_to_nobody(tmp_path)
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        assert writer.log_end_offset == 200
        append(writer, 1, 1, NOW_MS)
    assert offsets(tmp_path) == [200]


@pytest.mark.trap("a log start above the base of the active segment")
def test_c141_the_entry_of_the_log_start_goes_when_the_first_segment_says_it(tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        for records in (11, 10, 10, 10, 9):
            append(writer, records, 99, OLD_MS)
            if records != 9:
                writer.roll()
    stop_broker(tmp_path, 50, high_watermark=49)
    write_log_start(tmp_path, {TP: 31, OTHER: 5})
    run_pass(tmp_path, UNLIMITED)
    assert bases(tmp_path) == [31, 41]
    assert log_start_entries(tmp_path) == {OTHER: 5}
    assert snapshot_of(tmp_path).log_start_offset == 31


def write_log_start(log_dir: Path, offsets: dict[TopicPartition, int]) -> None:
    (log_dir / names.LOCK).touch()
    update_checkpoint(FILES, str(log_dir), names.LOG_START_CHECKPOINT, dict(offsets))


def test_c142_everything_of_a_compacted_and_expired_log_goes(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=-1)
    long_ago = (NOW_MS - 200_000) * 1_000_000
    for path in directory.glob("*.log"):
        os.utime(path, ns=(long_ago, long_ago))
    stop_broker(tmp_path, 15)
    config = UNLIMITED.but(cleanup_policy=("compact", "delete"), retention_ms=100_000)
    run_pass(tmp_path, config)
    found = snapshot_of(tmp_path)
    assert (found.log_start_offset, found.log_end_offset, len(found.segments)) == (15, 15, 1)
    assert run_pass(tmp_path, config) is None


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_c132_d17_d19_the_log_start_counts_under_any_policy(tmp_path: Path, policy: tuple[str, ...]) -> None:
    write_log(tmp_path)
    write_log_start(tmp_path, {TP: 12})
    config = EXPIRED.but(cleanup_policy=policy, retention_bytes=0)
    retained = run_pass(tmp_path, config)
    assert (retained.segments, retained.reasons) == (2, (Breach.LOG_START_OFFSET,))
    assert (bases(tmp_path), log_start_entries(tmp_path)) == ([10], {TP: 12})
    assert run_pass(tmp_path, config) is None


# -- what retention must not take -------------------------------------------------------------------------


@pytest.mark.parametrize(("is_clean", "is_whole"), [(True, True), (False, True), (True, False)])
def test_the_active_segment_goes_only_after_a_clean_stop(
    tmp_path: Path, is_clean: bool, is_whole: bool
) -> None:
    """After another stop its time index may lack the newest records, and a broker may cut it; or somebody has since."""
    write_log(tmp_path)
    stop_broker(tmp_path, 15, is_clean=is_clean)
    active = segment_path(tmp_path, 10)
    os.truncate(active, active.stat().st_size - (not is_whole))
    run_pass(tmp_path, EXPIRED)
    assert bases(tmp_path) == ([15] if is_clean and is_whole else [10])


def test_6_4_what_a_killed_broker_had_allocated_in_advance_does_not_count(tmp_path: Path) -> None:
    """With preallocate its active segment is as large as segment.bytes; when it starts, it cuts that off."""
    write_log(tmp_path)
    stop_broker(tmp_path, 15, is_clean=False)
    os.truncate(segment_path(tmp_path, 10), 1 << 20)
    assert run_pass(tmp_path, UNLIMITED.but(retention_bytes=1 << 20)) is None


def test_a_log_start_beyond_the_log_end_belongs_to_another_log(tmp_path: Path) -> None:
    """The partition was deleted and created again: what is in it now is not what the entry speaks of."""
    write_log(tmp_path)
    write_log_start(tmp_path, {TP: 16})
    before = contents(tmp_path / str(TP))
    with pytest.raises(LogUncleanable, match="log start offset 16, but the log ends at 15"):
        run_pass(tmp_path, EXPIRED)
    assert contents(tmp_path / str(TP)) == before


def grown(log_dir: Path) -> None:
    with segment_path(log_dir, 0).open("ab") as file:
        file.write(b"\0")


def replaced(log_dir: Path) -> None:
    path = segment_path(log_dir, 5)
    found = path.stat()
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(found.st_mtime_ns, found.st_mtime_ns))
    copy.rename(path)


def gone(log_dir: Path) -> None:
    segment_path(log_dir, 0).unlink()


def last_one_gone(log_dir: Path) -> None:
    segment_path(log_dir, 10).unlink()


def swapping(log_dir: Path) -> None:
    (log_dir / str(TP) / f"{0:020d}.log.swap").touch()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("change", [grown, replaced, gone, last_one_gone, swapping])
def test_a_log_that_changed_since_it_was_looked_at_is_left_alone(
    tmp_path: Path, change: Callable[[Path], None], closed: bool
) -> None:
    """KAFKA-631's generation check: perhaps a broker ran in between, and the topic is another one; or a writer truncated.

    Whether the active segment is to go as well or not.
    """
    write_log(tmp_path)
    stop_broker(tmp_path, 15, is_clean=closed)
    snapshot = snapshot_of(tmp_path)
    change(tmp_path)
    before = contents(tmp_path / str(TP))
    with pytest.raises(SourceChanged):
        retain(LogDir.at(FILES, str(tmp_path), FixedNow(NOW_MS)), snapshot, EXPIRED, dry_run=False)
    assert contents(tmp_path / str(TP)) == before


def test_a_log_that_was_rolled_meanwhile_keeps_its_new_segment(tmp_path: Path) -> None:
    """A broker may have run: the segment that was to be rolled is there, and the one before it is not the last any more."""
    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    snapshot = snapshot_of(tmp_path)
    segment_path(tmp_path, 17).touch()
    with pytest.raises(SourceChanged, match=r"are \[0, 5, 10, 17\]"):
        retain(LogDir.at(FILES, str(tmp_path), FixedNow(NOW_MS)), snapshot, EXPIRED, dry_run=False)
    assert bases(tmp_path) == [0, 5, 10, 17]


def test_a_cooperating_writer_may_append_and_roll_meanwhile_and_keeps_its_active_segment(
    tmp_path: Path,
) -> None:
    """It is open, although nothing shows that; what is appended later must be there."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        append(writer, 15, 5, OLD_MS)
        snapshot = snapshot_of(tmp_path)
        append(writer, 10, 5, NOW_MS)
        place, config = LogDir.at(FILES, str(tmp_path), FixedNow(NOW_MS)), EXPIRED.but(retention_bytes=0)
        retained = retain(place, snapshot, config, dry_run=False)
        assert (retained.segments, retained.rolled, retained.log_start_offset) == (2, False, 10)
        append(writer, 5, 99, NOW_MS)
    assert offsets(tmp_path) == list(range(10, 30))


def test_a_live_broker_is_left_alone(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    stop_broker(tmp_path, 15)
    before = contents(directory)
    with lock_of_another(tmp_path / names.LOCK), pytest.raises(LockHeld):
        run_pass(tmp_path, EXPIRED)
    assert contents(directory) == before


def test_damaged_epochs_stop_a_pass_before_it_begins(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n9\n")
    stop_broker(tmp_path, 15)
    before = contents(directory)
    with pytest.raises(CorruptFile):
        run_pass(tmp_path, EXPIRED)
    assert contents(directory) == before


# -- how ---------------------------------------------------------------------------------------------------


def test_a_dry_run_only_tells(tmp_path: Path) -> None:
    write_log(tmp_path)
    stop_broker(tmp_path, 15)
    before = contents(tmp_path), contents(tmp_path / str(TP))
    told = run_pass(tmp_path, EXPIRED, dry_run=True)
    assert (contents(tmp_path), contents(tmp_path / str(TP))) == before
    assert told == run_pass(tmp_path, EXPIRED)


def test_5_8_the_daemon_deletes_later(tmp_path: Path) -> None:
    """C119, C120: the segments leave the log at once, with all their files, which are deleted when it is time."""
    directory = write_log(tmp_path)
    stop_broker(tmp_path, 15)
    waiting: list[str] = []
    run_pass(tmp_path, EXPIRED, dispose=waiting.extend)
    assert bases(tmp_path) == [15]
    left = {str(path) for path in directory.iterdir() if path.name.endswith(".deleted")}
    assert left == set(waiting)
    kinds = {(int(Path(path).name[:20]), Path(path).name[20:]) for path in waiting}
    assert kinds == {
        (base, f"{kind}.deleted")
        for base in (0, 5, 10)
        for kind in SEGMENT_KINDS
        if (base, kind) != (0, ".snapshot")
    }


def test_a_tiered_log_keeps_what_its_broker_may_not_have_copied(tmp_path: Path) -> None:
    """Plain local retention would lose it; what lies below the log start goes all the same (6.3)."""
    write_log(tmp_path, 20)
    stop_broker(tmp_path, 20)
    tiered = EXPIRED.but(remote_storage_enable=True)
    assert run_pass(tmp_path, tiered) is None
    write_log_start(tmp_path, {TP: 10})
    retained = run_pass(tmp_path, tiered)
    assert retained.reasons == (Breach.LOG_START_OFFSET,)
    assert (bases(tmp_path)[0], log_start_entries(tmp_path)[TP]) == (10, 10), "else its broker starts it at 0"
    assert run_pass(tmp_path, EXPIRED) is not None


@pytest.mark.parametrize("broker_comes_after", [1, 2, 100])
def test_many_segments_go_in_several_holds_of_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker_comes_after: int
) -> None:
    """A broker that starts meanwhile gets its turn; what has gone by then is whole, and reported."""
    monkeypatch.setattr(retain_module, "_SEGMENTS_AT_ONCE", 2)
    write_log(tmp_path, 40)
    stop_broker(tmp_path, 40)
    holds, lock = [], LogDir.lock

    def counted(log_dir: LogDir) -> LogDirLock:
        holds.append(bases(tmp_path))
        if len(holds) > broker_comes_after:
            raise LockHeld("a broker has it", 1)
        return lock(log_dir)

    monkeypatch.setattr(LogDir, "lock", counted)
    retained = run_pass(tmp_path, EXPIRED)
    gone = {1: 2, 2: 4, 100: 8}[broker_comes_after]
    assert (retained.segments, retained.rolled, retained.log_start_offset) == (gone, gone == 8, 5 * gone)
    assert holds[:3] == [list(range(5 * n, 40, 5)) for n in (0, 2, 4)][: len(holds)]
    assert bases(tmp_path) == list(range(5 * gone, 40, 5)) or [40]
    assert offsets(tmp_path) == list(range(5 * gone, 40))


@pytest.mark.parametrize(
    ("policy", "log_start", "goes"), [("compact", 0, 0), ("compact", 7, 1), ("delete", 0, 2)]
)
def test_a_log_that_can_lose_nothing_is_not_looked_at(
    tmp_path: Path, policy: str, log_start: int, goes: int
) -> None:
    """Rule 1.28: of a compacted log only what lies below its log start goes, which is then in a checkpoint."""
    log_dir = tmp_path / "logs"
    write_log(log_dir)
    if log_start:
        update_checkpoint(FILES, str(log_dir), names.LOG_START_CHECKPOINT, {TP: log_start})
    looked = list[str]()
    files = HookedFiles(lambda call, path: looked.append(path) if call == "list_names" else None)
    done = retain_log(
        LogDir(files, str(log_dir), FixedNow(NOW_MS), is_kafka=False), TP, read_checkpoints(FILES, str(log_dir)),
        EXPIRED.but(cleanup_policy=(policy,)), dry_run=True,
    )  # fmt: skip
    assert (done.segments if done is not None else 0) == goes
    assert bool(looked) == bool(goes)
