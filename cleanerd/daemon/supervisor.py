"""The daemon as a whole: the order in which its parts and threads start and stop, and what a new configuration changes.

Start   1. directories taken (`ownership`), a second instance refused with the pid of the first
        2. leftovers of interrupted commits recovered, where no other process owns the directory
        3. first scan
        4. workers, keepers, control socket; from here on it is ready
Stop    1. no new work; every cleaning is aborted at its next buffer, waiters are sent away
        2. workers end; a commit that has begun is finished
        3. engine, keepers, control socket, history, directory locks

What a kill leaves behind, the next start recovers.
"""

import structlog

from cleanerd.config.load import Configuration
from cleanerd.config.reload import ReloadPlan
from cleanerd.daemon.loops.crew import Crew
from cleanerd.daemon.parts import Parts

_log = structlog.get_logger("cleanerd")


class Supervisor:
    """Everything but the process around it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.crew = Crew(parts)

    def start(self) -> None:
        """Steps 1 to 4 but for the control socket. Raises Fatal when another cleanerd works in one of the directories."""
        parts, config = self.parts, self.parts.configuration().broker
        self._set_limits(parts.configuration())
        parts.throttle.set_configured(config)
        parts.obstacles.offline = parts.ownership.take_at_start(parts.log_dirs)
        for log_dir in parts.log_dirs:
            if log_dir not in parts.obstacles.offline and not parts.ownership.recover(log_dir):
                _log.info("owned_by_another", log_dir=log_dir, pid=parts.ownership.owner_of(log_dir))
        self.crew.scanner.scan()
        self.crew.start(config.log_cleaner_threads)
        parts.life.is_ready = True
        parts.events.record(
            "daemon", "started", logs=len(parts.inventory.logs()), log_dirs=list(parts.log_dirs)
        )

    def stop(self) -> bool:
        """Steps 1 to 3 but for the control socket; whether everything ended within cleanerd.shutdown.timeout.ms."""
        parts, crew = self.parts, self.crew
        timeout_s = parts.configuration().broker.shutdown_timeout_ms / 1000
        deadline_s = parts.clock.monotonic_s() + timeout_s
        parts.life.is_ready = False
        parts.life.stopping.set()
        parts.states.close()
        crew.stop()
        with parts.progressed:
            parts.progressed.notify_all()

        def left_s() -> float:
            return max(deadline_s - parts.clock.monotonic_s(), 0.0)

        workers = crew.cleaners.workers
        is_drained = workers.join(left_s() / 2)
        for engine in (parts.engine, parts.express_engine):
            engine.stop(max(min(left_s() / 2, 5.0), 0.5))  # a Spark that is starting hears of no abort
        is_drained = is_drained or workers.join(left_s())
        is_drained &= crew.join_keepers(deadline_s)
        parts.events.record("daemon", "stopped" if is_drained else "cut off")
        parts.store.close()
        parts.brokers.close()
        parts.ownership.release()
        return is_drained

    def apply(self, plan: ReloadPlan) -> None:
        """Put a new configuration into effect; called before `configuration` answers with it."""
        parts, config = self.parts, plan.new.broker
        self._set_limits(plan.new)
        parts.throttle.set_configured(config, plan.old.broker)
        for log in parts.inventory.logs():
            if log.topic_partition.topic in plan.compact_removed:
                parts.states.stop(log)  # rule 2.8
        if plan.needs_workers:
            self.crew.resize(config.log_cleaner_threads)

    def trouble(self, limit_s: float) -> str | None:
        """Why the daemon is not as it should be, None if it is. A thread hangs when it is silent for so many seconds."""
        if not self.crew.is_alive(limit_s):
            return "a thread hangs; SIGUSR1 tells where"
        return self.parts.engine.stalled or self.parts.express_engine.stalled

    def _set_limits(self, configuration: Configuration) -> None:
        """Priorities and the size of the history as configured."""
        config = configuration.broker
        self.parts.store.set_limit(config.history_max_bytes)
        self.parts.due_logs.reserve(config.reserved_topics, config.reserved_max_wait_ms)
