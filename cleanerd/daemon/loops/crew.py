"""All threads of the daemon that work by themselves.

thread                what it does
--------------------  -----------------------------------------------------------------------------------------
cleanerd-worker-<n>   the next job (`schedule`), then the next
cleanerd-worker-express  reserved topics that have waited too long behind long jobs
cleanerd-scanner      inventory: when the watcher saw something, and every cleanerd.scan.interval.ms
cleanerd-committer    staged results whose directory became free
cleanerd-retention    log.retention.check.interval.ms for logs that are not compacted, the backoff for the others
cleanerd-left-installs  what an earlier version has left of installs by reassignment
cleanerd-pacer        the limit on I/O that follows the pressure of the machine
cleanerd-housekeeper  deletions that are due, holds that expire, an idle engine, history
"""

from cleanerd.daemon.configuration.reload import ReloadOutcome, ReloadStatus, ReloadTrigger
from cleanerd.daemon.loops.cleaners import Cleaners
from cleanerd.daemon.loops.committer import Committer
from cleanerd.daemon.loops.housekeeper import Housekeeper
from cleanerd.daemon.loops.left_installs import LeftInstalls
from cleanerd.daemon.loops.pacer import Pacer
from cleanerd.daemon.loops.retainer import Retainer
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.daemon.parts import Parts


class Crew:
    """Starts and stops them together, and reports whether all of them live."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.scanner = Scanner(parts)
        self.cleaners = Cleaners(parts, self.scanner)
        self.pacer = Pacer(parts)
        keepers = (
            self.scanner, Committer(parts, self.scanner), Retainer(parts, self.scanner), LeftInstalls(parts),
            Housekeeper(parts), self.pacer,
        )  # fmt: skip
        self._keepers = [keeper.worker for keeper in keepers]

    def start(self, workers: int) -> None:
        """Start all of them, with so many workers."""
        self.scanner.watcher.start()
        self.cleaners.workers.start(workers)
        for keeper in self._keepers:
            keeper.start()

    def resize(self, workers: int) -> None:
        """So many workers from now on; dead threads start again at once (7.18)."""
        self.cleaners.workers.resize(workers)
        for keeper in self._keepers:
            keeper.revive()

    def reloaded(self, outcome: ReloadOutcome) -> None:
        """After every reload: record it; what was in the way may be gone. One that was asked for ends a `throttle`."""
        parts = self._parts
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

    def stop(self) -> None:
        """Ask all of them to end; they do so after the step that is under way."""
        self.cleaners.workers.stop()
        for keeper in self._keepers:
            keeper.stop()

    def join_keepers(self, deadline_s: float) -> bool:
        """Whether all but the workers have ended in time."""
        self.scanner.watcher.stop()
        ended = [
            keeper.join(max(deadline_s - self._parts.clock.monotonic_s(), 0.1)) for keeper in self._keepers
        ]
        return all(ended)

    def is_alive(self, limit_s: float) -> bool:
        """Whether every thread that works has shown life within so many seconds."""
        return all(worker.silent_s() < limit_s for worker in [*self.cleaners.workers.all(), *self._keepers])

    @property
    def deaths(self) -> int:
        """How often an internal error ended a thread, since the start."""
        return self.cleaners.workers.deaths + sum(keeper.deaths for keeper in self._keepers)
