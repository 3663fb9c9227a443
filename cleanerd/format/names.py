"""Names of files and directories: an on-disk format like any other (spec disk A5, A6).

==========================================  ==================================================================
name                                        what it is
==========================================  ==================================================================
`<20 digits>.log|.index|.timeindex|...`     a file of the segment whose base offset the digits are
`....deleted|.cleaned|.swap`                the same, in one of Kafka's own transitions
`....cleanerd`                              staged by cleanerd; ignored by Kafka; worthless until committed
`<20 digits>.<16 hex>.part.cleanerd`        likewise: a part, of one attempt of a task
`<topic>-<partition>`                       a partition directory
`<topic>-<partition>.<32 hex>-<word>`       `delete`, `future` or `stray`: never cleaned
==========================================  ==================================================================

These pieces are joined, and suffixes looked at, here only. A name that does not parse is foreign: it is left alone.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

OFFSET_DIGITS = 20
MAX_OFFSET = 2**63 - 1
SEGMENT_MAX_BYTES = 2**31 - 1
"""No `.log` is larger (spec disk B1)."""


class FileKind(Enum):
    """The kind of a segment's file; the value is the extension."""

    __hash__ = object.__hash__  # that of Enum is Python: names are the keys of much
    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TXN_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    MANIFEST = ".manifest"  # cleanerd's own, only ever with Suffix.STAGED
    PART = ".part"  # likewise: what stays of a group, or of one chunk of it, whose first offset it has then


class Suffix(Enum):
    """Transition that a file is in; the value is appended after the extension."""

    __hash__ = object.__hash__
    LIVE = ""
    DELETED = ".deleted"
    CLEANED = ".cleaned"
    SWAP = ".swap"
    STAGED = ".cleanerd"


SEGMENT_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
"""The files that are renamed together, in Kafka's order (rule 5.4)."""

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEANERD_LOCK = ".cleanerd.lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that a broker writes for itself, as its clients know them."""
RESCUE = "run-cleanerd-rescue-again.log"
"""In a partition directory whose oldest records lie elsewhere (`storage.spare`); no broker loads a log with such a name."""
GENERATION = "cleanerd-generation"
"""In a partition directory: which life of the log this is (`storage.generation`)."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentFileName:
    """A parsed file name of a partition directory."""

    base_offset: int
    kind: FileKind
    suffix: Suffix = Suffix.LIVE

    def __str__(self) -> str:
        return f"{self.base_offset:0{OFFSET_DIGITS}d}{_ENDS[self.kind, self.suffix]}"

    def with_suffix(self, suffix: Suffix) -> "SegmentFileName":
        """The name of this file with another suffix."""
        return SegmentFileName(self.base_offset, self.kind, suffix)


_ENDS = {(kind, suffix): kind.value + suffix.value for kind in FileKind for suffix in Suffix}
_SEGMENT_FILE = re.compile(
    rf"([0-9]{{{OFFSET_DIGITS}}})"
    rf"({'|'.join(re.escape(kind.value) for kind in FileKind)})"
    rf"({'|'.join(re.escape(suffix.value) for suffix in Suffix if suffix.value)})?"
)


def segment_path(directory: str, base_offset: int, kind: FileKind, suffix: Suffix = Suffix.LIVE) -> str:
    """Path of a segment file in the directory of its partition."""
    return os.path.join(directory, str(SegmentFileName(base_offset, kind, suffix)))


def of_attempt(part: str, attempt: str) -> str:
    """The name of a part that is for one attempt of its task alone; `attempt` is 16 hex digits."""
    return f"{part.removesuffix(_PART_END)}.{attempt}{_PART_END}"


def without_attempt(name: str) -> str:
    """The name of a part as it was before `of_attempt`; every other name as it is."""
    return _ATTEMPT.sub(_PART_END, name)


_PART_END = FileKind.PART.value + Suffix.STAGED.value
_ATTEMPT = re.compile(rf"(?<=[0-9]{{{OFFSET_DIGITS}}})\.[0-9a-f]{{16}}{re.escape(_PART_END)}\Z")
_KINDS = {kind.value: kind for kind in FileKind}
_SUFFIXES = {suffix.value: suffix for suffix in Suffix}


def in_other_digits(listed: Iterable[str]) -> str | None:
    """The first name of a segment's file in digits that are not ASCII: of a JVM that runs in a locale with others.

    Such a broker reads any digits, and writes those of its locale (`NumberFormat`).
    """
    return next((name for name in listed if not name.isascii() and parse_segment_file(_in_ascii(name))), None)


def _in_ascii(name: str) -> str:
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in name)


def taken_for_another(listed: Iterable[str]) -> str | None:
    """The first name that a broker takes for a file of a segment, and which is not the name of one (spec disk A6).

    It reads any number before the first dot, and then opens the file of 20 digits: of `5.log` an empty segment at 5, in the
    middle of the log or at its end. Where that file is there it is opened twice, until a cleaning has merged it with another
    one. At the sight of `5.log.cleaned` it deletes every `.swap` from there on.
    """
    for name in listed:
        if not name.endswith((".log", ".cleaned", ".swap")) or parse_segment_file(name) is not None:
            continue
        number = _NUMBER.match(name)
        if number is not None and -MAX_OFFSET <= int(number[1]) <= MAX_OFFSET:
            return name
    return None


_NUMBER = re.compile(r"([+-]?[0-9]{1,400})\.")


# A directory is listed several times, and first segments have the same names everywhere.
@lru_cache(maxsize=1 << 14)
def parse_segment_file(name: str) -> SegmentFileName | None:
    """Parse a file name, or return None for a foreign one."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[1])
    if base_offset > MAX_OFFSET:
        return None
    return SegmentFileName(base_offset, _KINDS[match[2]], _SUFFIXES[match[3] or ""])


class DirKind(Enum):
    """The purpose of a partition directory; only CURRENT ones are ever cleaned (spec disk A5)."""

    CURRENT = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """Topic and partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_SUFFIXED_DIR = re.compile(r"(.+)\.([0-9a-f]{32})(-delete|-future|-stray)")
_PARTITION_DIR = re.compile(r"(?!\.{1,2}-)([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
"""Names that Kafka accepts for a topic; `.` and `..` are none. No more digits than an int32 has: int() refuses thousands."""


def parse_partition_dir(name: str) -> tuple[TopicPartition, DirKind] | None:
    """Parse a directory name at its last `-`, or return None for a foreign one."""
    kind = DirKind.CURRENT
    suffixed = _SUFFIXED_DIR.fullmatch(name)
    if suffixed is not None:
        name, kind = suffixed[1], DirKind(suffixed[3])
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or int(match[2]) > 2**31 - 1:
        return None
    return TopicPartition(match[1], int(match[2])), kind
