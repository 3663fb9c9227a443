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

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from cleanerd.cleaning.throttle import Throttle
from cleanerd.config.reload import ReloadPlan
from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus, ReloadTrigger
from cleanerd.daemon.engine.client import Engine
from cleanerd.daemon.loops.cleanings import Cleaners
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.store import Store
from cleanerd.daemon.telemetry.event_log import EventLog
from cleanerd.daemon.work.condition import NOT_COMPACTED, Conditions
from cleanerd.daemon.workers import Bells, Life, Worker

_log = structlog.get_logger("cleanerd")


@dataclass
class Supervisor:
    """The threads of the daemon: `cleaners`, and a keeper for each other loop."""

    log_dirs: Sequence[str]
    conditions: Conditions
    life: Life
    bells: Bells
    events: EventLog
    throttle: Throttle
    engines: Sequence[Engine]
    store: Store
    scanner: Scanner
    cleaners: Cleaners
    pacer: Pacer
    keepers: Sequence[Worker]

    def start(self) -> None:
        """Steps 1 to 4 but for the control socket. Raises Fatal when another cleanerd works in one of the directories."""
        ownership, obstacles = self.conditions.ownership, self.conditions.states.obstacles
        self.throttle.set_configured(self.conditions.configuration().broker)
        obstacles.offline = ownership.take_at_start(self.log_dirs)
        for log_dir in obstacles.online(self.log_dirs):
            if not ownership.recover(log_dir):
                pid = ownership.owner_of(log_dir)
                if pid is not None:
                    _log.info("owned_by_another", log_dir=log_dir, pid=pid)
        self.scanner.scan()
        self.start_threads()
        self.life.is_ready = True
        self.events.record(
            "daemon", "started", logs=len(self.conditions.inventory.logs()), log_dirs=list(self.log_dirs)
        )

    def start_threads(self) -> None:
        """Start every thread, with log.cleaner.threads workers."""
        self.scanner.watcher.start()
        self.cleaners.workers.start(self.conditions.configuration().broker.log_cleaner_threads)
        for keeper in self.keepers:
            keeper.start()

    def stop(self) -> bool:
        """Steps 1 to 3 but for the control socket; whether everything ended within cleanerd.shutdown.timeout.ms."""
        workers = self.cleaners.workers
        timeout_s = self.conditions.configuration().broker.shutdown_timeout_ms / 1000
        deadline_s = self.conditions.clock.monotonic_s() + timeout_s
        self.life.is_ready = False
        self.life.stopping.set()
        self.conditions.states.close()
        workers.stop()
        for keeper in self.keepers:
            keeper.stop()
        with self.bells.progressed:
            self.bells.progressed.notify_all()

        def left_s() -> float:
            return max(deadline_s - self.conditions.clock.monotonic_s(), 0.0)

        is_drained = workers.join(left_s() / 2)
        for engine in self.engines:
            engine.stop(max(min(left_s() / 2, 5.0), 0.5))  # a starting Spark learns of no abort
        is_drained = is_drained or workers.join(left_s())
        self.scanner.watcher.stop()
        ended = [keeper.join(max(left_s(), 0.1)) for keeper in self.keepers]
        is_drained = is_drained and all(ended)
        self.events.record("daemon", "stopped" if is_drained else "cut off")
        self.store.close()
        self.conditions.ownership.brokers.close()
        self.conditions.ownership.release()
        return is_drained

    def apply(self, plan: ReloadPlan) -> None:
        """Put a new configuration into effect; called before `configuration` answers with it.

        A thread that is dead starts again at once where the number of workers, or what they work with, has changed (7.18).
        """
        config = plan.new.broker
        self.throttle.set_configured(config, plan.old.broker)
        for log in self.conditions.inventory.logs():
            if log.topic_partition.topic in plan.compact_removed:
                self.conditions.states.stop(log, NOT_COMPACTED)  # rule 2.8
        if plan.needs_workers:
            self.cleaners.workers.resize(config.log_cleaner_threads)
            for keeper in self.keepers:
                keeper.revive()

    def reloaded(self, outcome: ReloadOutcome) -> None:
        """After every reload: record it; what was in the way may be gone. One that was asked for ends a `throttle`."""
        is_asked_for = outcome.trigger in (ReloadTrigger.REQUEST, ReloadTrigger.SIGNAL)
        if is_asked_for and outcome.status is not ReloadStatus.REJECTED:
            self.throttle.set_configured(self.conditions.configuration().broker)
        if outcome.status is not ReloadStatus.UNCHANGED:
            reason = "; ".join(outcome.problems) or None
            changes = [str(change) for change in outcome.plan.changes] if outcome.plan else None
            self.events.record(
                "reload", outcome.status.value, reason, trigger=outcome.trigger.value, changes=changes
            )
        if outcome.plan is not None:
            self.scanner.judge.rule_on(self.conditions.inventory.logs())
            self.bells.work.ring()
            self.pacer.bell.ring()

    def is_alive(self, limit_s: float) -> bool:
        """Whether every thread that works has shown life within so many seconds."""
        return all(worker.silent_s() < limit_s for worker in [*self.cleaners.workers.all(), *self.keepers])

    def trouble(self, limit_s: float) -> str | None:
        """Why the daemon is not as it should be, None if it is. A thread hangs when it is silent for so many seconds."""
        if not self.is_alive(limit_s):
            return "a thread hangs; SIGUSR1 logs where"
        return next((engine.stalled for engine in self.engines if engine.stalled), None)

    @property
    def deaths(self) -> int:
        """How often an internal error ended a thread, since the start."""
        return self.cleaners.workers.deaths + sum(keeper.deaths for keeper in self.keepers)
