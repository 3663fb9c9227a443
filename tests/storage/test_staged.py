"""Staging: a group is declared whole or not at all, and throwing it away is always safe."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.env.files import FileStat
from cleanerd.errors import CorruptFile
from cleanerd.format.names import SEGMENT_KINDS, FileKind, Suffix
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import (
    SourceSegment,
    StagedGroup,
    discard_parts,
    discard_staged,
    read_manifests,
    unlink_staged,
    write_manifest,
)
from tests.harness.disks.committing import commit_group
from tests.harness.disks.crashes import (
    Action,
    at,
    cleanerd_recovers,
    distinct,
    kafka_starts,
    killed,
    names,
    switched_off,
)
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import DIRECTORY, SCENARIOS, lay_out, live_segments, stage, staged_disk

TWO = next(scenario for scenario in SCENARIOS if scenario.name == "two groups")
MANIFEST = "00000000000000000000.manifest.cleanerd"


def stage_all(disk: SimDisk) -> None:
    for rewrite in TWO.rewrites:
        stage(disk, rewrite)


def accidents(disk: SimDisk, action: Action) -> Iterator[SimDisk]:
    """Killed anywhere, and switched off then."""
    return distinct(cut for copy in killed(disk, action) for cut in [copy, *switched_off(copy)])


def test_staging_interrupted_anywhere_leaves_the_log_alone() -> None:
    """Killed or switched off: the log is untouched, Kafka starts, a group waits only if it is whole."""
    for cut in accidents(lay_out(TWO), stage_all):
        broker = cut.copy()
        kafka_starts(broker)
        assert live_segments(broker) == TWO.after(0)
        cleanerd_recovers(cut)
        assert live_segments(cut) == TWO.after(0)
        waiting = read_manifests(PartitionDir(cut, DIRECTORY))
        assert len(names(cut, ".cleanerd")) == 4 * len(waiting)
        if [group.base_offset for group in waiting] == [0, 50]:
            for group in waiting:
                commit_group(cut, DIRECTORY, group)
            assert live_segments(cut) == TWO.after(2)


def test_discard_interrupted_anywhere_leaves_whole_groups_or_garbage() -> None:
    """Manifests go first, for good: what is left of the rest is garbage to everybody."""
    disk, _ = staged_disk(TWO)
    for cut in accidents(disk, lambda d: discard_staged(PartitionDir(d, DIRECTORY))):
        if names(cut, ".manifest.cleanerd"):
            assert len(names(cut, ".log.cleanerd", ".index.cleanerd", ".timeindex.cleanerd")) == 6
        cleanerd_recovers(cut)
        assert live_segments(cut) == TWO.after(0)
        assert len(names(cut, ".cleanerd")) == 4 * len(read_manifests(PartitionDir(cut, DIRECTORY)))
        discard_staged(PartitionDir(cut, DIRECTORY))
        assert names(cut, ".cleanerd") == []


def test_discard_spares_a_group_whose_commit_has_begun() -> None:
    """Without its manifest nobody could finish it."""
    disk, _ = staged_disk(TWO)
    first = read_manifests(PartitionDir(disk, DIRECTORY))[0]
    for copy in killed(disk, lambda d: commit_group(d, DIRECTORY, first)):
        has_begun = bool(names(copy, ".cleaned", ".swap"))
        discard_staged(PartitionDir(copy, DIRECTORY))
        assert (MANIFEST in copy.list_names(DIRECTORY)) == has_begun
        cleanerd_recovers(copy)
        assert live_segments(copy) in (TWO.after(0), TWO.after(1))


def test_parts_go_with_all_attempts_at_them() -> None:
    """Before a commit they are of no use: what is staged is in other files. With it they go as well."""
    parts = [f"{50:020d}.part.cleanerd", f"{50:020d}.0123456789abcdef.part.cleanerd"]
    disk, _ = staged_disk(TWO)
    disk.put(at(f"{50:020d}.part"), b"of someone else")
    before = names(disk, ".cleanerd")
    for discard in (discard_parts, discard_staged):
        for name in parts:
            disk.put(at(name), b"part")
        discard(PartitionDir(disk, DIRECTORY))
        assert names(disk, ".cleanerd") == (before if discard is discard_parts else [])
    assert disk.exists(at(f"{50:020d}.part"))


def test_discard_in_a_directory_that_is_gone_does_nothing() -> None:
    """The topic was deleted meanwhile."""
    discard_staged(PartitionDir(SimDisk(), DIRECTORY))


def test_an_unfinished_manifest_may_go_while_it_is_discarded() -> None:
    """An engine whose daemon was killed lives a moment longer."""
    disk, _ = staged_disk(TWO)
    unlink_staged(
        PartitionDir(disk, DIRECTORY), [f"{0:020d}.manifest-part.cleanerd", *names(disk, ".cleanerd")]
    )
    assert names(disk, ".cleanerd") == []


def test_manifest_is_readable_for_the_broker() -> None:
    """A broker takes the directory offline for any file that it cannot read (spec disk A6)."""
    disk = lay_out(TWO)
    disk.restart()
    stage(disk, TWO.rewrites[0])
    unfinished = at("00000000000000000000.manifest-part.cleanerd")
    assert ("write", unfinished, at("00000000000000000000.log")) in disk.operations
    assert ("rename", unfinished, at(MANIFEST)) in disk.operations


def test_manifest_names_the_group_staged_before_it() -> None:
    """The chain of `StagedGroup.previous`: the identity of the new `.log` before, so that it can be looked for."""
    disk, groups = staged_disk(TWO)
    first, second = read_manifests(PartitionDir(disk, DIRECTORY))
    assert first.previous is None
    assert second.previous is not None
    assert second.previous.next_base_offset == first.next_base_offset == 50
    log = disk.stat(at("00000000000000000000.log.cleanerd"))
    assert second.previous.log == SourceSegment.of(0, log)
    assert [replace(g, previous=None, log_inode=None) for g in (first, second)] == groups


offsets = st.integers(0, 2**63 - 1)
index_kinds = st.sampled_from([SEGMENT_KINDS[1:3], SEGMENT_KINDS[1:]])


@st.composite
def staged_groups(draw: st.DrawFn) -> StagedGroup:
    bases = sorted(draw(st.sets(st.integers(0, 2**62), min_size=2, max_size=6)))
    size = draw(st.integers(0, 2**31))
    sizes: dict[FileKind, int] = {kind: draw(offsets) for kind in draw(index_kinds)}
    sizes[FileKind.LOG] = size
    return StagedGroup(
        sources=tuple(
            SourceSegment.of(base, FileStat(draw(offsets), draw(offsets), draw(offsets)))
            for base in bases[:-1]
        ),
        next_base_offset=bases[-1],
        round_end=draw(offsets),
        sizes=sizes,
        log_mtime_ns=draw(offsets),
        last_offset=draw(st.integers(bases[0], bases[-1] - 1)) if size else -1,
        leader_epochs=tuple(draw(st.lists(st.tuples(offsets, offsets), max_size=3))),
        is_last=draw(st.booleans()),
        generation=draw(st.sampled_from(["", "0123456789abcdef"])),
        checkpoint=draw(st.none() | offsets),
    )


@given(staged_groups())
def test_manifest_round_trip(group: StagedGroup) -> None:
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    disk.put(at(str(group.staged(FileKind.LOG))), b"")
    disk.put(at(str(group.name(FileKind.LOG, Suffix.LIVE))), b"")
    write_manifest(PartitionDir(disk, DIRECTORY), group)
    assert read_manifests(PartitionDir(disk, DIRECTORY)) == [replace(group, log_inode=1)]


def _manifest() -> dict[str, object]:
    disk, _ = staged_disk(TWO)
    fields: dict[str, object] = json.loads(disk.read(at(MANIFEST)))
    return fields


def test_torn_manifest_is_refused() -> None:
    content = json.dumps(_manifest()).encode()
    for cut in range(len(content)):
        disk = SimDisk()
        disk.mkdir(DIRECTORY)
        disk.put(at(MANIFEST), content[:cut])
        with pytest.raises(CorruptFile, match="manifest"):
            read_manifests(PartitionDir(disk, DIRECTORY))


WRONG: dict[str, dict[str, object]] = {
    "another version": {"version": 99},
    "another base": {"sources": [{"base_offset": 7, "inode": 1, "size_bytes": 1, "mtime_ns": 1}]},
    "no source": {"sources": []},
    "sources out of order": {
        "sources": [{"base_offset": b, "inode": 1, "size_bytes": 1, "mtime_ns": 1} for b in (0, 9, 8)]
    },
    "source without inode": {"sources": [{"base_offset": 0}]},
    "end below the last source": {"next_base_offset": 30},
    "last offset in the next segment": {"last_offset": 50},
    "records in an empty log": {"last_offset": -1},
    "no time index": {"sizes": {".log": 1, ".index": 0}},
    "unknown kind": {"sizes": {".log": 1, ".index": 0, ".timeindex": 0, ".zip": 1}},
    "offset in words": {"round_end": "many"},
    "no list": {"leader_epochs": 3},
    "flag in words": {"is_last": "yes"},
    "null": {"log_inode": None},
    "infinite offset": {"next_base_offset": float("inf")},
}


@pytest.mark.parametrize("case", [*WRONG, "endless depth"])
def test_manifest_that_makes_no_sense_is_refused(case: str) -> None:
    """Nothing is committed on its word; recovery takes it for a leftover."""
    disk, _ = staged_disk(TWO)
    is_json = case in WRONG
    content = json.dumps({**_manifest(), **WRONG[case]}).encode() if is_json else b"[" * 100_000
    disk.put(at(MANIFEST), content)
    with pytest.raises(CorruptFile):
        read_manifests(PartitionDir(disk, DIRECTORY))
    cleanerd_recovers(disk)
    assert MANIFEST not in disk.list_names(DIRECTORY)
