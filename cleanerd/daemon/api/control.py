"""What the verbs of the control API work with: the daemon, its reports, and which logs a pattern means.

A partition can lie in two log directories while it moves: verbs that take one answer with a value for each directory.
"""

from collections.abc import Iterable

from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.configuration.reload import Reloader, ReloadOutcome, ReloadTrigger
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.reports.explain import Explainer
from cleanerd.daemon.reports.forecast import Forecasts
from cleanerd.daemon.reports.retention import RetentionReport
from cleanerd.daemon.reports.scraped_metrics import ScrapedMetrics
from cleanerd.daemon.reports.status_line import StatusLine
from cleanerd.daemon.reports.views import Views
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.values.models import LogRef
from cleanerd.daemon.values.patterns import matches, similar
from cleanerd.format.names import TopicPartition


class Control:
    """The running daemon, and what it reports; thread-safe."""

    def __init__(self, parts: Parts, supervisor: Supervisor, reloader: Reloader) -> None:
        self.parts, self.supervisor, self.reloader, self.mutes = parts, supervisor, reloader, parts.mutes
        conditions = parts.conditions
        self.views = Views(conditions, parts.events)
        self.retention = RetentionReport(conditions, parts.retention)
        self.forecasts = Forecasts(conditions, parts.events, parts.store, parts.throttle)
        self.explainer = Explainer(
            conditions,
            self.retention,
            parts.jobs,
            parts.schedule,
            parts.leases,
            parts.commits,
            parts.events,
            parts.engine,
        )
        self.status_line = StatusLine(conditions, parts.bells.work, reloader)
        self.scraped = ScrapedMetrics(
            supervisor, reloader, conditions, self.forecasts, parts.lease_duty, parts.jobs, parts.metrics
        )

    def reload(self, trigger: ReloadTrigger) -> ReloadOutcome:
        """Reload the configuration, and pass a new one on to the supervisor."""
        outcome = self.reloader.reload(trigger)
        self.supervisor.reloaded(outcome)
        return outcome

    def matching(self, pattern: str | None) -> list[LogId]:
        """Logs that a pattern means, which may be none; all without a pattern."""
        logs = ((log, log.topic_partition) for log in self.parts.inventory.logs())
        return [log for log, tp in logs if matches(pattern, tp.topic, tp.partition)]

    def some(self, pattern: str) -> list[LogId]:
        """Logs that a pattern means. Raises `NotFound` when there is none."""
        found = self.matching(pattern)
        if not found:
            raise NotFound(f"no log matches {pattern}; {self.instead_of(pattern)}")
        return found

    def of(self, tp: TopicPartition) -> list[LogId]:
        """A partition in each log directory that has it. Raises `NotFound` when none has."""
        found = [log for log in self.parts.inventory.logs() if log.topic_partition == tp]
        if not found:
            raise NotFound(f"there is no log {tp}; {self.instead_of(str(tp))}")
        return found

    def instead_of(self, pattern: str) -> str:
        """The end of an error about `pattern`: similar names, else an offline log directory, else where to look."""
        near = similar(pattern, (log.topic_partition for log in self.parts.inventory.logs()))
        if self.parts.obstacles.offline and not near:
            log_dir, why = next(iter(self.parts.obstacles.offline.items()))
            return f"{log_dir} is offline: {why}"
        return f"did you mean {' or '.join(near)}?" if near else "`cleanerctl logs` lists them"


def refs(logs: Iterable[LogId]) -> tuple[LogRef, ...]:
    """Logs that a verb applied to."""
    return tuple(LogRef(**log.fields()) for log in logs)
