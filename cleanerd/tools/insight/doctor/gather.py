"""The facts about a broker's directories. Nothing is written, nothing locked; what cannot be read fails alone."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.live_logs import OwnCleaner
from cleanerd.cleaning.causes import Held
from cleanerd.cleaning.knowledge import Knowledge, is_policy_known
from cleanerd.config.load import Configuration
from cleanerd.config.model import TopicConfig
from cleanerd.env.clock import Clock
from cleanerd.errors import DirOffline, NoWayIn, each_log
from cleanerd.format import names
from cleanerd.format.head import LOG_APPEND_TIME
from cleanerd.format.names import (
    CLUSTER_METADATA_TOPIC,
    DirKind,
    FileKind,
    Suffix,
    TopicPartition,
    segment_path,
)
from cleanerd.policy.cleanable import CompactionConfig, cleanable_range
from cleanerd.storage.lock import probe
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot, SegmentOnDisk, tail_batches
from cleanerd.storage.stability import Stability, read_stability
from cleanerd.tools.insight.findings import Finding, Severity
from cleanerd.tools.insight.live import when_settled
from cleanerd.tools.insight.log_dir_check import LogDir as ListedDir
from cleanerd.tools.insight.log_dir_check import compare_log_dirs, list_log_dir
from cleanerd.tools.insight.log_files import LEFTOVERS, LogFile, log_files
from cleanerd.tools.insight.partition_check import list_partition
from cleanerd.tools.insight.regular_files import CarefulFiles

from .facts import DAY_MS, BrokerFacts, DirectoryFacts, Leftover, Limits, LogFacts, OpenTransaction
from .sample import Budget, take_sample

_NO_MAX_LAG = 2**63 - 1
_CLEANER_THREAD = b"kafka-log-clean\n"
"""What the kernel keeps of `kafka-log-cleaner-thread-0`."""
_WAITING = ("staged", "future_directory")
"""Those that may take a while: until a broker stops, or a replica is copied."""


class Gathering:
    """One look at the directories of a node. `where`: as `BrokerFacts` has it."""

    def __init__(
        self,
        configuration: Configuration,
        where: str,
        clock: Clock,
        limits: Limits,
        budget: Budget,
        brokers: LiveBrokers | None = None,
    ) -> None:
        """`brokers`: asked about their own cleaners."""
        self._configuration = configuration
        self._where = where
        self._clock = clock
        self._now_ms = clock.now_ms()
        self._limits = limits
        self._budget = budget
        self._brokers = brokers
        self._files = CarefulFiles()
        self._is_interrupted = False

    def run(
        self, log_dirs: Sequence[str], topics: Collection[str], partitions: Collection[int]
    ) -> BrokerFacts:
        """The facts of all directories; after Ctrl-C those that are known by then."""
        listed = [list_log_dir(path) for path in log_dirs]
        compare_log_dirs(listed, ())
        directories: list[DirectoryFacts] = []
        with self._until_interrupted():
            directories.extend(self._directory(one, log_dirs, topics, partitions) for one in listed)
            for number, directory in enumerate(directories):
                for sampled in self._sampled(directory) if not self._is_interrupted else ():
                    directories[number] = sampled
        meta = next((one.meta for one in listed if one.meta is not None), None)
        metadata = self._configuration.metadata
        return BrokerFacts(
            self._where, self._now_ms, self._configuration.broker, tuple(directories),
            None if meta is None else meta.node_id, None if meta is None else meta.cluster_id,
            None if metadata is None else metadata.release, not (topics or partitions), self._is_interrupted,
        )  # fmt: skip

    @contextlib.contextmanager
    def _until_interrupted(self) -> Iterator[None]:
        """A context that Ctrl-C ends; what was gathered by then stays, and nothing more is read."""
        try:
            yield
        except KeyboardInterrupt:
            self._is_interrupted = True

    def _directory(
        self, listed: ListedDir, log_dirs: Sequence[str], topics: Collection[str], partitions: Collection[int]
    ) -> DirectoryFacts:
        path, failed = listed.path, dict[str, str]()
        found = DirectoryFacts(path, listed.facts.is_live, self._judged_ms(listed), None, 0, 0, failed=failed)
        chosen = [one for one in listed.chosen(topics, partitions) if one[0].topic != CLUSTER_METADATA_TOPIC]
        problems = list(listed.findings)
        with each_log(path) as whole:
            space, device = os.statvfs(path), os.stat(path).st_dev
            found = replace(found, device=device, free_bytes=space.f_bavail * space.f_frsize)
            log_dir = LogDir.at(self._files, path, self._clock, log_dirs)
            checkpoints = log_dir.checkpoints()
            found = replace(
                found,
                cleaner_written_ms=checkpoints.cleaner_written_ms,
                own_cleaner=self._own_cleaner(path),
                has_cleaner_thread=_has_cleaner_thread(path),
            )
            logs = list[LogFacts]()
            with self._until_interrupted():
                for tp, directory in chosen if not self._is_interrupted else ():
                    with each_log(directory) as log, contextlib.suppress(FileNotFoundError):
                        problems += list_partition(listed.facts, tp, directory).findings
                        look = partial(self._log, log_dir, tp, checkpoints, found.judged_ms)
                        one = when_settled(directory, look)
                        logs += [] if one is None else [one]
                    if log.error is not None:
                        failed[directory] = str(log.error)
            found = replace(found, logs=tuple(logs))
            files, _ = log_files(path, topics, partitions)  # what cannot be listed is a finding already
            found = replace(found, leftovers=tuple(self._leftovers(files)), cleaning=self._cleaning(files))
        if whole.error is not None:
            failed[path] = str(whole.error)
        return replace(found, problems=tuple(filter(_is_worth_a_look, problems)))

    def _own_cleaner(self, log_dir: str) -> OwnCleaner | None:
        if self._brokers is not None:
            with contextlib.suppress(
                NoWayIn, DirOffline, OSError
            ):  # as another user's: what its files show has to do
                return OwnCleaner.of(self._brokers.session(log_dir), log_dir)
        return None

    def _judged_ms(self, listed: ListedDir) -> int:
        """What a stopped broker has left undone since it stopped is no fault of its cleaner."""
        if not listed.facts.is_kafka or listed.facts.is_live:
            return self._now_ms
        try:
            return min(self._now_ms, self._files.stat(listed.file(names.REPLICATION_CHECKPOINT)).mtime_ms)
        except OSError:
            return self._now_ms

    def _log(
        self, log_dir: LogDir, tp: TopicPartition, checkpoints: Checkpoints, judged_ms: int
    ) -> LogFacts | None:
        is_told = is_policy_known(log_dir, tp, self._configuration)
        config = self._configuration.topic(tp.topic) if is_told else None
        rules = config or TopicConfig()
        with_timestamps = rules.max_compaction_lag_ms < _NO_MAX_LAG
        snapshot = log_dir.scan(
            tp,
            checkpoints,
            first_batch_timestamps=with_timestamps,
            pace=self._budget.pace,
            beside_cleaning=True,
        )
        if snapshot is None:
            return None
        expiration_ms = self._configuration.broker.producer_id_expiration_ms
        stability = read_stability(
            self._files, snapshot, now_ms=judged_ms, expiration_ms=expiration_ms, pace=self._budget.pace
        )
        compaction = CompactionConfig(
            rules.min_cleanable_dirty_ratio, rules.min_compaction_lag_ms, rules.max_compaction_lag_ms
        )
        last_stable = stability.last_stable_offset
        found = cleanable_range(snapshot.facts(last_stable), compaction, judged_ms)
        held = Held.of(self._files, snapshot, last_stable, stability.open_producer)
        cause = None if config is None or not config.compact else held.uncleanable(found, config, judged_ms)
        opened = self._open_transaction(snapshot, stability)
        never = Knowledge(log_dir, self._configuration).why_never(tp) if rules.compact else None
        return LogFacts(snapshot, found, last_stable, config, cause, opened, left_alone=never)

    def _open_transaction(self, snapshot: PartitionSnapshot, stability: Stability) -> OpenTransaction | None:
        if stability.open_producer is None:
            return None
        offset = stability.last_stable_offset
        *below, segment = [
            one for one in snapshot.segments if one.base_offset <= offset
        ] or snapshot.segments[:1]
        for _, batches in tail_batches(self._files, segment, offset, self._budget.pace):
            first = batches[batches["last_offset"] >= offset]
            if len(first):
                begun_by_ms = self._begun_by_ms(snapshot, segment, offset, first[0])
                since_ms = int(first["max_timestamp"][0])
                if since_ms > 0:  # else it is no time
                    metadata = os.path.join(snapshot.directory, names.PARTITION_METADATA)
                    since_ms = max(
                        since_ms, *(one.facts.modified_ms for one in below), self._written_ms(metadata, 0)
                    )
                    since_ms = min(since_ms, begun_by_ms)
                return OpenTransaction(stability.open_producer, offset, since_ms, begun_by_ms)
        return None

    def _begun_by_ms(
        self, snapshot: PartitionSnapshot, segment: SegmentOnDisk, offset: int, first: np.void
    ) -> int:
        now_ms = self._now_ms
        by_broker = (
            first["magic"] == 2 and first["attributes"] & LOG_APPEND_TIME and first["max_timestamp"] > 0
        )
        knowing = [
            segment_path(snapshot.directory, at, FileKind.PRODUCER_SNAPSHOT)
            for at in snapshot.producer_snapshots
            if at > offset
        ]
        return min(
            segment.facts.modified_ms,
            int(first["max_timestamp"]) if by_broker else now_ms,
            *(self._written_ms(path, now_ms) for path in knowing),
        )

    def _written_ms(self, path: str, missing_ms: int) -> int:
        try:
            return self._files.stat(path).mtime_ms
        except OSError:
            return missing_ms

    def _cleaning(self, files: Sequence[LogFile]) -> TopicPartition | None:
        """The log to whose new segment a cleaner has lately written: a large one takes it hours."""
        for file in files:
            if file.kind is DirKind.CURRENT and file.name.suffix is Suffix.CLEANED:
                with contextlib.suppress(FileNotFoundError):
                    written_ms = self._files.stat(file.path).mtime_ms
                    if self._now_ms - written_ms < self._limits.leftover_ms:
                        return file.topic_partition
        return None

    def _leftovers(self, files: Sequence[LogFile]) -> Iterator[Leftover]:
        """What has waited for longer than its broker lets it wait; strays at any age."""
        found = defaultdict[str, list[LogFile]](list)
        for file in files:
            code = file.leftover
            if code is None:
                continue
            age_of = file.path if file.kind is DirKind.CURRENT else file.directory
            try:
                waits_ms = self._now_ms - os.stat(age_of).st_ctime_ns // 1_000_000
            except FileNotFoundError:
                continue
            if file.kind is DirKind.STRAY or waits_ms > (
                self._limits.waiting_ms if code in _WAITING else self._limits.leftover_ms
            ):
                found[code].append(file)
        for code, some in found.items():
            yield Leftover(code, some[0].path, len(some), sum(one.size_bytes for one in some))

    def _sampled(self, directory: DirectoryFacts) -> Iterator[DirectoryFacts]:
        """The directory again with each log that was read, the largest that the budget covers first."""
        logs, failed = list(directory.logs), dict(directory.failed or {})
        wanted = [n for n, log in enumerate(logs) if log.is_compacted and log.snapshot.size_bytes]
        wanted.sort(key=lambda number: -logs[number].snapshot.size_bytes)
        taken = [number for number in wanted if self._budget.covers(logs[number].snapshot.size_bytes)]
        self._budget.wanted_bytes += sum(logs[number].snapshot.size_bytes for number in taken)
        for number in taken:
            log = logs[number]
            assert log.config is not None
            overdue_ms = directory.judged_ms - max(log.config.delete_retention_ms, DAY_MS)
            with each_log(log.snapshot.directory) as reading, contextlib.suppress(FileNotFoundError):
                sample = take_sample(self._files, log, overdue_ms, self._budget)
                logs[number] = replace(log, sample=sample)
            if reading.error is not None:
                failed[log.snapshot.directory] = str(reading.error)
            yield replace(directory, logs=tuple(logs), failed=failed)


def _has_cleaner_thread(log_dir: str) -> bool | None:
    """Whether the process that holds a directory has a thread of Kafka's cleaner, as anybody may see; None for not known."""
    with contextlib.suppress(DirOffline, OSError):
        pid = probe(log_dir)
        if pid:
            names = [_content(f"/proc/{pid}/task/{task}/comm") for task in os.listdir(f"/proc/{pid}/task")]
            return _CLEANER_THREAD in names
    return None


def _content(path: str) -> bytes:
    """Of a file that may be gone, empty."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _is_worth_a_look(one: Finding) -> bool:
    kind = one.kind
    return kind.severity is not Severity.INFO and not kind.needs_nothing and one.code not in LEFTOVERS
