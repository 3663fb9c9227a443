"""Log directories for inventories: files of the right names, sizes and times, and nothing much in them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.due_logs import DueLogs
from cleanerd.daemon.inventory.inventory import Inventory, ScanReport
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.inventory.urgency import FOREVER_MS, Due
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import READ_MAX_BYTES, FileStat, RealFiles
from cleanerd.format import names
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, TopicPartition, parse_partition_dir
from cleanerd.format.time_index import ENTRY
from tests.harness.clock import HandClock

HOUR_MS = 3_600_000
OLD_MS = 1_600_000_000_000  # before anything that the clock of a test says
CONFIG = TopicConfig(
    cleanup_policy=("compact",), delete_retention_ms=24 * HOUR_MS, min_compaction_lag_ms=0,
    max_compaction_lag_ms=FOREVER_MS, retention_ms=-1, retention_bytes=-1, topic_segment_bytes=1 << 20,
    segment_index_bytes=1 << 20, index_interval_bytes=4096, file_delete_delay_ms=0,
    broker_min_cleanable_dirty_ratio=0.5, remote_storage_enable=False, compression="batch", compression_type="producer",
    compression_gzip_level=-1, compression_lz4_level=9, compression_zstd_level=3,
)  # fmt: skip


class CountingFiles(RealFiles):
    """Counts calls, and fails where a test says so."""

    def __init__(self) -> None:
        self.stats: list[str] = []
        self.lists: list[str] = []
        self.reads: list[str] = []
        self.broken: dict[str, OSError] = {}

    def reset(self) -> None:
        for calls in (self.stats, self.lists, self.reads):
            calls.clear()

    def stat(self, path: str, *, follow_links: bool = True) -> FileStat:
        self.stats.append(path)
        return super().stat(path, follow_links=follow_links)

    def exists(self, path: str) -> bool:
        self.stats.append(path)
        return super().exists(path)

    def list_names(self, directory: str) -> list[str]:
        self.lists.append(directory)
        if directory in self.broken:
            raise self.broken[directory]
        return super().list_names(directory)

    def read(self, path: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        self.reads.append(path)
        if path in self.broken:
            raise self.broken[path]
        return super().read(path, max_bytes)


@dataclass
class Fixture:
    """An inventory of some log directories, and what is needed to ask it."""

    dirs: list[Path]
    files: CountingFiles = field(default_factory=CountingFiles)
    clock: HandClock = field(default_factory=HandClock)
    configs: dict[str, TopicConfig] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    looks: bool = True  # at the delete horizons of a new log, and finds none

    def __post_init__(self) -> None:
        self.reserve()
        self.inventory = Inventory(self.files, self.clock)
        self.due_logs = DueLogs(self.inventory, self.clock, lambda: self)  # type: ignore[arg-type, return-value]

    @property
    def root(self) -> Path:
        return self.dirs[0]

    def topic(self, topic: str) -> TopicConfig:
        return self.configs.get(topic, CONFIG)

    def reserve(self, *topics: str) -> None:
        self.broker = SimpleNamespace(reserved_topics=topics)

    def is_free(self, log: LogId) -> bool:
        return str(log) not in self.busy

    def scan(self) -> list[str]:
        """What the scan reports, in words."""
        report = self.inventory.scan([str(path) for path in self.dirs])
        for log in report.appeared if self.looks else ():
            self.due_logs.estimate(log)
            self.due_logs.note_horizon(log, None)
        return in_words(report)

    def scan_touched(self, *names: str) -> list[str]:
        """The same of a scan of these names in the first log directory."""
        for name in names:
            self.inventory.touch(str(self.root), name)
        return in_words(self.inventory.scan_touched([str(path) for path in self.dirs]))

    def known(self, name: str) -> ListedLog:
        found = self.inventory.facts(self.log(name))
        assert found is not None
        return found

    def errors(self) -> dict[LogId, str]:
        return {entry.log: entry.error for entry in self.inventory.entries() if entry.error is not None}

    def due(self) -> list[Due]:
        return self.due_logs.look(self.is_free).due

    def due_names(self) -> list[str]:
        return [str(due.log) for due in self.due()]

    def next_due_in_ms(self) -> int | None:
        at_ms = self.due_logs.look(self.is_free).next_ms(self.is_free)
        return None if at_ms is None else at_ms - self.clock.now_ms()

    def log(self, name: str, log_dir: Path | None = None) -> LogId:
        parsed = parse_partition_dir(name)
        assert parsed is not None
        return LogId(str(log_dir or self.root), parsed[0])


def in_words(report: ScanReport) -> list[str]:
    found = (("+", report.appeared), ("-", report.vanished), ("~", report.changed))
    return [f"{word} {log}" for word, logs in found for log in logs]


def file_name(base: int, kind: FileKind = FileKind.LOG, suffix: Suffix = Suffix.LIVE) -> str:
    return str(SegmentFileName(base, kind, suffix))


def write_log(
    directory: Path, sizes: Mapping[int, int], *, largest_ms: Callable[[int], int] = lambda _: OLD_MS
) -> None:
    """Segments by base offset with these sizes; the last is active. The directory looks as if it was old."""
    directory.mkdir(exist_ok=True)
    for base, size in sizes.items():
        with (directory / file_name(base)).open("wb") as file:
            file.truncate(size)
        (directory / file_name(base, FileKind.OFFSET_INDEX)).write_bytes(bytes(8))
        (directory / file_name(base, FileKind.TIME_INDEX)).write_bytes(ENTRY.pack(largest_ms(base), 0))
    age(directory)


def batch(offset: int, timestamp_ms: int = OLD_MS) -> bytes:
    """One record, 100 bytes."""
    data = encode_batch([Record(offset, timestamp_ms, b"k", b"v" * 31)], base_offset=offset)
    assert len(data) == 100
    return data


def stamp_first_batch(directory: Path, base: int, timestamp_ms: int) -> None:
    """Put one batch with this time at the head of a segment, whose size stays."""
    with (directory / file_name(base)).open("r+b") as file:
        file.write(batch(base, timestamp_ms))
    age(directory)


def age(directory: Path, by_ms: int = HOUR_MS) -> None:
    """Make a directory look untouched for a while."""
    mtime_ns = os.stat(directory).st_mtime_ns - by_ms * 1_000_000
    os.utime(directory, ns=(mtime_ns, mtime_ns))


def write_checkpoint(log_dir: Path, name: str, offsets: Mapping[str, int]) -> None:
    """As a broker does: beside, then renamed."""
    parsed: dict[TopicPartition, int] = {}
    for log, offset in offsets.items():
        found = parse_partition_dir(log)
        assert found is not None
        parsed[found[0]] = offset
    (log_dir / f"{name}.tmp").write_bytes(render_offset_checkpoint(parsed))
    (log_dir / f"{name}.tmp").rename(log_dir / name)


def write_cleaner_checkpoint(log_dir: Path, offsets: Mapping[str, int]) -> None:
    write_checkpoint(log_dir, names.CLEANER_OFFSET_CHECKPOINT, offsets)
