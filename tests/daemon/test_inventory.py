"""Which logs exist: scans that cost one `stat` for each directory, and what they report (rules 1.1, 1.4)."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.format.names import FileKind, Suffix
from tests.harness.daemon.inventories import (
    HOUR_MS,
    OLD_MS,
    Fixture,
    age,
    file_name,
    in_words,
    write_checkpoint,
    write_cleaner_checkpoint,
    write_log,
)
from tests.harness.logs.troubled import META_PROPERTIES

HOUR_S = HOUR_MS // 1000
CONST = 6  # stats of a log directory itself: meta.properties, four checkpoints, and one to spare


@pytest.fixture
def fixture(tmp_path: Path) -> Fixture:
    """Two log directories; logs a-0 and b-0 in the first."""
    dirs = [tmp_path / "one", tmp_path / "two"]
    for path in dirs:
        path.mkdir()
    for name in ("a-0", "b-0"):
        write_log(dirs[0] / name, {0: 100, 10: 200, 20: 50})
    return Fixture(dirs)


@pytest.mark.parametrize("is_touched", [False, True])
def test_1_1_logs_appear_and_vanish(fixture: Fixture, is_touched: bool) -> None:
    assert fixture.scan() == ["+ a-0", "+ b-0"]
    write_log(fixture.root / "c-1", {0: 1})
    shutil.rmtree(fixture.root / "a-0")
    found = fixture.scan_touched("a-0", "c-1", "never-there-0") if is_touched else fixture.scan()
    assert found == ["+ c-1", "- a-0"]
    assert [str(log) for log in fixture.inventory.logs()] == ["b-0", "c-1"]
    assert fixture.scan() == []


def test_facts_are_names_sizes_and_times(fixture: Fixture) -> None:
    """Rule 1.10: the last entry of the time index, else the time of the `.log`."""
    log = fixture.root / "a-0"
    (log / file_name(10, FileKind.TIME_INDEX)).write_bytes(b"")
    os.utime(log / file_name(10), ns=(0, 7_000_000))
    fixture.scan()
    known = fixture.known("a-0")
    facts = [segment.facts for segment in known.contents.closed]
    assert [(s.base_offset, s.size_bytes, s.offset_index_bytes, s.time_index_bytes) for s in facts] == [
        (0, 100, 8, 12),
        (10, 200, 8, 0),
    ]
    assert [s.largest_timestamp_ms for s in facts] == [OLD_MS, 7]
    assert (known.contents.active_base_offset, known.contents.size_bytes) == (20, 350)
    assert not known.contents.is_staged


@pytest.mark.parametrize("content", [b"", b"\xff" * 12, b"\xff" * 11, bytes(25)])
def test_broken_time_index_hides_nothing(fixture: Fixture, content: bytes) -> None:
    """An exact examination names the damage; here the segment counts as old enough to come that far."""
    (fixture.root / "a-0" / file_name(0, FileKind.TIME_INDEX)).write_bytes(content)
    os.utime(fixture.root / "a-0" / file_name(0), ns=(0, 0))
    fixture.scan()
    known = fixture.known("a-0")
    assert known.contents.closed[0].facts.largest_timestamp_ms <= 0


@pytest.mark.parametrize(
    "name",
    [
        "a-0.0123456789abcdef0123456789abcdef-delete",
        "a-0.0123456789abcdef0123456789abcdef-future",
        "a-0.0123456789abcdef0123456789abcdef-stray",
        "__cluster_metadata-0",
        "remote-log-index-cache",
        "a-",
        "a-01",
        "-",
        "lost+found",
    ],
)
def test_a5_what_is_no_log_is_left_alone(fixture: Fixture, name: str) -> None:
    write_log(fixture.root / name, {0: 100, 10: 1})
    assert fixture.scan() == ["+ a-0", "+ b-0"]
    assert fixture.errors() == {}


def test_a_log_that_cannot_be_looked_at_when_first_seen_is_listed(fixture: Fixture) -> None:
    """It exists, and its reason is told; it is gone when its directory is."""
    directory = fixture.root / "c-0"
    directory.mkdir()
    os.mkfifo(directory / file_name(0))
    fixture.scan()
    log = fixture.log("c-0")
    assert log in fixture.inventory.logs()
    assert fixture.inventory.facts(log) is None
    assert file_name(0) in (fixture.inventory.error(log) or "")
    shutil.rmtree(directory)
    fixture.scan()
    assert log not in fixture.inventory.logs()


def test_1_35_log_that_moves_vanishes_here_and_appears_there(fixture: Fixture) -> None:
    fixture.scan()
    future = fixture.dirs[1] / "a-0.0123456789abcdef0123456789abcdef-future"
    shutil.copytree(fixture.root / "a-0", future)
    assert fixture.scan() == []
    future.rename(fixture.dirs[1] / "a-0")
    shutil.rmtree(fixture.root / "a-0")
    report = fixture.inventory.scan([str(path) for path in fixture.dirs])
    assert report.vanished == [fixture.log("a-0")]
    assert report.appeared == [fixture.log("a-0", fixture.dirs[1])]


def test_directories_without_segments_and_plain_files_are_no_logs_yet(fixture: Fixture) -> None:
    (fixture.root / "c-0").mkdir()
    (fixture.root / "d-0").touch()
    assert fixture.scan() == ["+ a-0", "+ b-0"]
    write_log(fixture.root / "c-0", {0: 1})
    assert fixture.scan() == ["+ c-0"]
    assert fixture.errors() == {}


# -- what costs what ------------------------------------------------------------------------------------------


def test_idle_scan_is_two_stats_for_each_directory(fixture: Fixture) -> None:
    """Issue 3.4: thousands of partitions cost almost nothing; counted, not timed."""
    for number in range(200):
        write_log(fixture.root / f"many-{number}", {0: 100, 10: 200, 20: 50})
    fixture.scan()
    fixture.files.reset()
    for _ in range(3):
        fixture.scan()
    logs = len(fixture.inventory.logs())
    assert logs == 202
    assert len(fixture.files.stats) <= 3 * (2 * logs + CONST * len(fixture.dirs))
    assert fixture.files.lists == [str(path) for path in fixture.dirs] * 3
    assert fixture.files.reads == []


def test_roll_is_one_listing_and_no_second_look_at_old_segments(fixture: Fixture) -> None:
    fixture.scan()
    before = fixture.known("a-0").contents.closed
    fixture.files.reset()
    (fixture.root / "a-0" / file_name(30)).touch()
    assert fixture.scan() == ["~ a-0"]
    assert fixture.files.lists.count(str(fixture.root / "a-0")) == 1
    known = fixture.known("a-0")
    assert known.contents.closed[:2] == before
    assert known.contents.closed[0] is before[0]
    assert known.contents.active_base_offset == 30


def test_directory_changed_a_moment_ago_is_listed_again_by_the_next_scan(fixture: Fixture) -> None:
    """Two changes in one tick of the file system's clock have one time."""
    directory = fixture.root / "a-0"
    now_ns = fixture.clock.wall_ms * 1_000_000
    recent = now_ns - 1_500_000_000
    os.utime(directory, ns=(recent, recent))
    fixture.scan()
    (directory / file_name(30)).touch()
    os.utime(directory, ns=(recent, recent))
    assert fixture.scan() == ["~ a-0"]
    fixture.clock.advance(3_000)
    fixture.scan()
    fixture.files.reset()
    fixture.scan()
    assert str(directory) not in fixture.files.lists


def test_touched_directory_is_listed_whatever_its_times_say(fixture: Fixture) -> None:
    fixture.scan()
    directory = fixture.root / "a-0"
    stat = directory.stat()
    (directory / file_name(30)).touch()
    os.utime(directory, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.utime(fixture.root / "b-0", ns=(1, 1))
    (fixture.root / "b-0" / file_name(30)).touch()
    fixture.files.reset()
    assert fixture.scan_touched("a-0", "meta.properties") == ["~ a-0"]
    assert fixture.files.lists == [str(directory)]
    assert fixture.scan() == ["~ b-0"]


# -- staged results and segments that are being exchanged -----------------------------------------------------


def test_staged_results_and_exchanges_are_seen(fixture: Fixture) -> None:
    """A log in transition is not due: no examination would look at it (spec disk D2)."""
    directory = fixture.root / "a-0"
    (directory / file_name(0, FileKind.MANIFEST, Suffix.STAGED)).touch()
    (directory / file_name(0, FileKind.LOG, Suffix.STAGED)).touch()
    (fixture.root / "b-0" / file_name(0, FileKind.LOG, Suffix.CLEANED)).touch()
    fixture.scan()
    found = [fixture.known(name).contents for name in ("a-0", "b-0")]
    assert [(one.is_staged, one.in_transition) for one in found] == [(True, False), (False, True)]
    assert fixture.due_names() == ["a-0"]


# -- checkpoint files -----------------------------------------------------------------------------------------


def test_checkpoint_files_are_read_when_they_are_others(fixture: Fixture) -> None:
    fixture.scan()
    write_cleaner_checkpoint(fixture.root, {"a-0": 10, "gone-0": 5})
    fixture.files.reset()
    assert fixture.scan() == ["~ a-0"]
    assert fixture.files.reads == [str(fixture.root / names.CLEANER_OFFSET_CHECKPOINT)]
    assert fixture.scan() == []
    (fixture.root / names.CLEANER_OFFSET_CHECKPOINT).unlink()
    assert fixture.scan() == ["~ a-0"]


def test_high_watermark_that_moves_in_the_active_segment_is_no_change(fixture: Fixture) -> None:
    """It is written every 5 s, for every log of a broker."""
    (fixture.root / names.META_PROPERTIES).write_text(META_PROPERTIES)
    write_checkpoint(fixture.root, names.REPLICATION_CHECKPOINT, {"a-0": 25, "b-0": 15})
    fixture.scan()
    write_checkpoint(fixture.root, names.REPLICATION_CHECKPOINT, {"a-0": 29, "b-0": 16})
    assert fixture.scan() == ["~ b-0"]
    write_checkpoint(fixture.root, names.RECOVERY_POINT_CHECKPOINT, {"a-0": 10})
    assert fixture.scan() == ["~ a-0"]


def test_meta_properties_make_a_broker_directory(fixture: Fixture) -> None:
    """Without checkpoints nothing of it is known to be committed or to be flushed (spec disk G)."""
    fixture.scan()
    assert fixture.due_names() == ["a-0", "b-0"]
    (fixture.root / names.META_PROPERTIES).write_text(META_PROPERTIES)
    assert fixture.scan() == ["~ a-0", "~ b-0"]
    assert fixture.due_names() == []


# -- failures -------------------------------------------------------------------------------------------------


def test_4_log_directory_that_fails_goes_offline_alone_and_comes_back(fixture: Fixture) -> None:
    write_log(fixture.dirs[1] / "c-0", {0: 100, 10: 1})
    fixture.scan()
    write_cleaner_checkpoint(fixture.root, {"b-0": 10})  # is read just before
    fixture.files.broken[str(fixture.root)] = OSError(errno.EIO, "Input/output error", str(fixture.root))
    dirs = [str(path) for path in fixture.dirs]
    for _ in range(2):
        report = fixture.inventory.scan(dirs)
        assert report.offline == {str(fixture.root): f"{fixture.root}: Input/output error"}
        assert (report.vanished, report.back_online) == ([], [])
    assert fixture.due_names() == ["c-0"]
    assert len(fixture.inventory.logs()) == 3
    write_log(fixture.root / "d-0", {0: 1})
    fixture.files.broken.clear()
    report = fixture.inventory.scan(dirs)
    assert (report.offline, report.back_online) == ({}, [str(fixture.root)])
    assert in_words(report) == ["+ d-0", "~ b-0"]
    assert fixture.due_names() == ["a-0", "c-0", "b-0"]


@pytest.mark.parametrize("is_mount_point_left", [False, True])
@pytest.mark.parametrize(
    "when", ["before what was touched is looked at", "while it is listed", "after it is checked"]
)
def test_d14_the_logs_of_a_log_directory_that_goes_away_in_a_scan_have_not_vanished(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, when: str, is_mount_point_left: bool
) -> None:
    """A missing partition directory is a deleted log only in the log directory that was there before."""
    fixture.scan()
    away, real = fixture.root.with_name("away"), fixture.files.list_names

    def unmount() -> None:
        fixture.root.rename(away)
        if is_mount_point_left:
            fixture.root.mkdir()

    def list_names(path: str) -> list[str]:
        monkeypatch.undo()
        found = real(path) if when == "while it is listed" else []
        unmount()
        return found or real(path)

    if when == "before what was touched is looked at":
        unmount()
        assert fixture.scan_touched("a-0") == []
    else:
        monkeypatch.setattr(fixture.files, "list_names", list_names)
        assert fixture.scan() == []
    assert len(fixture.inventory.logs()) == 2
    assert fixture.due_names() == []
    with contextlib.suppress(FileNotFoundError):
        fixture.root.rmdir()
    away.rename(fixture.root)
    report = [fixture.inventory.scan([str(path) for path in fixture.dirs]) for _ in range(2)][-1]
    assert (report.vanished, report.appeared, report.offline) == ([], [], {})
    assert fixture.due_names() == ["a-0", "b-0"]


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_missing_log_directory_is_offline(fixture: Fixture, kind: str) -> None:
    shutil.rmtree(fixture.root)
    if kind == "a file":
        fixture.root.touch()
    report = fixture.inventory.scan([str(path) for path in fixture.dirs])
    assert report.offline.keys() == {str(fixture.root)}
    assert str(fixture.root) in report.offline[str(fixture.root)]


def test_1_4_checkpoint_that_cannot_be_read_takes_its_directory_offline(fixture: Fixture) -> None:
    """Kafka does the same, and then takes the checkpoint for empty: everything would look dirty."""
    fixture.scan()
    path = fixture.root / names.CLEANER_OFFSET_CHECKPOINT
    path.write_bytes(b"0\n2\na 0 5\n")
    for _ in range(2):
        report = fixture.inventory.scan([str(path) for path in fixture.dirs])
        assert str(path) in report.offline[str(fixture.root)]
    assert fixture.due_names() == []
    path.write_bytes(b"0\n1\na 0 20\n")
    assert fixture.scan() == ["~ a-0"]


def test_symbolic_link_is_an_error_and_the_others_go_on(fixture: Fixture) -> None:
    (fixture.root / "c-0").symlink_to(fixture.root / "a-0")
    assert fixture.scan() == ["+ a-0", "+ b-0", "~ c-0"]
    assert fixture.scan() == []
    assert len(fixture.inventory.logs()) == 2
    ((log, reason),) = fixture.errors().items()
    assert (str(log), reason) == (
        "c-0",
        f"{fixture.root / 'c-0'}: a symbolic link is not a partition directory",
    )
    assert fixture.due_names() == ["a-0", "b-0"]
    (fixture.root / "a-0").rename(fixture.dirs[1] / "hidden")
    (fixture.root / "a-0").symlink_to(fixture.dirs[1] / "hidden")
    fixture.inventory.touch(str(fixture.root), "a-0")
    assert fixture.scan() == ["~ a-0"]
    assert fixture.due_names() == ["b-0"]


def test_partition_that_cannot_be_read_is_an_error_until_it_can(fixture: Fixture) -> None:
    fixture.scan()
    directory = str(fixture.root / "a-0")
    fixture.files.broken[directory] = OSError(errno.EIO, "Input/output error", directory)
    os.utime(directory, ns=(5, 5))
    assert fixture.scan() == ["~ a-0"]
    assert fixture.scan() == []
    assert fixture.errors() == {fixture.log("a-0"): f"{directory}: Input/output error"}
    assert fixture.due_names() == ["b-0"]
    fixture.files.broken.clear()
    assert fixture.scan() == ["~ a-0"]
    assert fixture.errors() == {}
    assert fixture.due_names() == ["a-0", "b-0"]


def test_file_that_goes_away_while_its_directory_is_read_is_no_error(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention between the listing and the stat of a segment: the next scan sees what is left."""
    fixture.scan()
    directory = fixture.root / "a-0"
    age(directory)
    real = fixture.files.list_names

    def list_then_delete(path: str) -> list[str]:
        found = real(path)
        if path == str(directory):
            (directory / file_name(0)).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(fixture.files, "list_names", list_then_delete)
    assert fixture.scan() == []
    assert fixture.scan() == ["~ a-0"]
    known = fixture.known("a-0")
    assert [segment.facts.base_offset for segment in known.contents.closed] == [10]
    assert fixture.errors() == {}


def test_log_directory_that_is_left_out_is_offline_and_nothing_of_it_is_forgotten(fixture: Fixture) -> None:
    """Whoever finds a directory unusable for other reasons need not pretend that its logs are gone."""
    fixture.scan()
    rest = [str(fixture.dirs[1])]
    report = fixture.inventory.scan(rest)
    assert (report.vanished, report.offline) == ([], {})
    assert (fixture.due_names(), len(fixture.inventory.logs())) == ([], 2)
    fixture.inventory.touch(str(fixture.root), "a-0")
    assert fixture.inventory.scan_touched(rest).vanished == []
    report = fixture.inventory.scan([str(path) for path in fixture.dirs])
    assert (report.back_online, report.appeared) == ([str(fixture.root)], [])
    assert fixture.due_names() == ["a-0", "b-0"]


def test_a_log_whose_checkpoint_stays_is_not_looked_at_when_that_of_another_moves(fixture: Fixture) -> None:
    """After each commit the file is read: thousands of other logs are as they were."""
    fixture.scan()
    write_cleaner_checkpoint(fixture.root, {"a-0": 10, "b-0": 10})
    fixture.files.reset()
    assert fixture.scan_touched(names.CLEANER_OFFSET_CHECKPOINT) == ["~ a-0", "~ b-0"]
    assert len(fixture.files.stats) <= CONST
    before = fixture.known("b-0")
    write_cleaner_checkpoint(fixture.root, {"a-0": 20, "b-0": 10})
    assert fixture.scan_touched(names.CLEANER_OFFSET_CHECKPOINT) == ["~ a-0"]
    assert fixture.known("b-0") is before


def test_a_checkpoint_that_was_read_for_another_log_is_still_news_for_its_own(fixture: Fixture) -> None:
    """A job looks at its logs before the kernel reports that the file was written, maybe by the broker's cleaner, too."""
    write_cleaner_checkpoint(fixture.root, {"a-0": 10, "b-0": 10})
    fixture.scan()
    write_cleaner_checkpoint(fixture.root, {"a-0": 20, "b-0": 20})
    assert fixture.scan_touched("b-0") == ["~ b-0"]
    assert fixture.scan_touched(names.CLEANER_OFFSET_CHECKPOINT) == ["~ a-0"]


def test_a_checkpoint_file_of_another_time_is_another_one_for_what_is_newer(fixture: Fixture) -> None:
    """With the same entries: it lowers that of a log with a segment that was written later (rules 2.7, 2.9)."""
    write_cleaner_checkpoint(fixture.root, {"a-0": 20, "b-0": 20})
    fixture.scan()
    path = fixture.root / names.CLEANER_OFFSET_CHECKPOINT
    seconds = os.stat(path).st_mtime
    os.utime(fixture.root / "b-0" / file_name(0), (seconds - HOUR_S, seconds - HOUR_S))
    os.utime(fixture.root / "b-0" / file_name(10), (seconds - HOUR_S, seconds - HOUR_S))
    fixture.scan_touched("b-0")
    for age_s, changed in ((60, ["~ a-0"]), (60, []), (0, ["~ a-0"]), (0, [])):
        os.utime(path, (seconds - age_s, seconds - age_s))
        assert fixture.scan_touched(names.CLEANER_OFFSET_CHECKPOINT) == changed


def test_sizes_follow_the_growth_of_the_active_segment(fixture: Fixture) -> None:
    """Within one scan, and for one more `stat`: appending changes no directory, and is no change of what may be cleaned."""
    directory = fixture.root / "growing-0"
    write_log(directory, {0: 100, 10: 0})
    fixture.scan()
    for size in (623_000, 900_000, 800_000):
        with (directory / file_name(10)).open("r+b") as file:
            file.truncate(size)
        fixture.files.reset()
        assert fixture.scan() == []
        assert fixture.files.lists == [str(path) for path in fixture.dirs]
        assert fixture.known("growing-0").contents.size_bytes == sum(
            path.stat().st_size for path in directory.glob("*.log")
        )
