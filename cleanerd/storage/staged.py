"""A finished group that waits for its commit: its staged files, and the manifest that names the sources.

The manifest `<base>.manifest.cleanerd` is written last, after everything it names is on stable storage. So staged files
without one are leftovers of a crash. All of it may be deleted at any time; the log does not know of it yet.

Groups of one cleaning depend on each other: a tombstone that one drops deletes values that an earlier one drops, and an
abort marker judges data of an earlier one. So each manifest names the group staged before it, and no group is committed
unless that one is. What an earlier cleaning left staged has to be discarded before a new one stages.
"""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from cleanerd.env.files import FileStat
from cleanerd.errors import CleanerdError, CorruptFile, SourceChanged, each_log
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, parse_segment_file, without_attempt

from .partition_dir import PartitionDir

NO_LIMIT_MS = 2**63 - 1
_VERSION = 5
_MANIFEST_END = f"{FileKind.MANIFEST.value}{Suffix.STAGED.value}"
_UNFINISHED_END = f".manifest-part{Suffix.STAGED.value}"


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """Identity of the `.log` of a segment."""

    base_offset: int
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, base_offset: int, found: FileStat) -> "SourceSegment":
        """The segment whose `.log` was found like this."""
        return cls(base_offset, found.inode, found.size_bytes, found.mtime_ns)

    @property
    def identity(self) -> FileStat:
        """The identity that its `.log` must still have at the commit."""
        return FileStat(self.inode, self.size_bytes, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class PreviousGroup:
    """The group staged before this one: when it is committed, `log` is all there is in [base, next_base_offset)."""

    log: SourceSegment
    next_base_offset: int


@dataclass(frozen=True, slots=True)
class StagedGroup:
    """The source segments and new files of a commit, and its preconditions.

    `sources` ascend and are all segments in [sources[0].base_offset, next_base_offset). `sizes`: bytes of each staged file.
    `log_mtime_ns`: modification time of the staged `.log`, which with size and inode distinguishes it from a broker's.
    `last_offset`: of its last batch, -1 when it is empty. `leader_epochs`: (epoch, start offset) of all epochs that
    start below `round_end`. `round_end`: first dirty offset once every group of the cleaning is committed, and
    `is_last` marks its last one: without it the cleaning was interrupted while it staged.
    `generation` (`storage.generation`) and `checkpoint`, the entry of the log in `cleaner-offset-checkpoint`, are those that
    the cleaning was planned with. `moves_checkpoint`: False for groups that are not the last of their cleaning
    (`cleaning.rounds`): committed, they are what a cleaning that was interrupted between two groups leaves.
    `commit_by_ms`: after that its tombstones would not stay for long enough (`policy.staging`).
    `removes_expired`: the cleaning has removed tombstones or markers whose time had come.
    `log_inode` and `previous` are what `write_manifest` finds; a group that was not read from there has neither.
    """

    sources: tuple[SourceSegment, ...]
    next_base_offset: int
    round_end: int
    sizes: Mapping[FileKind, int]
    log_mtime_ns: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    is_last: bool
    generation: str = ""
    checkpoint: int | None = None
    moves_checkpoint: bool = True
    commit_by_ms: int = NO_LIMIT_MS
    removes_expired: bool = True
    log_inode: int | None = None
    previous: PreviousGroup | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a group that would make a broker's recovery delete segments behind it (D4.4)."""
        bases = [source.base_offset for source in self.sources]
        if not bases or bases != sorted(set(bases)) or bases[-1] >= self.next_base_offset:
            raise ValueError(f"sources {bases} do not ascend to below {self.next_base_offset}")
        if not -1 <= self.last_offset < self.next_base_offset or 0 <= self.last_offset < bases[0]:
            raise ValueError(
                f"last offset {self.last_offset} is outside [{bases[0]}, {self.next_base_offset})"
            )
        missing = {FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX} - self.sizes.keys()
        if missing:
            raise ValueError(f"no staged {', '.join(sorted(kind.value for kind in missing))}")
        if (self.sizes[FileKind.LOG] == 0) != (self.last_offset == -1):
            raise ValueError(f"{self.sizes[FileKind.LOG]} bytes of log that end at offset {self.last_offset}")

    @property
    def base_offset(self) -> int:
        """Base of the new segment: that of the first source."""
        return self.sources[0].base_offset

    def name(self, kind: FileKind, suffix: Suffix) -> SegmentFileName:
        """Name of a file of the new segment."""
        return SegmentFileName(self.base_offset, kind, suffix)

    def staged(self, kind: FileKind) -> SegmentFileName:
        """Name of a staged file."""
        return self.name(kind, Suffix.STAGED)

    @property
    def manifest(self) -> SegmentFileName:
        """Name of the manifest."""
        return self.staged(FileKind.MANIFEST)


_MANIFEST = TypeAdapter(StagedGroup)
"""The fields of a group are those of its manifest, in JSON."""


def write_manifest(
    partition: PartitionDir, group: StagedGroup, before: StagedGroup | None = None, like: str | None = None
) -> StagedGroup:
    """Declare the staged files of a group complete; returns it as it was written.

    `before`: the group declared before this one, if there is any, which may have been committed since; without it the
    directory is searched for one.
    `like`: the file whose owner it gets, where that is not the first source. Raises CorruptFile for a damaged manifest of an
    earlier group, OSError.

    Requires: each file is written and synced; groups of a cleaning are declared in ascending order.
    """
    log = partition.stat(group.staged(FileKind.LOG))
    before = before or _declared_before(partition, group)
    assert before is None or before.base_offset < group.base_offset, "each group relies on an earlier one"
    previous = None if before is None else _as_previous(before)
    linked = replace(group, log_inode=log.inode, previous=previous)
    files, path = partition.files, partition.path_of(group.manifest)
    unfinished = path.removesuffix(_MANIFEST_END) + _UNFINISHED_END
    source = like or partition.path_of(group.name(FileKind.LOG, Suffix.LIVE))
    fields = {"version": _VERSION, **_MANIFEST.dump_python(linked, mode="json")}
    content = json.dumps(fields).encode()
    files.write(
        unfinished, content, source
    )  # a broker that cannot read a file takes the directory offline (A6)
    files.fsync(unfinished)
    files.rename(unfinished, path)
    partition.sync()
    return linked


def _declared_before(partition: PartitionDir, group: StagedGroup) -> StagedGroup | None:
    earlier = [name for name in manifest_names(partition) if name.base_offset < group.base_offset]
    return read_manifest(partition, earlier[-1]) if earlier else None


def _as_previous(before: StagedGroup) -> PreviousGroup:
    assert before.log_inode is not None, "it has been declared"
    size_bytes = before.sizes[FileKind.LOG]
    log = SourceSegment(before.base_offset, before.log_inode, size_bytes, before.log_mtime_ns)
    return PreviousGroup(log, before.next_base_offset)


def read_manifests(partition: PartitionDir) -> list[StagedGroup]:
    """Manifests of a partition directory, ascending. Raises CorruptFile."""
    return [read_manifest(partition, name) for name in manifest_names(partition)]


def manifest_names(partition: PartitionDir) -> list[SegmentFileName]:
    """Names of the manifests of a partition directory, ascending."""
    found = [name for name in partition.names() if name.kind is FileKind.MANIFEST]
    return sorted((name for name in found if name.suffix is Suffix.STAGED), key=lambda name: name.base_offset)


def is_waiting(partition: PartitionDir) -> bool:
    """Whether a result waits to be committed; a log that cannot be looked at has none."""
    with contextlib.suppress(CleanerdError, OSError):
        return bool(manifest_names(partition))
    return False


def replaced_bytes(partition: PartitionDir) -> int:
    """What the disk gets back once what is staged is committed; 0 where that cannot be read. Never raises."""
    with contextlib.suppress(CleanerdError, OSError):
        sources = [source for group in read_manifests(partition) for source in group.sources]
        return sum(
            partition.stat(SegmentFileName(one.base_offset, FileKind.LOG)).frees_bytes for one in sources
        )
    return 0


def live_logs(partition: PartitionDir) -> list[int]:
    """Base offsets of the live segments, ascending: listed once for all groups of a cleaning, with `.lock` held.

    Raises SourceChanged while another cleaning exchanges segments, and when the directory is gone; OSError.
    """
    try:
        found = partition.names()
    except FileNotFoundError as error:
        raise SourceChanged(f"{partition.path}: is gone") from error
    for name in found:
        if name.suffix in {Suffix.CLEANED, Suffix.SWAP}:
            raise SourceChanged(f"{partition.path}: {name} is there: another cleaning is or was under way")
    return sorted(n.base_offset for n in found if n.kind is FileKind.LOG and n.suffix is Suffix.LIVE)


def read_manifest(partition: PartitionDir, name: SegmentFileName) -> StagedGroup:
    """One manifest. Raises CorruptFile, also for one of another version."""
    path, expected = partition.path_of(name), f"a manifest of version {_VERSION}"
    try:
        fields = json.loads(partition.files.read(path))
        if fields.pop("version") != _VERSION:
            raise ValueError("another version")
        group = _MANIFEST.validate_python(fields)
    except ValidationError as error:
        flaw = error.errors()[0]
        where = "".join(f"{part}: " for part in flaw["loc"])
        raise CorruptFile(path, 0, expected, where + flaw["msg"]) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(path, 0, expected, repr(error)) from error
    if group.log_inode is None or _MANIFEST.dump_python(group, mode="json") != fields:
        raise CorruptFile(path, 0, expected, "fields as no cleaning writes them")
    if group.base_offset != name.base_offset:
        raise CorruptFile(path, 0, f"base offset {name.base_offset}", group.base_offset)
    return group


def staged_flaw(partition: PartitionDir, group: StagedGroup) -> str | None:
    """The first difference between the staged files of a group and its manifest, in words; None if there is none."""
    for kind, size in group.sizes.items():
        try:
            found = partition.stat(group.staged(kind))
        except FileNotFoundError:
            return f"{group.staged(kind)} is gone"
        if found.size_bytes != size:
            return f"{group.staged(kind)} is not the staged file of {size} bytes that was written"
        if kind is FileKind.LOG and (
            found.mtime_ns != group.log_mtime_ns or group.log_inode not in {None, found.inode}
        ):
            return f"{group.staged(kind)} is not the staged file that was written: other inode or time"
    return None


def staged_names(directory_names: Sequence[str]) -> list[str]:
    """Names of everything staged, also parts and unfinished manifests."""
    return [name for name in directory_names if _base_of_staged(name) is not None]


def staged_bytes(partition: PartitionDir) -> int:
    """Bytes of everything staged in a partition directory. Raises OSError."""
    paths = [partition.path_of(name) for name in staged_names(partition.list_names())]
    return sum(partition.files.stat(path).size_bytes for path in paths if partition.files.exists(path))


def _base_of_staged(name: str) -> int | None:
    """Base offset of a staged file or unfinished manifest, None for everything else."""
    if name.endswith(_UNFINISHED_END):
        name = name.removesuffix(_UNFINISHED_END) + _MANIFEST_END
    parsed = _staged_file(name)
    return None if parsed is None else parsed.base_offset


def _staged_file(name: str) -> SegmentFileName | None:
    """A staged file, or an attempt at one; None for everything else."""
    parsed = parse_segment_file(without_attempt(name))
    return parsed if parsed is not None and parsed.suffix is Suffix.STAGED else None


def discard_parts(partition: PartitionDir) -> None:
    """Delete the parts in a partition directory: those that went into no segment, of tasks that Spark repeated.

    An attempt that is given up may delete its own at the same time.
    """
    for name in partition.list_names():
        parsed = _staged_file(name)
        if parsed is not None and parsed.kind is FileKind.PART:
            partition.unlink_if_there(name)


def discard_staged(partition: PartitionDir) -> None:
    """Delete everything staged in a partition directory, but for a group whose commit has begun: that one is for `recover`.

    The manifests are gone for good before anything else goes: an old one must not come back beside new staged files.
    """
    try:
        listed = partition.list_names()
    except FileNotFoundError:
        return
    begun = begun_bases(filter(None, map(parse_segment_file, listed)))
    unlink_staged(partition, [n for n in staged_names(listed) if _base_of_staged(n) not in begun])


def try_discard_staged(partition: PartitionDir) -> None:
    """As `discard_staged`, but never raises: what stays is dropped before the log is cleaned again."""
    with each_log(partition.path):
        discard_staged(partition)


def begun_bases(names: Iterable[SegmentFileName]) -> set[int]:
    """Base offsets of the groups whose commit has begun: they have `.cleaned` or `.swap` files."""
    return {name.base_offset for name in names if name.suffix in {Suffix.CLEANED, Suffix.SWAP}}


def unlink_staged(partition: PartitionDir, names: Sequence[str]) -> None:
    """Unlink staged files: the manifests, a sync, the others, of which an engine that is just ending may rename one."""
    manifests = [name for name in names if name.endswith(_MANIFEST_END)]
    partition.unlink(*manifests)
    if manifests:
        partition.sync()
    for name in names:
        if name not in manifests:
            partition.unlink_if_there(name)
