"""Tombstones and markers stay in a broker's log until every other replica is known to be in sync (architecture 2): by a
metadata log as a controller writes it, and cleanings that go by it. Then Kafka's rules 4.18-4.21 decide.
"""

from pathlib import Path

import pytest

from cleanerd.cleaning.assumed import NOW, REPLICAS, SETTINGS
from cleanerd.format import names
from cleanerd.policy.tombstones import KNOWN_FOR_MS
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.units import utc
from tests.harness.logs.member import (
    DAY_MS,
    NODE,
    OTHER,
    T0_MS,
    TP,
    Broker,
    aborted,
    deletions,
    others,
    values,
)
from tests.harness.logs.metadata import SAMPLE_ID, change
from tests.harness.logs.troubled import lock_of_another

HOUR_MS = 3_600_000
HORIZON_MS = T0_MS + DAY_MS


@pytest.fixture
def broker(tmp_path: Path, spark: LazySpark) -> Broker:
    """With one other replica, which is in sync; its deletions have got their horizons."""
    return stamped(Broker(tmp_path / "logs", spark, NODE, OTHER))


def stamped(broker: Broker) -> Broker:
    broker.write(values, deletions)
    assert broker.clean(T0_MS, force=True).statistics.removed == {"superseded": 5}
    return broker


@pytest.mark.trap("tombstones that go while a replica is away")
def test_a_quiet_log_keeps_them_while_a_replica_is_away(broker: Broker) -> None:
    broker.hear(T0_MS + HOUR_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    broker.hear(HORIZON_MS)
    for force in (False, True):
        result = broker.clean(HORIZON_MS, force=force)
        assert (result.outcome.word, result.outcome.next_horizon_ms) == ("skipped", HORIZON_MS + DAY_MS)
        assert result.tombstones_stay == f"replica 3 is not in sync since {utc(T0_MS + HOUR_MS)}"
        assert result.reason is not None
        assert result.reason.endswith(f"; tombstones stay: {result.tombstones_stay}")
    assert len(broker.keys()) == 6


def test_a_dirty_log_keeps_them_and_loses_what_is_superseded(broker: Broker) -> None:
    """A horizon is stamped as ever, and aborted data go."""
    broker.write(values, aborted, producer_id=7)
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    result = broker.clean(HORIZON_MS, force=True)
    assert (result.outcome.word, result.statistics.removed) == ("committed", {"superseded": 5, "aborted": 1})
    broker.write(deletions)
    broker.hear(HORIZON_MS + 3 * DAY_MS)
    assert broker.clean(HORIZON_MS + 3 * DAY_MS, force=True).statistics.removed == {"superseded": 6}
    assert len(broker.keys() - {None}) == 6


def test_they_go_when_it_has_been_back_for_delete_retention_ms(broker: Broker) -> None:
    broker.hear(T0_MS + HOUR_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    back_ms = HORIZON_MS + 5 * HOUR_MS
    broker.hear(back_ms, change(SAMPLE_ID, 0, isr=[NODE, OTHER]))
    held = broker.clean(back_ms + 1)
    assert (held.outcome.word, held.outcome.next_horizon_ms) == ("skipped", back_ms + DAY_MS)
    broker.hear(back_ms + DAY_MS)
    assert broker.clean(back_ms + DAY_MS - 1).outcome.word == "skipped"
    assert broker.clean(back_ms + DAY_MS).statistics.removed == {"tombstone": 5}


def test_they_go_at_their_horizon_where_all_were_in_sync(broker: Broker) -> None:
    """Also when this node itself is not: its log has what is cleaned there."""
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[OTHER]))
    assert broker.clean(HORIZON_MS - 1).outcome.word == "skipped"
    assert broker.clean(HORIZON_MS).statistics.removed == {"tombstone": 5}


@pytest.mark.parametrize("isr", [[NODE], []])
def test_a_single_replica_waits_for_nobody(tmp_path: Path, spark: LazySpark, isr: list[int]) -> None:
    """Whatever the age of what is known; a clean stop takes it from the in-sync replicas (ELR)."""
    broker = stamped(Broker(tmp_path / "logs", spark, NODE))
    broker.hear(T0_MS, change(SAMPLE_ID, 0, isr=isr))
    assert broker.clean(HORIZON_MS).statistics.removed == {"tombstone": 5}


def test_markers_stay_too(tmp_path: Path, spark: LazySpark) -> None:
    broker = Broker(tmp_path / "logs", spark, NODE, OTHER)
    broker.write(aborted, values, producer_id=7)
    assert broker.clean(T0_MS, force=True).statistics.removed == {"aborted": 1}
    broker.write(deletions)
    assert broker.clean(T0_MS, force=True).outcome.word == "committed"
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    assert broker.clean(HORIZON_MS).outcome.word == "skipped"
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE, OTHER]))
    broker.hear(HORIZON_MS + DAY_MS)
    assert broker.clean(HORIZON_MS + DAY_MS).statistics.removed == {"control": 1, "tombstone": 5}


def test_they_stay_where_what_is_known_is_old(broker: Broker) -> None:
    """The broker may have ended long ago, and the others gone on without a replica."""
    broker.hear(HORIZON_MS)
    result = broker.clean(HORIZON_MS + KNOWN_FOR_MS + 1)
    assert result.tombstones_stay == f"which replicas are in sync is known up to {utc(HORIZON_MS)} only"
    assert broker.clean(HORIZON_MS + KNOWN_FOR_MS).statistics.removed == {"tombstone": 5}


def test_they_stay_where_no_metadata_log_names_the_replicas(tmp_path: Path, spark: LazySpark) -> None:
    broker = stamped(Broker(tmp_path / "logs", spark))
    (broker.log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0").rename(tmp_path / "elsewhere")
    result = broker.clean(HORIZON_MS)
    assert result.outcome.word == "skipped"
    assert (
        result.tombstones_stay == "which replicas it has is not known without the metadata log of its cluster"
    )
    found = (broker.log_dir / names.META_PROPERTIES).read_text()
    (broker.log_dir / names.META_PROPERTIES).write_text(
        found.replace("version=1", "version=0").replace("node.id", "broker.id")
    )
    assert "a broker of ZooKeeper does not tell" in str(broker.clean(HORIZON_MS).tombstones_stay)


def test_they_go_where_the_command_line_alone_says_anything_of_the_log(
    tmp_path: Path, spark: LazySpark
) -> None:
    """A log of before topic ids, without a metadata log: nobody else can be asked. One with an id has a cluster."""
    broker = stamped(Broker(tmp_path / "logs", spark))
    (broker.log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0").rename(tmp_path / "elsewhere")
    ids = broker.log_dir / str(TP) / names.PARTITION_METADATA
    assert broker.clean(HORIZON_MS).outcome.word == "skipped"
    ids.unlink()
    assert broker.clean(HORIZON_MS).statistics.removed == {"tombstone": 5}


def test_they_go_at_the_word_of_the_operator(broker: Broker) -> None:
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    assert broker.clean(HORIZON_MS, assumed=frozenset({SETTINGS, NOW})).outcome.word == "skipped"
    assert broker.clean(HORIZON_MS, assumed=frozenset({REPLICAS})).statistics.removed == {"tombstone": 5}


def test_they_go_where_no_broker_ever_was(broker: Broker) -> None:
    """As ever: whoever reads there is the operator's to know."""
    (broker.log_dir / names.META_PROPERTIES).unlink()
    (broker.log_dir / f"{names.CLUSTER_METADATA_TOPIC}-0").rename(broker.log_dir.parent / "elsewhere")
    for name in (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (broker.log_dir / name).unlink()
    (broker.log_dir / str(TP) / names.PARTITION_METADATA).unlink()
    assert broker.clean(HORIZON_MS).statistics.removed == {"tombstone": 5}


@pytest.mark.trap("tombstones that go while a replica is away")
def test_a_result_without_them_is_dropped_if_a_replica_has_gone_since(broker: Broker) -> None:
    """It was planned while all were in sync, and waits. What it leaves behind is cleaned with them."""
    broker.write(others)
    broker.hear(HORIZON_MS)
    with lock_of_another(broker.log_dir / names.LOCK):
        staged = broker.clean(HORIZON_MS, force=True)
    assert (staged.outcome.word, staged.statistics.removed) == ("staged", {"tombstone": 5})
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    result = broker.clean(HORIZON_MS, force=True)
    assert (result.outcome.word, result.statistics.removed) == ("unchanged", {})
    assert len(broker.keys()) == 11


def test_a_result_without_them_is_committed_if_a_replica_was_away_meanwhile(broker: Broker) -> None:
    """Brokers are restarted one after the other: the others have just been, when that of a waiting result stops."""
    broker.write(others)
    broker.hear(HORIZON_MS)
    with lock_of_another(broker.log_dir / names.LOCK):
        assert broker.clean(HORIZON_MS, force=True).outcome.word == "staged"
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE, OTHER]))
    assert broker.clean(HORIZON_MS, force=True).outcome.word == "committed"
    assert len(broker.keys()) == 6


def test_a_result_that_has_lost_no_tombstone_is_committed_whoever_has_gone(broker: Broker) -> None:
    broker.write(values)
    broker.hear(HORIZON_MS)
    with lock_of_another(broker.log_dir / names.LOCK):
        assert broker.clean(HORIZON_MS, force=True).statistics.removed == {"superseded": 5}
    broker.hear(HORIZON_MS, change(SAMPLE_ID, 0, isr=[NODE]))
    assert broker.clean(HORIZON_MS, force=True).outcome.word == "committed"
