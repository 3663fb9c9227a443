"""The archive of the JVM's classes: one session writes it, later ones map it, and what cannot be made is not tried again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd.spark_runtime.class_archive import ClassArchive
from cleanerd.spark_runtime.java import find_java_home
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.daemon.processes import environment
from tests.harness.spark.sessions import count, jvm_of, session

LIMITED = """
import resource
from cleanerd.spark_runtime.lazy_spark import LazySpark
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
session = LazySpark("local[1]", makes_archive=True)
print(session.run(lambda context: context.parallelize([1, 2], 1).sum()))
session.stop()
"""
OPTIONS = "-XX:+UseSerialGC"


def archive_in(cache: Path) -> ClassArchive:
    found = ClassArchive.of(find_java_home(), OPTIONS, {"CACHE_DIRECTORY": str(cache)})
    assert found is not None
    return found


def test_what_was_written_is_used_by_others_once_it_is_whole(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    assert archive.options(makes=False) == ""
    assert f"-XX:ArchiveClassesAtExit={archive.unfinished}" in archive.options(makes=True)
    Path(archive.unfinished).write_bytes(b"classes")
    assert archive.is_wanted()
    assert archive.options(makes=False) == "", "half of one is none"
    archive.keep()
    assert not archive.is_wanted()
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options(makes=False)
    assert [path.name for path in tmp_path.glob("*.jsa*")] == [Path(archive.path).name]


def test_a_jvm_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    Path(archive.unfinished).write_bytes(b"cla")
    archive.drop()
    assert not list(tmp_path.glob("*.jsa*"))


def test_what_a_killed_cleanerd_never_took_over_goes_after_an_hour(tmp_path: Path) -> None:
    """Its JVM wrote it all the same, later than anyone waited for it."""
    archive = archive_in(tmp_path)
    old, fresh = Path(f"{archive.path}.1"), Path(f"{archive.path}.2")
    for path in (old, fresh):
        path.write_bytes(b"classes")
    os.utime(old, (0, 0))
    archive.options(makes=False)
    assert (old.exists(), fresh.exists()) == (False, True)


def test_those_that_no_release_uses_any_more_go_after_a_month(tmp_path: Path) -> None:
    """70 MB each; one that is used stays, however old it is."""
    archive, other = archive_in(tmp_path), tmp_path / f"spark-{'0' * 16}.jsa"
    for path in (Path(archive.path), other):
        path.write_bytes(b"classes")
        os.utime(path, (0, 0))
    assert archive.path in archive.options(makes=False)
    assert not other.exists()


def test_a_runtime_that_makes_none_is_not_asked_again(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    archive.keep()
    assert not archive.is_wanted()
    assert archive.options(makes=False) == ""


def test_none_is_made_where_it_could_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory that is read-only: every start would be slower, for ever."""
    archive = archive_in(tmp_path)
    assert archive.is_wanted()
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (str(tmp_path), os.W_OK))
    assert not archive.is_wanted()


def test_another_jvm_or_other_options_have_another_archive(tmp_path: Path) -> None:
    environment = {"CACHE_DIRECTORY": str(tmp_path)}
    other = ClassArchive.of(find_java_home(), f"{OPTIONS} -Xint", environment)
    assert other is not None
    assert other.path != archive_in(tmp_path).path


@pytest.mark.parametrize(("name", "mode"), [("shared", 0o777), ("a b", 0o700)])
def test_not_every_cache_directory_will_do(tmp_path: Path, name: str, mode: int) -> None:
    """Another user could have put one there; the JVM would read the path as several words."""
    (tmp_path / name).mkdir()
    (tmp_path / name).chmod(mode)
    assert ClassArchive.of(find_java_home(), OPTIONS, {"CACHE_DIRECTORY": str(tmp_path / name)}) is None


def test_a_runtime_without_one_of_its_own_makes_none(tmp_path: Path) -> None:
    """As jlink leaves it: Java 17 ends at once where it is to put ours on top of nothing, and no log would be cleaned."""
    java, server = tmp_path / "java" / "bin" / "java", tmp_path / "java" / "lib" / "server"
    for directory in (java.parent, server):
        directory.mkdir(parents=True)
    java.touch()
    found = []
    for name in ("libjvm.so", "classes.jsa", "classes_nocoops.jsa"):
        (server / name).touch()
        environment = {"CACHE_DIRECTORY": str(tmp_path / "cache")}
        found.append(ClassArchive.of(str(tmp_path / "java"), OPTIONS, environment) is not None)
    assert found == [False, False, True]


@pytest.mark.soak
def test_the_first_session_writes_it_and_the_next_one_maps_it(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.stop()  # a process has one context at a time
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path))
    for is_there in (False, True):
        with session(makes_archive=True) as one:
            assert count(one) == 2
            mapped = Path(f"/proc/{jvm_of(one).pid}/maps").read_text()
            assert (
                ".jsa\n" in mapped.replace("classes.jsa", "").replace("classes_nocoops.jsa", "")
            ) == is_there
        (archive,) = [name for name in os.listdir(tmp_path) if ".jsa" in name]
        assert (tmp_path / archive).stat().st_size > 1 << 20


@pytest.mark.soak
def test_a_jvm_that_cannot_write_it_says_so_to_nobody(tmp_path: Path) -> None:
    """A full disk, or a limit: it complains on its standard output, which is not that of `cleanerd clean -o json`."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        env=environment() | {"CACHE_DIRECTORY": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    assert not list(tmp_path.glob("*.jsa*"))
