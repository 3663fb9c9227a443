"""Commits of several logs side by side under one `.lock`, killed or switched off anywhere: each is old or new by itself."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cleanerd.cleaning.commit.host import Commit, CommitHost, Committed, Done, TimeUp
from cleanerd.cleaning.commit.lock import CommitUnderLock
from cleanerd.format.names import TopicPartition
from cleanerd.storage.checkpoints import read_offsets
from cleanerd.storage.lock import HOLD_S, LogDirLock
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.harness.disks.crashes import with_survivors
from tests.harness.disks.kafka_startup import start
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import (
    ACTIVE,
    BY_NAME,
    Scenario,
    lay_out,
    live_segments,
    next_offset,
    read_committed,
    stage,
)

LOG_DIR = "/logs"
CHECKPOINT = f"{LOG_DIR}/cleaner-offset-checkpoint"
LOGS = {
    "one": BY_NAME["old txnindex only, in the first source"],
    "short": BY_NAME["short output: last batch below later sources"],
    "two": BY_NAME["two groups"],
}
Recover = Callable[[SimDisk, str], object]


def cleanerd_recovers(disk: SimDisk, directory: str) -> None:
    assert recover(PartitionDir(disk, directory), is_kafka=True) is None


def kafka_starts(disk: SimDisk, directory: str) -> None:
    start(disk, directory, next_offset)


def directory_of(topic: str) -> str:
    return f"{LOG_DIR}/{topic}-0"


def staged_disk(*, moves_checkpoint: bool) -> SimDisk:
    """Every log with a result that waits."""
    disk = SimDisk()
    disk.mkdir(LOG_DIR)
    disk.put(f"{LOG_DIR}/.lock", b"")
    disk.put(f"{LOG_DIR}/meta.properties", b"version=1\ncluster.id=c\nnode.id=1\n")
    for topic, scenario in LOGS.items():
        lay_out(scenario, disk, directory_of(topic))
        last = len(scenario.rewrites) - 1
        for number, rewrite in enumerate(scenario.rewrites):
            stage(
                disk, rewrite, directory_of(topic), is_last=number == last, moves_checkpoint=moves_checkpoint
            )
    disk.restart()
    return disk


@pytest.fixture
def lock(tmp_path: Path) -> LogDirLock:
    return LogDirLock(str(tmp_path))


class SlowDisk:
    """A clock by which every sync takes `sync_s`, and nothing else any time."""

    def __init__(self, disk: SimDisk, sync_s: float) -> None:
        self._disk, self._sync_s = disk, sync_s

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self._sync_s * sum(op.startswith("fsync") for op, *_ in self._disk.operations)


def hold(disk: SimDisk, lock: LogDirLock, sync_s: float) -> Mapping[TopicPartition, Done]:
    """Commit under one hold of the lock."""
    log_dir = LogDir(disk, LOG_DIR, SlowDisk(disk, sync_s), is_kafka=True, log_dirs=(LOG_DIR,))
    with lock:
        logs = [TopicPartition(topic, 0) for topic in LOGS]
        return CommitUnderLock(log_dir, CommitHost(), lock, logs).run(list(map(Commit, logs)))


def commit(disk: SimDisk, lock: LogDirLock) -> None:
    assert set(hold(disk, lock, 0.0).values()) == {Committed(ACTIVE, "lock")}


def commit_in_turns(disk: SimDisk, lock: LogDirLock) -> None:
    """A group at a time, because the disk is slow."""
    first = hold(disk, lock, 1.0)
    assert isinstance(first[TopicPartition("two", 0)], TimeUp)
    hold(disk, lock, 1.0)


def killed(
    lock: LogDirLock, *, moves_checkpoint: bool, act: Callable[[SimDisk, LogDirLock], None] = commit
) -> list[SimDisk]:
    """What a kill leaves before each operation, and the end."""
    disk, states = staged_disk(moves_checkpoint=moves_checkpoint), list[SimDisk]()
    disk.before = states
    act(disk, lock)
    disk.before = None
    return [*states, disk]


def check(disk: SimDisk, recovers: Recover) -> None:
    """Each log is whole, old or new up to a group; one that the checkpoint calls clean is new."""
    ends = read_offsets(disk, CHECKPOINT)
    for topic, scenario in LOGS.items():
        recovers(disk, directory_of(topic))
        found = live_segments(disk, directory_of(topic))
        assert read_committed(found) == read_committed(scenario.after(0))
        new = len(scenario.rewrites)
        fits = [n for n in range(new + 1) if found in versions(scenario, n)]
        assert fits, (topic, found)
        if ends.get(TopicPartition(topic, 0)) is not None:
            assert new in fits, f"{topic} counts as clean"


def versions(scenario: Scenario, commits: int) -> list[object]:
    """The log after so many groups; a broker may leave the newest sources beside a short one (X6)."""
    return [scenario.after(commits), *(with_survivors(scenario, commits) if commits else [])]


@pytest.mark.parametrize("moves_checkpoint", [True, False])
@pytest.mark.parametrize("recovers", [cleanerd_recovers, kafka_starts])
def test_killed_anywhere_each_log_is_old_or_new(
    recovers: Recover, lock: LogDirLock, moves_checkpoint: bool
) -> None:
    """And the checkpoint moves last of all, or, where groups are left, not at all."""
    states = killed(lock, moves_checkpoint=moves_checkpoint)
    ended = {topic: read_offsets(states[-1], CHECKPOINT).get(TopicPartition(topic, 0)) for topic in LOGS}
    assert ended == dict.fromkeys(LOGS, ACTIVE if moves_checkpoint else None)
    for disk in states:
        check(disk, recovers)


@pytest.mark.parametrize("moves_checkpoint", [True, False])
@pytest.mark.parametrize("recovers", [cleanerd_recovers, kafka_starts])
def test_switched_off_anywhere_each_log_is_old_or_new(
    recovers: Recover, lock: LogDirLock, moves_checkpoint: bool
) -> None:
    """Of what was not synced in any directory a choice is lost, in all at once."""
    for disk in killed(lock, moves_checkpoint=moves_checkpoint):
        for seed in range(3):
            copy = disk.copy()
            copy.crash(seed)
            check(copy, recovers)


def test_logs_side_by_side_share_their_rounds_of_syncs(lock: LogDirLock) -> None:
    """Rounds of the log that has most of them, and two for the checkpoint: six for a group, one for an uncovered source."""
    disk = staged_disk(moves_checkpoint=True)
    commit(disk, lock)
    syncs = [os.path.basename(path) for op, path, *_ in disk.operations if op in ("fsync", "fsync_dir")]
    uncovered = sum(len(rewrite.uncovered) for rewrite in LOGS["short"].rewrites)
    assert {topic: syncs.count(f"{topic}-0") for topic in LOGS} == {
        "one": 6,
        "short": 6 + uncovered,
        "two": 12,
    }
    assert syncs.count("logs") == 1
    first = [syncs.index(f"{topic}-0") for topic in LOGS]
    assert first == [0, 1, 2], "a step in all of them, then all are synced"


@pytest.mark.parametrize("recovers", [cleanerd_recovers, kafka_starts])
def test_killed_or_switched_off_between_two_turns_each_log_is_old_or_new(
    recovers: Recover, lock: LogDirLock
) -> None:
    """On a slow disk the lock is let go between two groups: what is left waits, and the checkpoint with it."""
    states = killed(lock, moves_checkpoint=True, act=commit_in_turns)
    ends = read_offsets(states[-1], CHECKPOINT)
    assert {topic: ends.get(TopicPartition(topic, 0)) for topic in LOGS} == dict.fromkeys(LOGS, ACTIVE)
    for disk in states:
        check(disk.copy(), recovers)
        copy = disk.copy()
        copy.crash(1)
        check(copy, recovers)


@pytest.mark.parametrize(("written_s", "is_kept"), [(-20, True), (-5, False)])
def test_a_log_of_which_groups_are_left_keeps_its_first_dirty_offset(
    lock: LogDirLock, written_s: int, is_kept: bool
) -> None:
    """The checkpoint of the others is written meanwhile. A group that joins clean and dirty segments is newer than it.

    An entry that was older than a segment below it before is not made younger.
    """
    disk, two = staged_disk(moves_checkpoint=True), TopicPartition("two", 0)
    directory, scenario = directory_of("two"), LOGS["two"]
    lay_out(scenario, disk, directory)
    disk.put(CHECKPOINT, b"0\n1\ntwo 0 30\n")
    for path, at_s in (CHECKPOINT, -10), *((f"{directory}/{base:020}.log", written_s) for base in (0, 10)):
        disk.set_mtime_ns(path, at_s * 1_000_000_000)
    for number, rewrite in enumerate(scenario.rewrites):
        stage(disk, rewrite, directory, is_last=number == 1, checkpoint=30)
    first = hold(disk, lock, 1.0)
    assert isinstance(first[two], TimeUp)
    others = {TopicPartition(topic, 0): ACTIVE for topic in ("one", "short")}
    found = read_offsets(disk, CHECKPOINT)
    assert {tp: offset for tp, offset in found.items() if tp != two} == others
    assert (found.get(two) == 30) == is_kept
    if is_kept:
        assert hold(disk, lock, 1.0)[two] == Committed(ACTIVE, "lock")


@pytest.mark.parametrize("sync_s", [0.001, 0.03])
def test_a_hold_ends_with_the_groups_that_were_begun_in_time(lock: LogDirLock, sync_s: float) -> None:
    """No group but the first of a log is begun later than `HOLD_S` after the first ones."""
    disk = staged_disk(moves_checkpoint=True)
    hold(disk, lock, sync_s)
    begun_s, syncs = [], 0
    for op, *paths in disk.operations:
        syncs += op.startswith("fsync")
        if op == "rename" and paths[1].endswith(".log.cleaned"):
            begun_s.append(syncs * sync_s)
    assert begun_s[: len(LOGS)] == [0.0] * len(LOGS)
    assert max(begun_s) < HOLD_S
