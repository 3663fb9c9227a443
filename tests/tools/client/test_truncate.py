"""Truncation on a disk that fails: a log is the beginning of what it was, and nothing staged is put over it."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.names import FileKind, Suffix, TopicPartition
from cleanerd.storage.checkpoints import read_checkpoints, read_leader_epochs
from cleanerd.storage.generation import check_generation, end_truncation, read_generation
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import StagedGroup, read_manifests, write_manifest
from cleanerd.tools.client.truncate import Truncation, prepare_truncation, truncate_log
from tests.harness.disks.committing import commit_group
from tests.harness.disks.crashes import at, distinct, killed
from tests.harness.disks.kafka_startup import start
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY, SCENARIOS, Record, next_offset, parse_log, staged_disk

TWO = next(scenario for scenario in SCENARIOS if scenario.name == "two groups")
LOG_DIR = os.path.dirname(DIRECTORY)
TP = TopicPartition("topic", 0)
EVERYTHING = [record for segment in TWO.after(0) for record in segment.records]
BASES = [segment.base for segment in TWO.after(0)]
CHECKPOINT = 100
OFFSETS = (0, 1, 10, 31, 50, 51, 55, 60, 100, 101)
offsets = pytest.mark.parametrize("offset", OFFSETS)


def old_log() -> tuple[SimDisk, list[StagedGroup]]:
    """Both groups of a cleaning wait to be committed."""
    disk, groups = staged_disk(TWO)
    disk.mkdir(LOG_DIR)
    disk.mkdir(f"{LOG_DIR}/other-3")
    disk.put(f"{LOG_DIR}/{names.LOCK}", b"")
    for name in (names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_CHECKPOINT):
        disk.put(f"{LOG_DIR}/{name}", b"0\n2\ntopic 0 %d\nother 3 7\n" % CHECKPOINT)
    disk.restart()
    return disk, groups


def cut(offset: int) -> Truncation:
    """What a writer finds when it reads the segment that holds `offset`."""
    segment = next(s for s in reversed(TWO.after(0)) if s.base <= offset)
    kept = replace(segment, records=tuple(r for r in segment.records if r.offset < offset))
    return Truncation(offset, segment.base, len(kept.log))


def truncate(disk: SimDisk, offset: int, token: str = "new") -> None:
    prepare_truncation(disk, LOG_DIR, TP)
    truncate_log(disk, LOG_DIR, TP, cut(offset), token)
    end_truncation(PartitionDir(disk, DIRECTORY))


def logs(disk: SimDisk) -> dict[int, list[Record]]:
    found = [name for name in disk.list_names(DIRECTORY) if name.endswith(".log")]
    return {int(name[:20]): parse_log(disk.read(at(name))) for name in found}


def records(disk: SimDisk) -> list[Record]:
    return [record for segment in logs(disk).values() for record in segment]


def accidents(disk: SimDisk, offset: int) -> Iterator[SimDisk]:
    """Killed before any operation of a truncation, and switched off then."""
    for copy in killed(disk, lambda d: truncate(d, offset)):
        yield copy.copy()
        for seed in range(6):
            dark = copy.copy()
            dark.crash(seed)
            yield dark


def stage_again(disk: SimDisk, groups: list[StagedGroup]) -> None:
    """A cleaning that was planned before, and ran on, now stages what it made."""
    for rewrite, group in zip(TWO.rewrites, groups, strict=True):
        for kind, content in rewrite.new.contents.items():
            disk.put(at(str(group.staged(kind))), content)
            disk.set_mtime_ns(at(str(group.staged(kind))), group.log_mtime_ns)
        write_manifest(PartitionDir(disk, DIRECTORY), group)


@offsets
def test_interrupted_anywhere_the_log_is_a_beginning_of_what_it_was(offset: int) -> None:
    """Never with a hole, never shorter than asked for; to cleanerd and to a broker. Again, and it is as it should be: the
    other files, epochs and checkpoint entries go with the segments.
    """
    whole, _ = old_log()
    done = whole.copy()
    truncate(done, offset)
    wanted = records(done)
    assert wanted == [record for record in EVERYTHING if record.offset < offset]
    assert {int(n[:20]) for n in done.list_names(DIRECTORY) if n[:20].isdigit()} == {
        b for b in BASES if b <= offset
    }
    assert not [n for n in done.list_names(DIRECTORY) if n.endswith(Suffix.STAGED.value)]
    found = read_checkpoints(done, LOG_DIR)
    active = max(base for base in BASES if base <= offset)
    assert found.cleaner == {TP: min(CHECKPOINT, active), TopicPartition("other", 3): 7}
    assert found.log_start == {TP: min(CHECKPOINT, offset), TopicPartition("other", 3): 7}
    epochs = [epoch.start_offset for epoch in read_leader_epochs(PartitionDir(done, DIRECTORY))]
    assert epochs == [start for start in (0, 20) if start < offset]
    for left in distinct(accidents(whole, offset)):
        assert read_checkpoints(left, LOG_DIR).cleaner[TP] <= max(logs(left)), "(B)"
        found = records(left)
        assert found == EVERYTHING[: len(found)]
        assert found[: len(wanted)] == wanted
        broker = left.copy()
        report = start(broker, DIRECTORY, next_offset)
        assert not report.zero_indexes
        assert not report.rebuilt
        assert records(broker) == found
        assert recover(PartitionDir(left, DIRECTORY), is_kafka=False) is None
        assert records(left) == found
        assert read_generation(PartitionDir(left, DIRECTORY)) in ("", "new")
        truncate(left, offset, "again")
        assert logs(left) == logs(done)
        assert set(left.list_names(DIRECTORY)) == set(done.list_names(DIRECTORY))


@offsets
def test_nothing_planned_before_is_committed_over_a_truncated_log(offset: int) -> None:
    """Neither what waited nor what a cleaning that ran on stages afterwards, not even the group whose sources are
    untouched: its tombstones and newer values may be among what is gone.
    """
    whole, groups = old_log()
    refused = 0
    for left in distinct(accidents(whole, offset)):
        found = records(left)
        assert recover(PartitionDir(left, DIRECTORY), is_kafka=False) is None
        waiting = left.copy()
        with contextlib.suppress(SourceChanged):  # half of what was staged is discarded
            for group in read_manifests(PartitionDir(waiting, DIRECTORY)):
                commit_group(waiting, DIRECTORY, group)
                assert found == EVERYTHING
        try:
            stage_again(left, groups)
            commit_group(left, DIRECTORY, read_manifests(PartitionDir(left, DIRECTORY))[0])
        except (SourceChanged, FileNotFoundError):
            refused += 1
            assert records(left) == found
        else:
            assert found == EVERYTHING
    assert refused


def test_same_inode_size_and_time_are_not_the_same_segment() -> None:
    """Truncated and filled up again within one tick: only the generation tells."""
    disk, groups = old_log()
    source = at("00000000000000000060.log")
    before, content = disk.stat(source), disk.read(source)
    truncate(disk, 60)
    for segment in TWO.after(0)[-1:]:
        for kind, data in segment.contents.items():
            disk.put(at(f"{segment.base:020d}{kind.value}"), data)
    disk.fill(source, content.replace(b"x 3", b"y 4"))
    disk.set_mtime_ns(source, before.mtime_ns)
    assert disk.stat(source) == before
    stage_again(disk, groups)
    for group in read_manifests(PartitionDir(disk, DIRECTORY)):
        with pytest.raises(SourceChanged, match="was truncated or created again"):
            commit_group(disk, DIRECTORY, group)


def test_nothing_can_be_planned_while_a_truncation_is_under_way() -> None:
    """The generation of half a truncation is no generation; whoever holds the lock later ends it."""
    disk, _ = old_log()
    prepare_truncation(disk, LOG_DIR, TP)
    truncate_log(disk, LOG_DIR, TP, cut(31), "new")
    for ask in (read_generation, lambda partition: check_generation(partition, "new")):
        with pytest.raises(SourceChanged, match="truncat"):
            ask(PartitionDir(disk, DIRECTORY))
    end_truncation(PartitionDir(disk, DIRECTORY))
    assert read_generation(PartitionDir(disk, DIRECTORY)) == "new"
    disk.restart()
    end_truncation(PartitionDir(disk, DIRECTORY))
    assert disk.operations == []


def test_begun_commit_is_finished_or_undone_first() -> None:
    """Killed in the middle of a commit, then truncated: what survived the cleaning below the offset is there."""
    whole, groups = old_log()
    first = read_manifests(PartitionDir(whole, DIRECTORY))[0]
    ends = set()
    for left in killed(whole, lambda d: commit_group(d, DIRECTORY, first)):
        prepare_truncation(left, LOG_DIR, TP)
        assert not [n for n in left.list_names(DIRECTORY) if n.endswith((".swap", ".cleaned", ".cleanerd"))]
        base = max(base for base in logs(left) if base <= 31)
        kept = b"".join(
            line + b"\n"
            for line in left.read(at(f"{base:020d}.log")).splitlines()
            if int(line.split()[0]) < 31
        )
        truncate_log(left, LOG_DIR, TP, Truncation(31, base, len(kept)), "new")
        end_truncation(PartitionDir(left, DIRECTORY))
        ends.add(tuple(record.offset for record in records(left)))
    assert ends == {(0, 1, 2, 10, 11, 30), (11, 30)}
    assert groups


def test_mark_is_readable_for_a_broker() -> None:
    """A file that the broker cannot read takes the directory offline (spec disk A6)."""
    disk, _ = old_log()
    truncate(disk, 31)
    path = at(names.GENERATION)
    like = at("00000000000000000030.log")
    assert ("write", f"{path}.cleanerd", like) in disk.operations
    assert FileKind.LOG.value not in names.GENERATION
