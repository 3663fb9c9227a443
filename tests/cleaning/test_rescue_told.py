"""What `cleanerd rescue` tells the person who has to go on: what is missing, and what would help that."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.cli import rescue
from cleanerd.cli.main import make_parser
from cleanerd.env.files import FileStat
from cleanerd.env.space import space_of
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.test_rescue import SEGMENT_BYTES, full, rescued, run
from tests.harness.ctl import captured
from tests.harness.logs.troubled import contents, lock_of_another

KNOWN = ("--topic-set=t:cleanup.policy=compact", f"--topic-set=t:segment.bytes={SEGMENT_BYTES}")


def table(spark: LazySpark, log_dir: Path, *options: str) -> str:
    words = ["rescue", f"--log-dir={log_dir}", *KNOWN, *options]
    return captured(lambda words: rescue.run(make_parser().parse_args(words), spark), words).stdout


def test_the_shortfall_is_one_number(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full", every=3) as log_dir:
        _, plan, _ = run(spark, log_dir)
        assert plan["missing_bytes"] == plan["start_bytes"] - plan["free_bytes_after"] > 0
        assert ": 146.8 kB are missing\n" in table(spark, log_dir)


def test_enough_for_a_start_may_be_less_than_was_asked_for(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full") as log_dir:
        code, plan, _ = run(spark, log_dir, "--until=90%")
        assert (code, plan["missing_bytes"], plan["is_enough"]) == (1, 0, True)
        told = table(spark, log_dir, "--until=90%")
        assert "enough for a start" in told
        assert "are missing to the 13.2 MB of --until" in told


def test_what_a_roll_would_free_is_estimated_and_not_done(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full", every=3) as log_dir:
        active = max((log_dir / "t-0").glob("*.log"))
        _, plan, _ = run(spark, log_dir)
        (roll,) = (text for text in plan["would_help"] if text.startswith("a roll"))
        assert active.stat().st_size == 741_578, roll
        assert "t-0 741.6 kB of that, and at most that would go" in roll


@pytest.mark.parametrize("way", [(), ("--yes",)])
def test_what_a_backup_by_hard_links_keeps_is_not_promised_nor_tried(
    spark: LazySpark, tmp_path: Path, way: Sequence[str]
) -> None:
    with full(tmp_path / "full") as log_dir:
        back_up(log_dir, 12)
        before = contents(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, *way)
        assert (code, done["free_bytes_after"] < 64 << 10) == (1, True)
        (step,) = (one for one in done["steps"] if one["name"] == "compaction")
        assert (step["outcome"], step["frees_bytes"]) == ("failed", 0)
        assert "have another name on this disk (hard links" in step["reason"]
        assert {name: size for name, size in contents(log_dir / "t-0").items() if name.endswith(".log")} == {
            name: size for name, size in before.items() if name.endswith(".log")
        }


def test_of_a_log_that_is_partly_in_a_backup_by_hard_links_the_rest_is_promised_and_freed(
    spark: LazySpark, tmp_path: Path
) -> None:
    with full(tmp_path / "full") as log_dir:
        linked = back_up(log_dir, 8)
        inodes = [path.stat().st_ino for path in linked]
        _, plan, _ = run(spark, log_dir, "--until=90%")
        _, done, _ = run(spark, log_dir, "--until=90%", "--yes")
        (promised,) = (one for one in plan["steps"] if one["name"] == "compaction")
        (freed,) = (one for one in done["steps"] if one["name"] == "compaction")
        assert 1.9e6 < promised["frees_bytes"] == freed["frees_bytes"] < 2.1e6
        assert plan["free_bytes_after"] <= done["free_bytes_after"] == space_of(str(log_dir)).free_bytes
        assert [path.stat().st_ino for path in linked] == inodes, "none of these was written anew"


def test_what_retention_takes_is_promised_once(spark: LazySpark, tmp_path: Path) -> None:
    """Not again by the cleaning of the segments that will have gone by then."""
    options = (
        f"--topic-set=t:segment.bytes={SEGMENT_BYTES}",
        "--topic-set=t:cleanup.policy=compact,delete",
        "--topic-set=t:retention.bytes=6000000",
        "--until=90%",
    )
    with full(tmp_path / "full") as log_dir:
        plan, done = (rescued(spark, log_dir, *options, *way)[1] for way in ([], ["--yes"]))
        promised, freed = (
            {step["name"]: step["frees_bytes"] for step in one["steps"]} for one in (plan, done)
        )
        assert promised["retention"] == freed["retention"] > 4e6
        assert promised["compaction"] == freed["compaction"] > 3e6
        assert plan["free_bytes_after"] <= done["free_bytes_after"]


def test_on_a_file_system_that_compresses_old_and_new_files_count_alike(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ZFS and btrfs do: a segment that keeps two thirds of its bytes takes half of them on the disk."""
    of = FileStat.of
    monkeypatch.setattr(FileStat, "of", lambda found: compressed(of(found)))
    with full(tmp_path / "full", every=3) as log_dir:
        os.truncate(log_dir / "filler", 1 << 20)
        free_bytes = space_of(str(log_dir)).free_bytes
        _, done, _ = run(spark, log_dir, "--until=90%", "--yes")
        (freed,) = (one for one in done["steps"] if one["name"] == "compaction")
        assert freed["outcome"] == "done"
        assert freed["frees_bytes"] == pytest.approx(done["free_bytes_after"] - free_bytes, rel=0.1)


def compressed(stat: FileStat) -> FileStat:
    return replace(stat, disk_bytes=stat.disk_bytes // 2)


def back_up(log_dir: Path, segments: int) -> list[Path]:
    """The oldest segments get another name in a directory beside their log."""
    (log_dir / "backup").mkdir()
    linked = sorted((log_dir / "t-0").glob("*.log"))[:segments]
    for path in linked:
        os.link(path, log_dir / "backup" / path.name)
    return linked


def test_beside_a_live_broker_no_spare_is_advised(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full", every=3) as log_dir, lock_of_another(log_dir / ".lock"):
        (log_dir / "t-0" / f"{0:020}.log.deleted").touch()
        before = contents(log_dir / "t-0")
        for way in ([], ["--yes"]):
            code, done, _ = run(spark, log_dir, *way)
            assert (code, contents(log_dir / "t-0")) == (1, before), (
                "it cannot be asked, so nothing is touched"
            )
            assert "--set cleanerd.commit.live=auto" in done["would_help"][0]
            assert "--spare" not in str(done["would_help"]), done


@pytest.mark.parametrize("how", ["another user", "read-only"])
def test_who_cannot_write_there_is_told_before_anything_is_tried(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The plan can be read by anybody, and says it first."""
    with full(tmp_path / "full") as log_dir:
        before = contents(log_dir / "t-0")
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(log_dir)], check=True)
        else:
            real = os.access
            monkeypatch.setattr(
                os, "access", lambda path, *a, **k: path != str(log_dir) and real(path, *a, **k)
            )
        said = (
            "mounted read-only" if how == "read-only" else "cannot write there: run this as its owner, root"
        )
        _, plan, _ = run(spark, log_dir)
        assert said in plan["would_help"][0]
        code, _, told = run(spark, log_dir, "--yes")
        assert (code, said in told, contents(log_dir / "t-0")) == (1, True, before), told
