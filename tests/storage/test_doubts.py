"""Records of the metadata log that no quorum may have accepted (spec disk F4; the rules of `storage.doubts`)."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format.control import ControlType
from cleanerd.format.uuid_text import render_uuid
from cleanerd.storage.doubts import Doubts
from cleanerd.storage.metadata_log import Vouched, read_metadata, read_vouched
from tests.harness.logs.metadata import (
    ABORT,
    BEGIN,
    BROKER,
    END,
    SKIPPED,
    TOPIC,
    batch,
    config,
    control,
    log,
    remove,
    snapshot,
    topic,
    voters,
)

ID, NEXT_ID = UUID(int=7), UUID(int=8)
CREATED = [topic("orders", ID), config(TOPIC, "orders", "cleanup.policy", "delete")]
CHANGED = [config(TOPIC, "orders", "cleanup.policy", "compact")]
NEXT = [topic("next", NEXT_ID)]
POLICY = "cleanup.policy"
CERTAIN, UNCERTAIN = Doubts(), Doubts(frozenset({("orders", POLICY)}))


class Node:
    """Node 1 of three voters, which has stopped."""

    def __init__(self, root: Path) -> None:
        self.log_dir = root / "logs"
        self.directory = self.log_dir / "__cluster_metadata-0"
        self.directory.mkdir(parents=True)
        self.quorum(leader=1)

    def quorum(self, *ids: int, leader: int, epoch: int = 0) -> None:
        found = [{"voterId": one} for one in ids or (1, 2, 3)]
        state = {"currentVoters": found, "leaderId": leader, "leaderEpoch": epoch, "data_version": 0}
        (self.directory / "quorum-state").write_text(json.dumps(state))

    def write(self, *batches: Sequence[bytes]) -> None:
        """One batch of records each, all of epoch 0."""
        data, offset = b"", 0
        for frames in batches:
            data += batch(offset, frames)
            offset += len(frames)
        log(self.directory, log_0=data)

    def has_partition(self, name: str, topic_id: UUID) -> None:
        (self.log_dir / name).mkdir()
        text = f"version: 0\ntopic_id: {render_uuid(topic_id)}"
        (self.log_dir / name / "partition.metadata").write_text(text)

    def vouched(self) -> Vouched:
        metadata = read_metadata(RealFiles(), str(self.directory), 1)
        return read_vouched(RealFiles(), metadata, [str(self.log_dir)])

    def doubts(self) -> Doubts:
        return self.vouched().doubts


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_a_leader_wrote_last_is_not_certain(node: Node) -> None:
    """Neither the value before nor the one behind it: the others may have gone on without it."""
    node.write(CREATED, CHANGED, [SKIPPED])
    node.has_partition("orders-0", ID)
    assert node.doubts() == UNCERTAIN


def test_a_partition_directory_shows_that_its_topic_was_accepted(node: Node) -> None:
    """And all of its batch, and what is before it."""
    node.write(CREATED)
    assert node.doubts() == UNCERTAIN
    node.has_partition("orders-3", ID)
    assert node.doubts() == CERTAIN
    node.write(CREATED, CHANGED, NEXT)
    assert node.doubts() == Doubts(frozenset({("orders", POLICY), ("next", POLICY)}))
    node.has_partition("next-0", UUID(int=99))
    assert node.doubts() == Doubts(frozenset({("orders", POLICY), ("next", POLICY)})), (
        "of an older topic of that name"
    )
    node.has_partition("next-1", NEXT_ID)
    assert node.doubts() == CERTAIN


def test_a_metadata_transaction_is_accepted_as_a_whole(node: Node) -> None:
    """Its records count when it ends: a directory of a topic in it shows all of it."""
    node.write([BEGIN], NEXT, CHANGED, [END], [SKIPPED])
    node.has_partition("next-0", NEXT_ID)
    assert node.doubts() == CERTAIN
    node.write([BEGIN], NEXT, [END], CHANGED)
    assert node.doubts() == UNCERTAIN
    node.write([BEGIN], CHANGED, [ABORT])
    assert node.doubts() == CERTAIN


@pytest.mark.parametrize("leader", [1, 2], ids=["this node", "another"])
def test_what_a_controller_writes_in_a_later_epoch_makes_what_is_before_it_certain(
    leader: int, node: Node
) -> None:
    """Any node that is elected appends LEADER_CHANGE on its own, behind what only it may have (rule A.5). A controller
    writes once it knows what was accepted before.
    """
    node.quorum(1, 2, 3, 4, 5, leader=leader, epoch=4)
    changed, elected = batch(0, CHANGED, leader_epoch=3), struct.pack(">hi", 0, leader)
    data = changed + control(1, ControlType.LEADER_CHANGE, elected, leader_epoch=4)
    log(node.directory, log_0=data)
    assert node.doubts() == UNCERTAIN
    log(node.directory, log_0=data + batch(2, [SKIPPED], leader_epoch=4))
    assert node.doubts() == CERTAIN
    log(node.directory, log_0=data + batch(2, [SKIPPED, *CHANGED], leader_epoch=4))
    assert node.doubts() == UNCERTAIN


def test_what_a_snapshot_has_is_certain(node: Node) -> None:
    log(node.directory, snapshot_3=snapshot(*CREATED), log_0=batch(0, [*CREATED, *CHANGED, SKIPPED]))
    assert node.doubts() == CERTAIN
    log(node.directory, snapshot_2=snapshot(*CREATED), log_0=batch(0, [*CREATED, *CHANGED, SKIPPED]))
    (node.directory / f"{3:020d}-0000000003.checkpoint").unlink()
    assert node.doubts() == UNCERTAIN


QUORUMS = {
    "a follower of three": ((1, 2, 3), 2, CERTAIN),
    "a follower of five": ((1, 2, 3, 4, 5), 2, UNCERTAIN),
    "the leader": ((1, 2, 3), 1, UNCERTAIN),
    "a broker with three controllers": ((4, 5, 6), 5, UNCERTAIN),
    "a broker with one controller": ((4,), 4, CERTAIN),
    "no leader is known": ((1, 2, 3), -1, UNCERTAIN),
}


@pytest.mark.parametrize(("ids", "leader", "expected"), QUORUMS.values(), ids=QUORUMS)
@pytest.mark.parametrize("is_in_log", [False, True])
def test_what_most_voters_have_is_certain(
    ids: tuple[int, ...], leader: int, expected: Doubts, is_in_log: bool, node: Node
) -> None:
    """The leader of the epoch, from which the records come, and this node."""
    node.write(CHANGED)
    node.quorum(*ids, leader=leader)
    if is_in_log:  # kraft.version 1
        data = control(0, ControlType.LEADER_CHANGE, struct.pack(">hi", 0, leader))
        data += control(1, ControlType.KRAFT_VOTERS, voters(*ids))
        log(node.directory, log_0=data + batch(2, CHANGED))
        (node.directory / "quorum-state").write_text('{"leaderId":3,"leaderEpoch":9,"data_version":1}')
    assert node.doubts() == expected


def test_a_quorum_state_of_another_epoch_names_no_leader_of_these_records(node: Node) -> None:
    node.write(CHANGED)
    node.quorum(1, 2, 3, leader=2, epoch=1)
    assert node.doubts() == UNCERTAIN


def test_defaults_of_this_broker_and_of_all_brokers_are_settings_too(node: Node) -> None:
    """Those of other brokers are not, nor are keys by which nothing is removed."""
    node.write(
        [config(BROKER, "", "log.cleanup.policy", "compact"), config(BROKER, "1", "log.retention.ms", "5")],
        [
            config(BROKER, "2", "log.cleaner.min.compaction.lag.ms", "5"),
            config(BROKER, "", "log.cleaner.threads", "2"),
        ],
        [config(TOPIC, "orders", "leader.replication.throttled.replicas", "*")],
    )
    assert node.doubts() == Doubts(frozenset(), frozenset({"log.cleanup.policy", "log.retention.ms"}))


def test_each_key_of_a_topic_is_a_doubt_of_its_own(node: Node) -> None:
    limits = ["retention.ms", "confluent.tier.enable"]
    node.write([config(TOPIC, "orders", key, "5") for key in (*limits, "segment.bytes")])
    assert node.doubts() == Doubts(frozenset(("orders", key) for key in limits))


def test_a_topic_that_was_removed_or_created_again_is_not_certain(node: Node) -> None:
    node.write(CREATED, [SKIPPED], [remove(ID)], [topic("orders", NEXT_ID)])
    node.has_partition("orders-0", ID)
    assert node.doubts() == UNCERTAIN


def test_the_last_sign_of_life_is_the_last_batch_and_no_copy_changes_it(node: Node) -> None:
    """But it is not later than the file was written: the clock of the controller may be ahead. What changes is seen."""
    node.write(CREATED, [SKIPPED])
    path = node.directory / f"{0:020d}.log"
    assert node.vouched().until_ms == 1000, "as tests.harness.logs.metadata stamps all batches"
    os.utime(path, (0.5, 0.5))
    assert node.vouched().until_ms == 500
