"""A damage for every code of `cleanerd.tools.insight.findings`: done to a log directory, returns what the finding names.

The answer is (path of the finding, byte or -1).
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from cleanerd.format.batch import iterate_batches
from cleanerd.format.checkpoint import parse_offset_checkpoint, render_offset_checkpoint
from cleanerd.format.names import FileKind
from cleanerd.format.producer_snapshot import parse_producer_snapshot, render_producer_snapshot
from tests.kernels.damage import sealed
from tests.tools.insight.logdirs import segment

Damage = Callable[[Path], tuple[Path, int]]
ID = "0123456789abcdef" * 2


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


def index_missing(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    index.unlink()
    return index, -1


def index_of_half_an_entry(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    append(index, b"abc")
    return index, index.stat().st_size


def index_into_a_batch(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    position = int.from_bytes(index.read_bytes()[12:16])
    overwrite(index, 12, (position + 9).to_bytes(4))
    return index, 8


def index_above_its_offset(log_dir: Path) -> tuple[Path, int]:
    """It leads past the batch that it names."""
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    overwrite(index, 0, (1).to_bytes(4))
    return index, 0


def index_that_falls(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.OFFSET_INDEX)
    content = index.read_bytes()
    index.write_bytes(content[8:16] + content[:8])
    return index, 8


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


def index_of_zeros(log_dir: Path) -> tuple[Path, int]:
    """Of the right size: what a power cut leaves where a file system had not written its content."""
    return _zeros(log_dir, FileKind.OFFSET_INDEX)


def time_index_of_zeros(log_dir: Path) -> tuple[Path, int]:
    return _zeros(log_dir, FileKind.TIME_INDEX)


def _zeros(log_dir: Path, kind: FileKind) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, kind)
    index.write_bytes(bytes(index.stat().st_size))
    return index, 0


def time_index_of_half_an_entry(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    append(index, b"abc")
    return index, index.stat().st_size


def time_index_that_falls(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    content = index.read_bytes()
    index.write_bytes(content[12:24] + content[:12])
    return index, 12


def time_index_missing(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    index.unlink()
    return index, -1


def time_index_too_old(log_dir: Path) -> tuple[Path, int]:
    """Batches before the offset are younger than the entry says: a lookup by time would miss them."""
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    overwrite(index, 0, (5).to_bytes(8))
    return index, 0


def time_index_too_young(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    overwrite(index, 12, b"\x7f")
    return index, 12


def time_index_end(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TIME_INDEX)
    os.truncate(index, 0)
    return index, -1


def txn_index_of_another_version(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 17, FileKind.TXN_INDEX)
    overwrite(index, 0, b"\x00\x05")
    return index, 0


def txn_index_without_an_abort(log_dir: Path) -> tuple[Path, int]:
    """Another producer's transaction; and the aborted one is missing."""
    index = segment(log_dir / "transactions-0", 17, FileKind.TXN_INDEX)
    overwrite(index, 2, (4711).to_bytes(8))
    return index, -1


def txn_index_of_an_earlier_segment(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 17, FileKind.TXN_INDEX)
    index.write_bytes(segment(log_dir / "transactions-0", 0, FileKind.TXN_INDEX).read_bytes())
    return index, 18


def txn_index_gap(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "transactions-0", 0, FileKind.TXN_INDEX)
    index.unlink()
    return index, -1


def orphan_index(log_dir: Path) -> tuple[Path, int]:
    index = segment(log_dir / "plain-0", 7, FileKind.OFFSET_INDEX)
    index.touch()
    return index, -1


def snapshot_with_a_wrong_crc(log_dir: Path) -> tuple[Path, int]:
    path = segment(log_dir / "idempotent-0", 20, FileKind.PRODUCER_SNAPSHOT)
    overwrite(path, 30, b"\xaa")
    return path, 2


def snapshot_of_the_future(log_dir: Path) -> tuple[Path, int]:
    """An entry for an offset that the snapshot cannot know of."""
    path = segment(log_dir / "idempotent-0", 28, FileKind.PRODUCER_SNAPSHOT)
    early = segment(log_dir / "idempotent-0", 20, FileKind.PRODUCER_SNAPSHOT)
    assert parse_producer_snapshot(path.read_bytes(), 28)[0].last_offset >= 20
    early.write_bytes(path.read_bytes())
    return early, 10


def snapshot_behind_the_end(log_dir: Path) -> tuple[Path, int]:
    path = segment(log_dir / "idempotent-0", 99, FileKind.PRODUCER_SNAPSHOT)
    path.write_bytes(render_producer_snapshot([]))
    return path, -1


def snapshots_missing(log_dir: Path) -> tuple[Path, int]:
    for path in (log_dir / "idempotent-0").glob("*.snapshot"):
        path.unlink()
    return log_dir / "idempotent-0", -1


DAMAGES: dict[Damage, str] = {
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
    index_missing: "index_missing",
    index_of_half_an_entry: "index_entry",
    index_into_a_batch: "index_entry",
    index_above_its_offset: "index_entry",
    index_that_falls: "index_entry",
    index_beyond_the_log: "index_entry",
    index_padded: "index_padded",
    index_of_zeros: "index_padded",
    time_index_padded: "time_index_padded",
    time_index_of_zeros: "time_index_padded",
    time_index_of_half_an_entry: "time_index_entry",
    time_index_that_falls: "time_index_entry",
    time_index_missing: "time_index_missing",
    time_index_too_old: "time_index_entry",
    time_index_too_young: "time_index_entry",
    time_index_end: "time_index_end",
    txn_index_of_another_version: "txn_index_entry",
    txn_index_without_an_abort: "txn_index_entry",
    txn_index_of_an_earlier_segment: "txn_index_entry",
    txn_index_gap: "txn_index_gap",
    orphan_index: "orphan_index",
    snapshot_with_a_wrong_crc: "snapshot",
    snapshot_of_the_future: "snapshot",
    snapshot_behind_the_end: "snapshot",
    snapshots_missing: "snapshots_missing",
}
