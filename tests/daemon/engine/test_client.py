"""The daemon's end of the engine: which process answers, and what becomes of one that hangs."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.engine import client
from cleanerd.daemon.engine.calls import CleanCall, ExamineCall
from cleanerd.daemon.engine.client import CallHost, Engine, EngineDied, EngineStalled
from cleanerd.env.clock import SystemClock
from cleanerd.errors import Aborted
from cleanerd.format.head import CRC_AT
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.channel import Channel
from cleanerd.spark_runtime.messages import GO_ON, STOP, Moved, Phase, ReportAnswer
from cleanerd.spark_runtime.pyspark_privates import GATEWAY
from cleanerd.spark_runtime.scratch import scratch_roots
from cleanerd.spark_runtime.spark_master import SparkPlace, spark_place
from tests.harness.daemon.processes import cmdline, descendants, wait_until
from tests.harness.logs.troubled import write_logs

CONFIGURATION = resolve(read_sources(None, [("log.cleanup.policy", "compact")]))


class Places:
    """Where the engine is to run."""

    def __init__(self) -> None:
        self.place = SparkPlace("local[1]")
        self.broker = CONFIGURATION.broker

    def engine(self) -> Engine:
        return Engine(lambda: self, lambda _: self.place, SystemClock())


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def engine(places: Places) -> Iterator[Engine]:
    engine = places.engine()
    yield engine
    engine.stop()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_logs(tmp_path / "logs", "one")


@pytest.fixture
def channel() -> Iterator[Channel]:
    """It stops no task."""
    with Channel(lambda _: GO_ON) as channel:
        yield channel


def examine(engine: Engine, log_dir: Path) -> str:
    tp = TopicPartition("one", 0)
    call = ExamineCall(str(log_dir), (tp,), CONFIGURATION.broker, {"one": CONFIGURATION.topic("one")})
    return engine.examine(call).outcome.word


def clean(
    engine: Engine,
    log_dir: Path,
    channel: Channel,
    host: CallHost | None = None,
    *,
    aborted: bool = False,
    goes_on: bool = False,
) -> str:
    tp = TopicPartition("one", 0)
    topics = {"one": CONFIGURATION.topic("one")}
    call = CleanCall(
        str(log_dir), (tp,), CONFIGURATION.broker, topics,
        force=True, horizons=False, reporter=channel.reporter, is_owned=False, jobs_at_once=1,
        goes_on=goes_on,
    )  # fmt: skip
    host = host or CallHost()
    host.is_aborted = lambda: aborted
    (result,) = engine.clean(call, host)
    return result.outcome.word


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_call_waits_for_a_reader_that_has_ended(engine: Engine, channel: Channel, log_dir: Path) -> None:
    """By an error that nobody has thought of; the next call has another process."""
    host = CallHost()

    def progressed(_: object) -> None:
        raise ZeroDivisionError

    host.progressed = progressed  # type: ignore[method-assign]
    with pytest.raises(EngineDied):
        clean(engine, log_dir, channel, host)
    assert examine(engine, log_dir) == "planned"
    assert engine.starts == 2


def test_an_engine_that_has_not_begun_with_a_log_does_not_go_on_with_it(
    engine: Engine, channel: Channel, log_dir: Path
) -> None:
    """The one that had may have died between two rounds, or have another number of threads by now."""
    with pytest.raises(Aborted, match="has ended; the next cleaning goes on"):
        clean(engine, log_dir, channel, goes_on=True)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.soak
def test_another_number_of_threads_is_another_engine(engine: Engine, places: Places, log_dir: Path) -> None:
    """Between two calls, without waiting until it is idle: so are properties of Spark."""
    pids = []
    alone, two = SparkPlace("local[1]"), SparkPlace("local[2]")
    for place in (alone, alone, two, SparkPlace("local[2]", (("spark.x", "1"),))):
        places.place = place
        assert examine(engine, log_dir) == "planned"
        pids.append(engine.pid)
    assert pids[0] == pids[1]
    assert len(set(pids)) == engine.starts == 3
    wait_until(lambda: not engine.stop_if_idle(600_000) and all(is_gone(pid) for pid in pids[:-1] if pid), 10)


@pytest.mark.soak
def test_an_old_engine_finishes_what_it_was_asked(engine: Engine, places: Places, log_dir: Path) -> None:
    """What it works at is not lost; then it ends."""
    assert examine(engine, log_dir) == "planned"
    old = engine.pid
    assert old is not None
    os.kill(old, signal.SIGSTOP)
    outcomes: list[str] = []
    asking = threading.Thread(target=lambda: outcomes.append(examine(engine, log_dir)))
    asking.start()
    wait_until(lambda: engine._child is not None and engine._child.is_busy, 10)
    places.place = SparkPlace("local[2]")
    assert examine(engine, log_dir) == "planned"
    assert engine.pid != old
    assert not is_gone(old)
    os.kill(old, signal.SIGCONT)
    asking.join(20)
    assert outcomes == ["planned"]
    wait_until(lambda: not engine.stop_if_idle(600_000) and is_gone(old), 10)


def test_the_place_follows_from_the_configuration() -> None:
    """Cores and properties; what may be secret is not in its text."""
    assignments = [
        ("log.cleaner.threads", "3"),
        ("log.cleaner.dedupe.buffer.size", "100000000"),
        ("cleanerd.spark.conf.spark.authenticate.secret", "s3cret"),
    ]
    place = spark_place(resolve(read_sources(None, assignments)).broker)
    assert place == SparkPlace("local[3]", (("spark.authenticate.secret", "s3cret"),))
    assert "s3cret" not in repr(place)


def test_an_examination_tells_what_it_reads_and_stops_when_told(engine: Engine, log_dir: Path) -> None:
    """In the replay of producers, and in the walk of batch headers: both read the whole log here.

    Headers are walked where the first batch of a segment has no right CRC: nothing is taken from its offsets then.
    """
    for path in (log_dir / "one-0").glob("*.snapshot"):
        path.unlink()
    for path in sorted((log_dir / "one-0").glob("*.log"))[:-1]:
        data = bytearray(path.read_bytes())
        data[CRC_AT] ^= 1
        path.write_bytes(data)
    size_bytes = sum(path.stat().st_size for path in (log_dir / "one-0").glob("*.log"))
    for limit_bytes in (0, size_bytes):
        heard: list[int] = []

        def answer(moved: Moved, heard: list[int] = heard, limit: int = limit_bytes) -> ReportAnswer:
            assert moved == (0, Phase.EXAMINE, moved.read_bytes, 0, 0)
            heard.append(moved.read_bytes)
            return GO_ON if sum(heard) <= limit else STOP

        with Channel(answer) as channel:
            assert clean(engine, log_dir, channel) == "aborted"
        assert limit_bytes < sum(heard) <= limit_bytes + size_bytes
    assert engine.pid is not None
    assert not any(GATEWAY.encode() in cmdline(pid) for pid in descendants(engine.pid)), "no job has begun"


@pytest.mark.soak
@pytest.mark.parametrize("first", ["clean", "examine"])
def test_workers_are_forked_from_an_engine_that_is_started_to_clean(
    engine: Engine, channel: Channel, log_dir: Path, first: str
) -> None:
    """It has imported what they need. One that examines first has other threads, and serves as well."""
    if first == "examine":
        assert examine(engine, log_dir) == "planned"
    assert clean(engine, log_dir, channel) == "staged"
    assert engine.pid is not None
    engines, *others = map(cmdline, descendants(engine.pid))
    assert (engines in others) == (first == "clean"), others


@pytest.mark.soak
def test_an_engine_stays_for_as_long_as_a_job_runs(engine: Engine, log_dir: Path) -> None:
    """Between two rounds of one it has no call, but knows how to go on."""
    with engine.job():
        assert examine(engine, log_dir) == "planned"
        assert not engine.stop_if_idle(0)
        assert engine.pid is not None
    assert engine.stop_if_idle(0)


@pytest.mark.soak
def test_the_first_engine_leaves_an_archive_of_classes_that_others_map(
    engine: Engine, channel: Channel, log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the JVM writes it, after it was idle, a call has an engine of its own."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    assert clean(engine, log_dir, channel) == "staged"
    first = engine.pid
    assert engine.stop_if_idle(0)
    assert engine.pid is None
    assert examine(engine, log_dir) == "planned"
    assert first is not None
    assert not is_gone(first)
    wait_until(lambda: not engine.stop_if_idle(600_000) and is_gone(first), 60)
    (archive,) = (tmp_path / "cache").glob("*.jsa*")
    assert clean(engine, log_dir, channel) == "staged"
    assert engine.pid is not None
    (jvm,) = [pid for pid in descendants(engine.pid) if GATEWAY.encode() in cmdline(pid)]
    assert str(archive) in Path(f"/proc/{jvm}/maps").read_text()


@pytest.mark.soak
def test_an_engine_that_has_no_time_to_end_leaves_none(
    engine: Engine, channel: Channel, log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon ends: the JVM is gone with it, and does not write for seconds what nothing would keep."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    assert clean(engine, log_dir, channel) == "staged"
    assert engine.pid is not None
    all_of_it = descendants(engine.pid)
    engine.stop()
    wait_until(lambda: all(map(is_gone, all_of_it)), 2)
    assert not list((tmp_path / "cache").glob("*.jsa*"))


@pytest.mark.soak
@pytest.mark.parametrize("aborted", [False, True], ids=["stalled", "aborted"])
def test_a_job_that_does_not_progress_is_ended(
    engine: Engine, log_dir: Path, aborted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JVM and workers of a session hang: the engine and all its processes are ended, the next cleaning has new ones."""
    with Channel(lambda _: engine.beat() or GO_ON) as channel:
        assert clean(engine, log_dir, channel) == "staged"
        assert engine.pid is not None
        old, *others = descendants(engine.pid)
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(client, "STALL_LIMIT_S", 600.0 if aborted else 5.0)
        with pytest.raises(EngineStalled, match="no task of Spark has reported for"):
            clean(engine, log_dir, channel, aborted=aborted)
        assert (engine.stalled is None) == aborted, "who asked for a stop got it"
        wait_until(lambda: all(map(is_gone, [old, *others])), 10)
        monkeypatch.setattr(client, "STALL_LIMIT_S", 600.0)
        assert clean(engine, log_dir, channel) == "staged"
        assert engine.stalled is None


def test_a_killed_engine_is_no_stalled_one(engine: Engine, log_dir: Path) -> None:
    """It died: that is what is told."""
    assert examine(engine, log_dir) == "planned"
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            examine(engine, log_dir)
        except EngineDied as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: engine._child is not None and engine._child.is_busy, 10)
    os.kill(engine.pid, signal.SIGKILL)
    asking.join(10)
    assert len(failures) == 1
    assert engine.stalled is None


def test_an_engine_that_may_not_be_killed_ends_with_its_connection(
    engine: Engine, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox may refuse a signal, and to wait for a process: no thread of the daemon dies of that."""

    def refused(*_: object) -> tuple[int, int]:
        raise PermissionError

    examine(engine, log_dir)
    pid = engine.pid
    assert pid is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", refused)
        patched.setattr(os, "waitpid", refused)
        engine.stop()
    wait_until(lambda: is_gone(pid) or not cmdline(pid), 60)  # nobody has waited for it


@pytest.mark.soak
@pytest.mark.parametrize("whole", [True, False], ids=["with its JVM", "alone"])
def test_what_a_killed_engine_left_goes_with_it(
    engine: Engine, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Blocks and the files of Spark; those of an engine that works stay. A JVM does not outlive its engine."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    roots, other = scratch_roots({}, os.environ), Places().engine()
    log_dirs = [write_logs(tmp_path / name, "one") for name in ("logs", "other")]
    try:
        assert clean(other, log_dirs[1], channel) == "staged"
        (kept,) = os.listdir(*roots)
        assert clean(engine, log_dirs[0], channel) == "staged"
        assert engine.pid is not None
        assert len(os.listdir(*roots)) == 2
        all_of_it = descendants(engine.pid)
        (os.killpg if whole else os.kill)(engine.pid, signal.SIGKILL)
        wait_until(lambda: engine.pid is None, 20)
        assert engine.stop_if_idle(600_000)
        wait_until(lambda: all(map(is_gone, all_of_it)), 20)
        engine.stop_if_idle(600_000)  # as each second: it may not have been quite gone before
        assert os.listdir(*roots) == [kept]
        assert clean(other, log_dirs[1], channel) == "staged"
    finally:
        other.stop()
    assert not os.listdir(*roots)
