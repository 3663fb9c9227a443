"""The actor that is a broker: it owns the log directory while it lives, and starts and dies at any moment.

What it makes of a directory at its start is `tests.sim.kafka_startup`; it appends as `LogWriter` does, which syncs what a
real broker would leave to recovery. High watermark and recovery point lie behind the log end until it writes them down.

    starts    when it finds the lock free, or at the end of a commit that it waits for in `open` (a lease)
    ends      cleanly: everything written down, `.kafka_cleanshutdown`, no `.lock` any more; or killed
"""

import os
from collections.abc import Callable

from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.batch import iterate_batches, parse_header
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.storage import lock as storage_lock
from cleanerd.storage.checkpoints import lower_checkpoint
from cleanerd.storage.replace import replace_file
from tests.sim import kafka_startup
from tests.simulation.rules import Violation
from tests.simulation.stage import Stage
from tests.simulation.writer import Log
from tests.simulation.writing import Writing

FILES = RealFiles()
OURS = (".cleanerd", names.CLEANERD_LOCK)
"""Ends of the names that cleanerd may touch beside a live broker."""


def next_offset(content: bytes, base: int) -> int:
    """The offset after the last batch of a `.log`."""
    starts = [position for position, _, _ in iterate_batches(content)]
    return parse_header(content, starts[-1]).next_offset if starts else base


class Broker:
    """Of one log directory. `lives`: it has the lock; `is_starting`: it has done nothing else yet."""

    def __init__(self, stage: Stage, writing: Writing) -> None:
        self._stage = stage
        self._writing = writing
        self._lock = f"{stage.log_dir}/{names.LOCK}"
        self.lives = self.is_starting = False
        self._after_wanted: set[str] = set()  # directories that a commit touched while we wait
        stage.locks.unlocked = self._unlocked
        FILES.write(f"{stage.log_dir}/{names.META_PROPERTIES}", b"version=1\nbroker.id=1\n")

    # -- beside the daemon --------------------------------------------------------------------------------------

    def before(self, operation: str, path: str) -> None:
        """An operation of the daemon is about to be done. Raises Violation, also for what lasts too long."""
        stage = self._stage
        is_lock = path.endswith(names.LOCK)
        if self.is_starting and not is_lock:
            stage.aside(self.load)
        is_ours = operation == "fsync" or path.partition(" -> ")[0].endswith(OURS)
        if self.lives and path.startswith(stage.log_dir) and not is_ours:
            stage.problems.append(f"{operation} {path} beside a live broker")
        if stage.locks.is_wanted and operation == "rename":
            self._after_wanted.add(os.path.dirname(path.partition(" -> ")[0]))
            if len(self._after_wanted - {stage.log_dir}) > 1:
                stage.problems.append(f"{operation} {path} while a broker waits to start")
        may_wait = not self.lives and stage.locks.has_leases and not stage.is_calm
        if may_wait and not is_lock and stage.chance.random() < 0.003:
            stage.locks.is_wanted = stage.locks.is_wanted or self._is_locked()

    def _is_locked(self) -> bool:
        return any(
            slot.fd is not None for (_, _, name), slot in storage_lock._slots.items() if name == names.LOCK
        )

    def _unlocked(self, path: str) -> None:
        if self._stage.locks.is_wanted and path == self._lock:
            self._stage.note("  a broker that waited gets the lock")
            self._take()

    def _take(self) -> None:
        locks = self._stage.locks
        locks.held.add(self._lock)
        locks.is_wanted = False
        self._after_wanted.clear()
        self.lives = self.is_starting = True
        self._stage.counts["broker starts"] += 1

    # -- its life -----------------------------------------------------------------------------------------------

    def write(self, log: Log, draw: float) -> None:
        """A step of it."""
        stage = self._stage
        if not self.lives:
            if draw < 0.3 and not self._is_locked():
                self.start()
            return
        if self.is_starting:
            self.load()
            return
        stage.maybe_killed(0.02, 12)
        if draw < 0.78:
            count = stage.chance.choice([1, 3, 8])
            self._act(log, lambda told: told.extend(log.append() for _ in range(count)))
        elif draw < 0.86:
            self._act(log, lambda told: log.writer.roll())  # type: ignore[union-attr]
        elif draw < 0.90:
            self._act(log, lambda told: self._truncate(log, told))
        elif draw < 0.95:
            self._act(log, lambda _: self.write_down())
        elif draw < 0.98:
            self.stop()
        else:
            self.die()

    def start(self) -> None:
        """Where nobody has the lock."""
        if not os.path.exists(self._lock):
            FILES.write(self._lock, b"")
        self._take()
        self.load()

    def stop(self) -> None:
        """A clean end, unless it is killed in the middle of it."""
        stage = self._stage
        stage.note("the broker stops")

        def work(_: list[str]) -> None:
            for log in stage.logs:
                log.close()
            self.write_down()
            FILES.write(f"{stage.log_dir}/{names.CLEAN_SHUTDOWN}", b"")
            FILES.unlink(self._lock)

        if self._act(stage.logs[0], work):
            self._release()
            for log in stage.logs:
                log.is_whole = True

    def die(self) -> None:
        """kill -9."""
        if self.lives:
            self._stage.note("the broker is killed")
        for log in self._stage.logs:
            log.die()
        self._release()

    def _release(self) -> None:
        self.lives = self.is_starting = False
        self._stage.locks.held.discard(self._lock)

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
        self.is_starting = False
        marker = f"{self._stage.log_dir}/{names.CLEAN_SHUTDOWN}"
        if os.path.exists(marker):
            FILES.unlink(marker)
        for log in self._stage.logs:
            if self.lives:
                self._act(log, lambda told, log=log: self._load_log(log))  # type: ignore[misc]

    def _load_log(self, log: Log) -> None:
        if os.path.isdir(log.directory):
            report = kafka_startup.start(FILES, log.directory, next_offset)
            if report.zero_indexes:
                raise Violation(f"a broker found no index, and made zeros: {report.zero_indexes}")
        self._writing.open(log)

    def write_down(self) -> None:
        """Everything is replicated, and on the disk: high watermark and recovery point follow."""
        stage, ends = self._stage, {}
        for log in stage.logs:
            if log.model.sent:
                ends[log.tp] = log.model.end
                log.model.limit = max(log.model.limit or 0, log.model.end)
        content = render_offset_checkpoint(ends)
        for name in (names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT):
            replace_file(FILES, f"{stage.log_dir}/{name}", content, like=None)

    def _truncate(self, log: Log, told: list[str]) -> None:
        """A follower's: never below the high watermark. It knows nothing of generations."""
        offset = self._writing.cut_offset(log, (log.model.limit or 0) + 1)
        if offset is None:
            return
        told.append(f"truncated to {offset}")
        log.cut = offset
        log.close()
        files = sorted(os.listdir(log.directory), reverse=True)
        bases = sorted(int(name[:20]) for name in files if name.endswith(".log"))
        keeper = max(base for base in bases if base <= offset)
        for name in files:
            if name[:20].isdigit() and int(name[:20]) > keeper:
                FILES.unlink(f"{log.directory}/{name}")
        path = f"{log.directory}/{keeper:020}.log"
        content = FILES.read(path)
        at = [position for position, _, _ in iterate_batches(content)]
        cut = [position for position in at if parse_header(content, position).base_offset >= offset]
        if cut:
            FILES.truncate(path, cut[0])
            FILES.fsync(path)
        FILES.fsync_dir(log.directory)
        lower_checkpoint(FILES, self._stage.log_dir, names.CLEANER_OFFSET_CHECKPOINT, log.tp, offset)
        self._writing.open(log)
