"""A full disk is freed without deleting data: on a tmpfs that is full to the last byte, or name."""

import errno
import itertools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from cleanerd.cleaning.choose import Candidate
from cleanerd.cleaning.clean import Cleaner
from cleanerd.cleaning.result import LogResult
from cleanerd.cli import rescue
from cleanerd.cli.main import make_parser
from cleanerd.env.files import RealFiles
from cleanerd.env.space import space_of
from cleanerd.errors import LogUncleanable
from cleanerd.format.names import RESCUE, TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.spare import on_spare
from tests.harness.ctl import captured
from tests.harness.disks.counted import CHANGES
from tests.harness.disks.hooked import HookedFiles
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import META_PROPERTIES, contents, newest, put, stop_broker
from tests.harness.programs import need

SEGMENT_BYTES = 1_000_000
RECORDS, KEYS = 12_000, 1_000


@contextmanager
def full(log_dir: Path, *options: str, every: int = 1, segment_bytes: int = SEGMENT_BYTES) -> Iterator[Path]:
    """Twelve segments, of which the last one has the newest value of every key, and not a byte more on their disk.

    Only of `every` so manyth record; the others have keys of their own, so that every segment keeps most of it.
    """
    log_dir.mkdir()
    with mounted(log_dir, *(options or ("-t", "tmpfs", "-o", "size=14m", "none"))):
        records = (
            (b"key %d" % (number % KEYS if number % every == 0 else number + KEYS), os.urandom(900))
            for number in range(RECORDS)
        )
        stop_broker(log_dir, {"t": put(log_dir, "t", records, segment_bytes=segment_bytes)})
        fill(log_dir)
        yield log_dir


def fill(log_dir: Path) -> None:
    with suppress(OSError), (log_dir / "filler").open("wb") as filler:
        while True:
            os.write(filler.fileno(), bytes(4096))
    assert space_of(str(log_dir)).free_bytes < 64 << 10, "XFS keeps some for itself"


def image_of(path: Path, size_bytes: int, *make: str) -> Path:
    """A file system in a file."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run([need(make[0], make[0]), *make[1:], "-q", str(path)], check=True)
    return path


def run(spark: LazySpark, log_dir: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Of a directory without a metadata log: exit code, what is said of it, and what was told."""
    known = ("--topic-set=t:cleanup.policy=compact", f"--topic-set=t:segment.bytes={SEGMENT_BYTES}")
    return rescued(spark, log_dir, *known, *options)


def rescued(spark: LazySpark, log_dir: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    words = ["rescue", f"--log-dir={log_dir}", "-o", "json", *options]

    def command(words: Sequence[str]) -> int:
        return rescue.run(make_parser().parse_args(words), spark)

    done = captured(command, words)
    rows = json.loads(done.stdout)["log_dirs"]
    return done.returncode, rows[0] if rows else {}, done.stderr


def test_a_plan_says_what_each_step_needs_and_frees_and_changes_nothing(
    spark: LazySpark, tmp_path: Path
) -> None:
    with full(tmp_path / "full") as log_dir:
        (log_dir / "t-0" / f"{0:020}.log.deleted").touch()
        before = contents(log_dir / "t-0")
        code, plan, _ = run(spark, log_dir, "--until=0.1%")
        assert code == 0
        assert plan["until_bytes"] == plan["start_bytes"], "less than a start takes is never enough"
        assert contents(log_dir / "t-0") == before
        (step,) = (one for one in plan["steps"] if one["name"] == "compaction")
        assert (step["logs"], step["outcome"]) == ("t-0", "planned")
        assert 0 < step["needs_bytes"] < 16_384, "the groups that become empty need least"
        assert step["frees_bytes"] > 9e6
        assert (plan["free_bytes"], plan["is_enough"]) == (0, True)


def test_a_disk_without_a_byte_is_freed_and_no_key_is_lost(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full") as log_dir:
        before = newest(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, "--yes")
        assert code == 0
        assert space_of(str(log_dir)).free_bytes == done["free_bytes_after"] > 9e6
        assert [step["name"] for step in done["steps"]] == ["indexes", "compaction"]
        assert newest(log_dir / "t-0") == before
        assert len(before) == KEYS


@pytest.mark.parametrize("has_lock", [False, True])
def test_xfs_which_makes_no_file_long_before_its_last_byte_is_freed(
    spark: LazySpark, tmp_path: Path, has_lock: bool
) -> None:
    """Neither `.cleanerd.lock` nor a `.lock` that is not there. Where the indexes are small the way out is told."""
    image = image_of(tmp_path / "image", 310 << 20, "mkfs.xfs")
    segment_bytes = SEGMENT_BYTES // 10 if has_lock else SEGMENT_BYTES
    with full(tmp_path / "full", "-o", "loop", str(image), segment_bytes=segment_bytes) as log_dir:
        before = newest(log_dir / "t-0")
        with pytest.raises(OSError, match="No space left"):
            (log_dir / ".cleanerd.lock").touch()
        if not has_lock:
            (log_dir / ".lock").unlink()
            code, done, told = run(spark, log_dir, "--yes", "--until=2%")
            assert (code, newest(log_dir / "t-0")) == (1, before), (done, told)
            advice = re.search(r"`(xfs_io .*?)`", "; ".join(done["would_help"]))
            assert advice is not None, done
            subprocess.run(
                shlex.split(need("xfs_io", "xfsprogs") + advice[1].removeprefix("xfs_io")), check=True
            )
        code, done, told = run(spark, log_dir, "--yes", "--until=2%" if has_lock else "--until=8%")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert newest(log_dir / "t-0") == before


def test_as_many_indexes_go_as_give_a_group_its_room(spark: LazySpark, tmp_path: Path) -> None:
    """Every segment keeps more than half of it; there are many small ones."""
    small = ("-t", "tmpfs", "-o", "size=32m", "none")
    with full(tmp_path / "full", *small, every=3, segment_bytes=SEGMENT_BYTES // 50) as log_dir:
        before = newest(log_dir / "t-0")
        code, plan, _ = run(spark, log_dir, "--until=5%")
        assert (code, [step["name"] for step in plan["steps"]]) == (0, ["indexes", "compaction"])
        needed, made = plan["steps"][1]["needs_bytes"], plan["steps"][0]["frees_bytes"]
        assert 512 << 10 < needed <= made
        code, done, told = run(spark, log_dir, "--yes", "--until=5%")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        names = [step["name"] for step in done["steps"]]
        assert names == ["indexes", "indexes", "compaction"], "first as many as any log needs"
        made = sum(step["frees_bytes"] for step in done["steps"][:2])
        assert done["start_bytes"] > made, "the broker makes them again"
        assert newest(log_dir / "t-0") == before


@pytest.mark.parametrize(("kind", "has_room"), [("tmpfs", False), ("tmpfs", True), ("ext4", True)])
def test_a_disk_without_a_name_is_freed(spark: LazySpark, tmp_path: Path, kind: str, has_room: bool) -> None:
    """0 inodes: not even a lock file can be made, however many bytes are free."""
    options = ["-t", "tmpfs", "-o", "size=64m,nr_inodes=64", "none"]
    if kind == "ext4":
        options = ["-o", "loop", str(image_of(tmp_path / "image", 64 << 20, "mkfs.ext4", "-m0", "-N160"))]
    with full(tmp_path / "full", *options) as log_dir:
        before, number = newest(log_dir / "t-0"), 0
        os.truncate(log_dir / "filler", 0) if has_room else None
        with suppress(OSError):
            while True:
                (log_dir / f"name{number}").touch()
                number += 1
        assert os.statvfs(log_dir).f_favail == 0
        code, done, told = run(spark, log_dir, "--yes")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert os.statvfs(log_dir).f_favail >= 3
        assert newest(log_dir / "t-0") == before


def test_where_root_has_filled_what_is_kept_for_it_the_way_out_is_told(
    spark: LazySpark, tmp_path: Path
) -> None:
    """What is freed goes there first, so that nothing can be written."""
    image = image_of(tmp_path / "image", 24 << 20, "mkfs.ext4", "-m5")
    with full(tmp_path / "full", "-o", "loop", str(image)) as log_dir:
        before = newest(log_dir / "t-0")
        for way in ([], ["--yes"]):
            code, done, _ = run(spark, log_dir, *way)
            assert (code, done["steps"][-1]["outcome"], done["is_enough"]) == (1, "no_room", False), done
            assert done["reserved_bytes"] > 0
        device = subprocess.check_output(["findmnt", "-no", "SOURCE", "-T", str(log_dir)], text=True).strip()
        subprocess.run([need("tune2fs", "e2fsprogs"), "-m0", device], check=True)
        code, done, told = run(spark, log_dir, "--yes")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert newest(log_dir / "t-0") == before


def test_what_a_start_of_the_broker_would_delete_goes_first(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing else is done, if that is enough; and nothing at all where enough is free."""
    with full(tmp_path / "full") as log_dir:
        (log_dir / "filler").rename(log_dir / "t-0" / f"{0:020}.log.deleted")
        deleted = log_dir / f"u-0.{'0' * 32}-delete"
        deleted.mkdir()
        before = sorted((log_dir / "t-0").glob("*.log"))
        with monkeypatch.context() as patched:
            patched.setattr("cleanerd.cli.clean._holds_of", lambda *_: {TopicPartition("u", 0): "held"}.get)
            code, done, _ = run(spark, log_dir, "--yes", "--until=5%")
        assert (code, [step["name"] for step in done["steps"]]) == (0, ["leftovers"])
        assert sorted((log_dir / "t-0").glob("*.log")) == before
        assert deleted.exists(), "held: whoever paused it may want what is left of it"
        for way in ([], ["--yes"]):
            code, done, _ = run(spark, log_dir, "--until=5%", *way)
            assert (code, done["steps"]) == (0, []), "enough is free"
        assert deleted.exists()


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_an_error_at_any_operation_of_the_first_steps_loses_nothing(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """ENOSPC and EIO in turn, in (a) and (b): no traceback, and the next rescue goes on."""
    made, log_dir = tmp_path / "made", tmp_path / "full"
    made.mkdir()
    ends = {
        topic: put(
            made, topic, ((b"key %d" % n, os.urandom(900)) for n in range(1500)), segment_bytes=500_000
        )
        for topic in ("t", "d")
    }
    stop_broker(made, ends)
    deleted = made / f"u-0.{'0' * 32}-delete"
    deleted.mkdir()
    (deleted / f"{0:020}.log").write_bytes(bytes(100_000))
    (made / "t-0" / f"{0:020}.log.deleted").write_bytes(bytes(100_000))
    (made / ".lock").touch()
    options = ["--yes", "--until=12%", "--topic-set=d:cleanup.policy=delete", "--topic-set=d:retention.ms=1"]
    newest_t, all_d = newest(made / "t-0"), [*newest(made / "d-0").items()]
    for failing in itertools.count(0, step):
        log_dir.mkdir(exist_ok=True)
        seen = itertools.count()

        def fail(call: str, path: str, _seen: Any = seen, _failing: int = failing) -> None:
            if call in CHANGES and next(_seen) == _failing:
                raise OSError((errno.ENOSPC, errno.EIO)[_failing % 2], "injected", path)

        with mounted(log_dir, "-t", "tmpfs", "-o", "size=8m", "none"):
            copytree(made, log_dir, dirs_exist_ok=True)
            fill(log_dir)
            with monkeypatch.context() as patched:
                patched.setattr(rescue, "RealFiles", partial(HookedFiles, fail))
                _, done, told = run(spark, log_dir, *options)
            assert "Traceback" not in told
            code, again, told = run(spark, log_dir, *options)
            assert (code, again["is_enough"]) == (0, True), (failing, done, again, told)
            assert newest(log_dir / "t-0") == newest_t
            left = [*newest(log_dir / "d-0").items()]
            assert left
            assert left == all_d[-len(left) :]
        if next(seen) <= failing:
            break
    assert failing > 10


def test_where_no_group_fits_the_first_one_goes_through_a_spare(spark: LazySpark, tmp_path: Path) -> None:
    """Every segment keeps more than half of it. From the first exchange on there is room beside the old segments."""
    spare = tmp_path / "spare"
    spare.mkdir()
    with full(tmp_path / "full", every=3) as log_dir:
        before = newest(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, "--yes")
        assert (code, done["is_enough"]) == (1, False)
        assert "--spare DIR, a directory on another file system with" in done["would_help"][0]
        assert newest(log_dir / "t-0") == before
        code, plan, _ = run(spark, log_dir, f"--spare={spare}")
        assert (code, [step["name"] for step in plan["steps"]]) == (0, ["spare"])
        code, done, told = run(spark, log_dir, "--yes", f"--spare={spare}")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert {step["name"]: step["outcome"] for step in done["steps"]} == {
            "spare": "done",
            "compaction": "done",
        }
        assert newest(log_dir / "t-0") == before
        assert list(spare.iterdir()) == []
        assert not list((log_dir / "t-0").glob("*rescue*"))


def test_what_was_interrupted_is_no_success_however_much_is_free(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources have gone, and their newest values lie on the spare alone. The next rescue goes on."""
    spare = tmp_path / "spare"
    spare.mkdir()

    def fail(_files: RealFiles, source: str, _target: str, _like: str) -> None:
        raise OSError(5, "injected", source)

    def fail_once(files: RealFiles, source: str, target: str, like: str) -> None:
        monkeypatch.setattr(RealFiles, "copy_in", copy_in)
        fail(files, source, target, like)

    copy_in = RealFiles.copy_in
    with full(tmp_path / "full", every=3) as log_dir:
        before = newest(log_dir / "t-0")
        with monkeypatch.context() as patched:
            patched.setattr(RealFiles, "copy_in", fail)
            code, done, _ = run(spark, log_dir, "--yes", f"--spare={spare}", "--until=1%")
        assert (code, done["is_interrupted"], done["is_enough"]) == (1, True, False)
        code, plan, _ = run(spark, log_dir)
        assert (code, plan["steps"][0]["name"], plan["steps"][0]["outcome"]) == (0, "resumed", "planned")
        spare.rename(tmp_path / "not mounted")
        code, plan, _ = run(spark, log_dir)
        assert (code, plan["steps"][0]["outcome"], plan["is_enough"]) == (1, "failed", False)
        (tmp_path / "not mounted").rename(spare)
        (staged,) = spare.glob("*/*.log.cleanerd")
        content, times = staged.read_bytes(), staged.stat()
        staged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(staged, ns=(times.st_atime_ns, times.st_mtime_ns))
        code, done, _ = run(spark, log_dir, "--yes", "--until=1%")  # no broker gets what has rotted there
        assert (code, done["is_interrupted"], "CRC" in done["steps"][0]["reason"]) == (1, True, True)
        staged.write_bytes(content)
        os.utime(staged, ns=(times.st_atime_ns, times.st_mtime_ns))
        monkeypatch.setattr(
            RealFiles, "copy_in", fail_once
        )  # as where there is no room yet: tried again at the end
        code, done, told = run(spark, log_dir, "--yes", "--until=1%")
        assert (code, done["is_interrupted"]) == (0, False), (done, told)
        assert newest(log_dir / "t-0") == before


@pytest.mark.parametrize("accident", ["full", "gone"])
def test_a_spare_that_is_full_or_vanishes_leaves_the_log_as_it_is(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accident: str
) -> None:
    """And what would help is told."""
    spare, stage = tmp_path / "spare", Cleaner.stage
    spare.mkdir()

    def losing(cleaner: Cleaner, candidates: Sequence[Candidate]) -> list[LogResult]:
        staged = stage(cleaner, candidates)
        for directory in spare.iterdir() if accident == "gone" else ():
            rmtree(directory)
        return staged

    monkeypatch.setattr(Cleaner, "stage", losing)
    room = "256k" if accident == "full" else "16m"
    with (
        full(tmp_path / "full", every=3) as log_dir,
        mounted(spare, "-t", "tmpfs", "-o", f"size={room}", "none"),
    ):
        before = newest(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, "--yes", f"--spare={spare}", "--until=1%")
        (step,) = (one for one in done["steps"] if one["name"] == "spare")
        assert (code, step["frees_bytes"], newest(log_dir / "t-0")) == (1, 0, before)
        if accident == "full":
            code, plan, _ = run(spark, log_dir, f"--spare={spare}", "--until=1%")
            foreseen = [one["outcome"] for one in plan["steps"] if one["name"] == "spare"]
            assert (code, foreseen, plan["is_enough"]) == (1, ["no_room"], False), plan
            assert "another file system with 679.9 kB free" in plan["would_help"][0]
            assert (step["outcome"], f"the file system of {spare}" in step["reason"]) == ("no_room", True), (
                step
            )
            assert "another file system with" in done["would_help"][0]
        else:
            assert (step["outcome"], "No such file or directory" in step["reason"]) == ("failed", True), step
        assert not (log_dir / "t-0" / RESCUE).exists()
        assert not list(spare.iterdir())


@pytest.mark.parametrize("is_rotten", [False, True])
def test_what_no_longer_fits_the_log_does_not_take_its_place(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rotten: bool
) -> None:
    """A broker has started while the group was written, has cut off what superseded its records, and is gone again. Or the
    spare does not give back what was written to it.
    """
    spare, stage = tmp_path / "spare", Cleaner.stage
    spare.mkdir()
    with full(tmp_path / "full", every=3) as log_dir:
        logs = sorted((log_dir / "t-0").glob("*.log"))

        def cutting(cleaner: Cleaner, candidates: Sequence[Candidate]) -> list[LogResult]:
            staged = stage(cleaner, candidates)
            for path in logs[-3:] if not is_rotten else ():
                path.unlink()
            for path in spare.glob(f"*/{0:020}.log.cleanerd") if is_rotten else ():
                times = path.stat()
                path.write_bytes(path.read_bytes()[:-1] + b"!")
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            return staged

        monkeypatch.setattr(Cleaner, "stage", cutting)
        before = {path: path.read_bytes() for path in logs[:-3]}
        _, done, _ = run(spark, log_dir, "--yes", f"--spare={spare}", "--until=1%")
        assert {path: path.read_bytes() for path in logs[:-3]} == before
        assert ("CRC" if is_rotten else "which follows the cleaned range, is gone") in str(done["steps"])
        assert list(spare.iterdir()) == []


def test_a_spare_on_the_same_disk_is_refused(spark: LazySpark, tmp_path: Path) -> None:
    with full(tmp_path / "full", every=3) as log_dir:
        (log_dir.parent / "full" / "spare").mkdir()
        before = newest(log_dir / "t-0")
        code, done, _ = run(spark, log_dir, "--yes", f"--spare={log_dir / 'spare'}")
        assert code == 1
        assert "expected a directory on another file system" in done["would_help"][0]
        assert newest(log_dir / "t-0") == before
        spare = tmp_path / "logs-2" / "spare"
        spare.mkdir(parents=True)
        (tmp_path / "logs-2" / "meta.properties").touch()
        with pytest.raises(LogUncleanable, match="expected a directory of no broker"):
            on_spare(str(spare), str(log_dir), "t-0")  # no broker would start with it
        for spare, why in (
            (log_dir, "expected a directory on another file system"),
            (tmp_path / "nowhere", "No such file or directory"),
            (Path("/dev/null"), "expected a directory, found something else"),
        ):
            code, plan, _ = run(spark, log_dir, f"--spare={spare}")
            assert (code, plan["is_enough"], why in str(plan["steps"])) == (1, False, True)


def test_a_plan_promises_no_spare_and_no_retention_where_no_broker_was(
    spark: LazySpark, tmp_path: Path
) -> None:
    """Nothing there says that these topics are not compacted, so a shorter retention is no advice."""
    spare = tmp_path / "spare"
    spare.mkdir()
    with full(tmp_path / "full", every=3) as log_dir:
        for path in log_dir.iterdir():
            path.unlink() if path.is_file() and path.name != "filler" else None
        fill(log_dir)
        code, plan, _ = run(spark, log_dir, f"--spare={spare}")
        assert (code, plan["steps"][0]["outcome"], plan["is_enough"]) == (1, "no_room", False)
        code, done, _ = run(spark, log_dir, f"--spare={spare}", "--yes")
        assert (code, "--spare helps only" in str(done["would_help"])) == (1, True)
        code, plan, _ = rescued(spark, log_dir)
        assert (code, "retention.ms" in str(plan), "cleanup.policy for t-0" in str(plan)) == (1, False, True)


def test_another_nodes_directory_is_not_touched(spark: LazySpark, tmp_path: Path) -> None:
    """No broker would start with it."""
    with full(tmp_path / "full") as log_dir:
        (log_dir / "t-0" / f"{0:020}.log.deleted").touch()
        before = contents(log_dir / "t-0")
        code, _, told = run(spark, log_dir, "--yes", "--set=node.id=7", f"--set=log.dirs={log_dir}")
        assert (code, contents(log_dir / "t-0")) == (1, before)
        assert "node.id" in told


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_what_nobody_vouches_for_is_left_alone(spark: LazySpark, tmp_path: Path, policy: str) -> None:
    """The rules of architecture 2 hold here as everywhere."""
    with full(tmp_path / "full") as log_dir:
        before = contents(log_dir / "t-0")
        (log_dir / "meta.properties").unlink() if policy == "compact" else None
        code, done, told = run(spark, log_dir, "--yes", f"--topic-set=t:cleanup.policy={policy}")
        assert (code, contents(log_dir / "t-0")) == (1, before)
        assert policy == "delete" or "meta.properties" in f"{done}{told}"
    assert META_PROPERTIES
