"""Scratch directories: they end with their session, and what a killed process leaves goes at the next look."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from cleanerd.errors import Fatal
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.scratch import Scratch, scratch_roots, sweep
from tests.harness.daemon.processes import environment

HOLDS_ONE = """
import sys
from cleanerd.spark_runtime.scratch import Scratch
scratch = Scratch(sys.argv[1:])
print(*scratch.paths, flush=True)
sys.stdin.read()
"""
HAS_A_SESSION = """
import os, sys
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.pyspark_privates import scratch_root

def work(context):
    with open(os.path.join(scratch_root(context), "blocks"), "wb") as file:
        file.write(bytes(1 << 20))
    return context.parallelize([1, 2], 2).sum()

session = LazySpark("local[1]", {"spark.local.dir": sys.argv[1]})
print(session.run(work), flush=True)
if sys.stdin.read(1):
    session.stop()
"""


@contextmanager
def running(script: str, *arguments: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process group of its own, and the first line that it prints; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("settings", "environment", "roots"),
    [
        ({}, {}, [tempfile.gettempdir()]),
        ({}, {"CACHE_DIRECTORY": "/var/cache/cleanerd"}, ["/var/cache/cleanerd/spark"]),
        ({"spark.local.dir": "/a, /b"}, {"CACHE_DIRECTORY": "/var/cache/cleanerd"}, ["/a", "/b"]),
    ],
)
def test_where_they_are(settings: dict[str, str], environment: dict[str, str], roots: list[str]) -> None:
    assert scratch_roots(settings, environment) == roots


def test_one_that_is_in_use_stays_until_its_process_is_killed(tmp_path: Path) -> None:
    """In every root; a process that has one of its own does not look at it either."""
    roots = [tmp_path / "a", tmp_path / "b"]
    with running(HOLDS_ONE, *roots) as (process, paths):
        (Path(paths.split()[1]) / "blocks").write_bytes(bytes(1000))
        own = Scratch(list(map(str, roots)))
        assert [len(os.listdir(root)) for root in roots] == [2, 2]
        process.kill()
        process.wait()
        sweep(list(map(str, roots)))
        assert [str(path) for root in roots for path in root.iterdir()] == own.paths
    own.remove()
    assert [os.listdir(root) for root in roots] == [[], []]


def jvms_of(root: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"=%b/cleanerd-scratch-" % os.fsencode(root) in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def test_a_jvm_whose_process_is_killed_during_its_start_does_not_outlive_its_directory(
    tmp_path: Path,
) -> None:
    """It could not tell where it can be called any more, and would wait for that for ever."""
    session = subprocess.Popen(
        [sys.executable, "-c", HAS_A_SESSION, str(tmp_path)], env=environment(), stdin=subprocess.PIPE
    )
    while not (started := jvms_of(tmp_path)):
        assert session.poll() is None
    for pid in started:
        os.kill(pid, signal.SIGSTOP)
    session.kill()
    session.wait()
    sweep([str(tmp_path)])
    assert not list(tmp_path.iterdir())
    while jvms_of(tmp_path):  # until the kernel has taken them; without the kill, for ever
        pass


def test_a_root_that_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    """A disk of several has failed: Spark does without it, too. With none left there is no session."""
    (tmp_path / "failed").touch()
    scratch = Scratch([str(tmp_path / "failed" / "a"), str(tmp_path / "b")])
    assert [os.path.dirname(path) for path in scratch.paths] == [str(tmp_path / "b")]
    scratch.remove()
    with pytest.raises(NotADirectoryError):
        Scratch([str(tmp_path / "failed" / "a")])


def test_only_what_is_of_this_user_and_has_the_name_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory for the temporary files of all."""
    left, link, other = (tmp_path / name for name in ("cleanerd-scratch-1", "cleanerd-scratch-2", "spark-3"))
    left.mkdir()
    other.mkdir()
    link.symlink_to(other)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    sweep([str(tmp_path), str(tmp_path / "none")])
    assert left.exists()
    monkeypatch.undo()
    sweep([str(tmp_path)])
    assert sorted(tmp_path.iterdir()) == [link, other]


def test_one_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, which sees a directory that nobody has locked yet."""
    made, make = [], tempfile.mkdtemp

    def make_late(**given: str) -> str:
        made.append(make(**given))
        if len(made) == 1:
            sweep([str(tmp_path)])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_late)
    assert Scratch([str(tmp_path)]).paths == made[1:]
    assert Path(made[1]).is_dir()


def test_one_that_cannot_be_locked_is_deleted_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process with locks, outside of this sandbox, would take it for one that was left."""
    with monkeypatch.context() as refused:
        refused.setattr(fcntl, "flock", Mock(side_effect=PermissionError(1, "refused")))
        scratch = Scratch([str(tmp_path)])
    sweep([str(tmp_path)])
    assert os.listdir(tmp_path) == [os.path.basename(scratch.paths[0])]
    scratch.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("odd", ["a b", "x" * 80])
def test_a_jvm_is_given_no_place_where_its_sockets_cannot_be(tmp_path: Path, odd: str) -> None:
    assert not Scratch([str(tmp_path / odd)]).jvm_options()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # not in the long path of a test
        assert Scratch([short]).jvm_options().startswith("-Djava.io.tmpdir=")


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.touch()
    with pytest.raises(
        Fatal, match=rf"scratch files \({root}: File exists\): name a .* in TMPDIR or .*spark.local.dir"
    ):
        LazySpark("local[1]", {"spark.local.dir": str(root)}).context()


@pytest.mark.soak
def test_a_session_leaves_nothing_however_it_ends() -> None:
    """Killed with its JVM, as by systemd or for lack of memory: the next one deletes it. Else it does so itself."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # a short path, for sockets
        with running(HAS_A_SESSION, Path(root)) as (process, answer):
            assert answer == "3"
            (killed,) = os.listdir(root)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert list(Path(root).rglob("blocks"))
        assert list(Path(root).rglob("*.sock"))
        with running(HAS_A_SESSION, Path(root)) as (process, answer):
            assert answer == "3"
            assert killed not in os.listdir(root)
            assert process.communicate("stop")[0] == ""
        assert not os.listdir(root)
