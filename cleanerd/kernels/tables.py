"""The tables that kernels share: one row a batch, one row a record; and the codes in them.

`BATCH` (filled by `scan.scan_batches`)

=================  =====  ===========================================================================
field              dtype  meaning
=================  =====  ===========================================================================
position           i8     first byte of the batch in the chunk's buffer
base_offset        i8     -1 for a legacy wrapper until it is expanded
last_offset        i8     inclusive
base_timestamp     i8     ms; the delete horizon when attribute bit 6 is set
max_timestamp      i8     ms
producer_id        i8     -1 none
payload_start/end  i8     records (v2) or messages (legacy) in the raw or in the expanded buffer
size               i4     whole batch in bytes, header included
producer_epoch     i4
base_sequence      i4
leader_epoch       i4
count              i4     records by the header; -1 for a legacy wrapper until it is expanded
magic, attributes  u1
expanded           u1     1 when payload_start/end point into the expanded buffer
=================  =====  ===========================================================================

`RECORD` (filled by `records.walk_records`): positions point into the buffer that the record's batch names.

=================  =====  ===========================================================================
offset             i8     absolute
timestamp          i8     ms, after the batch's timestamp type was applied
key_start          i8     first byte of the key
tail_start         i8     first byte of the key length: in magic 2, what follows is copied as it is
end                i8     first byte after the record
batch              i4     row in the batch table
key_length         i4     -1 null
value_is_null      u1
magic              u1     of the record itself; differs from the batch's in old corruption (KAFKA-4298)
=================  =====  ===========================================================================
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from cleanerd.format.txn_index import AbortedTxn

BATCH = np.dtype(
    [
        ("position", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("payload_start", "i8"),
        ("payload_end", "i8"),
        ("size", "i4"),
        ("producer_epoch", "i4"),
        ("base_sequence", "i4"),
        ("leader_epoch", "i4"),
        ("count", "i4"),
        ("magic", "u1"),
        ("attributes", "u1"),
        ("expanded", "u1"),
        ("_pad", "u1"),
    ]
)
RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),
        ("key_start", "i8"),
        ("tail_start", "i8"),
        ("end", "i8"),
        ("batch", "i4"),
        ("key_length", "i4"),
        ("value_is_null", "u1"),
        ("magic", "u1"),
        ("_pad", "u2"),
        ("_pad2", "u4"),
    ]
)
JUDGED = np.dtype(
    [
        ("first_record", "i8"),  # row in the record table
        ("end_record", "i8"),
        ("horizon", "i8"),  # delete horizon of the written batch, -1 none
        ("base_timestamp", "i8"),  # of the written batch
        ("max_timestamp", "i8"),  # of the written batch
        ("first_kept", "i8"),  # offset, -1 none
        ("last_kept", "i8"),
        ("kept", "i4"),
        ("action", "u1"),
        ("_pad", "u1"),
        ("_pad2", "u2"),
    ]
)
"""The decision about each batch (filled by `judge.judge`)."""

WRITTEN = np.dtype([("position", "i8"), ("last_offset", "i8"), ("max_timestamp", "i8"), ("size", "i8")])
"""A batch as written: the input of the indexes."""

EVENT = np.dtype(
    [
        ("offset", "i8"),
        ("producer_id", "i8"),
        ("kind", "u1"),
        ("changes", "u1"),
        ("_pad", "u2"),
        ("_pad2", "u4"),
    ]
)
"""A step of a transaction: the fields of a batch that `transactions.track` needs."""

Bytes = npt.NDArray[np.uint8]
Table = npt.NDArray[np.void]


def joined(tables: Iterable[Table], dtype: np.dtype[np.void]) -> Table:
    """The rows of contiguous tables of one type, in order; numpy would take most of its time to compare the types."""
    return np.concatenate([np.empty(0, np.uint8), *(table.view(np.uint8) for table in tables)]).view(dtype)


@dataclass(frozen=True, slots=True)
class Producers:
    """Active producers of the whole log, sorted by id (rule 4.17); columns of equal length."""

    ids: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]
    last_data_offsets: npt.NDArray[np.int64]  # -1: only a marker is known


@dataclass(frozen=True, slots=True)
class AbortedTxns:
    """Aborted transactions sorted by (producer id, first offset); columns of equal length."""

    producer_ids: npt.NDArray[np.int64]
    first_offsets: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]  # offset of the ABORT marker

    @classmethod
    def of(cls, txns: Iterable[AbortedTxn]) -> "AbortedTxns":
        """The aborted transactions of transaction indexes, which come in any order."""
        rows = sorted((txn.producer_id, txn.first_offset, txn.last_offset) for txn in txns)
        columns = np.array(rows, np.int64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


@dataclass(frozen=True, slots=True)
class KeySet:
    """The dirty keys of a log, read-only (`newest.look_up`). Most keys looked up are not in it.

    `table`: the sets of all buckets, that of bucket b in the rows from `slots[b]` to `slots[b + 1]`. `hints`: a bit for each
    key, among 8 to 16 times as many as there are slots, so few others have one set; those of bucket b begin at word
    `words[b]` and are chosen by the bits above `shifts[b]`. They are a sixteenth of the table, stay in a nearer cache, and
    spare most questions the walk to an empty slot.
    """

    table: npt.NDArray[np.uint64]
    slots: npt.NDArray[np.int64]
    hints: npt.NDArray[np.uint64]
    words: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.uint64]


class ReadStatus(IntEnum):
    """How a kernel that reads foreign bytes ended."""

    OK = 0
    TORN = 1  # the last batch is cut off
    BAD_SIZE = 2
    BAD_MAGIC = 3
    BAD_RECORD = 4  # a length or varint leads out of the batch
    BAD_COUNT = 5  # the header counts other than the records that are there
    BAD_OFFSET = 6  # offsets do not rise
    BAD_CONTROL = 7  # control record without a control key


class Action(IntEnum):
    """The decisions about a batch (rules 4.24-4.33)."""

    DROP = 0
    COPY = 1  # byte for byte
    EMPTY = 2  # a bare header (rule 4.30)
    REBUILD = 3


class EventKind(IntEnum):
    """Steps of a transaction (rule 4.20)."""

    DATA = 0
    ABORTED_DATA = 1
    ABORT = 2
    COMMIT = 3
    OTHER = 4
