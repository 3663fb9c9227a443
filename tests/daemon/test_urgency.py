"""What the daemon takes a log for without reading a segment is an upper bound of the truth (rules 1.9-1.25)."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleanerd.config.model import TopicConfig
from cleanerd.daemon.inventory.listed_log import (
    ClosedSegment,
    Contents,
    ListedLog,
    compaction_config,
    offsets_of,
)
from cleanerd.daemon.inventory.urgency import FOREVER_MS, Due, DueReason, estimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import FileStat
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import (
    CleanableRange,
    LogFacts,
    RangeLimit,
    SegmentFacts,
    cleanable_range,
    is_filthy,
    urgency,
)
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, scan_partition
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.daemon.inventories import (
    CONFIG,
    HOUR_MS,
    OLD_MS,
    Fixture,
    write_checkpoint,
    write_cleaner_checkpoint,
)
from tests.harness.logs.troubled import META_PROPERTIES

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


@st.composite
def disks(draw: st.DrawFn) -> tuple[ListedLog, LogFacts, dict[int, int | None]]:
    """A log as the daemon knows it, and one of the logs that it may be: any log end, any last stable offset."""
    bases = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=7)))
    times = st.integers(NOW_MS - 100, NOW_MS + 100)
    segments = [
        SegmentFacts(
            base,
            draw(st.integers(0, 100)),
            8,
            12,
            draw(times),
            draw(st.none() | st.sampled_from([-1, 0]) | times),
        )
        for base in bases
    ]
    end = bases[-1] + draw(st.integers(0, 20))
    is_kafka = draw(st.booleans())
    offsets = st.dictionaries(st.just(TP), st.integers(-1, 90))
    checkpoints = Checkpoints(draw(offsets), draw(offsets), draw(offsets), draw(offsets))
    start = max(checkpoints.log_start.get(TP, 0), bases[0])
    high_watermark = end
    if is_kafka:
        high_watermark = min(max(checkpoints.high_watermark.get(TP, 0), start), end)
    truth = LogFacts(
        segments=tuple(segments),
        log_start_offset=start,
        log_end_offset=end,
        last_stable_offset=draw(st.integers(-1, high_watermark)),
        recovery_point=checkpoints.recovery_point.get(TP, 0) if is_kafka else None,
        checkpoint=checkpoints.cleaner.get(TP),
    )
    closed = tuple(
        ClosedSegment(FileStat(1, 1, 1), replace(s, first_batch_timestamp_ms=None)) for s in segments[:-1]
    )
    contents = Contents(closed, bases[-1], segments[-1].size_bytes, staged=None, in_transition=False)
    seen_end = draw(st.sampled_from([end, bases[-1]]))  # it may have grown, or nobody looked
    offsets_known = offsets_of(
        TP, contents, checkpoints, is_kafka=is_kafka, now_ms=NOW_MS, reaches=lambda offset: offset <= seen_end
    )
    known = ListedLog(LogId("/d", TP), contents, offsets_known)
    return known, truth, {s.base_offset: s.first_batch_timestamp_ms for s in segments[:-1]}


configs = st.builds(
    CONFIG.but,
    own_min_cleanable_dirty_ratio=st.floats(0, 1),
    min_compaction_lag_ms=st.integers(-1, 100),
    max_compaction_lag_ms=st.integers(0, 200) | st.just(FOREVER_MS),
)
Disk = tuple[ListedLog, LogFacts, dict[int, int | None]]


@given(disk=disks(), config=configs)
def test_estimate_is_never_below_the_truth(disk: Disk, config: TopicConfig) -> None:
    """With any log end and any last stable offset up to the high watermark."""
    known, truth, first_batches_ms = disk
    exact = cleanable_range(truth, compaction_config(config), NOW_MS)
    found = estimate(known, config, NOW_MS, first_batches_ms)
    bound = found.range
    assert bound.cleanable_bytes >= exact.cleanable_bytes
    assert bound.dirty_ratio >= exact.dirty_ratio
    if not exact.is_empty:
        assert bound.compaction_delay_ms >= exact.compaction_delay_ms
        assert bound.first_uncleanable_offset >= exact.first_uncleanable_offset
    if is_filthy(exact, compaction_config(config)):
        assert found.reason(NOW_MS) is not None


@given(disk=disks(), config=configs)
def test_estimate_without_open_transactions_is_exact(disk: Disk, config: TopicConfig) -> None:
    """Nobody visits a log for nothing, but when the log end could not be told quickly."""
    known, truth, first_batches_ms = disk
    truth = replace(truth, last_stable_offset=known.offsets.high_watermark)
    if known.offsets.log_end < (truth.checkpoint or 0) <= truth.log_end_offset:
        return
    exact = cleanable_range(truth, compaction_config(config), NOW_MS)
    found = estimate(known, config, NOW_MS, first_batches_ms)
    bound = found.range
    assert (bound.clean_bytes, bound.cleanable_bytes) == (exact.clean_bytes, exact.cleanable_bytes)
    assert bound.is_empty == exact.is_empty
    assert (found.reason(NOW_MS) is not None) == is_filthy(bound, compaction_config(config))


@given(disk=disks(), config=configs, later_ms=st.integers(0, 400))
def test_estimate_stands_until_it_says_so(disk: Disk, config: TopicConfig, later_ms: int) -> None:
    """Between two estimates the reason only changes at the instants that `next_change_ms` names."""
    known, _, first_batches_ms = disk
    first = estimate(known, config, NOW_MS, first_batches_ms)
    later = NOW_MS + later_ms
    second = estimate(known, config, later, first_batches_ms)
    if first.holds(known, config, later):
        assert second.range.cleanable_bytes == first.range.cleanable_bytes
        assert second.reason(later) == first.reason(later)
    if later < first.next_change_ms(NOW_MS):
        assert second.reason(later) == first.reason(NOW_MS)


ranges = st.builds(
    CleanableRange,
    st.just(0), st.just(9), st.just(RangeLimit.ACTIVE_SEGMENT), st.just(False), st.integers(0, 9), st.integers(1, 9),
    st.just(0) | st.integers(0, 5),
)  # fmt: skip


@given(found=st.lists(ranges, max_size=8))
@example([])
def test_1_23_order_is_that_of_policy(found: list[CleanableRange]) -> None:
    """Earliest deadline first is greatest delay first; whoever is not overdue is sorted by ratio alone."""
    dues = [
        Due(
            LogId("/d", TopicPartition("t", number)),
            DueReason.MAX_LAG if r.compaction_delay_ms else DueReason.RATIO,
            r,
            NOW_MS - r.compaction_delay_ms if r.compaction_delay_ms else None,
        )
        for number, r in enumerate(found)
    ]
    ordered = [urgency(due.range) for due in sorted(dues, key=lambda due: due.urgency)]
    assert ordered == sorted(ordered, reverse=True)


@pytest.mark.parametrize("is_kafka", [False, True])
def test_estimate_of_a_real_log_agrees_with_an_exact_scan(tmp_path: Path, is_kafka: bool) -> None:
    """Same files, same numbers, also for first batch timestamps (1.19) and time indexes (1.10)."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20, index_interval_bytes=100) as writer:
        producer = Producer(writer)
        for offset in range(12):
            if offset % 3 == 0 and offset:
                writer.roll()
            producer.put(b"k%d" % offset, b"v" * 60, OLD_MS + 100 * offset)
    if is_kafka:
        (tmp_path / names.META_PROPERTIES).write_text(META_PROPERTIES)
        write_checkpoint(tmp_path, names.REPLICATION_CHECKPOINT, {"t-0": 8})
        write_checkpoint(tmp_path, names.RECOVERY_POINT_CHECKPOINT, {"t-0": 12})
    write_cleaner_checkpoint(tmp_path, {"t-0": 3})
    fixture = Fixture([tmp_path])
    now_ms = OLD_MS + HOUR_MS
    fixture.clock.wall_ms = now_ms
    config = CONFIG.but(min_compaction_lag_ms=HOUR_MS - 600, max_compaction_lag_ms=HOUR_MS - 1000)
    fixture.configs["t"] = config
    fixture.scan()
    snapshot = scan_partition(
        PartitionDir.of(fixture.files, str(tmp_path), TP), TP, read_checkpoints(fixture.files, str(tmp_path)),
        is_kafka=is_kafka, first_batch_timestamps=True,
    )  # fmt: skip
    assert snapshot is not None
    segments = tuple(segment.facts for segment in snapshot.segments)
    truth = LogFacts(
        segments, snapshot.log_start_offset, snapshot.log_end_offset, snapshot.high_watermark,
        snapshot.recovery_point, snapshot.checkpoint,
    )  # fmt: skip
    (due,) = fixture.due()
    exact = cleanable_range(truth, compaction_config(config), now_ms)
    assert (due.range, due.reason) == (exact, DueReason.MAX_LAG)
    assert (exact.first_dirty_offset, exact.first_uncleanable_offset, exact.compaction_delay_ms) == (
        3,
        6,
        700,
    )
