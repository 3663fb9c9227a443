"""Replicas of a node, followed through a metadata log: spec disk F3, F5. Times are those of batches and of snapshots."""

from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.policy.tombstones import ReplicaFacts
from cleanerd.storage.replicas import FollowedReplicas, Replicas
from tests.harness.logs.metadata import (
    ABORT,
    BEGIN,
    END,
    OTHER_ID,
    SAMPLE_ID,
    SKIPPED,
    batch,
    change,
    log,
    partition,
    remove,
    snapshot,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "logs"
NODE = 2
LATER_MS = 10**9
"""So late that no older snapshot is asked."""


def follow(directory: Path) -> Replicas:
    return Replicas(RealFiles(), str(directory), NODE)


def found(
    replicas: Replicas, topic_id: UUID = SAMPLE_ID, *, settled_by_ms: int = LATER_MS
) -> ReplicaFacts | None:
    return replicas.of(topic_id, 0, settled_by_ms=settled_by_ms)


def since_ms(replicas: Replicas, settled_by_ms: int = LATER_MS) -> int:
    facts = found(replicas, settled_by_ms=settled_by_ms)
    assert facts is not None
    return facts.since_ms


class Controller:
    """Appends batches to a metadata log, as a broker that follows it does."""

    def __init__(self, directory: Path, first: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.path = directory / f"{first:020}.log"
        self.next = first

    def append(self, at_ms: int, *frames: bytes) -> None:
        data = batch(self.next, frames, at_ms=at_ms)
        self.next += len(frames)
        with self.path.open("ab") as file:
            file.write(data)


def test_a_partition_as_it_is_and_when_the_log_ended(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.append(
        5, partition(SAMPLE_ID, 0, [1, 2]), partition(SAMPLE_ID, 1, [3]), partition(OTHER_ID, 0, [2])
    )
    controller.append(9, SKIPPED)
    replicas = follow(tmp_path)
    assert found(replicas) == ReplicaFacts((1, 2), (1, 2), False, 5, 9)
    assert found(replicas, OTHER_ID) == ReplicaFacts((2,), (2,), False, 5, 9)
    assert replicas.of(SAMPLE_ID, 1, settled_by_ms=0) is None, "it has no replica on this node"


def test_it_is_in_sync_since_the_last_other_replica_is_back(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2, 3]))
    assert since_ms(replicas) == 1
    controller.append(2, change(SAMPLE_ID, 0))  # another leader
    controller.append(3, change(SAMPLE_ID, 0, isr=[1, 3]))  # this node itself is away
    assert since_ms(replicas) == 1
    controller.append(4, change(SAMPLE_ID, 0, isr=[2]))
    assert found(replicas) == ReplicaFacts((1, 2, 3), (2,), False, 4, 4)
    controller.append(5, change(SAMPLE_ID, 0, isr=[1, 2]))
    assert since_ms(replicas) == 4, "replica 3 is still away"
    controller.append(6, change(SAMPLE_ID, 0, isr=[1, 2, 3]))
    controller.append(7, SKIPPED)
    assert found(replicas) == ReplicaFacts((1, 2, 3), (1, 2, 3), False, 6, 7)


def test_a_reassignment_begins_and_ends(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]))
    controller.append(2, change(SAMPLE_ID, 0, replicas=[3, 2, 1], adding=[3], removing=[1]))
    assert found(replicas) == ReplicaFacts((3, 2, 1), (1, 2), True, 2, 2)
    controller.append(3, change(SAMPLE_ID, 0, isr=[1, 2, 3]))
    assert since_ms(replicas) == 2
    controller.append(4, change(SAMPLE_ID, 0, replicas=[3, 2], isr=[3, 2], adding=[], removing=[]))
    assert found(replicas) == ReplicaFacts((3, 2), (3, 2), False, 4, 4)
    controller.append(5, change(SAMPLE_ID, 0, replicas=[1, 3], isr=[3]))
    assert found(replicas) is None, "it has left this node"


def test_a_replica_that_comes_to_this_node_is_in_sync_with_its_next_change(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1]))
    controller.append(2, change(SAMPLE_ID, 0, replicas=[1, 2], adding=[2]))
    assert found(replicas) == ReplicaFacts((1, 2), (), True, 2, 2)
    controller.append(3, change(SAMPLE_ID, 0, isr=[1, 2], adding=[], removing=[]))
    assert found(replicas) == ReplicaFacts((1, 2), (1, 2), False, 3, 3)


def test_a_topic_that_is_deleted_has_no_replicas(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]), partition(OTHER_ID, 0, [1, 2]))
    assert found(replicas) is not None
    controller.append(2, remove(SAMPLE_ID))
    assert found(replicas) is None
    assert found(replicas, OTHER_ID) is not None


@pytest.mark.parametrize(("ending", "isr"), [(END, (2,)), (ABORT, (1, 2)), (SKIPPED, (1, 2))])
def test_changes_count_when_their_transaction_ends(tmp_path: Path, ending: bytes, isr: tuple[int]) -> None:
    """F4: also where it begins before, and ends after, a look."""
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]), BEGIN)
    assert found(replicas) is not None
    controller.append(2, change(SAMPLE_ID, 0, isr=[2]))
    assert found(replicas) == ReplicaFacts((1, 2), (1, 2), False, 1, 2)
    controller.append(3, ending)
    facts = found(replicas)
    assert facts is not None
    assert facts.isr == isr


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    """What lies before may be overwritten with anything."""
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]))
    controller.append(2, SKIPPED)
    assert since_ms(replicas) == 1
    with controller.path.open("r+b") as file:
        file.write(bytes(30))
    controller.append(3, change(SAMPLE_ID, 0, isr=[2]))
    assert since_ms(replicas) == 3


def test_a_batch_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]))
    assert since_ms(replicas) == 1
    data = batch(1, [change(SAMPLE_ID, 0, isr=[2])], at_ms=2)
    whole = controller.path.read_bytes()
    controller.path.write_bytes(whole + data[:-5])
    assert since_ms(replicas) == 1
    controller.path.write_bytes(whole + data)
    assert since_ms(replicas) == 2


def test_what_a_truncation_takes_back_has_not_happened(tmp_path: Path) -> None:
    """An old controller's word that all are in sync is not kept because a change with the same epoch takes its place."""
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2], [2]))
    kept, offset = controller.path.read_bytes(), controller.next
    controller.append(2, change(SAMPLE_ID, 0, isr=[1, 2]))
    assert found(replicas) == ReplicaFacts((1, 2), (1, 2), False, 2, 2)
    controller.path.write_bytes(kept)
    controller.next = offset
    controller.append(7, SKIPPED)
    assert found(replicas) == ReplicaFacts((1, 2), (2,), False, 1, 7)
    controller.append(8, change(SAMPLE_ID, 0, isr=[1, 2]))
    assert since_ms(replicas) == 8


@pytest.mark.parametrize("is_deleted", [False, True])
def test_times_outlive_a_segment_that_is_rolled_and_its_snapshot(tmp_path: Path, *, is_deleted: bool) -> None:
    """The epoch is the same: nothing has changed since it was first read."""
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]), partition(OTHER_ID, 0, [1, 2]))
    assert since_ms(replicas) == 1
    new = Controller(tmp_path, first=2)
    log(
        tmp_path,
        snapshot_2=snapshot(
            partition(SAMPLE_ID, 0, [1, 2]), partition(OTHER_ID, 0, [1, 2], epoch=2), at_ms=50
        ),
    )
    new.append(60, SKIPPED)
    if is_deleted:
        controller.path.unlink()
    assert since_ms(replicas) == 1
    other = found(replicas, OTHER_ID)
    assert other is not None
    assert other.since_ms == 50, "it has changed in between"


def test_an_older_snapshot_with_the_same_epoch_shows_that_nothing_has_changed(tmp_path: Path) -> None:
    """A snapshot is made every hour, delete.retention.ms is a day: the newest one alone would never be old enough."""
    for offset, at_ms, epoch in ((1, 100, 4), (2, 200, 5), (3, 300, 5), (4, 400, 5)):
        data = snapshot(partition(SAMPLE_ID, 0, [1, 2], epoch=epoch), at_ms=at_ms)
        log(tmp_path, **{f"snapshot_{offset}": data})
    Controller(tmp_path, first=4).append(500, SKIPPED)
    assert since_ms(follow(tmp_path), settled_by_ms=450) == 400
    assert since_ms(follow(tmp_path), settled_by_ms=350) == 300
    assert since_ms(follow(tmp_path), settled_by_ms=200) == 200
    assert since_ms(follow(tmp_path), settled_by_ms=150) == 400, "in the one of then it is another"
    assert since_ms(follow(tmp_path), settled_by_ms=0) == 400


def test_a_time_that_a_record_gives_is_exact(tmp_path: Path) -> None:
    """No snapshot is older than a change behind it."""
    log(tmp_path, snapshot_1=snapshot(partition(SAMPLE_ID, 0, [1, 2], [2], epoch=4), at_ms=100))
    controller = Controller(tmp_path, first=1)
    controller.append(200, change(SAMPLE_ID, 0, isr=[1, 2]))
    assert since_ms(follow(tmp_path), settled_by_ms=150) == 200


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    controller, replicas = Controller(tmp_path), follow(tmp_path)
    controller.append(1, partition(SAMPLE_ID, 0, [1, 2]))
    assert found(replicas) is not None
    sound = controller.path.read_bytes()
    controller.append(2, b"\x01\x05\x00\x00")
    with pytest.raises(CorruptFile, match="a whole metadata record"):
        found(replicas)
    controller.path.write_bytes(sound + batch(1, [SKIPPED], at_ms=3))
    assert found(replicas) == ReplicaFacts((1, 2), (1, 2), False, 1, 3)
    controller.path.rename(tmp_path / "elsewhere")
    assert found(replicas) is None


def test_the_log_of_a_real_broker() -> None:
    """Single replicas, which leave the in-sync ones at each clean stop (ELR), and come back at the start."""
    directory = str(GOLDEN / "__cluster_metadata-0")
    replicas = FollowedReplicas(RealFiles()).of(directory, 1)
    facts = replicas.of(UUID("349a05da-31a2-4d5c-96af-47fd0ad9f148"), 0, settled_by_ms=0)
    assert facts is not None
    assert (facts.replicas, facts.isr, facts.is_moving) == ((1,), (), False)
    assert facts.known_until_ms == 1795237232084
