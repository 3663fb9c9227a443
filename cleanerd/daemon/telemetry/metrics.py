"""Counts what happens, and answers Prometheus: the only importer of prometheus_client.

What can be looked up on a scrape is not counted here but read then (`scraped_metrics`). Everything is counted from the start
of the process; a reload of the configuration changes nothing about that. All label values that are known beforehand
are there from the start with 0: a rate needs a value before the first event.
"""

import re
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from cleanerd.broker_agent.swap import Swapped
from cleanerd.cleaning.outcomes import Committed, Failed, Skipped, Staged, Unchanged
from cleanerd.cleaning.phases import JOB_PHASES, Stopwatch
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.retain import Retained
from cleanerd.config.model import CleanerdConfig
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.metric_table import Metric, MetricKind
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.clock import Clock
from cleanerd.format.names import FileKind
from cleanerd.policy.winner import KEY_BYTES
from cleanerd.storage.staged import StagedGroup

MetricSample = tuple[Metric, tuple[str, ...], float]
"""A value that was looked up, with the values of the labels."""
ReadSamples = Callable[[], Iterable[MetricSample]]

_Family = CounterMetricFamily | GaugeMetricFamily
_WORD = re.compile("(?<!^)(?=[A-Z])")


class Metrics:
    """Thread-safe. Everything that is counted in a daemon over `log_dirs`."""

    def __init__(self, log_dirs: Sequence[str], clock: Clock) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._log_dirs = tuple(log_dirs)
        self._clock = clock
        self._registry = CollectorRegistry()
        for collect in (ProcessCollector, PlatformCollector, GCCollector):
            collect(registry=self._registry)
        self._counters = {
            row: Counter(row.name, row.doc, row.labels, registry=self._registry)
            for row in _counted(MetricKind.COUNTER)
        }
        self._gauges = {
            row: Gauge(row.name, row.doc, row.labels, registry=self._registry)
            for row in _counted(MetricKind.GAUGE)
        }
        self._histograms = {
            row: Histogram(row.name, row.doc, row.labels, buckets=row.buckets, registry=self._registry)
            for row in _counted(MetricKind.HISTOGRAM)
        }
        self._begin_with_0()
        self._mutex = threading.Lock()
        self._waiting: Tally[str] = Tally()
        self._cleaned_at: dict[LogId, float] = {}

    def read_with(self, read: ReadSamples) -> None:
        """Ask this, too, at every scrape."""
        self._registry.register(_Reader(read))

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that an Accept header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    # -- what happens -------------------------------------------------------------------------------------------

    def scanned(self, log_dirs: Iterable[str], offline: Mapping[str, str]) -> None:
        """A full scan is over."""
        for log_dir in log_dirs:
            self._count(table.SCANS, log_dir, "offline" if log_dir in offline else "ok")
            if log_dir not in offline:
                self._gauges[table.LAST_SCAN].labels(log_dir).set(self._clock.now_ms() / 1000)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase; one that ends in an error has none."""
        watch = Stopwatch(self._clock)
        with watch.phase(name):
            yield
        self.phases_took(watch.phase_seconds)

    def phases_took(self, phase_seconds: Mapping[str, float]) -> None:
        """Phases are over."""
        for name, seconds in phase_seconds.items():
            self._histograms[table.PHASE_SECONDS].labels(name).observe(seconds)

    def moved(self, log_dir: str, phase: str, read_bytes: int, written_bytes: int) -> None:
        """A task did some I/O."""
        self._count(table.READ_BYTES, log_dir, phase, by=read_bytes)
        self._count(table.WRITTEN_BYTES, log_dir, by=written_bytes)

    @contextmanager
    def throttled(self, job_id: str, log_dir: str) -> Iterator[None]:
        """A task of a job may have to wait for its I/O to be paid."""
        began_s = self._clock.monotonic_s()
        with self._mutex:
            self._waiting[job_id] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._waiting[job_id] -= 1
                self._waiting += Tally()  # drops what is 0
            self._count(table.THROTTLE_SECONDS, log_dir, by=self._clock.monotonic_s() - began_s)

    def throttled_jobs(self) -> set[str]:
        """Ids of the jobs of which a task waits now."""
        with self._mutex:
            return set(self._waiting)

    def staged(self, results: Sequence[LogResult], config: CleanerdConfig) -> None:
        """The engine is done with a job."""
        of_job: dict[str, float] = {}
        for result in results:
            for phase, seconds in result.statistics.phase_seconds.items():
                if phase in JOB_PHASES:
                    of_job[phase] = seconds
                else:
                    self.phases_took({phase: seconds})
        self.phases_took(of_job)
        cleaned = [result for result in results if not isinstance(result.outcome, Skipped)]
        if cleaned:
            self._gauges[table.DEDUPE_RATIO].set(dedupe_ratio(cleaned, config))

    def swapped(self, log_dir: str, group: StagedGroup) -> None:
        """A cleaned group took the place of its sources."""
        before, after = sum(source.size_bytes for source in group.sources), group.sizes[FileKind.LOG]
        self._count(table.SEGMENTS_REPLACED, log_dir, by=len(group.sources))
        self._count(table.RECLAIMED_BYTES, log_dir, "compaction", by=max(before - after, 0))

    def asked_to_swap(self, log_dir: str, answer: Swapped) -> None:
        """A running broker has answered."""
        outcome = answer.outcome if answer.outcome in table.SWAP_OUTCOMES else "failed"
        self._count(table.SWAPS, log_dir, outcome)
        if answer.outcome != "swapped":
            self._count(table.SWAP_REFUSALS, log_dir, answer.cause)
        for seconds in answer.lock_s:
            self._histograms[table.SWAP_SECONDS].labels(log_dir).observe(seconds)

    def cleaned(self, job_id: str, log: LogId, result: LogResult) -> None:
        """A log went through a cleaning."""
        log_dir, outcome, found = log.log_dir, result.outcome, result.statistics
        self._count(table.CLEANINGS, log_dir, outcome.word)
        if isinstance(outcome, Skipped):
            return
        self._histograms[table.CLEANING_SECONDS].labels(log_dir).observe(found.seconds, {"job_id": job_id})
        self._count(table.RECORDS_READ, log_dir, by=found.records_read)
        if isinstance(outcome, Failed):
            self._count(table.CLEANING_ERRORS, log_dir, cause_of(outcome.error))
        if isinstance(outcome, Committed | Staged):
            for reason, records in found.removed.items():
                self._count(table.RECORDS_REMOVED, log_dir, reason, by=records)
        if isinstance(outcome, Committed | Unchanged):
            self._is_clean(log)

    def wasted(self, log_dir: str, size_bytes: int) -> None:
        """A result that waited was thrown away."""
        self._count(table.STAGED_WASTED, log_dir, by=size_bytes)

    def settled(self, log: LogId, outcome: str) -> None:
        """Count the outcome of a result that had to wait."""
        self._count(table.COMMITS, log.log_dir, outcome)
        if outcome == "committed":
            self._is_clean(log)

    def retained(self, log: LogId, retained: Retained | None) -> None:
        """Retention took segments from a log; None: it failed."""
        if retained is None:
            self._count(table.RETENTION_ERRORS, log.log_dir)
        else:
            self._count(table.RETENTION_SEGMENTS, log.log_dir, by=retained.segments)
            self._count(table.RECLAIMED_BYTES, log.log_dir, "retention", by=retained.bytes)

    def recovered(self, log_dir: str, action: str) -> None:
        """Leftovers of an interrupted commit were recovered."""
        self._count(table.RECOVERIES, log_dir, action)

    def requested(self, method: str, code: int, seconds: float) -> None:
        """The control API has answered."""
        self._count(table.CONTROL_REQUESTS, method, str(code))
        self._histograms[table.CONTROL_SECONDS].labels(method).observe(seconds)

    def last_clean_s(self, log: LogId) -> float | None:
        """When a log was last cleaned, in seconds since the epoch."""
        with self._mutex:
            return self._cleaned_at.get(log)

    def forget(self, log: LogId) -> None:
        """The log is gone: what comes under its name is another one."""
        with self._mutex:
            self._cleaned_at.pop(log, None)

    # -- helping ------------------------------------------------------------------------------------------------

    def _is_clean(self, log: LogId) -> None:
        now_s = self._clock.now_ms() / 1000
        with self._mutex:
            self._cleaned_at[log] = now_s
        self._gauges[table.LAST_CLEAN].labels(log.log_dir).set(now_s)

    def _count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        counter = self._counters[metric]
        (counter.labels(*labels) if labels else counter).inc(by)

    def _begin_with_0(self) -> None:
        for metric, counter in {**self._counters, **self._histograms}.items():
            known = {"log_dir": self._log_dirs, **metric.values}
            if metric.labels and all(label in known for label in metric.labels):
                for values in product(*(known[label] for label in metric.labels)):
                    counter.labels(*values)


def dedupe_ratio(results: Iterable[LogResult], config: CleanerdConfig) -> float:
    """Upper bound of the share of the dedupe buffer that these logs need together: every offset may have its own key."""
    ranges = [(result.first_dirty_offset, result.end_offset) for result in results]
    offsets = sum(max(end - start, 0) for start, end in ranges if start is not None and end is not None)
    return offsets * KEY_BYTES / (config.dedupe_buffer_size_bytes * config.io_buffer_load_factor)


def cause_of(error: str | None) -> str:
    """The label for a class of errors."""
    cause = _WORD.sub("_", error or "").lower()
    return cause if cause in table.CAUSES else "other"


def _counted(kind: MetricKind) -> list[Metric]:
    return [metric for metric in table.METRICS if metric.kind is kind and not metric.is_read]


class _Reader:
    """Turns samples into what prometheus_client collects."""

    def __init__(self, read: ReadSamples) -> None:
        self._read = read

    def collect(self) -> Iterable[_Family]:
        families: dict[str, _Family] = {}
        for metric, labels, value in self._read():
            if metric.name not in families:
                make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
                families[metric.name] = make(metric.name, metric.doc, labels=metric.labels)
            families[metric.name].add_metric(labels, value)
        return families.values()
