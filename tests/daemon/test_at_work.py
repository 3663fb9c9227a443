"""The daemon while it works: priorities, aborts, throttle, retention, expired horizons, ends of all kinds."""

import functools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cleanerd.config.reload import CLEANER_KEYS
from cleanerd.format import names
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.producer_snapshot import render_producer_snapshot
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.cleaning.test_group_by_group import SEGMENT_BYTES, tight
from tests.harness.daemon.processes import DaemonProcess, customise, descendants, running, wait_until
from tests.harness.daemon.scrape import get, parse
from tests.harness.logs.synthetic import Shape, write_log
from tests.harness.logs.troubled import META_PROPERTIES, assert_settled, contents, newest, segment

pytestmark = pytest.mark.soak

BIG = 40_000
BIG_BYTES = 4_900_000
SLOW = 1_000_000
"""Bytes a second: the big log takes ten seconds to be cleaned."""
SHORT_WAITS = """
import sys
if "run" in sys.orig_argv:
    from cleanerd.daemon.engine import client
    from cleanerd.daemon.inventory import due_logs
    client.STALL_LIMIT_S = 15.0
    due_logs.RESERVED_MAX_WAIT_S = 0.5
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory of cooperating writers, with one big dirty log."""
    log = tmp_path / "logs" / "big-0"
    write_log(log, BIG, Shape(keys=900, segment_bytes=1 << 20))
    segment(log, -1).with_suffix(".snapshot").write_bytes(
        render_producer_snapshot(())
    )  # as a writer leaves it
    return tmp_path / "logs"


@contextmanager
def in_the_middle(
    tmp_path: Path, log_dir: Path, rate: int = SLOW, **settings: object
) -> Iterator[DaemonProcess]:
    """A daemon in the middle of cleaning the big log, at `rate` bytes a second."""
    slow = {"log_cleaner_io_max_bytes_per_second": rate, "cleanerd_chunk_bytes": 1 << 20}
    with running(tmp_path / "d", log_dir, **slow, **settings) as daemon:
        daemon.wait(lambda: any(job["bytes_done"] for job in daemon.ask("jobs")["jobs"]), 120)
        yield daemon


def write_small(log_dir: Path, topic: str, **writer: object) -> None:
    with LogWriter(str(log_dir), topic, 0, segment_bytes=4000) as log:
        producer = Producer(log)
        for number in range(160):
            producer.put(b"key %d" % (number % 7), b"value %d" % number * 3, 1000 + number)
        log.roll()


def test_c052_reserved_topic_overtakes_a_long_job_and_an_abort_leaves_its_log_alone(
    tmp_path: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`__consumer_offsets` never waits longer than that behind others."""
    customise(monkeypatch, tmp_path / "site", SHORT_WAITS)
    with in_the_middle(tmp_path, log_dir) as daemon:
        write_small(log_dir, "__consumer_offsets")
        daemon.configure(log_cleaner_io_max_bytes_per_second=SLOW // 40)  # names the new topic, too
        before = contents(log_dir / "big-0")
        daemon.wait_committed("__consumer_offsets-0")
        assert daemon.outcomes("big-0") == [], "the long job goes on"
        began = time.monotonic()
        assert [one["topic"] for one in daemon.ask("abort", "big-0")["logs"]] == ["big"]
        assert time.monotonic() - began < 5
        daemon.ask("pause", "big-0", "--owner", "test", "--reason", "compare")
        assert contents(log_dir / "big-0") == before
        assert daemon.history("big-0")[0]["outcome"] == "aborted"


@pytest.mark.parametrize("why", ["its policy", "deleted", "moved"])
def test_a_cleaning_that_nobody_would_commit_ends_before_it_stages(
    tmp_path: Path, log_dir: Path, why: str
) -> None:
    """Its topic is no longer compacted or is deleted, or its broker moves the log: at the next report of a task."""
    directory, other = log_dir / "big-0", tmp_path / "other"
    for place in (log_dir, other):
        place.mkdir(exist_ok=True)
        (place / names.META_PROPERTIES).write_text(META_PROPERTIES)
    for name in (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (log_dir / name).write_text(f"0\n1\nbig 0 {BIG}\n")
    slow = {"log_cleaner_io_max_bytes_per_second": SLOW // 20, "cleanerd_chunk_bytes": 1 << 20}
    with running(tmp_path / "d", log_dir, other, **slow) as daemon:
        daemon.wait(lambda: any(job["bytes_done"] for job in daemon.ask("jobs")["jobs"]), 120)
        if why == "its policy":
            daemon.topics = {"big": "delete"}
            daemon.configure()
        elif why == "deleted":
            directory = directory.rename(log_dir / f"big-0.{'0' * 32}-delete")
        else:
            (other / f"big-0.{'0' * 32}-future").mkdir()
        daemon.wait(lambda: any(e["event"] == "cleaning" for e in daemon.events()), 30)
        assert [e["outcome"] for e in daemon.events() if e["event"] == "cleaning"] == ["aborted"]
        assert not list(directory.glob("*.cleanerd"))


def test_an_examination_pays_for_what_it_reads_and_can_be_aborted(tmp_path: Path, log_dir: Path) -> None:
    """Before the first task, at a rate at which that takes a minute: producers are replayed, as there is no snapshot."""
    for path in (log_dir / "big-0").glob("*.snapshot"):
        path.unlink()
    slow = {
        "cleanerd_io_max_read_bytes_per_second": BIG_BYTES // 60,
        "cleanerd_metrics_listen": "127.0.0.1:0",
    }
    with running(tmp_path / "d", log_dir, **slow) as daemon:

        def examined_bytes() -> float:
            _, _, text = get(daemon.metrics_address())
            return parse(text).total("cleanerd_read_bytes_total", phase="examine")

        daemon.wait(examined_bytes, 60)
        began = time.monotonic()
        daemon.ask("pause", "big-0", "--owner", "test", "--reason", "compare")
        assert time.monotonic() - began < 5
        assert daemon.history("big-0")[0]["outcome"] == "aborted"


@pytest.mark.fault("the JVM hangs")
def test_healthz_tells_of_an_engine_that_stalls_until_a_cleaning_comes_through(
    tmp_path: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM and its workers hang in the middle of a job: the engine is ended, the next one cleans the log."""
    customise(monkeypatch, tmp_path / "site", SHORT_WAITS)
    with in_the_middle(tmp_path, log_dir, cleanerd_metrics_listen="127.0.0.1:0") as daemon:
        health = functools.partial(get, daemon.metrics_address(), "/healthz")
        assert health()[::2] == (200, "alive\n")
        for engine in psutil.Process(daemon.pid).children():
            for one in engine.children(recursive=True):
                one.suspend()
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.wait(lambda: health()[0] == 503, 60)
        assert "no task of Spark has reported for" in health()[2]
        daemon.wait_committed("big-0", timeout_s=150)
        assert health()[0] == 200


@pytest.mark.fault("the daemon is killed")
def test_kill_in_the_middle_leaves_an_engine_that_ends_and_a_log_that_the_next_start_cleans(
    tmp_path: Path, log_dir: Path
) -> None:
    with in_the_middle(tmp_path, log_dir) as daemon:
        children = descendants(daemon.pid)[1:]
        assert children
        daemon.stop(signal.SIGKILL)
        wait_until(lambda: not any(_lives(pid) for pid in children), 20)
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.start()
        daemon.wait_committed("big-0")
        assert_settled(log_dir / "big-0")
        assert len({record.key for record in read_records(str(log_dir / "big-0"))}) == 900


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_limits_and_threads_change_while_it_works(tmp_path: Path, log_dir: Path) -> None:
    """C147, C148, C150: a reload of all seven keys holds at once, and no work is lost.

    Kafka cleans nothing with an I/O buffer of a byte; here a task has what it needs in any case.
    """
    with in_the_middle(tmp_path, log_dir, log_cleaner_threads=1, log_cleaner_io_buffer_size=1) as daemon:
        daemon.configure(
            log_cleaner_threads=2,
            log_cleaner_dedupe_buffer_size=20_000_000,
            log_cleaner_io_buffer_load_factor=0.8,
            log_cleaner_io_buffer_size=100_000,
            log_cleaner_io_max_bytes_per_second=1e12,
            log_cleaner_backoff_ms=300,
            message_max_bytes=40_000,
        )
        began = time.monotonic()
        daemon.wait_committed("big-0", timeout_s=30)
        assert time.monotonic() - began < BIG_BYTES * 2 / SLOW, "it did not go on at the old rate"
        assert daemon.ask("status")["status"]["workers_total"] == 2
        assert daemon.outcomes("big-0") == ["committed"]
        (reload,) = [event for event in daemon.events() if event["event"] == "reload"]
        assert reload["outcome"] == "accepted"
        assert {change.split(":")[0] for change in reload["changes"]} == set(CLEANER_KEYS)


def test_horizons_that_others_stamped_are_visited_once_by_a_new_daemon(tmp_path: Path) -> None:
    """Though nothing is dirty: one that expired long ago goes, a log with nothing to wait for is looked at in silence. A
    request looks as well.
    """
    log_dir, state_dir = tmp_path / "logs", tmp_path / "d"
    for topic, horizon_ms in (("graves", 1000), ("quiet", None), ("later", 2**62)):
        with LogWriter(str(log_dir), topic, 0, segment_bytes=1 << 20) as log:
            tombstone = Record(0, 1000, b"dead", None if horizon_ms else b"alive")
            log.append(encode_batch([tombstone], base_offset=0, delete_horizon_ms=horizon_ms))
            log.roll()
    entries = "".join(f"{topic} 0 1\n" for topic in ("graves", "quiet", "later"))
    (log_dir / names.CLEANER_OFFSET_CHECKPOINT).write_text(f"0\n3\n{entries}")
    with running(state_dir, log_dir) as daemon:
        daemon.wait(lambda: daemon.outcomes("graves-0") == ["committed"], 60)
        assert not list(read_records(str(log_dir / "graves-0")))
        assert (daemon.outcomes("quiet-0"), daemon.outcomes("later-0")) == ([], [])
        jobs = daemon.ask("jobs")["jobs"]
        assert [(job["trigger"], len(job["logs"])) for job in jobs] == [("horizon", 3)]
        reason = daemon.ask("clean", "later-0", "--force", "--wait")["jobs"][0]["reason"]
        assert "no tombstone has passed its delete horizon; the next one passes at" in reason


@pytest.mark.fault("a disk that fills up in the middle of a write")
def test_a_log_without_room_for_all_its_groups_is_committed_group_by_group(tmp_path: Path) -> None:
    """In one job, and the dirty ratio does not matter between its commits."""
    settings = {"log_segment_bytes": SEGMENT_BYTES, "log_cleaner_min_cleanable_ratio": 0.9}
    with tight(tmp_path / "small") as log_dir, running(tmp_path / "d", log_dir, **settings) as daemon:
        before = newest(log_dir / "t-0")
        daemon.wait_committed("t-0", timeout_s=120)
        assert newest(log_dir / "t-0") == before
        assert_settled(log_dir / "t-0")
        assert daemon.outcomes("t-0") == ["committed"]
        assert daemon.log("t-0")["state"] == "clean"
        assert len([line for line in daemon.events() if line["event"] == "cleaning"]) == 1


def test_nothing_expires_while_the_configuration_is_rejected(tmp_path: Path) -> None:
    """Its broker has stopped, and may find a longer retention there when it starts."""
    log_dir = tmp_path / "logs"
    write_small(log_dir, "other")
    settings = {"log_retention_ms": 1000, "log_retention_check_interval_ms": 200}
    with running(tmp_path / "d", log_dir, topics={"events": "delete"}, **settings) as daemon:
        daemon.configure(log_retention_ms=-1, cleanerd_retry_max=-1)
        assert daemon.ctl("reload", check=False).returncode == 1
        write_small(log_dir, "events")
        bases = sorted((log_dir / "events-0").glob("*.log"))
        daemon.wait(lambda: any(line["event"] == "retention_skipped" for line in daemon.events()), 60)
        assert sorted((log_dir / "events-0").glob("*.log")) == bases
        del daemon.settings["cleanerd.retry.max"]
        daemon.configure(log_retention_ms=1000)
        daemon.wait(lambda: list((log_dir / "events-0").glob("*.log")) == bases[-1:], 60)


def test_c155_a_log_that_is_deleted_while_it_is_cleaned_is_forgotten(tmp_path: Path, log_dir: Path) -> None:
    with in_the_middle(tmp_path, log_dir) as daemon:
        write_small(log_dir, "other")
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        gone = (log_dir / "big-0").rename(log_dir / f"big-0.{'0af1' * 8}-delete")  # as a broker does
        daemon.wait_committed("other-0")
        assert daemon.ctl("log", "big-0", check=False).returncode == 4
        assert "big 0 " not in (log_dir / "cleaner-offset-checkpoint").read_text()
        assert not list(gone.glob("*.swap")), "nothing is committed into it"


@pytest.mark.fault("a log directory that goes away")
def test_d14_log_dir_that_fails_is_offline_alone_and_comes_back(tmp_path: Path) -> None:
    """While it is away its logs have no failures, others are cleaned; its checkpoint and its logs are as they were."""
    good, bad, away = tmp_path / "good", tmp_path / "bad", tmp_path / "away"
    write_small(good, "one")
    write_small(bad, "two")
    settings = {"cleanerd_scan_interval_ms": 300}
    with running(
        tmp_path / "d", good, bad, topics={"one": "compact", "two": "compact"}, **settings
    ) as daemon:

        def online() -> dict[str, bool]:
            return {place["path"]: place["online"] for place in daemon.ask("status")["status"]["log_dirs"]}

        def cleaned_again(name: str) -> bool:
            """Perhaps more than once: while it was being written."""
            first, *more = daemon.outcomes(name)
            return {first, *more} == {"committed"} and bool(more)

        daemon.wait_committed("one-0", "two-0")
        checkpoint = (bad / names.CLEANER_OFFSET_CHECKPOINT).read_bytes()
        os.rename(bad, away)
        daemon.wait(lambda: online() == {str(good): True, str(bad): False}, 30)
        write_small(good, "one")
        daemon.wait(lambda: cleaned_again("one-0"), 60)
        os.rename(away, bad)
        daemon.wait(lambda: online() == {str(good): True, str(bad): True}, 30)
        assert (bad / names.CLEANER_OFFSET_CHECKPOINT).read_bytes() == checkpoint
        assert daemon.outcomes("two-0") == ["committed"]
        told = [
            (event["event"], event["log_dir"]) for event in daemon.events() if "log_dir_o" in event["event"]
        ]
        assert told == [("log_dir_offline", str(bad)), ("log_dir_online", str(bad))], "once each"
        write_small(bad, "two")
        daemon.wait(lambda: cleaned_again("two-0"), 60)
