"""Faults of the machine under a real daemon and a real `cleanerd clean`.

Nothing is lost, the right log is blamed, the rest goes on. Errors of system calls are injected by strace, for files of one
log alone. What else can fail is listed in `tests/test_cases.py`.
"""

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.daemon import test_at_work
from tests.daemon.test_at_work import in_the_middle
from tests.daemon.test_standalone_cluster import CLEANED_S, WORKERS
from tests.harness.broker.tools import clean_in_process
from tests.harness.command_line import clean, results
from tests.harness.daemon import processes
from tests.harness.daemon.processes import ROOT, DaemonProcess, cmdline, customise, descendants, running
from tests.harness.daemon.tracing import (
    PATIENCE_S,
    SYNCS,
    failing,
    injecting,
    lasting,
    staged_files,
    traced,
)
from tests.harness.disks.ext4 import Ext4
from tests.harness.logs.troubled import SEGMENT_BYTES, TRUTH, assert_settled, contents, newest, write_logs
from tests.harness.spark.standalone import standalone

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

big = test_at_work.log_dir


@dataclass(frozen=True)
class Injected:
    """An error of system calls on files of a log."""

    calls: str
    error: int
    files: Callable[[Path], list[Path]]


def logs_of(partition: Path) -> list[Path]:
    """The `.log` files themselves."""
    return sorted(partition.glob("*.log"))


def itself(partition: Path) -> list[Path]:
    """The directory."""
    return [partition]


def beside(name: str) -> Callable[[Path], list[Path]]:
    """A file of its log directory."""
    return lambda partition: [partition.parent / name]


INJECTED = {
    "source cannot be opened": Injected("openat", errno.EACCES, logs_of),
    "source cannot be read": Injected("read,pread64,preadv", errno.EIO, logs_of),
    "directory cannot be listed": Injected("getdents64", errno.EIO, itself),
    "disk full": Injected("write", errno.ENOSPC, staged_files),
    "directory cannot be synced": Injected(SYNCS, errno.EIO, itself),
    "log directory cannot be looked up": Injected("newfstatat,statx", errno.EIO, beside(names.CLEANERD_LOCK)),
    "log directory cannot be read": Injected("openat", errno.EIO, beside(names.META_PROPERTIES)),
}


def failures(daemon: DaemonProcess, name: str) -> list[str]:
    """Reasons of its failed cleanings, the youngest first."""
    return [event["reason"] for event in daemon.history(name) if event["outcome"] == "failed"]


@pytest.mark.fault("ENOSPC, EIO, EACCES, EROFS from a system call")
@pytest.mark.parametrize("fault", INJECTED)
def test_a_failing_call_is_the_trouble_of_its_log_and_passes(fault: str, tmp_path: Path) -> None:
    injected = INJECTED[fault]
    good, bad = write_logs(tmp_path / "good", "one"), write_logs(tmp_path / "bad", "two")
    tracing = injecting(injected.calls, failing(injected.error), injected.files(bad / "two-0"))
    with traced(tmp_path / "d", tracing, good, bad) as daemon:
        daemon.wait(lambda: daemon.has_committed("one-0") and _complaints(daemon, bad), PATIENCE_S)
        assert any(os.strerror(injected.error) in told for told in _complaints(daemon, bad)), daemon.output()
        assert newest(bad / "two-0") == TRUTH
        assert newest(good / "one-0") == TRUTH
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.output()
    assert clean_in_process(f"--log-dir={bad}", "--set=log.cleanup.policy=compact").returncode == 0
    assert_settled(bad / "two-0")
    assert newest(bad / "two-0") == TRUTH


def _complaints(daemon: DaemonProcess, place: Path) -> list[str]:
    """What it says about a log directory or a log in it."""
    told = [str(event["reason"]) for event in daemon.events() if "reason" in event]
    return [reason for reason in told if str(place) in reason]


@pytest.mark.fault("a slow disk")
def test_a_slow_disk_costs_time_only(tmp_path: Path) -> None:
    """Each sync of a staged file takes half a second."""
    log = write_logs(tmp_path / "logs", "one")
    tracing = injecting(SYNCS, lasting(0.5), staged_files(log / "one-0"))
    with traced(tmp_path / "d", tracing, log) as daemon:
        daemon.wait_committed("one-0", timeout_s=PATIENCE_S)
        assert failures(daemon, "one-0") == []
        assert daemon.stop() == 0
    assert newest(log / "one-0") == TRUTH


def own_logs(log_dir: Path, *topics: str) -> Path:
    """The same logs in a directory without a broker: what is appended may be cleaned at once."""
    write_logs(log_dir, *topics)
    for name in (names.META_PROPERTIES, names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (log_dir / name).unlink()
    return log_dir


def append(log_dir: Path, topic: str, value: bytes) -> None:
    """One more record of the first key, in a segment that is closed."""
    with LogWriter(str(log_dir), topic, 0, segment_bytes=SEGMENT_BYTES) as writer:
        Producer(writer).put(b"key 0", value, 9_000)
        writer.roll()


@pytest.mark.fault("Python workers are killed")
def test_killed_python_workers_cost_a_retry(tmp_path: Path, big: Path) -> None:
    """Those of Spark that index and rewrite; their JVM and the engine live on."""
    before = newest(big / "big-0")
    with in_the_middle(tmp_path, big) as daemon:
        victims = named(daemon.pid, b"pyspark")
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.wait_committed("big-0", timeout_s=PATIENCE_S)
        assert daemon.log("big-0")["failures"] == 0
    assert newest(big / "big-0") == before
    assert_settled(big / "big-0")


def named(root: int, word: bytes) -> list[int]:
    """Processes below one, whose command line has this word, and that are not the daemon or an engine of ours."""
    lines = {pid: cmdline(pid) for pid in descendants(root)[1:]}
    return [pid for pid, line in lines.items() if word in line and b"java" not in line]


@pytest.mark.fault("an executor of a cluster is lost")
def test_an_executor_that_is_lost_in_the_middle_of_a_rewrite_costs_a_retry(tmp_path: Path, big: Path) -> None:
    before = newest(big / "big-0")
    with (
        standalone(tmp_path, WORKERS) as (master, _),
        in_the_middle(tmp_path, big, cleanerd_spark_master=master) as daemon,
    ):
        executors = [
            pid for pid in descendants(os.getpid()) if b"CoarseGrainedExecutorBackend" in cmdline(pid)
        ]
        assert len(executors) == WORKERS
        os.kill(executors[0], signal.SIGKILL)
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.wait_committed("big-0", timeout_s=CLEANED_S)
        assert daemon.log("big-0")["failures"] == 0
    assert newest(big / "big-0") == before
    assert_settled(big / "big-0")


JUMPING = """
import os
from cleanerd.env.clock import SystemClock
now_ms, path = SystemClock.now_ms, {path!r}

def jumped(self):
    return now_ms(self) + int(open(path).read() or 0)

SystemClock.now_ms = jumped
"""
YEAR_MS = 365 * 86_400_000


@pytest.mark.fault("a wall clock that jumps")
def test_a_wall_clock_that_jumps_both_ways_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon and its engine follow it: a year ahead, two years back, and home."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    customise(monkeypatch, tmp_path / "site", JUMPING.format(path=str(offset)))
    logs = own_logs(tmp_path / "logs", "one")
    with running(tmp_path / "d", logs, log_cleaner_min_cleanable_ratio=0.0) as daemon:
        daemon.wait_committed("one-0", timeout_s=PATIENCE_S)
        for number, jump_ms in enumerate((YEAR_MS, -YEAR_MS, 0)):
            new = offset.with_suffix(".new")
            new.write_text(str(jump_ms))
            new.rename(offset)
            append(logs, "one", b"%d" % number)
            daemon.wait(
                lambda number=number: daemon.outcomes("one-0").count("committed") >= number + 2,  # type: ignore[misc]
                PATIENCE_S,
            )
            assert newest(logs / "one-0") == {**TRUTH, b"key 0": b"%d" % number}
        assert failures(daemon, "one-0") == []
        assert "Traceback" not in daemon.output()
        assert daemon.stop() == 0


@pytest.mark.fault("a limit on the size of files")
def test_a_limit_on_the_size_of_files_fails_the_log_that_needs_more(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: as a full disk, for files of that size only."""
    logs = write_logs(tmp_path / "logs", "small")
    with LogWriter(str(logs), "large", 0, segment_bytes=1 << 24) as writer:
        producer = Producer(writer)
        for number in range(9000):
            producer.put(b"key %d" % number, random.Random(number).randbytes(1000), 1000)
            if number % 9 == 0:
                producer.put(b"again and again", b"%d" % number, 1000)
        writer.roll()
    ends = f"0\n2\nsmall 0 {10**6}\nlarge 0 {10**6}\n"
    (logs / "replication-offset-checkpoint").write_text(ends)
    (logs / "recovery-point-offset-checkpoint").write_text(ends)
    before = newest(logs / "large-0")
    process = clean(logs, file_bytes=4 << 20)
    found = results(process)
    assert process.returncode == 1
    assert found["small"]["outcome"] == "committed"
    assert found["large"]["outcome"] == "failed"
    assert str(logs / "large-0") in found["large"]["reason"]
    assert os.strerror(errno.EFBIG) in found["large"]["reason"]
    assert newest(logs / "large-0") == before
    assert newest(logs / "small-0") == TRUTH
    assert not list((logs / "large-0").glob("*.cleanerd"))


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without HOME, and with a cache that cannot be written."""
    (tmp_path / "file").touch()
    keep = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
    return {**keep, "XDG_CACHE_HOME": str(tmp_path / "file" / "below"), "PYTHONPATH": str(ROOT)}


@pytest.mark.fault("no HOME, and a cache that cannot be written")
def test_a_daemon_without_home_and_with_a_cache_that_cannot_be_written(
    tmp_path: Path, bare: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled into a directory that goes away with the engine."""
    logs = write_logs(tmp_path / "logs", "one")
    monkeypatch.setattr(processes, "environment", lambda: bare)
    with running(tmp_path / "d", logs) as daemon:
        daemon.wait_committed("one-0", timeout_s=PATIENCE_S)
        assert failures(daemon, "one-0") == []
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.output()
    assert newest(logs / "one-0") == TRUTH


@pytest.mark.fault("a client that is slow, or vanishes")
def test_clients_that_are_killed_while_they_wait_cost_nothing(tmp_path: Path, big: Path) -> None:
    """The job that one of them asked for goes on; the daemon hears others, and has no more descriptors than before."""
    before = newest(big / "big-0")
    waits = (["clean", "big-0", "--force", "--wait"], ["await", "big-0", "39000"], ["commit", "--wait"])
    with in_the_middle(tmp_path, big) as daemon:
        opened = f"/proc/{daemon.pid}/fd"
        descriptors = len(os.listdir(opened))
        program = [sys.executable, "-m", "cleanerd.cli.ctl.main", "--socket", str(daemon.socket)]
        clients = [
            subprocess.Popen([*program, *words], cwd=ROOT, stderr=subprocess.DEVNULL) for words in waits
        ]
        daemon.wait(lambda: len(os.listdir(opened)) > descriptors, 30)
        for client in clients:
            client.kill()
            client.wait()
        assert daemon.ask("status")["status"]["ready"]
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.wait_committed("big-0", timeout_s=PATIENCE_S)
        daemon.wait(lambda: len(os.listdir(opened)) <= descriptors, PATIENCE_S)
        assert "Traceback" not in daemon.output()
        assert daemon.stop() == 0
    assert newest(big / "big-0") == before
    assert_settled(big / "big-0")


@pytest.mark.fault("a file system that becomes read-only")
def test_an_error_of_the_file_system_harms_only_its_directory(tmp_path: Path) -> None:
    """`errors=remount-ro`, as most hosts mount their data: what is there can be read, nothing can be written."""
    ext4 = Ext4.made(tmp_path)
    with ext4.mounted() as place:
        assert ext4.remount("errors=remount-ro")
        sick, sound = write_logs(place / "logs", "one"), write_logs(tmp_path / "b", "two")
        policies = {"one": "delete", "two": "compact"}
        daemon = DaemonProcess(tmp_path / "d", [sick, sound], {}, topics=policies)
        daemon.start()
        try:
            daemon.wait_committed("two-0", timeout_s=PATIENCE_S)
            before = contents(sick / "one-0")
            os.sync()
            ext4.fail()
            assert daemon.topics is not None
            daemon.topics["one"] = "compact"
            daemon.configure()
            daemon.wait(lambda: "ead-only" in str(daemon.log("one-0")), PATIENCE_S)
            assert contents(sick / "one-0") == before
            assert daemon.log("two-0")["state"] == "clean"
            assert daemon.ask("status")["status"]["ready"]
            assert daemon.stop() == 0
            ext4.unmount()
            ext4.mount()
            daemon.start()
            daemon.wait_committed("one-0", timeout_s=PATIENCE_S)
            assert "Traceback" not in daemon.output()
        finally:
            assert daemon.stop() == 0
        assert_settled(sick / "one-0")
        assert newest(sick / "one-0") == TRUTH


# -- one bad log stops no other ---------------------------------------------------------------------------------

HEALTHY = ("a", "z")


def _assert_healthy_cleaned(daemon: DaemonProcess, log_dir: Path) -> None:
    daemon.wait_committed(*(f"{topic}-0" for topic in HEALTHY), timeout_s=90)
    for topic in HEALTHY:
        assert_settled(log_dir / f"{topic}-0")
        assert newest(log_dir / f"{topic}-0") == TRUTH
        assert daemon.outcomes(f"{topic}-0") == ["committed"]
        assert daemon.log(f"{topic}-0")["state"] == "clean"


KILLER = """
import os, signal
from cleanerd.cleaning import choose
examine = choose.examine

def deadly(log_dir, tp, *args, **kwargs):
    if tp.topic == "hostile":
        os.kill(os.getpid(), signal.SIGKILL)
    return examine(log_dir, tp, *args, **kwargs)

choose.examine = deadly
"""


@pytest.mark.fault("a process that dies whenever it sees one log")
def test_logs_of_a_job_whose_engine_died_are_tried_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that kills whatever process looks at it, as one does that takes all memory, costs the others nothing."""
    customise(monkeypatch, tmp_path / "site", KILLER)
    log_dir = write_logs(tmp_path / "logs", "a", "hostile", "z")
    with running(tmp_path / "d", log_dir) as daemon:
        _assert_healthy_cleaned(daemon, log_dir)
        (event, *_) = [event for event in daemon.history("hostile-0") if event["kind"] == "cleaning"]
        assert event["outcome"] == "failed"
        assert "the engine ended in the middle of the work" in event["reason"]
