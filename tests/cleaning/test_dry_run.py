"""A dry run says what a run would do: what it removes, and what it takes of the disk."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.cleaning import round_size
from cleanerd.env.space import space_of
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.disks.hooked import HookedFiles
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import (
    GOOD,
    Ran,
    assert_settled,
    clean,
    contents,
    lock_of_another,
    put,
    size_of,
    stop_broker,
    write_logs,
)

SMALL_CHUNKS = ("--set=cleanerd.chunk.bytes=65536",)
FORESEEN = (
    "first_dirty_offset", "end_offset", "bytes_read", "bytes_before", "bytes_after", "records_read",
    "records_kept", "removed", "segments_before", "segments_after",
)  # fmt: skip


def write_records(log_dir: Path, records: int, *, value_bytes: int, segment_bytes: int) -> None:
    """A log of a stopped broker, a third of whose records is superseded."""
    log_dir.mkdir(exist_ok=True)
    keys = (b"hot" if number % 3 == 0 else b"key %d" % number for number in range(records))
    found = ((key, os.urandom(value_bytes)) for key in keys)
    stop_broker(log_dir, {"t": put(log_dir, "t", found, segment_bytes=segment_bytes)})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where every page counts."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=64m", "none"):
        yield place


def outlook(result: dict[str, object]) -> dict[str, object]:
    """What a dry run foresees of a log."""
    return {name: result[name] for name in FORESEEN}


def dry(session: LazySpark, log_dir: Path, *options: str) -> Ran:
    """A dry run; nothing changes."""
    before = {path: contents(path) for path in [log_dir, *log_dir.glob("*-0")]}
    ran = clean(session, log_dir, options=[*options, "--dry-run"])
    assert {path: contents(path) for path in [log_dir, *log_dir.glob("*-0")]} == before
    return ran


@pytest.mark.soak
@pytest.mark.parametrize(
    ("records", "value_bytes", "segment_bytes", "is_linked"),
    [(600, 900, 200_000, False), (9_000, 900, 4_000_000, False), (2_000, 20, 5_000, False), (4_000, 900, 400_000, True)],
    ids=["half a MB", "several chunks a segment", "segments of a page", "in a backup by hard links, and in rounds"],
)  # fmt: skip
def test_peak_extra_is_what_a_run_takes(
    spark: LazySpark,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    records: int,
    value_bytes: int,
    segment_bytes: int,
    is_linked: bool,
) -> None:
    """Never less; at most a tenth more, and a page for every file that is new."""
    log_dir = disk / "logs"
    write_records(log_dir, records, value_bytes=value_bytes, segment_bytes=segment_bytes)
    if is_linked:
        monkeypatch.setattr(round_size, "_BYTES_PER_CORE", segment_bytes)
        shutil.copytree(log_dir / "t-0", disk / "backup", copy_function=os.link)
    options = [f"--topic-set=t:segment.bytes={segment_bytes}", *SMALL_CHUNKS]
    plan = dry(spark, log_dir, *options).results["logs", "t"]
    free_bytes = [space_of(str(disk)).free_bytes]

    def note(call: str, _path: str) -> None:
        """How full the file system is at each step: the new files only grow between two of them."""
        if call in ("write", "rename", "unlink"):
            free_bytes.append(space_of(str(disk)).free_bytes)

    ran = clean(spark, log_dir, files=HookedFiles(note, note), options=options).results["logs", "t"]
    peak_bytes = free_bytes[0] - min(free_bytes)
    assert outlook(ran) == outlook(plan)
    assert plan["peak_extra_bytes"] == pytest.approx(peak_bytes, rel=0.1, abs=16 * 4096)
    assert plan["peak_extra_bytes"] >= peak_bytes
    assert ("hard links" in str(plan["reason"])) is is_linked
    assert not is_linked or peak_bytes > 2_000_000, "no round made room for the next one"


def test_what_is_staged_is_foreseen_as_committed(spark: LazySpark, tmp_path: Path) -> None:
    """Alone; or with what was appended since then, which is cleaned on top of it."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "more")
    with lock_of_another(log_dir / names.LOCK):
        assert clean(spark, log_dir).outcome("more") == "staged"
        assert dry(spark, log_dir).outcome("more") == "planned", "it cannot be committed, and is made again"
    newer = [(b"key %d" % (number % 5), b"newer %d" % number * 3) for number in range(160)]
    stop_broker(log_dir, {"more": put(log_dir, "more", newer, segment_bytes=4000), GOOD: 160})
    plan, ran = dry(spark, log_dir), clean(spark, log_dir)
    for topic in (GOOD, "more"):
        assert (plan.outcome(topic), ran.outcome(topic)) == ("planned", "committed")
        assert outlook(plan.results["logs", topic]) == outlook(ran.results["logs", topic])
        assert_settled(log_dir / f"{topic}-0")
        size = sum(path.stat().st_size for path in (log_dir / f"{topic}-0").glob("*.log"))
        assert ran.results["logs", topic]["bytes_after"] == size
    assert plan.results["logs", GOOD]["reason"] == "staged by an earlier cleaning"
    assert ran.results["logs", "more"]["records_read"] > 0


def test_a_log_that_cannot_be_looked_at_shows_its_size(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    (log_dir / "bad-0" / "leader-epoch-checkpoint").write_text("no checkpoint")
    ran = clean(spark, log_dir)
    assert "bad-0" in ran.reason("bad")
    size = sum(path.stat().st_size for path in (log_dir / "bad-0").glob("*.log"))
    result = ran.results["logs", "bad"]
    assert (result["bytes_before"], result["bytes_after"]) == (size, size)
    assert result["segments_before"] == len(list((log_dir / "bad-0").glob("*.log")))
    assert size < size_of(log_dir / "bad-0")
