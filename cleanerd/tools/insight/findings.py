"""Findings about log directories: the table of codes, and one finding.

The codes and their severities are names that others script against.

========  ===============================================================================================
severity  meaning
========  ===============================================================================================
error     records are lost or unreadable, or a broker would refuse the file or take the directory offline
warning   a broker starts and serves the log, but something is not as it should be
info      worth knowing; nothing has to be done
========  ===============================================================================================
"""

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from cleanerd.env.files import NotRegular
from cleanerd.format.errors import FormatError

from .regular_files import SMALL_BYTES, read_small

_T = TypeVar("_T")


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Kind(NamedTuple):
    """The meaning of a code."""

    severity: Severity
    meaning: str
    remedy: str

    @property
    def needs_nothing(self) -> bool:
        """Whether nobody has to do anything about it."""
        return self.remedy.startswith("nothing")


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_REFETCH = "refetch the replica from another broker, or save what can be saved with `cleanerd salvage`"
_REINDEX = (
    "stop the broker and delete the file's `.index`: the broker rebuilds all indexes of the segment. "
    "`cleanerd clean` makes new ones for what it cleans"
)
_AT_START = "nothing: the broker deletes or finishes it when it starts"
_LATER = "nothing: the broker deletes it after file.delete.delay.ms, or when it starts"

KINDS: Mapping[str, Kind] = {
    "bad_crc": Kind(_E, "the CRC of a batch is wrong", _REFETCH),
    "bad_batch": Kind(_E, "bytes of a segment are not a batch", _REFETCH),
    "bad_records": Kind(_E, "the records of a batch do not match its header", _REFETCH),
    "offset_order": Kind(_E, "offsets do not rise, or lie outside of their segment", _REFETCH),
    "torn_batch": Kind(_E, "a segment ends inside a batch", _REFETCH),
    "torn_tail": Kind(
        _W, "the log ends inside a batch, as after a crash", "nothing: the broker cuts it off when it starts"
    ),
    "zeros": Kind(_E, "a segment ends in zeros instead of batches", _REFETCH),
    "preallocated": Kind(_I, "the active segment ends in zeros that were allocated in advance", "nothing"),
    "segment_overflow": Kind(
        _W, "offsets of a segment do not fit its indexes", "`cleanerd salvage` or a broker's start splits the segment"
    ),
    "segment_too_large": Kind(
        _E, "a segment of 2 GiB or more, which keeps a broker from starting", "`cleanerd salvage` splits the segment"
    ),
    "many_findings": Kind(_E, "a file has more problems than are listed", _REFETCH),
    "index_missing": Kind(_W, "a segment has no offset index", "nothing: the broker rebuilds it when it starts"),
    "index_entry": Kind(_E, "an offset index does not point at its batches", _REINDEX),
    "index_padded": Kind(
        _W, "an index ends in zeros that were allocated in advance: a lookup reads the segment from its start", _REINDEX
    ),
    "time_index_missing": Kind(_W, "a segment has no time index: its age is taken from the file", _REINDEX),
    "time_index_entry": Kind(_E, "a time index does not agree with its batches", _REINDEX),
    "time_index_padded": Kind(
        _E, "a time index ends in zeros: a broker takes the segment for one of 1970, and retention.ms for expired", _REINDEX
    ),
    "time_index_end": Kind(_W, "a time index does not end with the segment's largest timestamp", _REINDEX),
    "txn_index_entry": Kind(_E, "a transaction index names no abort of its segment", _REINDEX),
    "txn_index_gap": Kind(_E, "an aborted transaction is not in the index: consumers see its records", _REINDEX),
    "orphan_index": Kind(_W, "an index without its segment", _AT_START),
    "snapshot": Kind(_W, "a producer snapshot cannot be used", "nothing: the broker replays from an older one"),
    "snapshots_missing": Kind(
        _W, "a log with producers has no producer snapshot",
        "start the broker as after a crash (without .kafka_cleanshutdown), so that it replays the log",
    ),
    "epochs": Kind(_E, "the leader epoch checkpoint cannot be read", "delete it: the broker truncates by offset"),
    "epochs_missing": Kind(_W, "a log without leader epochs: a follower truncates to its high watermark", "nothing"),
    "epoch_order": Kind(_W, "leader epochs do not agree with the batches", "refetch the replica"),
    "epoch_beyond_end": Kind(_W, "a leader epoch starts behind the end of the log", _AT_START),
    "checkpoint": Kind(_E, "an offset checkpoint cannot be read: a broker takes the directory offline", "delete the file"),
    "checkpoint_partition": Kind(
        _W, "a checkpoint names a partition that is not in its directory", "nothing: the broker drops the entry"
    ),
    "checkpoint_beyond_end": Kind(
        _W, "a checkpoint lies behind the end of the log", "find out how the log lost its end"
    ),
    "log_start_beyond_end": Kind(
        _E, "the log starts behind its end: a broker deletes all segments", "remove the entry of the log"
    ),
    "no_log_dir": Kind(
        _W, "neither a broker's directory nor one with a partition in it", "give the directories that log.dirs names"
    ),
    "foreign_directory": Kind(_E, "a directory that keeps a broker from starting", "move it out of the log directory"),
    "foreign_file": Kind(_I, "a file that is not Kafka's", "nothing"),
    "rescue_interrupted": Kind(
        _E, "a rescue was interrupted: a part of the log lies on its --spare alone",
        "leave the file where it is: mount the spare, and run `cleanerd rescue --yes` again before the broker",
    ),
    "misnamed_file": Kind(_E, "a file whose name keeps a broker from starting", "move it out of the partition"),
    "other_digits": Kind(
        _W,
        "a segment file in the digits of another locale: its broker reads it, as long as it runs in that locale",
        "leave it where it is, and the broker its locale",
    ),
    "short_name": Kind(
        _W,
        "a segment file whose name does not have 20 digits: a broker reads the number, and nothing in the file",
        "move it out of the partition",
    ),
    "meta_properties": Kind(_E, "meta.properties cannot be read", "restore it from a backup or another directory"),
    "meta_properties_missing": Kind(
        _W, "a broker's directory without meta.properties: cleanerd leaves it alone, and no broker starts with it",
        "restore it, with the ids of another log directory of that broker; a copy for no broker needs none",
    ),
    "meta_mismatch": Kind(_E, "log directories of one broker that do not belong together", "find out where they are from"),
    "partition_metadata": Kind(_E, "partition.metadata cannot be read", "restore it: the topic id is in the metadata log"),
    "partition_metadata_missing": Kind(
        _W, "a partition without topic id: a broker sets it aside as a stray", "restore partition.metadata"
    ),
    "topic_id": Kind(_E, "partitions of one topic have different topic ids", "find out which ones are left over"),
    "partition_twice": Kind(
        _E, "one partition lies in two log directories", "find out which one is whole, and remove the other"
    ),
    "interrupted_cleaning": Kind(_W, "files of a cleaning that was interrupted", _AT_START),
    "waiting_swap": Kind(
        _E, "a segment waits to be swapped in, and those that it replaces may be gone",
        "start the broker once, or run `cleanerd clean` if there is none: it finishes the cleaning; then verify again",
    ),
    "deleted_file": Kind(_I, "a file that is to be deleted", _LATER),
    "delete_directory": Kind(_I, "a partition that is to be deleted", _LATER),
    "stray_directory": Kind(_W, "a partition that its broker does not know any more", "delete it, or find out why"),
    "future_directory": Kind(_I, "a partition that is being moved between log directories", "nothing"),
    "staged": Kind(_I, "the result of a cleaning that waits to be committed", "nothing: `cleanerctl commit`"),
    "staged_useless": Kind(_W, "staged files that can never be committed", "delete the `.cleanerd` files"),
    "truncation": Kind(_W, "a truncation was interrupted", "open the log with its writer, or run `cleanerd clean`"),
    "unreadable": Kind(_E, "a file or directory cannot be read", "check its owner, its mode and the disk"),
    "not_regular": Kind(_E, "something that is no file has the name of one", "remove it"),
    "link": Kind(
        _W, "a symbolic link: a broker follows it, cleanerd does not clean the log", "replace the link by its target"
    ),
    "not_judged": Kind(_E, "a defect of cleanerd: this log was not checked to the end", "report it"),
    "changed": Kind(_I, "a segment changed again and again while it was read", "verify it again"),
}  # fmt: skip
"""Every code with its severity, meaning and remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect that was found. `position` is a byte of `path`, -1 if the defect has no place in the file.

    `topic` and `partition` are empty and -1 for a defect of a whole log directory.
    """

    code: str
    log_dir: str
    topic: str
    partition: int
    path: str
    position: int
    expected: str
    found: str

    @property
    def kind(self) -> Kind:
        """Severity, meaning and remedy of the code."""
        return KINDS[self.code]


class Judged:
    """A log directory, a partition or a segment, with its findings."""

    __slots__ = ()
    findings: list[Finding]

    @property
    def subject(self) -> tuple[str, str, int]:
        """Log directory, topic and partition of its findings."""
        raise NotImplementedError

    def add(
        self, code: str, path: str, position: int = -1, expected: object = "", found: object = ""
    ) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, *self.subject, path, position, str(expected), str(found)))

    @contextlib.contextmanager
    def reading(self, path: str, too_large: str = "unreadable") -> Iterator[None]:
        """A context in which an unreadable file is a finding and ends the block; a missing file is none.

        A file that this user may not read, or on a bad disk, can be sound: no remedy for its content is named.
        """
        try:
            yield
        except FileNotFoundError:
            return
        except NotRegular as error:
            self.add("not_regular", path, -1, "a regular file", error.found)
        except OSError as error:
            code = too_large if error.errno == errno.EFBIG else "unreadable"
            self.add(code, path, -1, "a readable file", error.strerror)

    def parsed(
        self,
        path: str,
        parse: Callable[[bytes], _T],
        code: str,
        *,
        in_writing: bool = False,
    ) -> _T | None:
        """The parsed content of a small file; None if it is missing, or, with a finding, unusable.

        `in_writing`: invalid content is no finding, because a broker may be writing the file.
        """
        with self.reading(path, code):
            content = read_small(path, SMALL_BYTES)
            try:
                return parse(content)
            except FormatError as error:
                if not in_writing:
                    self.add(code, path, error.position, error.expected, error.found)
        return None
