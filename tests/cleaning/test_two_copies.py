"""A partition that lies in two log directories of a broker: neither copy is touched, all else goes on."""

import shutil
from pathlib import Path

import pytest

from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.commit.host import Commit
from cleanerd.cleaning.foreign import left_elsewhere
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import PolicyChanged
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from tests.harness.logs.troubled import clean, contents, lock_of_another, write_logs

TWICE, ONCE = TopicPartition("twice", 0), TopicPartition("once", 0)


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--set=log.cleanup.policy=compact,delete",)])
def test_both_copies_are_left_alone_and_each_names_the_other(
    spark: LazySpark, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Nor does retention take anything, though all of it has expired."""
    a, b = write_logs(tmp_path / "a", "twice", "once"), write_logs(tmp_path / "b", "twice")
    before = contents(a / "twice-0"), contents(b / "twice-0")
    ran = clean(spark, a, b, options=options)
    assert (contents(a / "twice-0"), contents(b / "twice-0")) == before
    assert ran.code == 1
    assert f"it lies in {b} as well" in ran.reason("twice", "a")
    assert f"it lies in {a} as well" in ran.reason("twice", "b")
    assert ran.outcome("once", "a") == ("planned" if "--dry-run" in options else "committed")


def test_a_copy_in_a_directory_that_is_not_asked_for_counts(spark: LazySpark, tmp_path: Path) -> None:
    """It is configured, so it is the broker's."""
    a, b = write_logs(tmp_path / "a", "twice"), write_logs(tmp_path / "b", "twice")
    ran = clean(spark, a, options=[f"--set=log.dirs={a},{b}"])
    assert f"it lies in {b} as well" in ran.reason("twice", "a")


def test_a_copy_that_appears_while_a_result_waits_drops_it(spark: LazySpark, tmp_path: Path) -> None:
    a, b = write_logs(tmp_path / "a", "twice"), write_logs(tmp_path / "b", "once")
    with lock_of_another(a / names.LOCK):
        assert clean(spark, a).outcome("twice", "a") == "staged"
    shutil.copytree(a / "twice-0", b / "twice-0")
    done = Committer(at(a, b)).commit([Commit(TWICE)])[TWICE]
    assert isinstance(done, PolicyChanged)
    assert f"it lies in {b} as well" in str(done)
    assert not list((a / "twice-0").glob("*.cleanerd"))


def test_what_is_no_copy(tmp_path: Path) -> None:
    """One that is about to be deleted, the target of a move, a file of that name, another broker's replica."""
    a, b = write_logs(tmp_path / "a", "twice", "once"), write_logs(tmp_path / "b")
    (tmp_path / "link").symlink_to(a)
    (b / f"twice-0.{'0' * 32}-delete").mkdir()
    (b / f"twice-0.{'1' * 32}-future").mkdir()
    (b / "once-0").write_text("")
    log_dir = at(a, b, tmp_path / "link", tmp_path / "gone")
    assert log_dir.copies([TWICE, ONCE]) == {}
    (b / "twice-0").mkdir()
    assert log_dir.copies([TWICE, ONCE]) == {TWICE: str(b)}
    meta = b / names.META_PROPERTIES
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    assert log_dir.copies([TWICE, ONCE]) == {}


def test_clean_and_rescue_are_told_what_does_not_lie_here_alone(tmp_path: Path) -> None:
    a, b = write_logs(tmp_path / "a", "twice", "once", "here"), write_logs(tmp_path / "b", "twice")
    (a / "once-0").rename(tmp_path / "elsewhere")
    (a / "once-0").symlink_to(tmp_path / "elsewhere")
    found = left_elsewhere(at(a, b), [TWICE, ONCE, TopicPartition("here", 0)])
    assert found.keys() == {TWICE, ONCE}
    assert f"it lies in {b} as well" in str(found[TWICE])
    assert "a symbolic link is not a partition directory" in str(found[ONCE])


def at(*log_dirs: Path) -> LogDir:
    """The first of these directories, which may belong to one broker."""
    return LogDir.at(RealFiles(), str(log_dirs[0]), SystemClock(), tuple(map(str, log_dirs)))
