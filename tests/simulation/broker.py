"""The actor that is a broker: it owns the log directory while it lives, and starts and dies at any moment.

What it makes of a directory at its start is `tests.harness.disks.kafka_startup`; it appends as `LogWriter` does, which syncs
what a real broker would leave to recovery. High watermark and recovery point lie behind the log end until it writes them
down.

    starts    with the locks of all log directories that work, one after the other: those that it finds free at once, others
              at the end of a commit, for which it waits in `open` (a lease)
    loses     a directory that fails, and what lies there, until its next start
    ends      cleanly: everything written down, `.kafka_cleanshutdown`, no `.lock` any more; or killed
"""

import os
from collections.abc import Callable, Sequence
from functools import partial

from cleanerd.format import names
from cleanerd.format.batch import iterate_batches, parse_header
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.storage import lock as storage_lock
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.replace import replace_file
from tests.harness.disks import kafka_startup
from tests.simulation import judge
from tests.simulation.disk import REAL
from tests.simulation.moving import Moving, set_entry
from tests.simulation.rules import Violation
from tests.simulation.stage import FILES, Stage, next_offset
from tests.simulation.writer import Log
from tests.simulation.writing import Writing

CLUSTER_ID, NODE_ID = b"AAAAAAAAAAAAAAAAAAAAAg", 1
OURS = (".cleanerd", names.CLEANERD_LOCK)
"""Ends of the names that cleanerd may touch beside a live broker."""


class Broker:
    """`log_dirs`: of which it has the lock. `lives`: of all that it needs; `is_starting`: it has done nothing else yet."""

    def __init__(self, stage: Stage, writing: Writing) -> None:
        self._stage = stage
        self._writing = writing
        self.log_dirs: list[str] = []
        self._moving = Moving(stage, writing, lambda: self.log_dirs)
        self._opening: list[str] = []  # log directories of which it needs the lock
        self.lives = self.is_starting = False
        self._after_wanted: set[str] = set()  # directories in which a commit began while we wait
        stage.locks.unlocked = self._unlocked
        for log_dir in stage.log_dirs:
            properties = f"{log_dir}/{names.META_PROPERTIES}"
            FILES.write(properties, b"version=1\nnode.id=%d\ncluster.id=%s\n" % (NODE_ID, CLUSTER_ID))
            FILES.fsync(properties)

    # -- beside the daemon --------------------------------------------------------------------------------------

    def before(self, operation: str, path: str) -> None:
        """An operation of the daemon is about to be done. Raises Violation, also for what lasts too long."""
        stage = self._stage
        is_lock = path.endswith(names.LOCK)
        if self.is_starting and not is_lock:
            stage.aside(self.load)
        is_ours = operation == "fsync" or path.partition(" -> ")[0].endswith(OURS)
        log_dir = stage.directories.of(path.partition(" -> ")[0])
        if log_dir in self.log_dirs and not is_ours:
            stage.problems.append(f"{operation} {path} beside a live broker")
        if stage.locks.wanted == f"{log_dir}/{names.LOCK}" and operation == "rename":
            directory = os.path.dirname(path.partition(" -> ")[0])
            if not judge.in_transition(directory):  # what has begun is finished, of all logs of a slice
                self._after_wanted.add(directory)
            if len(self._after_wanted - {log_dir}) > 1:
                stage.problems.append(f"{operation} {path} while a broker waits to start")
        may_wait = not self.lives and not self._opening and stage.locks.has_leases and not stage.is_calm
        if may_wait and not is_lock and stage.chance.random() < 0.003 and self._locked():
            stage.aside(self.start)

    def _locked(self) -> set[str]:
        """Log directories of which cleanerd has the lock."""
        held = {key for key, slot in storage_lock._slots.items() if slot.fd is not None}
        found = ((log_dir, REAL.stat(log_dir)) for log_dir in self._stage.log_dirs)
        return {log_dir for log_dir, stat in found if (stat.st_dev, stat.st_ino, names.LOCK) in held}

    def _unlocked(self, path: str) -> None:
        if self._stage.locks.wanted == path:
            self._stage.note("  a broker that waited gets the lock")
            locked = self._locked() - {os.path.dirname(path)}
            self._take(locked)

    def _take(self, locked: set[str]) -> None:
        """Lock after lock, until it has to wait for one of those that cleanerd has."""
        locks = self._stage.locks
        self._after_wanted.clear()
        while self._opening:
            log_dir = self._opening[0]
            if log_dir in locked:
                locks.wanted = f"{log_dir}/{names.LOCK}"
                return
            locks.held.add(f"{log_dir}/{names.LOCK}")
            self.log_dirs.append(self._opening.pop(0))
        locks.wanted = None
        self.lives = self.is_starting = bool(self.log_dirs)
        self._stage.counts["broker starts"] += 1

    # -- its life -----------------------------------------------------------------------------------------------

    def write(self, log: Log, draw: float) -> None:
        stage = self._stage
        if not self.lives:
            if self._opening and not self._locked():  # who had the lock was killed
                self._take(set())
            elif draw < 0.3 and not self._locked():
                self.start()
            return
        if self.is_starting:
            self.load()
            return
        if log.log_dir not in self.log_dirs:
            return
        stage.maybe_killed(0.02, 12)
        if log.writer is not None and stage.chance.random() < (0.25 if log.future else 0.12):
            self._act(log, lambda notes: self._moving.step(log, notes))
        elif draw < 0.78:
            count = stage.chance.choice([1, 3, 8])
            self._act(log, lambda notes: notes.extend(log.append() for _ in range(count)))
        elif draw < 0.86:
            self._act(log, lambda notes: log.writer.roll() if log.writer is not None else None)
        elif draw < 0.90:
            self._act(log, lambda notes: self._truncate(log, notes))
        elif draw < 0.95:
            self._act(log, lambda _: self.write_down())
        elif draw < 0.98:
            self.stop()
        else:
            self.die()

    def settle(self, log_dirs: Sequence[str] = ()) -> None:
        """What is on its way gets there. With `log_dirs` all replicas move."""
        for log in self._stage.logs:
            if log.future is None and len(log_dirs) > 1:
                self._act(log, partial(self._moving.step, log))
            if log.future is not None:
                self._act(log, partial(self._moving.finish, log))

    def start(self) -> None:
        """With all log directories that work."""
        self._opening = self._stage.directories.online()
        for log_dir in self._opening:
            if not os.path.exists(f"{log_dir}/{names.LOCK}"):
                FILES.write(f"{log_dir}/{names.LOCK}", b"")
        if self._opening:
            self._take(self._locked())
        if self.lives:
            self.load()

    def lose(self, log_dir: str) -> None:
        was_opening = log_dir in self._opening
        for known in (self.log_dirs, self._opening):
            if log_dir in known:
                known.remove(log_dir)
        self._stage.locks.held.discard(f"{log_dir}/{names.LOCK}")
        for log in self._stage.logs:
            if log.log_dir == log_dir:
                log.die()
        if self.lives and not self.log_dirs:
            self.die()
        elif was_opening:
            self._take(self._locked())

    def stop(self) -> None:
        """A clean end, unless it is killed in the middle of it."""
        stage = self._stage
        stage.note("the broker stops")

        def work(_: list[str]) -> None:
            for log in here:
                log.close()
            self.write_down()
            for log_dir in self.log_dirs:
                FILES.write(f"{log_dir}/{names.CLEAN_SHUTDOWN}", b"")
                FILES.unlink(f"{log_dir}/{names.LOCK}")

        here = [log for log in stage.logs if log.log_dir in self.log_dirs]
        if self._act(stage.logs[0], work):
            self._release()
            for log in here:
                log.is_whole = True

    def die(self) -> None:
        if self.lives:
            self._stage.note("the broker is killed")
        for log in self._stage.logs:
            log.die()
        self._release()

    def _release(self) -> None:
        self.lives = self.is_starting = False
        self._stage.locks.held.clear()
        self._stage.locks.wanted = None
        self.log_dirs.clear()
        self._opening.clear()

    def _act(self, log: Log, work: Callable[[list[str]], object]) -> bool:
        locks = self._stage.locks
        locks.is_broker = True
        try:
            is_alive = self._writing.act(log, "broker", work)
        finally:
            locks.is_broker = False
        if not is_alive:
            self.die()
        return is_alive

    def load(self) -> None:
        """Bring the logs into order, and open them."""
        self._stage.note("the broker starts")
        self._stage.pass_aside_s(2)  # no broker starts at once
        self.is_starting = False
        for log_dir in self.log_dirs:
            if os.path.exists(f"{log_dir}/{names.CLEAN_SHUTDOWN}"):
                FILES.unlink(f"{log_dir}/{names.CLEAN_SHUTDOWN}")
        for log in self._stage.logs:
            if self.lives and log.log_dir in self.log_dirs:
                self._act(log, lambda _, log=log: self._load_log(log))

    def _load_log(self, log: Log) -> None:
        self._moving.load(log)
        if os.path.isdir(log.directory):
            report = kafka_startup.start(FILES, log.directory, next_offset)
            if report.zero_indexes:
                raise Violation(f"a broker found no index, and made zeros: {report.zero_indexes}")
        self._writing.open(log)

    def write_down(self) -> None:
        """Everything is replicated, and on the disk: high watermark and recovery point follow."""
        for log_dir in self.log_dirs:
            ends = {}
            for log in self._stage.logs:
                if log.model.sent and log.log_dir == log_dir:
                    ends[log.tp] = log.model.end
                    log.model.limit = max(log.model.limit or 0, log.model.end)
            content = render_offset_checkpoint(ends)
            for name in (names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT):
                replace_file(FILES, f"{log_dir}/{name}", content, like=None)

    def _truncate(self, log: Log, notes: list[str]) -> None:
        """A follower's: never below the high watermark. It knows nothing of generations."""
        if log.writer is None:
            return
        offset = self._writing.cut_offset(log, (log.model.limit or 0) + 1)
        if offset is None:
            return
        notes.append(f"truncated to {offset}")
        log.cut = offset
        log.close()
        files = sorted(os.listdir(log.directory), reverse=True)
        bases = sorted(int(name[:20]) for name in files if name.endswith(".log"))
        keeper = max(base for base in bases if base <= offset)
        for name in files:
            if name[:20].isdigit() and int(name[:20]) > keeper:
                FILES.unlink(f"{log.directory}/{name}")
        self._moving.truncated(log, keeper)
        path = f"{log.directory}/{keeper:020}.log"
        content = FILES.read(path)
        at = [position for position, _, _ in iterate_batches(content)]
        cut = [position for position in at if parse_header(content, position).base_offset >= offset]
        if cut:
            FILES.truncate(path, cut[0])
            FILES.fsync(path)
        FILES.fsync_dir(log.directory)
        if self._moving.has_cleaner:
            path = f"{log.log_dir}/{names.CLEANER_OFFSET_CHECKPOINT}"
            if read_offsets(FILES, path).get(log.tp, 0) > keeper:
                set_entry(path, log.tp, keeper)
        self._writing.open(log)
