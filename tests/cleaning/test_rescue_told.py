"""What `cleanerd rescue` tells the person who has to go on: what is missing, and what would help that."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cleanerd.cli import rescue
from cleanerd.cli.main import make_parser
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.test_rescue import SEGMENT_BYTES, full, run
from tests.harness.ctl import captured
from tests.harness.disks.mounts import mounted
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
        (log_dir / "backup").mkdir()
        for path in sorted((log_dir / "t-0").glob("*.log"))[:2]:
            os.link(path, log_dir / "backup" / path.name)
        before = contents(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, *way)
        assert code == 1
        assert not [step for step in done["steps"] if step["frees_bytes"]], done["steps"]
        assert any(
            "t-0: left alone:" in text and "of it have another name" in text for text in done["would_help"]
        )
        assert contents(log_dir / "t-0") == before


def test_beside_a_live_broker_no_spare_is_advised(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full", every=3) as log_dir, lock_of_another(log_dir / ".lock"):
        for way in ([], ["--yes"]):
            _, done, _ = run(spark, log_dir, *way)
            assert "--set cleanerd.commit.live=auto" in done["would_help"][0]
            assert "--spare" not in str(done["would_help"]), done


def test_a_spare_without_room_is_no_plan(spark: LazySpark, tmp_path: Path) -> None:
    (tmp_path / "spare").mkdir()
    with (
        full(tmp_path / "full", every=3) as log_dir,
        mounted(tmp_path / "spare", "-t", "tmpfs", "-o", "size=256k", "none"),
    ):
        code, plan, _ = run(spark, log_dir, f"--spare={tmp_path / 'spare'}")
        assert (code, plan["steps"][0]["outcome"]) == (1, "no_room")
        assert "another file system with 679.9 kB free" in plan["would_help"][0]


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
