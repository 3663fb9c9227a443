"""A finished group that waits to be committed: its staged files and the manifest that says what they replace.

The manifest `<base>.manifest.cleanerd` is written last, after everything it names is on stable storage. So staged files
without one are leftovers of a crash. All of it may be deleted at any time; the log does not know of it yet.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cleanerd.env.files import Files
from cleanerd.errors import CorruptFile
from cleanerd.format.names import FileKind, SegmentFileName, Suffix, parse_segment_file

_VERSION = 1


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """Identity of the `.log` of a segment that goes."""

    base_offset: int
    inode: int
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class StagedGroup:
    """What a commit replaces by what, and what must still hold then.

    `sources` ascend and are all segments in [sources[0].base_offset, next_base_offset). `sizes`: bytes of each staged file.
    `log_mtime_ns`: modification time of the staged `.log`, which with its size tells it from a broker's.
    `last_offset`: of its last batch, -1 when it is empty. `leader_epochs`: (epoch, start offset) of all epochs that start
    below `next_base_offset`. `round_end`: first dirty offset once every group of the cleaning is committed.
    """

    sources: tuple[SourceSegment, ...]
    next_base_offset: int
    round_end: int
    sizes: Mapping[FileKind, int]
    log_mtime_ns: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]

    @property
    def base_offset(self) -> int:
        """Base of the new segment: that of the first source."""
        return self.sources[0].base_offset

    def staged(self, kind: FileKind) -> SegmentFileName:
        """Name of a staged file."""
        return SegmentFileName(self.base_offset, kind, Suffix.STAGED)

    @property
    def manifest(self) -> SegmentFileName:
        """Name of the manifest."""
        return self.staged(FileKind.MANIFEST)


def write_manifest(files: Files, directory: str, group: StagedGroup) -> None:
    """Declare the staged files of a group complete. Requires: each of them is written and synced."""
    fields = {
        "version": _VERSION,
        "sources": [asdict(source) for source in group.sources],
        "next_base_offset": group.next_base_offset,
        "round_end": group.round_end,
        "sizes": {kind.value: size for kind, size in group.sizes.items()},
        "log_mtime_ns": group.log_mtime_ns,
        "last_offset": group.last_offset,
        "leader_epochs": group.leader_epochs,
    }
    path = os.path.join(directory, str(group.manifest))
    temporary = path.replace(FileKind.MANIFEST.value, ".manifest-part")
    files.fsync_dir(directory)
    files.write(temporary, json.dumps(fields).encode())
    files.fsync(temporary)
    files.rename(temporary, path)
    files.fsync_dir(directory)


def read_manifests(files: Files, directory: str) -> list[StagedGroup]:
    """Manifests of a partition directory, ascending. Raises CorruptFile."""
    parsed = map(parse_segment_file, files.list_names(directory))
    manifests = sorted(name for name in parsed if name is not None and name.kind is FileKind.MANIFEST)
    return [_read_manifest(files, os.path.join(directory, str(name))) for name in manifests]


def _read_manifest(files: Files, path: str) -> StagedGroup:
    data = files.read(path)
    try:
        fields = json.loads(data)
        if fields["version"] != _VERSION:
            raise CorruptFile(path, 0, f"manifest version {_VERSION}", fields["version"])
        return StagedGroup(
            sources=tuple(SourceSegment(**source) for source in fields["sources"]),
            next_base_offset=fields["next_base_offset"],
            round_end=fields["round_end"],
            sizes={FileKind(kind): size for kind, size in fields["sizes"].items()},
            log_mtime_ns=fields["log_mtime_ns"],
            last_offset=fields["last_offset"],
            leader_epochs=tuple((epoch, start) for epoch, start in fields["leader_epochs"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFile(path, 0, "a manifest of cleanerd", error) from error


def staged_names(directory_names: Sequence[str]) -> list[str]:
    """Names of everything staged, manifests first: without its manifest the rest is garbage to everybody."""
    staged = [name for name in directory_names if name.endswith(Suffix.STAGED.value)]
    return sorted(staged, key=lambda name: (FileKind.MANIFEST.value + Suffix.STAGED.value not in name, name))


def discard_staged(files: Files, directory: str) -> None:
    """Delete everything staged in a partition directory, but for a group whose commit has begun: `recover` mends that."""
    listed = files.list_names(directory)
    parsed = [name for name in map(parse_segment_file, listed) if name is not None]
    begun = {name.base_offset for name in parsed if name.suffix in (Suffix.CLEANED, Suffix.SWAP)}
    for text in staged_names(listed):
        name = parse_segment_file(text)
        if name is None or name.base_offset not in begun:
            files.unlink(os.path.join(directory, text))
