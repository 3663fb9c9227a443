"""Logs for retention: small segments, and what a broker that stopped leaves beside them."""

from pathlib import Path

from cleanerd.cleaning.retain import Dispose, Retained, retain
from cleanerd.config.model import TopicConfig
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.checkpoint import render_offset_checkpoint
from cleanerd.format.names import FileKind, SegmentFileName, TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.scan import PartitionSnapshot
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.troubled import META_PROPERTIES

FILES = RealFiles()
TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 3)
NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - 1001
UNLIMITED = TopicConfig(cleanup_policy=("delete",), retention_ms=-1, retention_bytes=-1)
EXPIRED = UNLIMITED.but(retention_ms=1000)
SEGMENT_KINDS = (".index", ".log", ".snapshot", ".timeindex")


def append(writer: LogWriter, records: int, per_segment: int, timestamp_ms: int) -> None:
    """One record a batch."""
    producer = Producer(writer)
    for number in range(records):
        if number and number % per_segment == 0:
            writer.roll()
        producer.put(b"k%d" % number, b"v" * 20, timestamp_ms)


def write_log(
    log_dir: Path, records: int = 15, per_segment: int = 5, timestamp_ms: int = OLD_MS, *, roll: bool = False
) -> Path:
    """A closed log; with `roll` its active segment is empty. Returns the partition directory."""
    with LogWriter(str(log_dir), "t", 0, segment_bytes=1 << 20) as writer:
        append(writer, records, per_segment, timestamp_ms)
        if roll:
            writer.roll()
    return log_dir / str(TP)


def stop_broker(log_dir: Path, end: int, *, high_watermark: int | None = None, is_clean: bool = True) -> None:
    """What a broker leaves beside a log that ends at `end`."""
    (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    mark = end if high_watermark is None else high_watermark
    for name, offset in ((names.REPLICATION_CHECKPOINT, mark), (names.RECOVERY_POINT_CHECKPOINT, end)):
        (log_dir / name).write_bytes(render_offset_checkpoint({TP: offset, OTHER: 7}))
    if is_clean:
        (log_dir / names.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":7}')


def snapshot_of(log_dir: Path, tp: TopicPartition = TP) -> PartitionSnapshot:
    place = LogDir.at(FILES, str(log_dir), FixedNow(NOW_MS))
    return place.scan(tp, place.checkpoints())


def run_pass(
    log_dir: Path,
    config: TopicConfig,
    now_ms: int = NOW_MS,
    *,
    dry_run: bool = False,
    dispose: Dispose | None = None,
) -> Retained | None:
    place = LogDir.at(FILES, str(log_dir), FixedNow(now_ms))
    return retain(place, snapshot_of(log_dir), config, dry_run=dry_run, dispose=dispose)


def bases(log_dir: Path, kind: FileKind = FileKind.LOG) -> list[int]:
    return sorted(int(path.name[:20]) for path in (log_dir / str(TP)).glob(f"*{kind.value}"))


def offsets(log_dir: Path) -> list[int]:
    return [record.offset for record in read_records(str(log_dir / str(TP)))]


def log_start_entries(log_dir: Path) -> dict[TopicPartition, int]:
    return dict(read_checkpoints(FILES, str(log_dir)).log_start)


def segment_path(log_dir: Path, base: int, kind: FileKind = FileKind.LOG) -> Path:
    return log_dir / str(TP) / str(SegmentFileName(base, kind))
