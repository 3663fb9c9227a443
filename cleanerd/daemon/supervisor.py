"""The daemon as a whole: its threads, the order in which everything starts and stops, and what a new configuration changes.

thread                what it does
--------------------  -----------------------------------------------------------------------------------------
cleanerd-worker-<n>   the next job (`schedule`), then the next
cleanerd-worker-express  reserved topics that have waited too long behind long jobs
cleanerd-scanner      inventory: when the watcher saw something, and every cleanerd.scan.interval.ms
cleanerd-committer    staged results whose directory became free
cleanerd-retention    log.retention.check.interval.ms for logs that are not compacted, the backoff for the others
cleanerd-pacer        the limit on I/O that follows the brokers' request queues
cleanerd-housekeeper  deletions that are due, holds that expire, an idle engine, history

Start   1. directories taken (`ownership`), a second instance refused with the pid of the first
        2. leftovers of interrupted commits recovered, where no other process owns the directory
        3. first scan
        4. workers, keepers, control socket; from here on it is ready
Stop    1. no new work; every cleaning is aborted, waiters are sent away
        2. workers end; a commit that has begun is finished
        3. engine, keepers, control socket, history, directory locks

What a kill leaves behind, the next start recovers.
"""

import structlog

from cleanerd.config.reload import ReloadPlan
from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus, ReloadTrigger
from cleanerd.daemon.loops.cleanings import Cleaners
from cleanerd.daemon.loops.committer import Committer
from cleanerd.daemon.loops.housekeeper import Housekeeper
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.loops.retainer import Retainer
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.work.states import NOT_COMPACTED

_log = structlog.get_logger("cleanerd")


class Supervisor:
    """Everything but the process around it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.scanner = Scanner(parts)
        self.cleaners = Cleaners(parts, self.scanner)
        self.pacer = Pacer(parts)
        loops = (
            self.scanner, Committer(parts, self.scanner), Retainer(parts, self.scanner), Housekeeper(parts), self.pacer,
        )  # fmt: skip
        self.keepers = [loop.worker for loop in loops]

    def start(self) -> None:
        """Steps 1 to 4 but for the control socket. Raises Fatal when another cleanerd works in one of the directories."""
        parts = self.parts
        parts.throttle.set_configured(parts.configuration().broker)
        parts.obstacles.offline = parts.ownership.take_at_start(parts.log_dirs)
        for log_dir in parts.log_dirs:
            if log_dir not in parts.obstacles.offline and not parts.ownership.recover(log_dir):
                pid = parts.ownership.owner_of(log_dir)
                if pid is not None:
                    _log.info("owned_by_another", log_dir=log_dir, pid=pid)
        self.scanner.scan()
        self.start_threads()
        parts.life.is_ready = True
        parts.events.record(
            "daemon", "started", logs=len(parts.inventory.logs()), log_dirs=list(parts.log_dirs)
        )

    def start_threads(self) -> None:
        """All of them, with as many workers as are configured."""
        self.scanner.watcher.start()
        self.cleaners.workers.start(self.parts.configuration().broker.log_cleaner_threads)
        for keeper in self.keepers:
            keeper.start()

    def stop(self) -> bool:
        """Steps 1 to 3 but for the control socket; whether everything ended within cleanerd.shutdown.timeout.ms."""
        parts, workers = self.parts, self.cleaners.workers
        timeout_s = parts.configuration().broker.shutdown_timeout_ms / 1000
        deadline_s = parts.clock.monotonic_s() + timeout_s
        parts.life.is_ready = False
        parts.life.stopping.set()
        parts.states.close()
        workers.stop()
        for keeper in self.keepers:
            keeper.stop()
        with parts.progressed:
            parts.progressed.notify_all()

        def left_s() -> float:
            return max(deadline_s - parts.clock.monotonic_s(), 0.0)

        is_drained = workers.join(left_s() / 2)
        for engine in (parts.engine, parts.express_engine):
            engine.stop(max(min(left_s() / 2, 5.0), 0.5))  # a starting Spark learns of no abort
        is_drained = is_drained or workers.join(left_s())
        self.scanner.watcher.stop()
        ended = [keeper.join(max(left_s(), 0.1)) for keeper in self.keepers]
        is_drained = is_drained and all(ended)
        parts.events.record("daemon", "stopped" if is_drained else "cut off")
        parts.store.close()
        parts.brokers.close()
        parts.ownership.release()
        return is_drained

    def apply(self, plan: ReloadPlan) -> None:
        """Put a new configuration into effect; called before `configuration` answers with it.

        A thread that is dead starts again at once where the number of workers, or what they work with, has changed (7.18).
        """
        parts, config = self.parts, plan.new.broker
        parts.throttle.set_configured(config, plan.old.broker)
        for log in parts.inventory.logs():
            if log.topic_partition.topic in plan.compact_removed:
                parts.states.stop(log, NOT_COMPACTED)  # rule 2.8
        if plan.needs_workers:
            self.cleaners.workers.resize(config.log_cleaner_threads)
            for keeper in self.keepers:
                keeper.revive()

    def reloaded(self, outcome: ReloadOutcome) -> None:
        """After every reload: record it; what was in the way may be gone. One that was asked for ends a `throttle`."""
        parts = self.parts
        is_asked_for = outcome.trigger in (ReloadTrigger.REQUEST, ReloadTrigger.SIGNAL)
        if is_asked_for and outcome.status is not ReloadStatus.REJECTED:
            parts.throttle.set_configured(parts.configuration().broker)
        if outcome.status is not ReloadStatus.UNCHANGED:
            reason = "; ".join(outcome.problems) or None
            changes = [str(change) for change in outcome.plan.changes] if outcome.plan else None
            parts.events.record(
                "reload", outcome.status.value, reason, trigger=outcome.trigger.value, changes=changes
            )
        if outcome.plan is not None:
            self.scanner.judge(parts.inventory.logs())
            parts.work_bell.ring()
            self.pacer.bell.ring()

    def is_alive(self, limit_s: float) -> bool:
        """Whether every thread that works has shown life within so many seconds."""
        return all(worker.silent_s() < limit_s for worker in [*self.cleaners.workers.all(), *self.keepers])

    def trouble(self, limit_s: float) -> str | None:
        """Why the daemon is not as it should be, None if it is. A thread hangs when it is silent for so many seconds."""
        if not self.is_alive(limit_s):
            return "a thread hangs; SIGUSR1 logs where"
        return self.parts.engine.stalled or self.parts.express_engine.stalled

    @property
    def deaths(self) -> int:
        """How often an internal error ended a thread, since the start."""
        return self.cleaners.workers.deaths + sum(keeper.deaths for keeper in self.keepers)
