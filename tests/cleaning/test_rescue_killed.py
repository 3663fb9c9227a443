"""`cleanerd rescue` on a full disk, killed before one of its steps, or met by an error of the spare, and run again."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cleanerd.cli import rescue
from cleanerd.format.names import RESCUE
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.test_rescue import SEGMENT_BYTES, full, run
from tests.harness.daemon.processes import environment
from tests.harness.disks.counted import CHANGES
from tests.harness.disks.hooked import HookedFiles
from tests.harness.disks.repairs import broker_starts
from tests.harness.logs.troubled import newest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PATIENCE_S = 120
SIGNALLED = """
import fnmatch, os, sys
from cleanerd.cleaning.throttle import Throttle
from cleanerd.cli.main import main
from cleanerd.env.files import RealFiles

number, kind, pattern, skipped = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
owner = Throttle if kind == "charge" else RealFiles
real = getattr(owner, kind)

def change(self, *arguments):
    global skipped
    path = str(arguments[1] if kind in ("rename", "copy_in", "charge") else arguments[0])
    if fnmatch.fnmatch(path, pattern):
        skipped -= 1
        if skipped == -1:
            os.kill(os.getpid(), number)
    return real(self, *arguments)

setattr(owner, kind, change)
sys.exit(main(sys.argv[5:]))
"""
"""The command, and a signal for it before a call on a path, after so many such calls; `charge`: while a worker writes."""
WRITING = ("charge", "[1-9]*", 0)
Point = tuple[str, str, int]
POINTS: Sequence[Point] = (
    ("unlink", "*.deleted", 0),
    ("unlink", "*.index", 1),
    ("rename", "*.manifest.cleanerd", 2),
    ("rename", "*.log.swap", 0),
    ("rename", "*.log.deleted", 0),
    ("rename", "*.log", 1),
    ("rename", "*/cleaner-offset-checkpoint", 0),
)
THROUGH_SPARE: Sequence[Point] = (
    WRITING,
    ("rename", f"*/{RESCUE}", 0),
    ("unlink", "*.log", 0),
    ("unlink", "*.timeindex", 0),
    ("copy_in", "*.log.cleanerd", 0),
    ("rename", "*.log", 0),
    ("unlink", f"*/{RESCUE}", 0),
    ("unlink", "*/spare/*.cleanerd", 1),
    WRITING,
    ("rename", "*.log.swap", 0),
)


def started(number: signal.Signals, point: Point, log_dir: Path, *options: str) -> "subprocess.Popen[str]":
    """A rescue that gets a signal at a point, or never where nothing fits."""
    known = ("--topic-set=t:cleanup.policy=compact", f"--topic-set=t:segment.bytes={SEGMENT_BYTES}")
    words = ["rescue", "--yes", f"--log-dir={log_dir}", *known, *options]
    kind, pattern, skipped = point
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), kind, pattern, str(skipped), *words]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in out, out
    return process.returncode, out


def assert_whole(log_dir: Path, aside: Path, before: dict[bytes | None, bytes | None]) -> None:
    """A broker that starts now finds every key, or a log that it does not load."""
    if not (log_dir / "t-0" / RESCUE).exists():
        shutil.copytree(log_dir / "t-0", aside / "t-0")
        broker_starts(aside)
        assert newest(aside / "t-0") == before
        shutil.rmtree(aside)


@pytest.mark.parametrize("every", [1, 3], ids=["beside the old segments", "through a spare"])
def test_a_rescue_that_is_killed_again_and_again_ends_well_at_last(tmp_path: Path, every: int) -> None:
    """The next one goes on where it was, and is killed a step later."""
    spare, is_through = tmp_path / "spare", every > 1
    spare.mkdir()
    options = ["--until=8%" if is_through else "--until=60%", *([f"--spare={spare}"] if is_through else [])]
    with full(tmp_path / "full", every=every) as log_dir:
        (log_dir / "t-0" / f"{0:020}.log.deleted").write_bytes(b"")
        before = newest(log_dir / "t-0")
        for point in THROUGH_SPARE if is_through else POINTS:
            code, told = ended(started(signal.SIGKILL, point, log_dir, *options))
            assert code == -signal.SIGKILL, (point, told)
            assert_whole(log_dir, tmp_path / "aside", before)
        code, told = ended(started(signal.SIGKILL, ("unlink", "never", 0), log_dir, *options))
        assert (code, newest(log_dir / "t-0")) == (0, before), told
        assert not list((log_dir / "t-0").glob("*.cleanerd"))
        assert list(spare.iterdir()) == [] or is_through


def test_of_two_rescues_one_is_busy_and_the_other_one_ends(tmp_path: Path) -> None:
    """Real processes: the first one is stopped in the middle, and goes on when the second one has ended."""
    with full(tmp_path / "full") as log_dir:
        before = newest(log_dir / "t-0")
        first = started(signal.SIGSTOP, ("rename", "*.manifest.cleanerd", 0), log_dir)
        found = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found is not None
        assert found.si_status == signal.SIGSTOP
        code, told = ended(started(signal.SIGSTOP, ("unlink", "never", 0), log_dir))
        assert (code, "another rescue works in" in told) == (75, True), told
        first.send_signal(signal.SIGCONT)
        code, told = ended(first)
        assert (code, newest(log_dir / "t-0")) == (0, before), told


def test_an_error_at_any_operation_on_the_spare_loses_nothing(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC and EIO in turn, at every third one, from the first file that is staged there to the last that is removed."""
    spare = tmp_path / "spare"
    spare.mkdir()
    options = ["--yes", "--until=4%", f"--spare={spare}"]
    for failing in itertools.count(0, 3):
        seen = itertools.count()

        def fail(call: str, path: str, _seen: Any = seen, _failing: int = failing) -> None:
            if call in CHANGES and path.startswith(str(spare)) and next(_seen) == _failing:
                raise OSError((errno.ENOSPC, errno.EIO)[_failing % 2], "injected", path)

        with full(tmp_path / "full", every=3) as log_dir:
            before = newest(log_dir / "t-0")
            with monkeypatch.context() as patched:
                patched.setattr(rescue, "RealFiles", partial(HookedFiles, fail))
                _, done, told = run(spark, log_dir, *options)
            assert "Traceback" not in told
            assert_whole(log_dir, tmp_path / "aside", before)
            code, again, told = run(spark, log_dir, *options)
            assert (code, newest(log_dir / "t-0")) == (0, before), (failing, done, again, told)
        (tmp_path / "full").rmdir()
        if next(seen) <= failing:
            break
    assert failing > 10
