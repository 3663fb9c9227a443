"""A log directory without its partitions: names, checkpoints, meta.properties (spec disk A1, A2, A5, A7)."""

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import CleanerdError, DirOffline
from cleanerd.format import names
from cleanerd.format.checkpoint import parse_offset_checkpoint
from cleanerd.format.meta_properties import MetaProperties, parse_meta_properties
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir
from cleanerd.storage.lock import probe
from cleanerd.storage.log_dir import LogDir as LogDirOnDisk
from cleanerd.storage.no_log_dir import A_LOG_DIR, found_instead
from cleanerd.storage.whose import whose

from .findings import Finding, Judged
from .partition_check import DirFacts, Partition
from .regular_files import CarefulFiles

CHECKPOINTS = (
    names.CLEANER_OFFSET_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_CHECKPOINT,
    names.REPLICATION_CHECKPOINT,
)
_TOLERATED_DIRECTORY = "remote-log-index-cache"
_KIND_CODES = {
    DirKind.DELETE: "delete_directory",
    DirKind.STRAY: "stray_directory",
    DirKind.FUTURE: "future_directory",
}


@dataclass(slots=True)
class LogDir(Judged):
    """A listed log directory, with its findings. `partitions`: names of the partition directories."""

    path: str
    facts: DirFacts = field(init=False)
    findings: list[Finding] = field(default_factory=list)
    partitions: list[tuple[TopicPartition, str]] = field(default_factory=list)
    meta: MetaProperties | None = None

    @property
    def subject(self) -> tuple[str, str, int]:
        """The log directory as a whole."""
        return self.path, "", -1

    @property
    def unlisted(self) -> tuple[str, str] | None:
        """Its path, and why it could not be listed; None if it was."""
        for one in self.findings:
            if one.code == "unreadable" and one.path == self.path:
                return self.path, f"expected {one.expected}, found {one.found}"
        return None

    def file(self, name: str) -> str:
        """The path of an entry of the directory."""
        return os.path.join(self.path, name)

    def chosen(
        self, topics: Collection[str], partitions: Collection[int]
    ) -> Iterator[tuple[TopicPartition, str]]:
        """The partitions of the given topics and partition numbers; without any, all."""
        for tp, directory in self.partitions:
            if (not topics or tp.topic in topics) and (not partitions or tp.partition in partitions):
                yield tp, directory


def list_log_dir(log_dir: str) -> LogDir:
    """Read the checkpoints before the names, so that a checkpoint entry never lacks a partition that a live broker adds."""
    found = LogDir(log_dir)
    offsets = {
        name: found.parsed(found.file(name), parse_offset_checkpoint, "checkpoint") or {}
        for name in CHECKPOINTS
    }
    meta = found.meta = found.parsed(
        found.file(names.META_PROPERTIES), parse_meta_properties, "meta_properties"
    )
    found.facts = DirFacts(
        log_dir=log_dir,
        is_kafka=os.path.lexists(found.file(names.META_PROPERTIES)),
        is_kraft=meta is not None and meta.version > 0,
        is_live=_is_live(log_dir),
        is_clean=os.path.isfile(found.file(names.CLEAN_SHUTDOWN)),
        offsets=offsets,
    )
    try:
        listed = sorted(os.listdir(log_dir))
    except OSError as error:
        found.add("unreadable", log_dir, -1, "a readable directory", error.strerror)
        return found
    with contextlib.suppress(CleanerdError, OSError):
        instead = found_instead(RealFiles(), log_dir)
        if instead is not None:
            found.add("no_log_dir", log_dir, -1, A_LOG_DIR, instead)
        elif (
            meta is None and not found.facts.is_kafka and whose(RealFiles(), log_dir, thorough=True).is_kafka
        ):
            found.add(
                "meta_properties_missing",
                found.file(names.META_PROPERTIES),
                -1,
                "the file of a broker",
                "none",
            )
    for name in listed:
        _sort(found, name)
    _check_entries(found)
    return found


def _is_live(log_dir: str) -> bool:
    try:
        return probe(log_dir) is not None
    except DirOffline:
        return False


def _sort(found: LogDir, name: str) -> None:
    path = found.file(name)
    parsed = parse_partition_dir(name)
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if parsed is not None:
            found.add("unreadable", path, -1, "a directory", error.strerror)
        return
    if parsed is None:
        if is_directory and name != _TOLERATED_DIRECTORY and found.facts.is_kafka:
            found.add("foreign_directory", path, -1, "TOPIC-PARTITION", name)
    elif not is_directory:
        found.add("not_regular", path, -1, "a partition directory", "no directory")
    elif parsed[1] is DirKind.CURRENT:
        found.partitions.append((parsed[0], path))
    else:
        found.add(_KIND_CODES[parsed[1]], path)


def _check_entries(found: LogDir) -> None:
    """Entries of the checkpoints without a partition; a broker that is at work may be about to drop them."""
    if found.facts.is_live:
        return
    present = {tp for tp, _ in found.partitions}
    for name in CHECKPOINTS:
        for tp in sorted(found.facts.offsets[name].keys() - present):
            found.add("checkpoint_partition", found.file(name), -1, f"a directory {tp}", "none")


def compare_log_dirs(log_dirs: Sequence[LogDir], partitions: Iterable[Partition]) -> None:
    """Add findings about several directories: ids of different brokers or clusters, a partition that lies in two."""
    _compare_meta([found for found in log_dirs if found.meta is not None])
    twins = _second_copies(log_dirs)
    topics: dict[str, Partition] = {}
    for partition in partitions:
        tp = partition.topic_partition
        if partition.directory in twins:
            first = os.path.join(twins[partition.directory], str(tp))
            partition.add("partition_twice", partition.directory, -1, "one directory", first)
        if partition.topic_id is None:
            continue
        sibling = topics.setdefault(tp.topic, partition)
        if sibling.topic_id != partition.topic_id:
            path = partition.path(names.PARTITION_METADATA)
            partition.add("topic_id", path, -1, sibling.topic_id, partition.topic_id)


def _second_copies(found_dirs: Sequence[LogDir]) -> dict[str, str]:
    """Partition directories whose partition lies in an earlier one of these log directories as well, and in which."""
    second: dict[str, str] = {}
    for number, found in enumerate(found_dirs):
        directories = dict(found.partitions)
        up_to_here = tuple(one.path for one in found_dirs[: number + 1])
        log_dir = LogDirOnDisk(CarefulFiles(), found.path, SystemClock(), found.facts.is_kafka, up_to_here)
        with contextlib.suppress(CleanerdError, OSError):
            second |= {directories[tp]: other for tp, other in log_dir.copies(directories.keys()).items()}
    return second


def _compare_meta(log_dirs: Sequence[LogDir]) -> None:
    owners: dict[UUID, str] = {}
    for found in log_dirs:
        first, mine = log_dirs[0].meta, found.meta
        assert first is not None
        assert mine is not None
        path, wanted = found.file(names.META_PROPERTIES), (first.cluster_id, first.node_id)
        if (mine.cluster_id, mine.node_id) != wanted:
            have = (mine.cluster_id, mine.node_id)
            found.add("meta_mismatch", path, -1, f"cluster and node {wanted}", have)
        if mine.directory_id is not None:
            owner = owners.setdefault(mine.directory_id, found.path)
            if owner != found.path:
                found.add("meta_mismatch", path, -1, "a directory.id of its own", f"that of {owner}")
