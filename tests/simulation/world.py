"""One seed's world: a log directory, its writers, its cleaner, and everything that can happen to them, in one process.

Every step is drawn from the seed. `trace` is what happened; the same seed gives the same trace to the last byte, and
`digest` is its hash, file operations included.
"""

import contextlib
import errno
import hashlib
import os
import random
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator

import structlog

from cleanerd.cleaning.lock import commit_lock
from cleanerd.daemon.api.operations import OperationError
from cleanerd.daemon.api.service import Service
from cleanerd.daemon.configuration.reload import ReloadTrigger
from cleanerd.env.files import RealFiles
from cleanerd.errors import LockHeld
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.sim.disk import SwitchedOff
from tests.simulation import judge
from tests.simulation.cleaner import Cleanerd, EngineKilled, Locks, instead_of_the_machine
from tests.simulation.disk import Disk, Tick
from tests.simulation.judge import Rules
from tests.simulation.violation import Violation
from tests.simulation.writer import Log

START_NS = 1_790_000_000 * 10**9
STEPS = ("worker", "worker", "worker", "committer", "retention", "housekeeper", "scanner", "scan", "express")
LEFTOVERS = (".cleanerd", ".swap", ".cleaned", ".deleted")
FAULTS = (errno.EIO, errno.ENOSPC, errno.EACCES)


class World:
    """See the head of this module. `path`: where its files may be."""

    def __init__(self, seed: int, path: str) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = Tick(START_NS)
        self.disk = Disk(path, self.clock, self._before)
        self.locks = Locks()
        self.trace: deque[str] = deque(maxlen=400)
        self.counts: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self.state = f"{path}.state"
        self.log_dir = f"{path}/logs"
        self.daemon: Cleanerd | None = None
        self.actor = ""
        self.kill_in: int | None = None  # operations until who acts is killed, or the power goes
        self.fault_rate = 0.0
        self.held: dict[str, str] = {}  # hold -> directory that it keeps the cleaner from
        self.problems: list[str] = []  # told by code that could not raise
        self.is_calm = False
        self.rules = Rules(delete_retention_ms=self.chance.choice([0, 2_000, 60_000]))
        self.logs: list[Log] = []
        self._seen: dict[TopicPartition, set[tuple[str, int, int]]] = {}

    # -- around -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The world instead of this process's; everything is put back afterwards."""
        os.makedirs(f"{self.state}/topics.d")
        configured = structlog.get_config()
        structlog.configure(processors=[self._told])
        try:
            with (
                instead_of_the_machine(
                    self.clock, self.locks, self.seed, self._interlude, self.problems.append
                ),
                self.disk.installed(),
            ):
                self._begin()
                yield
        finally:
            structlog.configure(**configured)
            if self.daemon is not None:
                self.daemon.close()
            for log in self.logs:
                log.die()
            self.disk.remove()
            shutil.rmtree(self.state)

    def _told(self, _: object, __: str, event: dict[str, object]) -> dict[str, object]:
        self.note(f"  log {event.get('event')} {event.get('reason', '')}")
        raise structlog.DropEvent

    def note(self, text: str) -> None:
        """One more line of the trace."""
        text = text.replace(self.disk.root, "")
        self.trace.append(text)
        self.digest.update(text.encode() + b"\n")

    def _begin(self) -> None:
        os.mkdir(self.log_dir)
        self._write_configuration()
        for number in range(self.chance.choice([1, 1, 2, 3])):
            log = Log(
                self.log_dir,
                TopicPartition(f"t{number}", 0),
                self.disk,
                self.chance,
                self.chance.choice([2, 5, 12]),
            )
            self.logs.append(log)
        os.close(os.open(f"{self.log_dir}/.lock", os.O_CREAT | os.O_RDWR))
        for path in (self.log_dir, self.disk.root):
            RealFiles().fsync_dir(path)

    def _write_configuration(self) -> None:
        chance = self.chance
        lines = {
            "log.dirs": self.log_dir,
            "log.cleanup.policy": "compact",
            "log.cleaner.min.cleanable.ratio": chance.choice([0.0, 0.3, 0.6]) if not self.is_calm else 0.0,
            "log.cleaner.delete.retention.ms": self.rules.delete_retention_ms,
            "log.cleaner.min.compaction.lag.ms": chance.choice([0, 0, 5_000]) if not self.is_calm else 0,
            "cleanerd.merge.enable": chance.choice(["true", "false"]),
            "cleanerd.state.dir": self.state,
            "cleanerd.retry.backoff.ms": 1000,
            "cleanerd.chunk.bytes": 1 << 20,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        with open(f"{self.state}/server.properties", "w", encoding="latin-1") as file:
            file.write(text)
        for log in self.logs:
            with open(f"{self.state}/topics.d/{log.tp.topic}.properties", "w", encoding="latin-1") as file:
                file.write(f"internal.segment.bytes={chance.choice([700, 2500, 100_000])}\n")

    # -- what is heard of every operation -----------------------------------------------------------------------

    def _before(self, operation: str, path: str) -> None:
        if not self.actor or operation == "open":
            return
        self.digest.update(f"{operation} {path.replace(self.disk.root, '')}\n".encode())
        self.counts["operations"] += 1
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.disk.is_off = True
                self.note(f"  killed before {operation} {path}")
                raise SwitchedOff
        if self.actor == "daemon":
            self._check_hold(operation, path)
            if self.fault_rate and self.chance.random() < self.fault_rate:
                number = self.chance.choice(FAULTS)
                self.counts["faults"] += 1
                self.note(f"  {errno.errorcode[number]} at {operation} {path}")
                raise OSError(number, os.strerror(number), path)

    def _check_hold(self, operation: str, path: str) -> None:
        for hold, directory in self.held.items():
            if path.startswith(f"{directory}/") and ".deleted" not in path:
                self.problems.append(f"{operation} {path} under hold {hold}")

    def _interlude(self) -> None:
        """Tasks of a cleaning report: meanwhile the others do something."""
        draw = self.chance.random()
        if self.is_calm or draw > 0.25:
            return
        if draw < 0.02:
            self.counts["engine kills"] += 1
            self.note("  the engine is killed")
            raise EngineKilled
        actor, self.actor = self.actor, ""
        kill_in, self.kill_in = self.kill_in, None
        try:
            if draw < 0.05 and self.daemon is not None:
                self._control()
            else:
                self._write()
        finally:
            self.actor, self.kill_in = actor, kill_in

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of somebody, then judgement."""
        self.counts["steps"] += 1
        self.clock.pass_s(self.chance.choice([0, 0.01, 0.5, 3]))
        draw = self.chance.random()
        self.note(f"step {self.counts['steps']}")
        if draw < 0.45:
            self._write()
        elif draw < 0.85:
            self._clean()
        elif draw < 0.90:
            self._control()
        elif draw < 0.92:
            self.fault_rate = self.chance.choice([0, 0, 0.02, 0.2])
            self.note(f"faults at {self.fault_rate}")
        elif draw < 0.94:
            self.clock.pass_s(self.chance.choice([5, 100, 4000]))
        elif draw < 0.96:
            self._reload()
        elif draw < 0.98:
            self._die()
        else:
            self._power_cut()
        self.judge()

    def _act(self, actor: str, work: Callable[[], object]) -> bool:
        """Do something as somebody who may be killed; whether he lives."""
        self.actor = actor
        try:
            work()
        except SwitchedOff:
            self.disk.is_off = False
            return False
        finally:
            self.actor, self.kill_in = "", None
        return True

    def _maybe_killed(self, share: float, most: int) -> None:
        if not self.is_calm and self.chance.random() < share:
            self.kill_in = self.chance.randint(0, most)

    def _write(self) -> None:
        log = self.chance.choice(self.logs)
        draw = self.chance.random()
        self._maybe_killed(0.02, 12)
        told: list[str] = []

        def work() -> None:
            if log.writer is None:
                self._open(log)
                told.append("opened")
            elif draw < 0.80:
                told.extend(log.append() for _ in range(self.chance.choice([1, 3, 8])))
            elif draw < 0.92:
                log.writer.roll()
                told.append("rolled")
            elif draw < 0.96:
                log.close()
                told.append("closed")
            else:
                self._truncate(log)
                told.append(f"truncated to {log.model.end}")

        opener, self.disk.opener = self.disk.opener, str(log.tp)
        try:
            is_alive = self._act("writer", work)
        except LockHeld:
            told.append("the lock is held")
            is_alive = True
        finally:
            self.disk.opener = opener
        if not is_alive:
            self.counts["writers killed"] += 1
            told.append("killed")
            log.die()
        self.note(f"{log.tp} {'; '.join(told)}")

    def _open(self, log: Log) -> None:
        log.open()
        assert log.writer is not None
        log.model.reopened(log.writer.log_end_offset)
        if log.cut is not None:  # its writer died in a truncation: the log is a beginning of what it was
            end = log.writer.log_end_offset
            if end < log.cut:
                raise Violation(
                    f"a truncation to {log.cut} that was interrupted left a log that ends at {end}"
                )
            self._truncated(log, end)

    def _truncated(self, log: Log, offset: int) -> None:
        log.cut = None
        log.model.truncate(offset)
        lying = judge.read(log.directory).offsets
        for (
            batch
        ) in log.model.sent:  # what went with a commit that the truncation finished, was judged before it
            log.model.gone.update(r.offset for r in batch.records if r.offset not in lying)
        log.producers.clear()

    def _truncate(self, log: Log) -> None:
        assert log.writer is not None
        offset = self.chance.randint(max(log.model.end - 12, 0), log.model.end)
        if offset < judge.read(log.directory).bases[0] or offset >= log.writer.log_end_offset:
            return
        if any(batch.first < offset <= batch.last for batch in log.model.sent):
            return
        log.cut = offset
        log.writer.truncate(offset)
        self._truncated(log, offset)

    def _clean(self) -> None:
        """A step of the daemon, or its start."""
        self._maybe_killed(0.12, 120)
        if self.daemon is None:
            made: list[Cleanerd] = []

            def start() -> None:
                made.append(Cleanerd(self.state, (self.log_dir,), self.clock))
                made[0].start()

            self.note("the daemon starts")
            rate, self.fault_rate = self.fault_rate, 0.0
            is_alive = self._act("start", start)
            self.fault_rate = rate
            if made and is_alive:
                self.daemon = made[0]
                self.counts["starts"] += 1
                self._check_second_recovery()
            elif made:
                made[0].close()
            return
        name = self.chance.choice(STEPS)
        self.note(f"daemon {name}")
        if not self._act("daemon", self.daemon.steps[name]):
            self.counts["daemons killed"] += 1
            self._kill_daemon()

    def _kill_daemon(self) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.close()  # holds outlive it

    def _check_second_recovery(self) -> None:
        for log in self.logs:
            if not os.path.isdir(log.directory):
                continue
            before = self._contents(log.directory)
            with commit_lock(self.log_dir, is_kafka=False):
                recover(PartitionDir(RealFiles(), log.directory), is_kafka=False)
            after = self._contents(log.directory)
            if before != after:
                raise Violation(f"a second recovery changed {log.tp}: {sorted(before ^ after)}")

    @staticmethod
    def _contents(directory: str) -> set[tuple[str, int, int]]:
        found = ((name, os.stat(f"{directory}/{name}")) for name in os.listdir(directory))
        return {(name, stat.st_ino, stat.st_size) for name, stat in found}

    def _control(self) -> None:
        """A client of the control API."""
        if self.daemon is None:
            return
        log, service = self.chance.choice(self.logs), self._service()
        draw, pattern = self.chance.random(), str(log.tp)
        try:
            if self.held and draw < 0.6:
                hold = self.chance.choice(sorted(self.held))
                del self.held[hold]
                service.resume(hold)
                self.note(f"resumed {hold}")
            elif draw < 0.4:
                view = service.pause(pattern, "me", "because", None, 0)
                self.held[view.id] = log.directory
                self.note(f"paused {pattern} with {view.id}")
            elif draw < 0.7:
                service.abort(pattern, 0)
                self.note(f"aborted {pattern}")
            elif draw < 0.9:
                service.clean(pattern, force=True)
                self.note(f"asked for {pattern}")
            else:
                service.retry(pattern)
        except OperationError as error:
            self.note(f"refused: {error}")

    def _reload(self) -> None:
        self._write_configuration()
        if self.daemon is not None:
            outcome = self.daemon.reloader.reload(ReloadTrigger.REQUEST)
            self.daemon.supervisor.reloaded(outcome)
            self.note(f"reload {outcome.status.value} {outcome.problems}")

    def _die(self) -> None:
        self.note("the daemon is killed")
        self.counts["daemons killed"] += 1
        self._kill_daemon()

    def _power_cut(self) -> None:
        """Now, or within the next step of somebody."""
        if self.chance.random() < 0.7:
            self.kill_in = self.chance.randint(0, 80)
            kill = self.kill_in
            if self.daemon is not None:
                name = self.chance.choice(["worker", "worker", "committer"])
                self.note(f"daemon {name}, and after {kill} operations the power goes")
                self._act("daemon", self.daemon.steps[name])
        self.counts["power cuts"] += 1
        self.note("the power goes")
        self._kill_daemon()
        for log in self.logs:
            log.die()
        self.disk.power_cut(self.chance)

    # -- judgement ----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Raises Violation."""
        if self.problems:
            raise Violation("; ".join(self.problems))
        for log in self.logs:
            if not os.path.isdir(log.directory):
                if log.model.sent:
                    raise Violation(f"{log.tp} is gone")
                continue
            if judge.in_transition(log.directory) or log.writer is None:
                continue
            self._judge_log(log)

    def _judge_log(self, log: Log) -> None:
        now_ms, retention_ms = self.clock.now_ms(), self.rules.delete_retention_ms
        log.model.horizons.hear(now_ms, retention_ms)
        seen = {(entry.name, entry.inode(), entry.stat().st_mtime_ns) for entry in os.scandir(log.directory)}
        if seen != self._seen.get(log.tp):
            self._seen[log.tp] = seen
            judge.check(
                log.model, log.directory, self.rules, now_ms,
                is_durable=True, reads=self.chance.random() < 0.2,
            )  # fmt: skip
            self.counts["judgements"] += 1
        if not any(name.endswith(".cleanerd") for name, _, _ in seen):
            log.model.horizons.settle(now_ms, retention_ms)

    def end(self) -> None:
        """Everybody behaves: what is to be done gets done, and nothing is left behind. Raises Violation."""
        self.is_calm, self.fault_rate, self.kill_in = True, 0.0, None
        self.note("calm")
        self._write_configuration()
        self._kill_daemon()
        for log in self.logs:
            if log.writer is None:
                self._open(log)
            log.end_all()
            log.writer.roll()
            log.append()
            log.end_all()
        self._clean()
        for _ in range(60):
            assert self.daemon is not None
            self.clock.pass_s(61)
            self._release_all()
            for name in ("scan", "worker", "committer", "retention", "housekeeper"):
                self.note(f"daemon {name}")
                self._act("daemon", self.daemon.steps[name])
                self.judge()
            if self._is_done():
                break
        else:
            raise Violation(f"something waits for ever: {self._what_waits()}")
        for log in self.logs:
            log.close()
        self._kill_daemon()
        if left := self.disk.open_fds():
            raise Violation(f"descriptors left open: {left}")

    def _release_all(self) -> None:
        assert self.daemon is not None
        for hold in list(self.held):
            self._service().resume(hold)
        self.held.clear()

    def _service(self) -> Service:
        assert self.daemon is not None
        return Service(
            self.daemon.parts,
            self.daemon.supervisor.crew,
            self.daemon.reloader,
            lambda _: None,
            None,  # type: ignore[arg-type]
        )

    def _what_waits(self) -> list[str]:
        offsets = read_checkpoints(RealFiles(), self.log_dir).cleaner
        waits = []
        for log in self.logs:
            left = [
                name for name in os.listdir(log.directory) if name[0].isdigit() and name.endswith(LEFTOVERS)
            ]
            bases = judge.read(log.directory).bases
            if left or offsets.get(log.tp, 0) != bases[-1]:
                waits.append(f"{log.tp} {left} {offsets.get(log.tp)} of {bases}")
        return waits

    def _is_done(self) -> bool:
        return not self._what_waits()
