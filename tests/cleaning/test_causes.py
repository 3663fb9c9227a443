"""What holds a log back is named by segment, record or file, with what to do about it (rules 1.9-1.13, 6.2)."""

import os
from pathlib import Path

import pytest

from cleanerd.cleaning.causes import Cause, dated
from cleanerd.cleaning.choose import examine_all
from cleanerd.cleaning.outcomes import Skipped
from cleanerd.cleaning.result import LogResult
from cleanerd.cleaning.retain import preview
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.env.pace import unpaced
from cleanerd.format import names
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.retained import snapshot_of
from tests.harness.logs.silent import request_of
from tests.harness.logs.troubled import META_PROPERTIES, segment

TP = TopicPartition("held", 0)
HOUR_MS = 3_600_000
NOW_MS = 1_764_000_000_000
OLD_MS = NOW_MS - 100 * HOUR_MS
LATER_MS = NOW_MS + 87_600 * HOUR_MS


def write(log_dir: Path, newest_ms: int = OLD_MS, *, producer_id: int | None = None) -> Path:
    """Segments of ten records from offsets 0, 10 and 20; that at 14 bears `newest_ms`. A producer leaves one open at 3."""
    with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=1 << 20) as log:
        for base in (0, 10):
            producer = Producer(log, producer_id=-1 if producer_id is None else producer_id)
            for offset in range(base, base + 10):
                if producer_id is not None and offset == 3:
                    producer.begin()
                producer.put(b"%d" % offset, b"v", newest_ms if offset == 14 else OLD_MS)
            log.roll()
    for path in (log_dir / str(TP)).glob(
        "*.log"
    ):  # before this machine was booted: what is unflushed stays that
        os.utime(path, ns=(0, OLD_MS * 1_000_000))
    return log_dir / str(TP)


def as_broker(log_dir: Path, **entries: int) -> None:
    (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    for name, offset in entries.items():
        (log_dir / f"{name}-offset-checkpoint").write_text(f"0\n1\nheld 0 {offset}\n")


def skipped(log_dir: Path, **settings: object) -> LogResult:
    """What an examination says."""
    place = LogDir.at(RealFiles(), str(log_dir), FixedNow(NOW_MS))
    (result,) = examine_all(place, [TP], request_of(log_dir, TP.topic, settings), lambda _: unpaced)
    assert isinstance(result, LogResult)
    assert isinstance(result.outcome, Skipped)
    return result


def kept(log_dir: Path, **settings: object) -> Cause:
    """Why retention leaves the oldest segment."""
    config = request_of(log_dir, TP.topic, settings).topic_config(TP.topic)
    return preview(RealFiles(), snapshot_of(log_dir, TP), config, NOW_MS).cause


def test_a_record_in_the_future_is_named_by_segment_offset_and_time(tmp_path: Path) -> None:
    write(tmp_path, LATER_MS)
    result = skipped(tmp_path, min_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1)
    assert str(result.reason).endswith(
        "held back from offset 10 on: segment 10 is younger than min.compaction.lag.ms (3600000): "
        f"the batch at offset 14 bears timestamp {LATER_MS} (2035-11-22 16:00:00 UTC), in the future"
    )
    assert "`cleanerctl clean held-0 --force`" in str(result.outcome.remedy)
    assert "set min.compaction.lag.ms of the topic to 0; message" in str(result.outcome.remedy)


def test_a_record_that_is_only_young_says_until_when(tmp_path: Path) -> None:
    write(tmp_path, NOW_MS - HOUR_MS)
    result = skipped(tmp_path, min_compaction_lag_ms=2 * HOUR_MS, min_cleanable_dirty_ratio=1)
    assert "in the future" not in str(result.reason)
    assert "wait until 2025-11-24 17:00:00 UTC, or lower min.compaction.lag.ms" in str(result.outcome.remedy)


@pytest.mark.parametrize(("padding", "what"), [(0, "empty"), (1200, "damaged")])
def test_without_a_time_index_the_time_of_the_file_counts(tmp_path: Path, padding: int, what: str) -> None:
    """Rule 1.10, as Kafka has it for records without timestamps."""
    partition = write(tmp_path)
    index = segment(partition, 0, FileKind.TIME_INDEX)
    index.write_bytes(index.read_bytes() + bytes(padding) if padding else b"")
    os.utime(segment(partition, 0), ns=(0, LATER_MS * 1_000_000))
    result = skipped(tmp_path, min_compaction_lag_ms=HOUR_MS)
    written = f"its time index is {what}, and its file was written at {LATER_MS} (2035-11-22 16:00:00 UTC), in the future"
    assert str(result.reason).endswith(
        f"segment 0 is younger than min.compaction.lag.ms (3600000): {written}"
    )


@pytest.mark.parametrize(
    ("missing", "what"), [("replication", "high watermark"), ("recovery-point", "recovery point")]
)
@pytest.mark.parametrize("is_file", [True, False])
def test_a_missing_entry_after_a_restore_is_named_with_its_file(
    tmp_path: Path, missing: str, what: str, *, is_file: bool
) -> None:
    write(tmp_path)
    as_broker(tmp_path, **{name: 20 for name in ("replication", "recovery-point") if name != missing})
    path = tmp_path / f"{missing}-offset-checkpoint"
    if is_file:
        path.write_text("0\n0\n")
    lacks = "has no entry for held-0" if is_file else "is missing"
    text = f"{path} {lacks}, so its {what} counts as 0"
    remedy = f"start its broker once, which writes {path.name}; or restore that file with the logs"
    result = skipped(tmp_path)
    assert (result.reason, result.outcome.remedy) == (
        f"nothing to clean: held back from offset 0 on: {text}",
        remedy,
    )
    assert kept(tmp_path, cleanup_policy="delete", retention_ms=1) == Cause(text, remedy)
    as_broker(tmp_path, **{missing: 5})
    assert f"{path} has 5 as its {what}" in str(skipped(tmp_path).reason)


def test_a_recovery_point_says_when_its_broker_writes_it(tmp_path: Path) -> None:
    """A broker that has just started has not yet: before Kafka 3.8 no setting makes it do so in its first 30 seconds."""
    write(tmp_path)
    as_broker(tmp_path, **{"replication": 20, "recovery-point": 0})
    remedy = str(skipped(tmp_path).outcome.remedy)
    assert "each log.flush.offset.checkpoint.interval.ms (a minute), first 30 s after its start" in remedy


def test_an_open_transaction_is_named_by_producer_and_offset(tmp_path: Path) -> None:
    write(tmp_path, producer_id=7)
    result = skipped(tmp_path)
    assert str(result.reason).endswith("a transaction of producer 7 is open from offset 3 on")
    assert "kafka-transactions.sh" in str(result.outcome.remedy)


def test_a_clean_log_has_nothing_to_do(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / names.CLEANER_OFFSET_CHECKPOINT).write_text("0\n1\nheld 0 20\n")
    result = skipped(tmp_path)
    assert (result.reason, result.outcome.remedy) == (
        "nothing to clean: nothing is dirty before the active segment, which begins at offset 20", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cleanup_policy": ""}, "cleanup.policy is empty, so neither age nor size takes it"),
        ({"cleanup_policy": "compact"}, "without the policy delete only a higher log start offset takes it"),
        ({"retention_ms": -1}, "neither limit is set, so only a higher log start offset takes it"),
        ({"retention_ms": 1000 * HOUR_MS}, "neither limit is breached"),
        (
            {"remote_storage_enable": True},
            "remote.storage.enable is set: only its broker knows what has been copied",
        ),
    ],
)
def test_why_retention_leaves_the_oldest_segment(
    tmp_path: Path, settings: dict[str, object], text: str
) -> None:
    write(tmp_path)
    assert kept(tmp_path, **{"cleanup_policy": "delete"} | settings).text == text


@pytest.mark.parametrize("padding", [0, 1200])
def test_retention_counts_from_a_record_in_the_future(tmp_path: Path, padding: int) -> None:
    """Once the segments before it are gone. Where the time index does not tell, the log does."""
    partition = write(tmp_path, LATER_MS)
    for index in partition.glob("*.timeindex"):
        index.write_bytes(index.read_bytes() + bytes(padding))
    found = kept(tmp_path, cleanup_policy="delete", retention_ms=HOUR_MS)
    assert found.text == (
        "retention.ms counts from its largest timestamp: "
        f"the batch at offset 14 bears timestamp {LATER_MS} (2035-11-22 16:00:00 UTC), in the future"
    )
    assert "kafka-delete-records.sh" in str(found.remedy)


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (OLD_MS, f"{OLD_MS} (2025-11-20 12:00:00 UTC)"),
        (NOW_MS * 1000, f"{NOW_MS}000, in the future; as microseconds it would be 2025-11-24 16:00:00 UTC"),
        (
            NOW_MS * 10**6,
            f"{NOW_MS}000000, in the future; as nanoseconds it would be 2025-11-24 16:00:00 UTC",
        ),
        (2**63 - 1, "9223372036854775807, in the future"),
    ],
)
def test_a_time_that_no_calendar_has_is_read_as_its_producer_may_have_meant_it(
    timestamp_ms: int, text: str
) -> None:
    assert dated(timestamp_ms, NOW_MS) == text
