"""One seed's world: log directories, their writers or their broker, their cleaner, and everything that can happen to them.

`stage` is what it stands on, `writing`, `broker` and `clients` are the others in it.
"""

import os

from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.simulation import judge
from tests.simulation.broker import Broker
from tests.simulation.cleaner import Cleanerd, EngineKilled
from tests.simulation.clients import Clients
from tests.simulation.directories import Trouble
from tests.simulation.rules import Violation
from tests.simulation.stage import FILES, Stage
from tests.simulation.writer import Log
from tests.simulation.writing import Writing

STEPS = ("worker", "worker", "worker", "committer", "retention", "housekeeper", "scanner", "scan", "express")
CAPACITY_BYTES = 64 << 20
"""Of a disk that can be full; cleanerd leaves 1 % of one that small."""
STOP_MARGIN_S = 2
"""One more step, and the pause after it."""
LEFTOVERS = (".cleanerd", ".swap", ".cleaned", ".deleted")


class World(Stage):
    """See the head of this module."""

    def __init__(self, seed: int, path: str) -> None:
        super().__init__(seed, path)
        self.writing = Writing(self)
        self.clients = Clients(self)
        self._seen: dict[TopicPartition, set[tuple[str, int, int]]] = {}

    def _begin(self) -> None:
        for log_dir in self.log_dirs:
            os.makedirs(log_dir)
            os.close(os.open(f"{log_dir}/.lock", os.O_CREAT | os.O_RDWR))
        for number in range(self.chance.choice([1, 1, 2, 3] if len(self.log_dirs) == 1 else [2, 2, 3])):
            keys, log_dir = self.chance.choice([2, 5, 12]), self.log_dirs[number % len(self.log_dirs)]
            log = Log(log_dir, TopicPartition(f"t{number}", 0), self.disk, self.chance, keys)
            self.logs.append(log)
            log.model.limit = 0 if self.is_kafka else None
        self.locks.has_leases = self.chance.random() < 0.8
        if self.is_kafka:
            self.broker = Broker(self, self.writing)
        self.clients.write_configuration()
        self.observe()
        for log_dir in self.log_dirs:
            for path in (log_dir, os.path.dirname(log_dir), self.disk.root):
                FILES.fsync_dir(path)

    def _interlude(self) -> None:
        """Tasks of a cleaning report: meanwhile the others do something."""
        draw = self.chance.random()
        if self.is_calm or draw > 0.25:
            return
        if draw < 0.02:
            self.counts["engine kills"] += 1
            self.note("  the engine is killed")
            raise EngineKilled
        self.aside(self._meanwhile)

    def _meanwhile(self) -> None:
        draw = self.chance.random()
        if self.chance.random() < 0.01:
            self.directories.something()
        if draw < 0.12 and self.daemon is not None:
            self.clients.control()
        elif draw < 0.16:
            self.clients.reload()
        else:
            self.writing.step()

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of somebody, then judgement."""
        self.counts["steps"] += 1
        self.clock.pass_s(self.chance.choice([0, 0.01, 0.5, 3]))
        draw = self.chance.random()
        self.note(f"step {self.counts['steps']}")
        if self.chance.random() < (0.1 if self.directories.offline else 0.03):
            self.directories.something()
        if draw < 0.45:
            self.writing.step()
        elif draw < 0.84:
            self._clean()
        elif draw < 0.89:
            self.clients.control()
        elif draw < 0.91:
            self.fault_rate = self.chance.choice([0, 0, 0.02, 0.2])
            self.faulty = self.chance.choice([self.disk.root, *self.log_dirs])
            self.note(f"faults at {self.fault_rate} in {self.faulty}")
        elif draw < 0.93:
            self._jump()
        elif draw < 0.94:
            self._fill()
        elif draw < 0.96:
            self.clients.reload()
        elif draw < 0.97:
            self._stop()
        elif draw < 0.98:
            self._die()
        else:
            self._power_cut()
        self.judge()

    def _jump(self) -> None:
        """Time goes by, or somebody sets the clock."""
        seconds = self.chance.choice([5, 100, 4000, 100_000, -1, -90, -5000])
        self.note(f"{seconds} s")
        self.observe()
        if seconds > 0:
            self.clock.pass_s(seconds)
        else:
            self.clock.ahead_ns += seconds * 10**9
        self.observe()

    def _fill(self) -> None:
        """Others write beside a log directory, or delete: little is free, about as much as the floor, or much."""
        log_dir = self.chance.choice(self.log_dirs)
        room = self.disk.systems.room(log_dir)
        room.capacity_bytes, room.others_bytes = CAPACITY_BYTES, 0
        free_bytes = self.chance.choice([None, None, 0, 40_000, 500_000, 800_000])
        if free_bytes is not None:
            room.others_bytes = self.disk.free_bytes(log_dir) - free_bytes
        self.note(f"{free_bytes} bytes are free in {log_dir}")

    def _clean(self) -> None:
        """A step of the daemon, or its start."""
        self.maybe_killed(0.12, 120)
        if self.daemon is None:
            made: list[Cleanerd] = []

            def start() -> None:
                made.append(Cleanerd(self.state, self.log_dirs, self.clock))
                made[0].supervisor.start()

            self.note("the daemon starts")
            rate, self.fault_rate = self.fault_rate, 0.0
            is_alive = self.act("start", start)
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
        if not self._take(name):
            self.counts["daemons killed"] += 1
            self._kill_daemon()

    def _take(self, name: str) -> bool:
        assert self.daemon is not None
        self.doing = name
        return self.act("daemon", self.daemon.steps[name])

    def _kill_daemon(self) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.close()  # holds outlive it

    def _check_second_recovery(self) -> None:
        owned = self.broker.log_dirs if self.broker is not None else []
        for log in self.logs:
            is_recovered = log.log_dir not in owned and log.log_dir not in self.directories.offline
            if not is_recovered or not os.path.isdir(log.directory):
                continue
            before = self._contents(log.directory)
            with LogDir(FILES, log.log_dir, self.clock, self.is_kafka).lock():
                recover(PartitionDir(FILES, log.directory), is_kafka=self.is_kafka)
            after = self._contents(log.directory)
            if before != after:
                raise Violation(f"a second recovery changed {log.tp}: {sorted(before ^ after)}")

    @staticmethod
    def _contents(directory: str) -> set[tuple[str, int, int]]:
        found = ((name, os.stat(f"{directory}/{name}")) for name in os.listdir(directory))
        return {(name, stat.st_ino, stat.st_size) for name, stat in found}

    def _stop(self) -> None:
        """SIGTERM. Raises Violation."""
        daemon, began_s = self.daemon, self._charged_s()
        if daemon is None:
            return
        limit_s = daemon.parts.configuration().broker.shutdown_timeout_ms / 1000 + STOP_MARGIN_S
        self.note("the daemon is asked to stop")
        self.doing = "stop"
        self.counts["stops"] += 1
        if self.act("daemon", daemon.supervisor.stop):
            took_s, kept = self._charged_s() - began_s, daemon.held_locks()
            self.note(f"it has stopped within {took_s} s")
            if took_s > limit_s or kept:
                raise Violation(f"a daemon that was asked to stop took {took_s} s and kept {kept}")
        self._kill_daemon()

    def _charged_s(self) -> float:
        return self.clock.monotonic_s() - self.aside_s

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
                self._take(name)
        self.counts["power cuts"] += 1
        self.note("the power goes")
        self._kill_daemon()
        if self.broker is not None:
            self.broker.die()
        for log in self.logs:
            log.die()
        unsettled = {log.tp: log.model.unsettled & self.disk.retired(log.directory) for log in self.logs}
        self.disk.power_cut(self.chance)
        for log in self.logs:
            log.model.unsettled.clear()
            if unsettled[log.tp]:
                self._bring_back(log, unsettled[log.tp])

    def _bring_back(self, log: Log, inodes: set[int]) -> None:
        """Segments of which retention has reported that it could not take them may be there again, after a power cut."""
        for entry in os.scandir(log.directory):
            if entry.name.endswith(".log") and entry.inode() in inodes:
                self.note(f"{log.tp} {entry.name} is back")
                self.counts["segments back"] += 1
                log.model.brought_back(judge.offsets_of(entry.path))

    # -- judgement ----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        if self.problems:
            raise Violation("; ".join(self.problems))
        if self.daemon is not None:
            self.directories.note_unseen_moves(self.daemon)
        for log in self.logs:
            if not os.path.isdir(log.directory):
                if log.model.sent:
                    raise Violation(f"{log.tp} is gone")
                continue
            if judge.in_transition(log.directory) or (log.writer is None and not log.is_whole):
                continue
            self._judge_log(log)

    def _judge_log(self, log: Log) -> None:
        now_ms, window = self.clock.now_ms(), log.model.window
        window.observe(now_ms, self.rules)
        seen = {(entry.name, entry.inode(), entry.stat().st_mtime_ns) for entry in os.scandir(log.directory)}
        if seen != self._seen.get(log.tp):
            self._seen[log.tp] = seen
            judge.check(log.model, log.directory, reads=self.chance.random() < 0.2)
            self.counts["judgements"] += 1
        is_staged = any(name.endswith(".cleanerd") for name, _, _ in seen)
        if not is_staged:
            window.settle(now_ms, self.rules)

    def end(self) -> None:
        """Everybody behaves: what is to be done gets done, and nothing is left behind. Raises Violation."""
        self.is_calm, self.fault_rate, self.kill_in = True, 0.0, None
        for log_dir in self.log_dirs:
            room = self.disk.systems.room(log_dir)
            room.capacity_bytes, room.others_bytes = room.capacity_bytes * 4, 0  # logs may have filled it
        for log_dir in sorted(self.directories.offline):
            self.directories.mend(log_dir)
        self.note("calm")
        if self.chance.random() < 0.5:
            self._kill_daemon()
        self.clients.reload()
        if self.broker is not None and len(self.broker.log_dirs) < len(self.log_dirs):
            self.broker.die()  # and starts again with what had failed
        if self.broker is not None and not self.broker.lives:
            self.broker.start()
        elif self.broker is not None and self.broker.is_starting:
            self.broker.load()
        if self.broker is not None:
            self.broker.settle()
        self._write_last()
        if self.daemon is None:
            self._clean()
        if len(self.log_dirs) > 1:  # the others go on, whatever is wrong with one
            self._round()
            self.directories.fail(*self._trouble())
            if self.chance.random() < 0.5:
                self._kill_daemon()
                self._clean()
            self._get_done()
            self.directories.something()
        self._get_done()
        if self.broker is not None:
            self.broker.start()
            self.broker.settle(self.log_dirs)
            self._write_last()
            self._get_done()
        for log in self.logs:
            log.close()
        self._kill_daemon()
        if left := self.disk.open_fds():
            raise Violation(f"descriptors left open: {left}")

    def _trouble(self) -> tuple[str, Trouble]:
        """Of a log directory; rather of one where something waits for its deletion, which its daemon may not live to see."""
        waiting = [
            log.log_dir for log in self.logs if any(n.endswith(".deleted") for n in os.listdir(log.directory))
        ]
        return self.chance.choice(waiting or self.log_dirs), self.chance.choice(list(Trouble))

    def _write_last(self) -> None:
        """No transaction stays open, and no broker lives."""
        self.locks.is_broker = self.is_kafka
        for log in self.logs:
            if log.writer is None:
                self.writing.open(log)
            assert log.writer is not None
            log.end_all()
            log.writer.roll()
            log.append()
            log.end_all()
        if self.broker is not None:
            self.broker.stop()
        self.locks.is_broker = False

    def _round(self) -> None:
        """A step of each of a daemon's threads, then judgement."""
        self.clients.release_all()
        for name in ("scan", "worker", "committer", "retention", "housekeeper"):
            self.note(f"daemon {name}")
            self._take(name)
            self.judge()

    def _get_done(self) -> None:
        """All that is to be done where nothing is wrong. Raises Violation."""
        for _ in range(60):
            self.clock.pass_s(61)
            self._round()
            if not (waits := self._what_waits()):
                return
        raise Violation(f"something waits for ever: {waits}")

    def _what_waits(self) -> list[str]:
        waits = []
        for log in self.logs:
            if log.log_dir in self.directories.offline or self.directories.may_keep(log):
                continue
            offsets = read_checkpoints(FILES, log.log_dir).cleaner
            names = os.listdir(log.directory)
            left = [name for name in names if name[0].isdigit() and name.endswith(LEFTOVERS)]
            bases = judge.read(log.directory).bases
            if left or offsets.get(log.tp, bases[0]) != bases[-1]:
                waits.append(f"{log.tp} {left} {offsets.get(log.tp)} of {bases}")
        return waits
