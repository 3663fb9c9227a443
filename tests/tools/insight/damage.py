"""A damage for every code of `cleanerd.tools.insight.findings`: done to a log directory, returns what the finding names.

The answer is (path of the finding, byte or -1).
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cleanerd.format.batch import iterate_batches
from cleanerd.format.checkpoint import parse_offset_checkpoint, render_offset_checkpoint
from cleanerd.format.names import FileKind
from cleanerd.format.producer_snapshot import parse_producer_snapshot, render_producer_snapshot
from tests.kernels.damage import sealed
from tests.tools.insight.logdirs import segment

Damage = Callable[[Path], tuple[Path, int]]
ID = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Written:
    """A file below the log directory that has this content now, or one made of what it had; None: it is gone.

    A path that ends in a slash is a directory.
    """

    name: str
    path: str
    content: bytes | Callable[[bytes], bytes] | None = b""
    position: int = -1

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, log_dir: Path) -> tuple[Path, int]:
        path = log_dir / self.path
        if self.path.endswith("/"):
            path.mkdir()
        elif self.content is None:
            path.unlink()
        else:
            path.write_bytes(
                self.content if isinstance(self.content, bytes) else self.content(path.read_bytes())
            )
        return path, self.position


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


def bad_crc(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[2]
    overwrite(log, start + 70, b"\xff")
    return log, start


def bad_crc_of_a_size(log_dir: Path) -> tuple[Path, int]:
    """The length of a batch is outside of its CRC: what follows is found all the same."""
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[2]
    overwrite(log, start + 8, (int.from_bytes(log.read_bytes()[start + 8 : start + 12]) + 3).to_bytes(4))
    return log, start


def bad_batch(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[1]
    overwrite(log, start, os.urandom(20).replace(b"\0", b"\1")[:16] + b"\x09")
    return log, start


def bad_records(log_dir: Path) -> tuple[Path, int]:
    """One more record than there is, sealed again."""
    log = segment(log_dir / "zstd-0", 0)
    data = log.read_bytes()
    first, second = starts(log)[:2]
    batch = bytearray(data[first:second])
    batch[57:61] = (int.from_bytes(batch[57:61]) + 1).to_bytes(4)
    overwrite(log, first, sealed(bytes(batch)))
    return log, first


def offset_order(log_dir: Path) -> tuple[Path, int]:
    """The base offset is outside of the CRC."""
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[2]
    overwrite(log, start + 4, b"\x01")
    return log, start


def torn_batch(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "idempotent-0", 0)
    start = starts(log)[-1]
    os.truncate(log, log.stat().st_size - 5)
    return log, start


def torn_tail(log_dir: Path) -> tuple[Path, int]:
    """After a crash."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    forget_end(log_dir, "plain")
    log = segment(log_dir / "plain-0", 0)
    start = starts(log)[-1]
    os.truncate(log, log.stat().st_size - 5)
    return log, start


def zeros(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "idempotent-0", 0)
    end = log.stat().st_size
    append(log, bytes(5000))
    return log, end


def preallocated(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    end = log.stat().st_size
    os.truncate(log, 1 << 20)
    return log, end


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


def many_findings(log_dir: Path) -> tuple[Path, int]:
    log = segment(log_dir / "plain-0", 0)
    data = log.read_bytes()
    batch = bytearray(data[: starts(log)[1]])
    batch[70] ^= 0xFF
    log.write_bytes(bytes(batch) * 500 + data)
    return log, -1


def index_of_half_an_entry(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    append(index, b"abc")
    return index, index.stat().st_size


def index_beyond_the_log(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    size = index.stat().st_size
    append(index, struct.pack(">ii", 1000, 1 << 20))
    return index, size


def index_padded(log_dir: Path) -> tuple[Path, int]:
    """As it was allocated when the segment was active."""
    return _padded(log_dir, FileKind.OFFSET_INDEX, 10485760)


def time_index_padded(log_dir: Path) -> tuple[Path, int]:
    return _padded(log_dir, FileKind.TIME_INDEX, 10485756)


def _padded(log_dir: Path, kind: FileKind, size: int) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, kind)
    used = index.stat().st_size
    os.truncate(index, size)
    return index, used


def time_index_of_half_an_entry(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    append(index, b"abc")
    return index, index.stat().st_size


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


_INDEX, _TIME_INDEX = (f"transactions-0/{0:020d}{kind}" for kind in (".index", ".timeindex"))
_TXN_INDEX = f"transactions-0/{17:020d}.txnindex"
index_missing = Written("index_missing", _INDEX, None)
orphan_index = Written("orphan_index", f"plain-0/{7:020d}.index")
txn_index_without_an_abort = Written(
    "txn_index_without_an_abort", _TXN_INDEX, lambda had: had[:2] + (4711).to_bytes(8) + had[10:]
)
"""Another producer's transaction; and the aborted one is missing."""
time_index_too_old = Written("time_index_too_old", _TIME_INDEX, lambda had: (5).to_bytes(8) + had[8:], 0)
"""Batches before the offset are younger than the entry says: a lookup by time would miss them."""
time_index_too_young = Written(
    "time_index_too_young", _TIME_INDEX, lambda had: had[:12] + b"\x7f" + had[13:], 12
)
WRITTEN: dict[Damage, str] = {
    time_index_too_old: "time_index_entry",
    time_index_too_young: "time_index_entry",
    index_missing: "index_missing",
    orphan_index: "orphan_index",
    txn_index_without_an_abort: "txn_index_entry",
    Written(
        "index_into_a_batch", _INDEX, lambda had: had[:15] + bytes([had[15] + 9]) + had[16:], 8
    ): "index_entry",
    # It leads past the batch that it names.
    Written("index_above_its_offset", _INDEX, lambda had: (1).to_bytes(4) + had[4:], 0): "index_entry",
    Written("index_that_falls", _INDEX, lambda had: had[8:16] + had[:8], 8): "index_entry",
    # Of the right size: what a power cut leaves where a file system had not written its content.
    Written("index_of_zeros", _INDEX, lambda had: bytes(len(had)), 0): "index_padded",
    Written("time_index_of_zeros", _TIME_INDEX, lambda had: bytes(len(had)), 0): "time_index_padded",
    Written("time_index_that_falls", _TIME_INDEX, lambda had: had[12:24] + had[:12], 12): "time_index_entry",
    Written("time_index_missing", _TIME_INDEX, None): "time_index_missing",
    Written("time_index_end", _TIME_INDEX): "time_index_end",
    Written("txn_index_of_another_version", _TXN_INDEX, lambda had: b"\0\5" + had[2:], 0): "txn_index_entry",
    Written("txn_index_gap", f"transactions-0/{0:020d}.txnindex", None): "txn_index_gap",
    Written(
        "snapshot_with_a_wrong_crc",
        f"idempotent-0/{20:020d}.snapshot",
        lambda had: had[:30] + b"\xaa" + had[31:],
        2,
    ): "snapshot",
    Written(
        "snapshot_behind_the_end", f"idempotent-0/{99:020d}.snapshot", render_producer_snapshot([])
    ): "snapshot",
}


DAMAGES: dict[Damage, str] = {
    **WRITTEN,
    bad_crc: "bad_crc",
    bad_crc_of_a_size: "bad_batch",
    bad_batch: "bad_batch",
    bad_records: "bad_records",
    offset_order: "offset_order",
    torn_batch: "torn_batch",
    torn_tail: "torn_tail",
    zeros: "zeros",
    preallocated: "preallocated",
    segment_overflow: "segment_overflow",
    segment_too_large: "segment_too_large",
    many_findings: "many_findings",
    index_of_half_an_entry: "index_entry",
    index_beyond_the_log: "index_entry",
    index_padded: "index_padded",
    time_index_padded: "time_index_padded",
    time_index_of_half_an_entry: "time_index_entry",
    txn_index_of_an_earlier_segment: "txn_index_entry",
    snapshot_of_the_future: "snapshot",
    snapshots_missing: "snapshots_missing",
}
