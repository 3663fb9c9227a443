"""Metrics that are read at a scrape: one pass over all logs, with numbers from the last scans."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cleanerd import __version__
from cleanerd.cleaning.round_size import most_written_bytes
from cleanerd.daemon.configuration.reload import Reloader, ReloadStatus
from cleanerd.daemon.inventory.inventory import Entry
from cleanerd.daemon.inventory.urgency import DirtyEstimate
from cleanerd.daemon.reports.forecast import Forecasts
from cleanerd.daemon.supervisor import Supervisor
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.metrics import Metrics, MetricSample
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.condition import Conditions
from cleanerd.daemon.work.jobs import Jobs
from cleanerd.daemon.work.lease_duty import LeaseDuty
from cleanerd.env.cores import usable_cores
from cleanerd.env.space import space_of

_PARTITIONS_MAX = 500
"""More series than that are a burden for Prometheus."""


@dataclass(frozen=True, slots=True)
class ScrapedMetrics:
    """Answers a scrape."""

    supervisor: Supervisor
    reloader: Reloader
    conditions: Conditions
    forecasts: Forecasts
    duty: LeaseDuty
    jobs: Jobs
    metrics: Metrics

    def read(self) -> Iterator[MetricSample]:
        """Every metric that is looked up. Raises nothing that a disk can do."""
        conditions = dict(self.conditions.all(self.conditions.inventory.logs()))
        online, uncleanable = self.conditions.inventory.online_entries(), Counter[str]()
        for log, condition in conditions.items():
            if condition.state == "uncleanable":
                uncleanable[log.log_dir] += self._dirty(log)[1]
        yield table.DEADLINE_MISSES, (), self.forecasts.misses(conditions.items())
        yield from self._process()
        yield table.CONFIG_OK, (), not self.reloader.is_rejected
        yield table.CONFIG_OK_AT, (), self.reloader.last_success_ms / 1000
        for status in ReloadStatus:
            yield table.CONFIG_RELOADS, (status.value,), self.reloader.count(status)
        states = Counter[tuple[str, str]]((log.log_dir, one.state) for log, one in conditions.items())
        for log_dir in self.supervisor.log_dirs:
            for state in table.STATES:
                yield table.PARTITIONS, (log_dir, state), states[log_dir, state]
            yield from self._log_dir(log_dir, online.get(log_dir), uncleanable[log_dir])
        yield from self._partitions()

    def _process(self) -> Iterator[MetricSample]:
        config = self.conditions.configuration().broker
        yield table.BUILD_INFO, (__version__,), 1
        yield table.READY, (), self.supervisor.life.is_ready
        yield table.PAUSED, (), any(hold.pattern == "*" for hold in self.conditions.states.holds())
        for state, count in self._workers().items():
            yield table.WORKERS, (state,), count
        yield table.THREAD_DEATHS, (), self.supervisor.deaths
        engine, _ = self.supervisor.engines
        yield table.SESSION_UP, (), engine.pid is not None
        yield table.ENGINE_STARTS, (), engine.starts
        yield table.HISTORY_LOST, (), self.supervisor.store.lost_events
        yield table.DEDUPE_BYTES, (), config.dedupe_buffer_size_bytes * config.io_buffer_load_factor
        for limit, rate in self.supervisor.throttle.limits().items():
            yield table.IO_LIMIT, (limit.value,), rate

    def _workers(self) -> dict[str, int]:
        workers = self.supervisor.cleaners.workers.all()
        dead = sum(worker.is_dead for worker in workers)
        running = {job.id for job in self.jobs.running()}
        throttled = len(running & self.metrics.throttled_jobs())
        idle = max(len(workers) - dead - len(running), 0)
        return {"idle": idle, "busy": len(running) - throttled, "throttled": throttled, "dead": dead}

    def _log_dir(
        self, log_dir: str, entries: Sequence[Entry] | None, uncleanable_bytes: int
    ) -> Iterator[MetricSample]:
        is_online = entries is not None and log_dir not in self.conditions.states.obstacles.offline
        yield table.LOG_DIR_ONLINE, (log_dir,), is_online
        if entries is None or not is_online:
            return
        is_auto = self.conditions.configuration().broker.commit_live == "auto"
        yield (
            table.RESULTS_WAIT,
            (log_dir,),
            is_auto and self.conditions.ownership.way(log_dir).waits,
        )
        given_back = sum(log.log_dir == log_dir for log in self.duty.given_back)
        yield table.LEASES_GIVEN_BACK, (log_dir,), given_back
        yield table.UNCLEANABLE_BYTES, (log_dir,), uncleanable_bytes
        yield from self._sums(log_dir, entries)
        with contextlib.suppress(OSError):  # the next scan takes it offline
            staged = self.conditions.inventory.staged_bytes_in(log_dir)
            space = space_of(log_dir)
            yield table.STAGED_BYTES, (log_dir,), staged
            yield table.FREE_BYTES, (log_dir,), space.free_bytes
            yield table.DIR_BYTES, (log_dir,), space.total_bytes

    def _sums(self, log_dir: str, entries: Sequence[Entry]) -> Iterator[MetricSample]:
        """Sums over the logs of a directory. Dirty and cleanable bytes count compacted logs only, and are upper bounds."""
        known = [entry.known.contents for entry in entries if entry.known is not None]
        staged = [contents.staged for contents in known if contents.staged is not None]
        found = [
            one
            for one in (self.conditions.due_logs.estimate(entry.log) for entry in entries)
            if one is not None
        ]
        dirty = [one.range for one in found if not one.range.is_empty]
        late_ms = max((self.conditions.clock.now_ms() - one.deadline_ms for one in found), default=0)
        yield table.UNREADABLE, (log_dir,), sum(entry.error is not None for entry in entries)
        yield (
            table.MAX_DIRTY_RATIO,
            (log_dir,),
            max((one.dirty_ratio for one in dirty), default=0.0),
        )  # rule 1.25
        yield table.MAX_DELAY, (log_dir,), max(late_ms, 0) / 1000  # rule 1.18
        yield table.CLEANABLE_BYTES, (log_dir,), self.conditions.due_logs.dirty_bytes(log_dir)
        yield table.STAGED_RESULTS, (log_dir,), len(staged)
        yield table.STAGED_FREED, (log_dir,), sum(one.freed_bytes for one in staged)
        yield table.STAGED_SINCE, (log_dir,), min((one.since_ms for one in staged), default=0) / 1000
        yield table.LOG_BYTES, (log_dir,), sum(contents.size_bytes for contents in known)
        yield table.LARGEST_BYTES, (log_dir,), self._most_written_bytes(log_dir, found)
        yield table.KEEPING, (log_dir,), sum(entry.visits.tombstones_stay is not None for entry in entries)

    def _most_written_bytes(self, log_dir: str, found: Sequence[DirtyEstimate]) -> float:
        """By the cleaning of one of these logs, before it deletes anything."""
        sizes = [(one.range.size_bytes, one.config) for one in found]
        if self.conditions.ownership.way(log_dir).waits:
            return max((size_bytes for size_bytes, _ in sizes), default=0)
        cores, broker = usable_cores(), self.conditions.configuration().broker
        return max((most_written_bytes(size, cores, broker, topic) for size, topic in sizes), default=0)

    def _dirty(self, log: LogId) -> tuple[float, int]:
        """Dirty ratio and cleanable bytes of a log; of one that can no longer be read as it was seen last."""
        known, config = self.conditions.inventory.facts(log), self.conditions.topic_config(log)
        if known is None or not config.compact:
            return 0.0, 0
        found = known.upper_bound(config, self.conditions.clock.now_ms())
        return (0.0, 0) if found.is_empty else (found.dirty_ratio, found.cleanable_bytes)

    def _partitions(self) -> Iterator[MetricSample]:
        """Series for partitions of cleanerd.metrics.per.partition.topics, the first `_PARTITIONS_MAX` in order."""
        config = self.conditions.configuration().broker
        globs = config.metrics_per_partition_topics
        known = self.conditions.inventory.logs() if globs else ()
        logs = [log for log in known if any(fnmatchcase(log.topic_partition.topic, glob) for glob in globs)]
        chosen = logs[:_PARTITIONS_MAX]
        yield table.PARTITIONS_DROPPED, (), len(logs) - len(chosen)
        for log in chosen:
            labels = (log.log_dir, log.topic_partition.topic, str(log.topic_partition.partition))
            ratio, size = self._dirty(log)
            yield table.PARTITION_RATIO, labels, ratio
            yield table.PARTITION_BYTES, labels, size
            cleaned_s = self.metrics.last_clean_s(log)
            if cleaned_s is not None:
                yield table.PARTITION_CLEANED, labels, cleaned_s
