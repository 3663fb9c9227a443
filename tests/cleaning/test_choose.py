"""min.compaction.lag.ms and max.compaction.lag.ms with real cleanings under a clock that is set (C144, C145)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cleanerd.cleaning.choose import Candidate, examine_all
from cleanerd.cleaning.result import LogResult
from cleanerd.config.model import ClusterMetadata
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.env.pace import unpaced
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.silent import clean_at, request_of
from tests.harness.logs.troubled import META_PROPERTIES as KRAFT
from tests.harness.logs.troubled import newest

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
T0_MS = 1_700_000_000_000
KEYS = 20
ZOOKEEPER = "version=0\nbroker.id=1\n"
Clean = Callable[[int], LogResult]


def append_block(log_dir: Path, timestamp_ms: int, number: int) -> int:
    """Three values for each key, in segments of their own; the active segment is left empty. Returns the log end."""
    with LogWriter(str(log_dir), "lagging", 0, segment_bytes=1 << 20) as log:
        producer = Producer(log)
        for turn in range(3):
            for key in range(KEYS):
                producer.put(b"key %d" % key, b"block %d turn %d" % (number, turn), timestamp_ms)
            log.roll()
        return log.log_end_offset


def cleaner(log_dir: Path, spark: LazySpark, **settings: object) -> Clean:
    return partial(clean_at, log_dir=log_dir, topic="lagging", spark=spark, settings=settings)


def records(log_dir: Path) -> int:
    return len(list(read_records(str(log_dir / "lagging-0"))))


def test_c144_max_lag_cleans_what_the_ratio_would_not(tmp_path: Path, spark: LazySpark) -> None:
    """Ratio 1.0, min lag 1 h, max lag 6 h: the first block goes at 6 h + 1 ms, the second not before its time."""
    append_block(tmp_path, T0_MS, 0)
    clean = cleaner(
        tmp_path,
        spark,
        min_cleanable_dirty_ratio=1.0,
        min_compaction_lag_ms=HOUR_MS,
        max_compaction_lag_ms=6 * HOUR_MS,
    )
    assert clean(T0_MS + 3 * HOUR_MS).outcome.word == "skipped"
    assert records(tmp_path) == 3 * KEYS
    later = T0_MS + 6 * HOUR_MS + 1
    append_block(tmp_path, later, 1)
    assert clean(later).outcome.word == "committed"
    assert records(tmp_path) == KEYS + 3 * KEYS, "the first block has one record a key, the second all"
    assert clean(later + 6 * HOUR_MS + 1).outcome.word == "committed"
    assert newest(tmp_path / "lagging-0") == {b"key %d" % key: b"block 1 turn 2" for key in range(KEYS)}
    assert records(tmp_path) == KEYS


def test_c145_min_lag_protects_what_is_younger(tmp_path: Path, spark: LazySpark) -> None:
    """Nothing after 30 minutes; after 1 h + 1 ms the part that was closed at T0, and no newest value is touched."""
    append_block(tmp_path, T0_MS, 0)
    clean = cleaner(tmp_path, spark, min_cleanable_dirty_ratio=0.0, min_compaction_lag_ms=HOUR_MS)
    assert clean(T0_MS + HOUR_MS // 2).outcome.word == "skipped"
    append_block(tmp_path, T0_MS + HOUR_MS // 2, 1)
    expected = newest(tmp_path / "lagging-0")
    assert clean(T0_MS + HOUR_MS + 1).outcome.word == "committed"
    assert newest(tmp_path / "lagging-0") == expected
    assert records(tmp_path) == KEYS + 3 * KEYS


@pytest.mark.parametrize(
    ("release", "owner", "settings", "days"),
    [
        ("3.3", KRAFT, {}, 7),
        ("3.3", KRAFT, {"producer.id.expiration.ms": DAY_MS * 9}, 7),  # it does not know that key
        ("3.3", KRAFT, {"transactional.id.expiration.ms": DAY_MS * 3}, 3),
        ("3.4", KRAFT, {}, 1),
        ("4.2", KRAFT, {"producer.id.expiration.ms": DAY_MS * 2}, 2),
        (None, ZOOKEEPER, {}, 7),
        (None, ZOOKEEPER, {"producer.id.expiration.ms": DAY_MS * 9}, 9),
        (None, KRAFT, {}, 1),
        (None, None, {}, 1),
    ],
)
def test_an_idle_producer_is_remembered_as_long_as_its_broker_does(
    release: str | None, owner: str | None, settings: dict[str, int], days: int, tmp_path: Path
) -> None:
    """Rule 4.17: its last batch stays for so long; brokers before 3.4 have another key for that, and another time."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as log:
        Producer(log, producer_id=7).put(b"key", b"value", T0_MS)
        log.roll()
    for name in (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (tmp_path / name).write_text("0\n1\nt 0 1\n")
    if owner is not None:
        (tmp_path / names.META_PROPERTIES).write_text(owner)
    texts = [(key, str(value)) for key, value in settings.items()]
    metadata = ClusterMetadata({"t": None}, {}, {}, release=release)
    request = request_of(tmp_path, "t", {}, assignments=texts, metadata=metadata, force=True)

    def remembers(now_ms: int) -> bool:
        log_dir = LogDir(RealFiles(), str(tmp_path), FixedNow(now_ms), is_kafka=owner is not None)
        (candidate,) = examine_all(log_dir, [TopicPartition("t", 0)], request, lambda _: unpaced)
        assert isinstance(candidate, Candidate), candidate
        return candidate.stability.producers.ids.tolist() == [7]

    assert remembers(T0_MS + days * DAY_MS - 1)
    assert not remembers(T0_MS + days * DAY_MS)
