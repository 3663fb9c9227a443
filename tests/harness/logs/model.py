"""Logs small enough to reason about: a `.log` is text, one batch of one record a line.

`<offset> <key> <value> <producer> <kind>`, kind `d` data, `a` abort marker, `e` empty batch; value `~` is a tombstone.
A `.txnindex` has lines `<producer> <first offset> <marker offset>`. An index names the `.log` that it was made for.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cleanerd.env.files import Files
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, parse_segment_file
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import SourceSegment, StagedGroup, write_manifest
from tests.harness.disks.simulated import SimDisk

DIRECTORY = "/logs/topic-0"
ACTIVE = 100


class Record(NamedTuple):
    offset: int
    key: str
    value: str
    producer: str = "-"
    kind: str = "d"


class Aborted(NamedTuple):
    producer: str
    first: int
    marker: int


@dataclass(frozen=True)
class Segment:
    base: int
    records: tuple[Record, ...]
    aborted: tuple[Aborted, ...] = ()

    @property
    def log(self) -> bytes:
        return "".join(f"{' '.join(map(str, record))}\n" for record in self.records).encode()

    @property
    def contents(self) -> dict[FileKind, bytes]:
        """Content of each of its files."""
        digest = hashlib.sha256(self.log).hexdigest().encode()
        found = {
            FileKind.LOG: self.log,
            FileKind.OFFSET_INDEX: b"offsets of " + digest,
            FileKind.TIME_INDEX: b"times of " + digest,
        }
        if self.aborted:
            found[FileKind.TXN_INDEX] = "".join(f"{' '.join(map(str, a))}\n" for a in self.aborted).encode()
        return found


@dataclass(frozen=True)
class Rewrite:
    """One group: its sources and the segment that takes their place."""

    sources: tuple[Segment, ...]
    new: Segment
    next_base: int

    @property
    def last_offset(self) -> int:
        return self.new.records[-1].offset if self.new.records else -1

    @property
    def uncovered(self) -> tuple[Segment, ...]:
        """Sources that Kafka's start-up leaves beside the new segment (spec disk X6)."""
        return tuple(s for s in self.sources[1:] if s.base > self.last_offset)


@dataclass(frozen=True)
class Scenario:
    name: str
    rewrites: tuple[Rewrite, ...]
    untouched: tuple[Segment, ...] = field(
        default=(Segment(ACTIVE, (Record(100, "z", "1"), Record(101, "p", "later", "P"))),)
    )

    def __str__(self) -> str:
        return self.name

    def after(self, commits: int) -> tuple[Segment, ...]:
        """The log when so many groups are committed."""
        old = [s for rewrite in self.rewrites[commits:] for s in rewrite.sources]
        new = [rewrite.new for rewrite in self.rewrites[:commits]]
        return tuple(sorted([*old, *new, *self.untouched], key=lambda s: s.base))


def parse_log(content: bytes) -> list[Record]:
    lines = (line.split() for line in content.decode().splitlines())
    return [Record(int(offset), key, value, producer, kind) for offset, key, value, producer, kind in lines]


def next_offset(content: bytes, base: int) -> int:
    """End of a `.log`, as a broker reads it."""
    records = parse_log(content)
    return records[-1].offset + 1 if records else base


def live_segments(files: Files, directory: str = DIRECTORY) -> tuple[Segment, ...]:
    """The log as it lies there, with a check that every `.log` has its own index files."""
    found = []
    for text in files.list_names(directory):
        name = parse_segment_file(text) if text.endswith(".log") else None
        if name is None:
            continue
        records = tuple(parse_log(files.read(os.path.join(directory, str(name)))))
        txn_index = os.path.join(directory, str(SegmentFileName(name.base_offset, FileKind.TXN_INDEX)))
        lines = files.read(txn_index).decode().splitlines() if files.exists(txn_index) else []
        aborted = tuple(Aborted(p, int(first), int(marker)) for p, first, marker in map(str.split, lines))
        segment = Segment(name.base_offset, records, aborted)
        for kind, content in segment.contents.items():
            path = os.path.join(directory, str(SegmentFileName(name.base_offset, kind)))
            assert content == files.read(path), f"{path} belongs to another log"
        found.append(segment)
    return tuple(found)


def read_committed(segments: Sequence[Segment]) -> dict[str, str]:
    """What a consumer knows that read everything with isolation.level=read_committed: newest value of every key."""
    starts = sorted((a.first, a.producer) for segment in segments for a in segment.aborted)
    known: dict[str, str] = {}
    aborting: set[str] = set()
    last = -1
    for segment in segments:
        for record in segment.records:
            assert record.offset > last, f"offset {record.offset} after {last}"
            assert record.offset >= segment.base
            last = record.offset
            while starts and starts[0][0] <= record.offset:
                aborting.add(starts.pop(0)[1])
            if record.kind == "a":
                aborting.discard(record.producer)
            elif record.kind == "d" and record.producer not in aborting:
                known[record.key] = record.value
    return {key: value for key, value in known.items() if value != "~"}


def lay_out(scenario: Scenario, disk: SimDisk | None = None, directory: str = DIRECTORY) -> SimDisk:
    """A disk with the old log, a producer snapshot at every base."""
    disk = disk or SimDisk()
    disk.mkdir(directory)
    for segment in scenario.after(0):
        for kind, content in segment.contents.items():
            disk.put(os.path.join(directory, str(SegmentFileName(segment.base, kind))), content)
        snapshot = SegmentFileName(segment.base, FileKind.PRODUCER_SNAPSHOT)
        disk.put(os.path.join(directory, str(snapshot)), b"producers")
    disk.put(os.path.join(directory, "leader-epoch-checkpoint"), b"0\n2\n0 0\n3 20\n")
    disk.put(os.path.join(directory, "partition.metadata"), b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    return disk


def stage(
    files: Files,
    rewrite: Rewrite,
    directory: str = DIRECTORY,
    *,
    is_last: bool = True,
    moves_checkpoint: bool = True,
    checkpoint: int | None = None,
) -> StagedGroup:
    """Write the staged files of a group and declare them, as a cleaning does."""
    partition, sizes = PartitionDir(files, directory), {}
    mtime_ns = partition.stat(SegmentFileName(rewrite.sources[-1].base, FileKind.LOG)).mtime_ns
    for kind, content in rewrite.new.contents.items():
        path = partition.path_of(SegmentFileName(rewrite.new.base, kind, Suffix.STAGED))
        files.write(path, content)
        files.set_mtime_ns(path, mtime_ns)
        files.fsync(path)
        sizes[kind] = len(content)
    bases = [source.base for source in rewrite.sources]
    group = replace(
        group_of(partition, bases, rewrite.next_base, sizes, rewrite.last_offset),
        round_end=ACTIVE,
        leader_epochs=tuple(e for e in ((0, 0), (3, 20)) if e[1] < rewrite.next_base),
        is_last=is_last,
        moves_checkpoint=moves_checkpoint,
        checkpoint=checkpoint,
    )
    write_manifest(partition, group)
    return group


def group_of(
    partition: PartitionDir,
    bases: Sequence[int],
    next_base_offset: int,
    sizes: Mapping[FileKind, int],
    last_offset: int,
) -> StagedGroup:
    """The only group of a cleaning: files staged for the segments at these bases, of the time of the last one."""
    logs = [(base, partition.stat(SegmentFileName(base, FileKind.LOG))) for base in bases]
    return StagedGroup(
        sources=tuple(SourceSegment.of(base, log) for base, log in logs),
        next_base_offset=next_base_offset,
        round_end=next_base_offset,
        sizes=sizes,
        log_mtime_ns=logs[-1][1].mtime_ns,
        last_offset=last_offset,
        leader_epochs=(),
        is_last=True,
    )


def staged_disk(scenario: Scenario) -> tuple[SimDisk, list[StagedGroup]]:
    """A disk on which every group waits to be committed."""
    disk = lay_out(scenario)
    groups = [stage(disk, rewrite) for rewrite in scenario.rewrites]
    disk.restart()
    return disk, groups


def _values(base: int, text: str, producer: str = "-") -> tuple[Record, ...]:
    """`a1 b~ .` at base, base + 1...: key and value; a dot is an empty batch, `!` an abort marker."""
    kinds = {".": "e", "!": "a"}
    return tuple(
        Record(base + at, word[0], word[1:] or "-", producer, kinds.get(word[0], "d"))
        for at, word in enumerate(text.split())
    )


def _keep(sources: Sequence[Segment], offsets: Sequence[int], *, last: bool = True) -> tuple[Record, ...]:
    """These records of the sources; with `last` their last one at least as an empty batch (rule 4.18)."""
    everything = [record for source in sources for record in source.records]
    kept = [record for record in everything if record.offset in offsets]
    if last and everything[-1] not in kept:
        kept.append(Record(everything[-1].offset, ".", "-", everything[-1].producer, "e"))
    return tuple(kept)


def _rewrite(
    sources: Sequence[Segment],
    offsets: Sequence[int],
    next_base: int,
    *,
    last: bool = True,
    aborted: tuple[Aborted, ...] = (),
) -> Rewrite:
    return Rewrite(
        tuple(sources), Segment(sources[0].base, _keep(sources, offsets, last=last), aborted), next_base
    )


ONE = [Segment(0, _values(0, "a1 a2 b1"))]
THREE = [
    Segment(0, _values(0, "a1 b1 c1")),
    Segment(10, _values(10, "a2 b2")),
    Segment(30, _values(30, "a3 c~ d1")),
]
# Producer P aborts p=bad; its marker lies in the same segment. Later (in the active segment) P writes p=later.
ABORTED_FIRST = [
    Segment(0, (Record(0, "p", "good"), *_values(1, "pbad !", "P")), (Aborted("P", 1, 2),)),
    Segment(10, _values(10, "a1 a2")),
]
ABORTED_SECOND = [
    Segment(0, (Record(0, "p", "good"),)),
    Segment(10, _values(10, "qbad !", "Q"), (Aborted("Q", 10, 11),)),
    Segment(30, _values(30, "a1 a2")),
]
# The tombstone of k is expired and goes together with the value that it deletes; all behind offset 0 is gone.
SHORT = [
    Segment(0, _values(0, "a1 b1")),
    Segment(10, _values(10, "k1")),
    Segment(20, _values(20, "k~")),
    Segment(30, _values(30, "b~")),
]
SHORT_ABORTED = [
    Segment(0, (Record(0, "k", "0"), Record(1, "q", "good"))),
    Segment(10, _values(10, "qbad !", "Q"), (Aborted("Q", 10, 11),)),
    Segment(30, _values(30, "k1 k~")),
]
# Without its marker the entry of P would hide what P writes later: a stale .txnindex hides committed records.
EMPTY = [
    Segment(0, _values(0, "pbad !", "P"), (Aborted("P", 0, 1),)),
    Segment(10, _values(10, "k1")),
    Segment(20, _values(20, "k~")),
]
SECOND = [Segment(50, _values(50, "x1 x2")), Segment(60, _values(60, "x3"))]

DEPENDENT = [Segment(0, _values(0, "m0 a1 b1")), SHORT[1], Segment(20, _values(20, "m1 m2"))]

SCENARIOS = (
    Scenario("one source", (_rewrite(ONE, [1, 2], ACTIVE),)),
    Scenario("three sources", (_rewrite(THREE, [11, 30, 32], ACTIVE),)),
    Scenario("last batch empty", (_rewrite([*ONE, Segment(10, _values(10, "b2 z0"))], [1, 10], ACTIVE),)),
    Scenario("old txnindex only, in the first source", (_rewrite(ABORTED_FIRST, [0, 11], ACTIVE),)),
    Scenario("old txnindex only, in the second source", (_rewrite(ABORTED_SECOND, [0, 31], ACTIVE),)),
    Scenario(
        "new txnindex, none in the first source",
        (_rewrite(ABORTED_SECOND, [0, 10, 11, 31], ACTIVE, aborted=(Aborted("Q", 10, 11),)),),
    ),
    Scenario(
        "txnindex on both sides",
        (_rewrite(ABORTED_FIRST, [0, 1, 2, 11], ACTIVE, aborted=(Aborted("P", 1, 2),)),),
    ),
    Scenario("short output: last batch below later sources", (_rewrite(SHORT, [0], ACTIVE, last=False),)),
    Scenario("short output, aborted data behind", (_rewrite(SHORT_ABORTED, [1], ACTIVE, last=False),)),
    Scenario("empty output, stale txnindex", (_rewrite(EMPTY, [], ACTIVE, last=False),)),
    Scenario("empty output, one source", (_rewrite([EMPTY[0]], [], ACTIVE, last=False),)),
    Scenario("two groups", (_rewrite(THREE, [11, 30, 32], 50), _rewrite(SECOND, [60], ACTIVE))),
    Scenario(
        "two groups, tombstone in the second deletes in the first",
        (
            _rewrite(DEPENDENT, [1, 2], 30, last=False),
            _rewrite([Segment(30, _values(30, "k~ m~"))], [], ACTIVE, last=False),
        ),
    ),
)  # fmt: skip
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
