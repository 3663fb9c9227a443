"""Every key that a reload may change takes effect in a running daemon: each is changed alone, and its effect looked at.

The daemon is the real one, with a real engine and a real Spark; its threads are not started, so that a test does their steps
one by one.
"""

import logging
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest

from cleanerd.cleaning.clean import budget_of
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.cleaning.outcomes import Failed, Skipped
from cleanerd.cleaning.result import CleanRequest, LogResult
from cleanerd.cleaning.throttle import RateLimit
from cleanerd.config.keys import BROKER_KEYS
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.settings import Scope
from cleanerd.config.sources import read_sources
from cleanerd.daemon.configuration.reload import ReloadStatus, ReloadTrigger
from cleanerd.daemon.engine.calls import CleanCall
from cleanerd.daemon.inventory import due_logs
from cleanerd.daemon.inventory.due_logs import Look
from cleanerd.daemon.process import Daemon
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.ownership import Way
from cleanerd.env.clock import SystemClock
from cleanerd.errors import NoWayIn
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.job import Budget
from cleanerd.tools.client.producer import Producer, ProducerRecord
from cleanerd.tools.client.writer import LogWriter
from tests.daemon.test_deletions import next_due_ms
from tests.harness.logs.troubled import leave_to_nobody, lock_of_another, write_logs

DAY_MS = 86_400_000
BAD = Failed("garbage", "CorruptFile")


class Running:
    """A daemon with one directory of cooperating writers."""

    def __init__(self, root: Path) -> None:
        self.log_dir = write_logs(root / "logs", "t")
        leave_to_nobody(self.log_dir)
        self._file = root / "server.properties"
        self._fixed = {
            "log.dirs": self.log_dir,
            "cleanerd.state.dir": root,
            "cleanerd.control.socket": root / "control.sock",
            "cleanerd.metrics.listen": "",
            "log.cleanup.policy": "compact",
        }
        self._write({})
        root_logger = logging.getLogger()
        self._before = root_logger.level, root_logger.handlers[:], sys.excepthook
        self._daemon = Daemon(self._load(), (str(self.log_dir),), str(self._file), self._load, lambda: None)
        self.parts, self.supervisor = self._daemon._parts, self._daemon._supervisor
        self.control = self._daemon._control
        self.parts.ownership.take_at_start(self.parts.log_dirs)
        self.t = self.log("t")
        self._written, self._random = 0, random.Random(1)
        self.scan()

    def set(self, settings: Mapping[str, str]) -> None:
        """Reload with these settings, and no others but the fixed ones."""
        self._write(settings)
        self._daemon._reload(ReloadTrigger.FILES)
        last = self._daemon._reloader.last
        assert last is not None
        assert last.status is not ReloadStatus.REJECTED, last.problems
        self.scan()

    def stop(self) -> None:
        """Its process has the log that it had before."""
        self._daemon._supervisor.stop()
        root, (level, handlers, sys.excepthook) = logging.getLogger(), self._before
        root.setLevel(level)
        root.handlers[:] = handlers

    def log(self, topic: str) -> LogId:
        return LogId(str(self.log_dir), TopicPartition(topic, 0))

    def scan(self) -> None:
        self.supervisor.scanner.scan()

    @contextmanager
    def written(self) -> Iterator[tuple[LogId, LogWriter]]:
        """One more log, which no cleaning has seen, and its writer."""
        self._written += 1
        log = self.log(f"t{self._written}")
        with LogWriter(log.log_dir, log.topic_partition.topic, 0, segment_bytes=1 << 20) as writer:
            yield log, writer
            writer.roll()

    def fresh(self) -> LogId:
        """One more dirty log."""
        with self.written() as (log, writer):
            for number in range(6):
                if number:
                    writer.roll()
                for _ in range(5):
                    again = ProducerRecord(b"again", b"", 1000)
                    Producer(writer).send([again, *(self._row() for _ in range(100))])
        return log

    def _row(self) -> ProducerRecord:
        words = b" ".join(b"word%d" % self._random.randrange(300) for _ in range(5))
        return ProducerRecord(b"key %d" % self._random.randrange(1 << 40), words, 1000)

    def cleaned(self, log: LogId, engine: Any = None) -> Path:
        """The partition directory, after the engine has cleaned it."""
        self.scan()
        requested = self.parts.jobs.request([log], force=True)
        job = self.parts.schedule.next().job
        assert job is requested
        cleanings = self.supervisor.cleaners.cleanings
        replace(cleanings, engine=engine or cleanings.engine).run(job)
        return Path(log.directory)

    def _write(self, settings: Mapping[str, str]) -> None:
        merged = {**self._fixed, **settings}
        self._file.write_text("".join(f"{key}={text}\n" for key, text in merged.items()))

    def _load(self) -> Configuration:
        return resolve(read_sources(str(self._file)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    daemon = Running(tmp_path_factory.mktemp("every"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(daemon.supervisor.cleaners.workers, "resize", lambda _: None)
        yield daemon
    daemon.stop()


class Effect(NamedTuple):
    """What is seen before and after a key is set to `text`, which differ; `given` is set all the time."""

    look: Callable[[Running], object]
    text: str
    before: object = ANY
    after: object = ANY
    given: Mapping[str, str] = {}


def rate(limit: RateLimit) -> Callable[[Running], object]:
    return lambda running: running.parts.throttle.limits()[limit]


def pace_max_ms(running: Running) -> int | None:
    """What the limit which follows the brokers goes by."""
    for _ in range(2):  # the first round has nothing to compare with
        running.supervisor.pacer.step()
    view = running.supervisor.pacer.view
    return None if view is None else view.max_ms


def pause_s(thread: str) -> Callable[[Running], object]:
    """How long a thread of the daemon pauses after a round."""
    return lambda running: next(one for one in running.supervisor.keepers if one.name == thread).step()


def is_due(running: Running) -> bool:
    return running.t in [one.log for one in look(running).due if one.late_s is None]


def look(running: Running) -> Look:
    return running.parts.due_logs.look(running.parts.schedule._is_free())


def is_first(running: Running) -> bool:
    """Whether the log goes before all others as one of a reserved topic that has waited too long."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(due_logs, "RESERVED_MAX_WAIT_S", 0.0)
        look(running)
        return any(one.late_s is not None for one in look(running).due)


def obstacle(running: Running) -> str | None:
    found = running.parts.conditions.of(running.t).obstacle
    return found.split(":")[0] if found else None


def no_room(running: Running) -> bool:
    """Whether nothing more may be staged beside a live broker that cannot be asked to swap."""
    with pytest.MonkeyPatch.context() as patched, lock_of_another(running.log_dir / names.LOCK):
        patched.setattr(type(running.parts.ownership), "way", lambda *_: Way("restart", 1, "for the test"))
        running.scan()
        found = running.parts.conditions.of(running.t).obstacle is not None
    running.scan()
    return found


def staged_pause_s(running: Running) -> object:
    """How long the committer pauses while something is staged."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(running.parts.inventory), "staged", lambda _: [running.t])
        return pause_s("cleanerd-committer")(running)


def grace(running: Running) -> bool:
    """Whether a log is left to the cleaner of a live broker, which is at work."""
    cleaner = type(running.parts.brokers_cleaner)
    with pytest.MonkeyPatch.context() as patched, lock_of_another(running.log_dir / names.LOCK):
        patched.setattr(cleaner, "is_at_work", lambda *_: True)
        running.scan()
        return "left to the broker's own cleaner" in (running.parts.conditions.of(running.t).obstacle or "")


def failed(running: Running) -> tuple[bool, int]:
    """What one failure makes of a log: whether it is uncleanable, and else how long it waits, in ms."""
    running.supervisor.cleaners.cleanings._note_failed(running.t, BAD)
    found = running.parts.failures.of(running.t)
    assert found is not None
    running.parts.failures.forget(running.t)
    return found.is_uncleanable, 0 if found.retry_at_ms is None else found.retry_at_ms - found.failed_ms


def release(running: Running) -> bool:
    """Whether the agent may work in a release that it is not tested with."""
    session: Any = SimpleNamespace(hello={"release": "9.9"}, close=lambda: None)
    try:
        running.parts.brokers._check_release(session)
    except NoWayIn:
        return False
    return True


def has_series(running: Running) -> bool:
    return b'topic="t"' in running.parts.metrics.page("")[0]


def engine_runs(running: Running) -> bool:
    """Whether an engine that has just worked is still there after a look of the housekeeper."""
    running.cleaned(running.fresh())
    next(one for one in running.supervisor.keepers if one.name == "cleanerd-housekeeper").step()
    return running.parts.engine.pid is not None


def budget(running: Running) -> int:
    """Bytes for keys: all jobs share them, the express one too."""
    return asked(running).bytes


def io_bytes(running: Running) -> int:
    return asked(running).io_bytes


def asked(running: Running) -> Budget:
    """The memory of a cleaning that the daemon asks its engine for."""
    calls: list[CleanCall] = []

    class Recorder:
        def job(self) -> AbstractContextManager[None]:
            return nullcontext()

        def clean(self, call: CleanCall, *_: object) -> list[LogResult]:
            calls.append(call)
            return [LogResult(tp, call.log_dir, Skipped("clean")) for tp in call.partitions]

    running.cleaned(running.fresh(), Recorder())
    (call,) = calls
    assert not call.is_owned, "no broker lives there"
    topic_config, jobs = call.topic_configs.__getitem__, call.jobs_at_once
    request = CleanRequest(config=call.config, topic_config=topic_config, log_dirs=(), jobs_at_once=jobs)
    return budget_of(request)


def files(running: Running) -> int:
    """Segments after a cleaning."""
    return len(list(running.cleaned(running.fresh()).glob("*.log")))


def bytes_of(names: str) -> Callable[[Running], int]:
    """What files have after a cleaning."""
    return lambda running: sum(path.stat().st_size for path in running.cleaned(running.fresh()).glob(names))


def codec(running: Running) -> int:
    """That of the first batch after a cleaning."""
    path = min(running.cleaned(running.fresh()).glob("*.log"))
    return path.read_bytes()[22] & 7


def remembers(running: Running) -> bool:
    """Whether the last batch of a producer that was there a minute ago stays, although its record goes."""
    now_ms, producer_id = SystemClock().now_ms(), 1 << 60 | 7
    with running.written() as (log, writer):
        Producer(writer, producer_id=producer_id).put(b"key", b"old", now_ms - 60_000)
        Producer(writer).put(b"key", b"new", now_ms - 50_000)
    found = b"".join(path.read_bytes() for path in running.cleaned(log).glob("*.log"))
    return producer_id.to_bytes(8, "big") in found


def horizon_days(running: Running) -> int:
    """How long a tombstone stays after its first cleaning: the delete horizon in the header of its batch."""
    now_ms = SystemClock().now_ms()
    with running.written() as (log, writer):
        Producer(writer).put(b"key", None, 1000)
    header = min(running.cleaned(log).glob("*.log")).read_bytes()
    assert header[22] & 0x40, "the batch has a horizon"
    return round((int.from_bytes(header[27:35], "big") - now_ms) / DAY_MS)


def deleted_after(running: Running) -> int:
    """How long a segment stays that retention has taken, in minutes."""
    parts, path = running.parts, running.log_dir / "t-0" / "00000000000000000000.index.deleted"
    path.touch()
    parts.retention._dispose(parts.configuration().topic("t"), (str(path),))
    due_ms = next_due_ms(parts.deletions)
    path.unlink()
    parts.deletions._waiting.clear()
    assert due_ms is not None
    return round((due_ms - parts.clock.now_ms()) / 60_000)


def breaches(running: Running) -> tuple[str, ...]:
    return tuple(running.control.retention.planned(running.t).breaches)


def codec_of(name: str) -> dict[str, str]:
    return {"cleanerd.compression": "topic", "compression.type": name}


def deletes_after_ms(running: Running) -> int:
    """The limit of a topic of a cluster in which this node was the only voter when it ran last."""
    metadata = ClusterMetadata(
        {"t": None}, {"t": {"cleanup.policy": "delete", "retention.ms": "5"}}, {}, "/m", 1
    )
    configuration = running.parts.configuration().with_metadata(metadata)
    log_dir = replace(running.parts.ownership.at(running.parts.log_dirs[0]), is_kafka=True)
    return Knowledge(log_dir, configuration).limits("t").retention_ms


EFFECTS: dict[str, Effect] = {
    # limits
    "log.cleaner.io.max.bytes.per.second": Effect(rate(RateLimit.TOTAL), "5e9", math.inf, 5e9),
    "cleanerd.io.max.read.bytes.per.second": Effect(rate(RateLimit.READ), "6e9", math.inf, 6e9),
    "cleanerd.io.max.write.bytes.per.second": Effect(rate(RateLimit.WRITE), "7e9", math.inf, 7e9),
    "cleanerd.throttle.request.queue.max.ms": Effect(pace_max_ms, "40", None, 40),
    "log.cleaner.threads": Effect(budget, "3", 60_397_977, 30_198_988),
    "log.cleaner.dedupe.buffer.size": Effect(budget, "10000000", 60_397_977, 4_500_000),
    "log.cleaner.io.buffer.load.factor": Effect(budget, "0.5", 60_397_977, 33_554_432),
    "log.cleaner.io.buffer.size": Effect(io_bytes, "1000000", 524_288, 1_000_000),
    "log.cleaner.backoff.ms": Effect(pause_s("cleanerd-retention"), "4000", 15.0, 4.0),
    "cleanerd.scan.interval.ms": Effect(pause_s("cleanerd-scanner"), "9000", 30.0, 9.0),
    # which logs are cleaned, and when
    "controller.quorum.voters": Effect(deletes_after_ms, "1@a:1,2@b:1", 5, -1),
    "cleanerd.log.cleaner.enable": Effect(obstacle, "false", None, "cleaning is off"),
    "log.cleanup.policy": Effect(is_due, "delete", True, False),
    "log.cleaner.min.cleanable.ratio": Effect(is_due, "1", True, False),
    "cleanerd.min.cleanable.dirty.ratio": Effect(is_due, "1", True, False),
    "log.cleaner.min.compaction.lag.ms": Effect(is_due, str(2**62), True, False),
    "log.cleaner.max.compaction.lag.ms": Effect(is_due, "1", False, True, {"log.cleaner.min.cleanable.ratio": "1"}),
    "cleanerd.reserved.topics": Effect(is_first, "t", False, True),
    "cleanerd.broker.cleaner.grace.ms": Effect(grace, "0", True, False),
    "producer.id.expiration.ms": Effect(remembers, "1000", True, False),
    "cleanerd.retry.max": Effect(failed, "1", (False, 10_000), (True, 0)),
    "cleanerd.retry.backoff.ms": Effect(failed, "70", (False, 10_000), (False, 70)),
    # what becomes of them
    "log.segment.bytes": Effect(files, "30000", 2),
    "log.index.size.max.bytes": Effect(files, "50", 2),
    "log.index.interval.bytes": Effect(bytes_of("*.index"), "1000000000"),
    "cleanerd.compression": Effect(codec, "topic", 0, 4, {"compression.type": "zstd"}),
    "compression.type": Effect(codec, "lz4", 0, 3, {"cleanerd.compression": "topic"}),
    "compression.gzip.level": Effect(bytes_of("*.log"), "1", given=codec_of("gzip")),
    "compression.lz4.level": Effect(bytes_of("*.log"), "1", given=codec_of("lz4")),
    "compression.zstd.level": Effect(bytes_of("*.log"), "19", given=codec_of("zstd")),
    "log.cleaner.delete.retention.ms": Effect(horizon_days, str(3 * DAY_MS), 1, 3),
    "log.retention.ms": Effect(breaches, "1", (), ("retention.ms",), {"log.cleanup.policy": "delete"}),
    "log.retention.bytes": Effect(
        breaches, "1", (), ("retention.bytes",), {"log.cleanup.policy": "delete", "log.retention.ms": "-1"}
    ),
    "log.segment.delete.delay.ms": Effect(deleted_after, "7200000", 1, 120),
    # results that wait, and brokers
    "cleanerd.commit.live": Effect(lambda running: running.parts.brokers.known_refusal("/d"), "auto", ANY, None),
    "cleanerd.broker.agent.untested": Effect(release, "true", False, True),
    "cleanerd.staged.min.free.ratio": Effect(no_room, "1", False, True),
    "cleanerd.staged.commit.interval.ms": Effect(staged_pause_s, "3000", 1.0, 3.0),
    # history, metrics, log, and the engine at last
    "cleanerd.metrics.per.partition.topics": Effect(has_series, "t", False, True),
    "cleanerd.log.level": Effect(lambda _: logging.getLogger().level, "debug", logging.INFO, logging.DEBUG),
    "cleanerd.spark.idle.timeout.ms": Effect(engine_runs, "0", True, False),
}  # fmt: skip


@pytest.mark.parametrize("key", EFFECTS)
def test_a_key_takes_effect_without_a_restart(running: Running, key: str) -> None:
    effect = EFFECTS[key]
    running.set(effect.given)
    before = effect.look(running)
    running.set({**effect.given, key: effect.text})
    after = effect.look(running)
    assert (before, after) == (effect.before, effect.after)
    assert before != after


def test_threads_come_with_a_reload_and_have_so_much_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log.cleaner.threads, cleanerd.shutdown.timeout.ms."""
    running = Running(tmp_path)
    idle = {"cleanerd.log.cleaner.enable": "false"}
    for count in (2, 4):
        running.set({**idle, "log.cleaner.threads": str(count), "cleanerd.shutdown.timeout.ms": "7000"})
        assert len(running.supervisor.cleaners.workers.all()) == count + 1, "and the express one"
    left_s: list[float] = []
    now_s = running.parts.clock.monotonic_s
    monkeypatch.setattr(running.supervisor.keepers[0], "join", lambda limit_s: left_s.append(limit_s) or True)
    began_s = now_s()
    running.stop()
    assert 7.0 - (now_s() - began_s) <= left_s[0] <= 7.0


def test_no_key_that_a_reload_may_change_is_left_out() -> None:
    reloadable = {name for name, key in BROKER_KEYS.items() if key.scope is Scope.RELOADABLE}
    assert reloadable == {*EFFECTS, "cleanerd.shutdown.timeout.ms"}
