"""Which logs get a retention pass, and in which state they are meanwhile (rules 1.28-1.31; C034-C036, C140).

Which logs a pass is for, C037 among it, is `whose_turn`, which the daemon asks.
"""

import errno
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.retain import Retained
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata, TopicConfig
from cleanerd.config.sources import read_sources
from cleanerd.daemon.inventory.inventory import Inventory
from cleanerd.daemon.inventory.listed_log import ListedLog
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.daemon.work.retention import RetentionPasses, whose_turn
from cleanerd.daemon.work.states import NotTaken
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.policy.retention import Breach
from cleanerd.storage.generation import begin_truncation, read_generation
from cleanerd.storage.partition_dir import PartitionDir
from tests.daemon.test_deletions import next_due_ms
from tests.harness.logs.retained import NOW_MS, TP, bases, stop_broker, write_log
from tests.harness.logs.troubled import lock_of_another, segment

CLOCK = FixedNow(NOW_MS)


class Passes:
    """A daemon as far as retention is concerned."""

    def __init__(self, log_dir: Path, policy: str, broker: Mapping[str, str] | None = None) -> None:
        self.log = LogId(str(log_dir), TP)
        self.configuration = configured(policy, broker or {})
        store = Store(str(log_dir.parent / "store"))
        parts = Parts(lambda: self.configuration, (str(log_dir),), store, RealFiles(), CLOCK)
        self.states, self.pending = parts.states, parts.deletions
        self.inventory, self.retention = parts.inventory, parts.retention
        self.retained: list[Retained | None] = []  # None: the pass failed
        parts.metrics.retained = lambda _, retained: self.retained.append(retained)  # type: ignore[method-assign]
        self.busy: list[bool] = []  # whether nobody could have taken the log when it lost segments
        self._add, self.pending.add = self.pending.add, self._looking  # type: ignore[method-assign]

    def _looking(self, paths: Iterable[str], due_ms: int) -> None:
        self.busy.append(not self.states.try_start_all([self.log]))
        self._add(paths, due_ms)

    def run(self) -> int:
        """How many segments went."""
        self.retained.clear()
        self.retention.run([self.log])
        return sum(retained.segments for retained in self.retained if retained is not None)

    def is_free(self) -> bool:
        if not self.states.try_start_all([self.log]):
            return False
        self.states.done_cleaning(self.log)
        return True


def configured(policy: str, broker: Mapping[str, str]) -> Configuration:
    topic = {"cleanup.policy": policy, "retention.ms": "1000", "file.delete.delay.ms": "500"}
    return resolve(read_sources(None, broker.items(), [("t", key, value) for key, value in topic.items()]))


@pytest.mark.parametrize(("policy", "segments"), [("delete", 2), ("compact,delete", 2), ("compact", 0)])
def test_c034_c035_c036_every_policy_gets_its_pass_and_nobody_works_on_the_log_meanwhile(
    tmp_path: Path, policy: str, segments: int
) -> None:
    write_log(tmp_path)
    passes = Passes(tmp_path, policy)
    assert passes.run() == segments
    assert bases(tmp_path) == [0, 5, 10][segments:]
    assert all(passes.busy)
    assert passes.is_free(), "released afterwards"
    assert next_due_ms(passes.pending) == (NOW_MS + 500 if segments else None)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_1_28_1_30_a_log_that_somebody_works_on_is_left_out(tmp_path: Path, policy: str) -> None:
    write_log(tmp_path)
    passes = Passes(tmp_path, policy)
    assert passes.states.try_start_all([passes.log])
    assert passes.run() == 0
    passes.states.done_cleaning(passes.log)
    assert passes.run() == 2


@pytest.mark.parametrize(("policy", "segments"), [("delete", 2), ("compact,delete", 0), ("compact", 0)])
def test_c140_1_31_without_a_cleaner_compacted_logs_get_no_retention(
    tmp_path: Path, policy: str, segments: int
) -> None:
    """What is left then is Kafka's scheduler, which never touches them."""
    write_log(tmp_path)
    assert Passes(tmp_path, policy, {"log.cleaner.enable": "false"}).run() == segments


def test_nothing_goes_while_the_settings_of_the_cluster_cannot_be_read(tmp_path: Path) -> None:
    """Or by settings that a broker had been told to change before it stopped."""
    write_log(tmp_path)
    passes, refresh = Passes(tmp_path, "delete"), [False]
    passes.retention = replace(passes.retention, refresh=lambda: refresh[0])
    assert passes.run() == 0
    with pytest.raises(NotTaken, match="cannot be read now"):
        passes.retention.delete_records(passes.log, 5)
    assert bases(tmp_path) == [0, 5, 10]
    assert passes.is_free()
    refresh[0] = True
    assert passes.run() == 2


def test_limits_that_other_nodes_may_be_changing_are_left_to_the_broker(tmp_path: Path) -> None:
    """While it is down; the log start holds all the same. The only voter of a quorum is asked by nobody else."""
    partition = write_log(tmp_path)
    (partition / names.PARTITION_METADATA).write_bytes(render_partition_metadata(UUID(int=1)))
    stop_broker(tmp_path, 15)
    passes, records = Passes(tmp_path, "delete"), {"t": {"cleanup.policy": "delete", "retention.ms": "1000"}}
    metadata = replace(cluster(1), topic_configs=records, node_id=1, has_other_voters=True)
    passes.configuration = resolve(read_sources(None), metadata)
    assert passes.run() == 0
    found = passes.retention.preview(passes.log)
    assert found.goes == {}
    assert "the cluster may have changed the limits since" in str(found.cause)
    with lock_of_another(tmp_path / names.LOCK):
        assert list(passes.retention.preview(passes.log).goes) == [Breach.TIME], "what the broker does itself"
    passes.configuration = resolve(read_sources(None), replace(metadata, has_other_voters=False))
    assert passes.run() == 3, "the active segment of a broker that closed the log, too"


def test_1_30_released_also_after_a_failure(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"damaged")
    for policy in ("delete", "compact,delete"):
        passes = Passes(tmp_path, policy)
        assert names.LEADER_EPOCH_CHECKPOINT in str(passes.retention.run([passes.log])[passes.log])
        assert passes.retained == [None]
        assert passes.is_free()


def test_1_30_a_log_that_vanishes_during_the_pass_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pause has gone with it, and nobody has to undo that."""
    write_log(tmp_path)
    passes = Passes(tmp_path, "delete")
    monkeypatch.setattr(RetentionPasses, "_pass_future", lambda self, log, _: self.states.forget(log))
    assert passes.run() == 2
    assert passes.is_free()


def test_a_truncation_whose_writer_died_counts_as_ended(tmp_path: Path) -> None:
    """While the writer lives it holds `.lock`, and the log is left alone."""
    partition = PartitionDir(RealFiles(), str(write_log(tmp_path)))
    begin_truncation(partition, "token", like=str(segment(Path(partition.path), 0)))
    passes = Passes(tmp_path, "delete")
    with lock_of_another(tmp_path / names.LOCK):
        assert passes.run() == 0
    with pytest.raises(SourceChanged):
        read_generation(partition)
    assert passes.run() == 2
    assert read_generation(partition) == "token"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_log_that_another_process_changes_has_not_failed(tmp_path: Path, policy: str) -> None:
    """Its broker swaps segments, or was killed while it did so: the pass comes again."""
    swapped = segment(write_log(tmp_path), 1).with_suffix(".log.cleaned")
    swapped.touch()
    stop_broker(tmp_path, 15)
    passes = Passes(tmp_path, policy)
    with lock_of_another(tmp_path / names.LOCK):
        assert passes.retention.run([passes.log]) == {}, "its broker's: not even looked at"
    failed = passes.retention.run([passes.log])[passes.log]
    assert isinstance(failed, Failed)
    assert failed.error == "SourceChanged"
    assert passes.retained == []
    swapped.unlink()
    assert passes.run() > 0


@pytest.mark.parametrize(
    ("policy", "goes"), [("delete", True), ("", False), ("compact,delete", False), ("compact", False)]
)
def test_1_32_the_log_to_which_a_broker_moves_one_gets_its_pass_with_it(
    tmp_path: Path, policy: str, goes: bool
) -> None:
    """By the checkpoints of the directory where it lies; one that is left over from a topic of the same name does not."""
    here, there = tmp_path / "here", tmp_path / "there"
    write_log(here, timestamp_ms=NOW_MS)
    future = there / f"{TP}.{'0' * 32}-future"
    write_log(there).rename(future)
    stop_broker(here, 15)
    stop_broker(there, 10)
    passes = Passes(here, policy)
    passes.inventory.scan([str(here), str(there)])
    assert passes.run() == (2 if goes else 0)
    assert bases(here) == [0, 5, 10], "of the log itself nothing is old enough"
    assert len(list(future.glob("*.log"))) == (1 if goes else 3)
    assert all(passes.busy)
    assert passes.is_free()


def test_1_32_a_move_of_another_topic_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for log_dir, number, age_ms in ((here, 1, 0), (there, 2, 1001)):
        partition = write_log(log_dir, timestamp_ms=NOW_MS - age_ms)
        (partition / names.PARTITION_METADATA).write_bytes(render_partition_metadata(UUID(int=number)))
        stop_broker(log_dir, 15)
    (there / str(TP)).rename(future := there / f"{TP}.{'0' * 32}-future")
    passes = Passes(here, "delete")
    passes.inventory.scan([str(here), str(there)])
    passes.configuration = replace(passes.configuration, metadata=cluster(1))
    assert passes.run() == 0
    assert len(list(future.glob("*.log"))) == 3
    passes.configuration = replace(passes.configuration, metadata=cluster(2))
    assert passes.run() == 0, "now the log itself is of another topic"
    assert len(list(future.glob("*.log"))) == 3


def cluster(topic_id: int) -> ClusterMetadata:
    """One that knows the topic under this id."""
    return ClusterMetadata({"t": UUID(int=topic_id)}, {}, {})


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_c037_a_compacted_log_that_failed_gets_no_pass(tmp_path: Path, policy: str) -> None:
    """Nor one with a staged result; what is not compacted cannot fail in the cleaner (1.28, 1.30)."""
    known, config = known_log(tmp_path, policy)
    assert has_turn(known, config, has_failed=False, is_time=True)
    assert not has_turn(known, config, has_failed=True, is_time=True)
    plain = config.but(cleanup_policy=("delete",))
    assert has_turn(known, plain, has_failed=True, is_time=True)
    assert not has_turn(known, plain, has_failed=False, is_time=False)


def test_1_29_compacted_logs_with_something_to_delete_have_a_turn_every_round(tmp_path: Path) -> None:
    """Compact alone: only when a whole segment lies below the log start (6.3)."""
    known, compact = known_log(tmp_path, "compact")
    both = compact.but(cleanup_policy=("compact", "delete"))
    assert has_turn(known, both, has_failed=False, is_time=False)
    assert not has_turn(known, compact, has_failed=False, is_time=False)
    for start, expected in ((4, False), (5, True)):
        raised = replace(known, offsets=replace(known.offsets, log_start=start))
        assert has_turn(raised, compact, has_failed=False, is_time=False) is expected


def has_turn(known: ListedLog, config: TopicConfig, *, has_failed: bool, is_time: bool) -> bool:
    failed = {known.log} if has_failed else set()
    configuration = SimpleNamespace(topic=lambda _: config)
    return whose_turn([known], configuration, failed, is_time=is_time) == [known.log]


def known_log(log_dir: Path, policy: str) -> tuple[ListedLog, TopicConfig]:
    """What the inventory makes of `write_log`: segments 0, 5 and, active, 10."""
    write_log(log_dir)
    inventory = Inventory(RealFiles(), CLOCK)
    inventory.scan([str(log_dir)])
    known = inventory.facts(LogId(str(log_dir), TP))
    assert known is not None
    return known, configured(policy, {}).topic("t")


class _Unsynced(RealFiles):
    """Once a file was renamed no directory can be synced."""

    is_broken = False

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.is_broken = True

    def fsync_dir(self, directory: str) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error", directory)
        super().fsync_dir(directory)


def test_what_a_pass_renamed_before_it_failed_goes_in_time(tmp_path: Path) -> None:
    write_log(tmp_path)
    passes = Passes(tmp_path, "delete")
    passes.retention.ownership.files = _Unsynced()
    assert passes.run() == 0
    assert next_due_ms(passes.pending) == NOW_MS + 500
