"""A damage for every code of `cleanerd.tools.insight.findings`: done to a log directory, returns what the finding names.

Those to segments and their files come first, then those to what lies beside the records: epochs, checkpoints, names.

The answer is (path of the finding, byte or -1).
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from cleanerd.format.batch import iterate_batches
from cleanerd.format.checkpoint import parse_offset_checkpoint, render_offset_checkpoint
from cleanerd.format.names import RESCUE, FileKind
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.format.producer_snapshot import parse_producer_snapshot, render_producer_snapshot
from tests.harness.damage.batches import sealed
from tests.harness.logs.logdirs import segment

Damage = Callable[[Path], tuple[Path, int]]
ID = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Written:
    """A file below the log directory that has this content now, or one made of what it had; None: it is gone.

    A path that ends in a slash is a directory. `position`: also made of what was there. `code`: the name, unless given.
    """

    name: str
    path: str
    content: bytes | Callable[[bytes], bytes] | None = b""
    position: int | Callable[[bytes], int] = -1
    code: str = ""

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, log_dir: Path) -> tuple[Path, int]:
        path = log_dir / self.path
        had = path.read_bytes() if path.is_file() else b""
        if self.path.endswith("/"):
            path.mkdir()
        elif self.content is None:
            path.unlink()
        else:
            path.write_bytes(self.content if isinstance(self.content, bytes) else self.content(had))
        return path, self.position if isinstance(self.position, int) else self.position(had)


def start_of(number: int) -> Callable[[bytes], int]:
    """Of a batch."""
    return lambda had: [position for position, _, _ in iterate_batches(had)][number]


def put(data: bytes, number: int, at: int) -> Callable[[bytes], bytes]:
    """Other bytes in a batch."""

    def change(had: bytes) -> bytes:
        start = start_of(number)(had) + at
        return had[:start] + data + had[start + len(data) :]

    return change


def starts(log: Path) -> list[int]:
    return [position for position, _, _ in iterate_batches(log.read_bytes())]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def forget_end(log_dir: Path, topic: str) -> None:
    """What no longer fits the end of a log must not be a second finding."""
    for path in log_dir.glob("*-offset-checkpoint"):
        offsets = parse_offset_checkpoint(path.read_bytes())
        path.write_bytes(render_offset_checkpoint({tp: n for tp, n in offsets.items() if tp.topic != topic}))
    for path in (log_dir / f"{topic}-0").glob("*.snapshot"):
        path.unlink()


def bad_records(log_dir: Path) -> tuple[Path, int]:
    """One more record than there is, sealed again."""
    log = segment(log_dir / "zstd-0", 0)
    data = log.read_bytes()
    first, second = starts(log)[:2]
    batch = bytearray(data[first:second])
    batch[57:61] = (int.from_bytes(batch[57:61]) + 1).to_bytes(4)
    overwrite(log, first, sealed(bytes(batch)))
    return log, first


def torn_tail(log_dir: Path) -> tuple[Path, int]:
    """After a crash."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    forget_end(log_dir, "plain")
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[-1]
    os.truncate(log, log.stat().st_size - 5)
    return log, start


def segment_overflow(log_dir: Path) -> tuple[Path, int]:
    """A closed segment whose last batch lies 2^31 above its base, and the segment after it above that."""
    partition = log_dir / "idempotent-0"
    log = segment(partition, 0)
    start = starts(log)[-1]
    overwrite(log, start, (2**31).to_bytes(8))
    for path in partition.glob(f"{20:020d}.*"):
        path.rename(partition / path.name.replace(f"{20:020d}", f"{2**32:020d}"))
    moved = segment(partition, 2**32)
    for position in starts(moved):
        overwrite(
            moved, position, (2**32 + int.from_bytes(moved.read_bytes()[position : position + 8])).to_bytes(8)
        )
    for index in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        segment(partition, 0, index).write_bytes(b"")
        segment(partition, 2**32, index).write_bytes(b"")
    return log, start


def segment_too_large(log_dir: Path) -> tuple[Path, int]:
    """Sparse: it costs no time and no space."""
    log = segment(log_dir / "plain-0", 0)
    os.truncate(log, 1 << 42)
    return log, 2**31 - 1


def txn_index_of_an_earlier_segment(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 17, FileKind.TXN_INDEX)
    index.write_bytes(segment(log_dir / "transactions-0", 0, FileKind.TXN_INDEX).read_bytes())
    return index, 18


def snapshot_of_the_future(log_dir: Path) -> tuple[Path, int]:
    """An entry for an offset that the snapshot cannot know of."""
    path = segment(log_dir / "idempotent-0", 28, FileKind.PRODUCER_SNAPSHOT)
    early = segment(log_dir / "idempotent-0", 20, FileKind.PRODUCER_SNAPSHOT)
    assert parse_producer_snapshot(path.read_bytes(), 28)[0].last_offset >= 20
    early.write_bytes(path.read_bytes())
    return early, 10


def snapshots_missing(log_dir: Path) -> tuple[Path, int]:
    for path in (log_dir / "idempotent-0").glob("*.snapshot"):
        path.unlink()
    return log_dir / "idempotent-0", -1


_PLAIN, _IDEMPOTENT = f"plain-0/{0:020d}.log", f"idempotent-0/{0:020d}.log"
_INDEX, _TIME_INDEX = (f"transactions-0/{0:020d}{kind}" for kind in (".index", ".timeindex"))
_TXN_INDEX = f"transactions-0/{17:020d}.txnindex"
bad_crc = Written("bad_crc", _PLAIN, put(b"\xff", 2, 70), start_of(2))
bad_crc_of_a_size = Written("bad_crc_of_a_size", _PLAIN, put(b"\x13", 2, 11), start_of(2), "bad_batch")
"""The length of a batch is outside of its CRC: what follows is found all the same."""
bad_batch = Written("bad_batch", _PLAIN, put(b"\x17" * 16 + b"\x09", 1, 0), start_of(1))
offset_order = Written("offset_order", _PLAIN, put(b"\x01", 2, 4), start_of(2))
"""The base offset is outside of the CRC."""
torn_batch = Written("torn_batch", _IDEMPOTENT, lambda had: had[:-5], start_of(-1))
torn_after_a_clean_stop = Written(
    "torn_after_a_clean_stop", _PLAIN, lambda had: had[:-5], start_of(-1), "torn_batch"
)
"""Then no recovery will cut it off."""
zeros = Written("zeros", _IDEMPOTENT, lambda had: had + bytes(5000), len)
preallocated = Written("preallocated", _PLAIN, lambda had: had + bytes(1 << 20), len)
many_findings = Written(
    "many_findings", _PLAIN, lambda had: put(b"\xff", 0, 70)(had)[: start_of(1)(had)] * 500 + had
)
index_missing = Written("index_missing", _INDEX, None)
orphan_index = Written("orphan_index", f"plain-0/{7:020d}.index")
txn_index_without_an_abort = Written(
    "txn_index_without_an_abort",
    _TXN_INDEX,
    lambda had: had[:2] + (4711).to_bytes(8) + had[10:],
    code="txn_index_entry",
)
"""Another producer's transaction; and the aborted one is missing."""
time_index_too_old = Written(
    "time_index_too_old", _TIME_INDEX, lambda had: (5).to_bytes(8) + had[8:], 0, "time_index_entry"
)
"""Batches before the offset are younger than the entry says: a lookup by time would miss them."""
time_index_too_young = Written(
    "time_index_too_young", _TIME_INDEX, lambda had: had[:12] + b"\x7f" + had[13:], 12, "time_index_entry"
)
_HALF = lambda had: had + b"abc", lambda had: len(had) + 3
WRITTEN = (
    bad_crc, bad_crc_of_a_size, bad_batch, offset_order, torn_batch, torn_after_a_clean_stop, zeros, preallocated,
    many_findings, index_missing,
    orphan_index, txn_index_without_an_abort, time_index_too_old, time_index_too_young,
    Written("time_index_that_falls", _TIME_INDEX, lambda had: had[12:24] + had[:12], 12, "time_index_entry"),
    Written("time_index_of_half_an_entry", _TIME_INDEX, *_HALF, "time_index_entry"),
    # As they were allocated when the segment was active.
    Written("time_index_padded", _TIME_INDEX, lambda had: had.ljust(10485756, b"\0"), len),
    Written("index_padded", _INDEX, lambda had: had.ljust(10485760, b"\0"), len),
    # Of the right size: what a power cut leaves where a file system had not written its content.
    Written("time_index_of_zeros", _TIME_INDEX, lambda had: bytes(len(had)), 0, "time_index_padded"),
    Written("index_of_zeros", _INDEX, lambda had: bytes(len(had)), 0, "index_padded"),
    Written("time_index_missing", _TIME_INDEX, None),
    Written("time_index_end", _TIME_INDEX),
    Written("index_into_a_batch", _INDEX, lambda had: had[:15] + bytes([had[15] + 9]) + had[16:], 8, "index_entry"),
    # It leads past the batch that it names.
    Written("index_above_its_offset", _INDEX, lambda had: (1).to_bytes(4) + had[4:], 0, "index_entry"),
    Written("index_that_falls", _INDEX, lambda had: had[8:16] + had[:8], 8, "index_entry"),
    Written("index_of_half_an_entry", _INDEX, *_HALF, "index_entry"),
    Written("index_beyond_the_log", _INDEX, lambda had: had + struct.pack(">ii", 1000, 1 << 20), len, "index_entry"),
    Written("txn_index_of_another_version", _TXN_INDEX, lambda had: b"\0\5" + had[2:], 0, "txn_index_entry"),
    Written("txn_index_gap", f"transactions-0/{0:020d}.txnindex", None),
    Written(
        "snapshot_with_a_wrong_crc", f"idempotent-0/{20:020d}.snapshot", lambda had: had[:30] + b"\xaa" + had[31:], 2,
        "snapshot",
    ),
    Written("snapshot_behind_the_end", f"idempotent-0/{99:020d}.snapshot", render_producer_snapshot([]), code="snapshot"),
)  # fmt: skip

checkpoint_partition = Written(
    "checkpoint_partition", "cleaner-offset-checkpoint", b"0\n2\ncleaned 0 32\nelsewhere 7 5\n"
)
interrupted_cleaning = Written("interrupted_cleaning", f"plain-0/{0:020d}.log.cleaned")
waiting_swap = Written("waiting_swap", f"plain-0/{0:020d}.log.swap")
staged_useless = Written("staged_useless", f"plain-0/{0:020d}.log.cleanerd")
BESIDE = (
    checkpoint_partition,
    interrupted_cleaning,
    waiting_swap,
    staged_useless,
    Written("epochs", "plain-0/leader-epoch-checkpoint", b"0\n2\n0 0\n", 2),
    Written("epochs_missing", "plain-0/leader-epoch-checkpoint", None),
    Written("epoch_order", "plain-0/leader-epoch-checkpoint", b"0\n1\n5 0\n"),
    Written("epoch_beyond_end", "plain-0/leader-epoch-checkpoint", b"0\n2\n0 0\n7 99\n"),
    Written("checkpoint", "recovery-point-offset-checkpoint", b"1\n0\n", 0),
    Written("checkpoint_beyond_end", "cleaner-offset-checkpoint", b"0\n1\ncleaned 0 35\n"),
    Written("log_start_beyond_end", "log-start-offset-checkpoint", b"0\n1\nplain 0 17\n"),
    Written("foreign_directory", "lost+found/"),
    Written("foreign_file", "plain-0/notes.txt"),
    Written("misnamed_file", "plain-0/backup.log"),
    Written("rescue_interrupted", f"plain-0/{RESCUE}"),
    Written("offset_too_large", "plain-0/99999999999999999999.log", code="misnamed_file"),
    Written("short_name", "plain-0/17.log"),
    Written("other_digits", f"plain-0/{chr(0x660) * 20}.log"),
    Written("meta_properties", "meta.properties", b"version=7\n", 0),
    Written(
        "partition_metadata",
        "plain-0/partition.metadata",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        21,
    ),
    Written("partition_metadata_missing", "plain-0/partition.metadata", None),
    Written("deleted_file", f"plain-0/{0:020d}.log.deleted"),
    Written("delete_directory", f"gone-0.{ID}-delete/"),
    Written("stray_directory", f"gone-0.{ID}-stray/"),
    Written("future_directory", f"moving-0.{ID}-future/"),
    Written("truncation", "plain-0/cleanerd-generation", b"abc truncating"),
)


def epochs_that_fall(log_dir: Path) -> tuple[Path, int]:
    """The epoch of a batch is outside of its CRC."""
    log = segment(log_dir / "plain-0", 0)
    path = log_dir / "plain-0" / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n1\n3 0\n")
    for position in starts(log)[:-1]:
        overwrite(log, position + 12, (3).to_bytes(4))
    return log, -1


def topic_id(log_dir: Path) -> tuple[Path, int]:
    second = log_dir / "plain-1"
    second.mkdir()
    segment(second, 0).touch()
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        segment(second, 0, kind).touch()
    (second / "leader-epoch-checkpoint").write_bytes(b"0\n0\n")
    (second / "partition.metadata").write_bytes(render_partition_metadata(UUID(int=77)))
    return second / "partition.metadata", -1


def unreadable(log_dir: Path) -> tuple[Path, int]:
    """A link to nothing cannot be read, even by root."""
    log = segment(log_dir / "plain-0", 0)
    log.unlink()
    log.symlink_to(log_dir / "nowhere")
    forget_end(log_dir, "plain")
    return log, -1


def not_regular(log_dir: Path) -> tuple[Path, int]:
    """Nothing ever writes to it: opening it would wait for ever."""
    index = segment(log_dir / "plain-0", 0, FileKind.TIME_INDEX)
    index.unlink()
    os.mkfifo(index)
    return index, -1


def fifo_as_log(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    log.unlink()
    os.mkfifo(log)
    forget_end(log_dir, "plain")
    return log, -1


def fifo_as_checkpoint(log_dir: Path) -> tuple[Path, int]:
    path = log_dir / "log-start-offset-checkpoint"
    path.unlink()
    os.mkfifo(path)
    return path, -1


DAMAGES: dict[Damage, str] = {
    **{damage: damage.code or damage.name for damage in (*WRITTEN, *BESIDE)},
    bad_records: "bad_records",
    torn_tail: "torn_tail",
    segment_overflow: "segment_overflow",
    segment_too_large: "segment_too_large",
    txn_index_of_an_earlier_segment: "txn_index_entry",
    snapshot_of_the_future: "snapshot",
    snapshots_missing: "snapshots_missing",
    epochs_that_fall: "epoch_order",
    topic_id: "topic_id",
    unreadable: "unreadable",
    not_regular: "not_regular",
    fifo_as_log: "not_regular",
    fifo_as_checkpoint: "not_regular",
}
