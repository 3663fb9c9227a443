"""Where a log ends, asked in plain Python and by the kernel; and what a small process must not have to load for it.

Spec disk G (a log ends after its last whole batch), B1 (what a torn or preallocated tail is), B2 (nothing checks an index).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleanerd.env.files import FileStat, RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.head import LENGTH_AT
from cleanerd.format.legacy import encode_message
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.kernels.tables import Bytes
from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.storage import file_bytes
from cleanerd.storage import scan as scan_module
from cleanerd.storage.scan import SegmentOnDisk, log_end_offset

FILES = RealFiles()
BASE = 100
UNLIMITED = 1 << 20
KERNEL = 0  # no tail is short enough for plain Python


def batch(offset: int, records: int, value_bytes: int, magic: int) -> bytes:
    """Records at `offset` and behind it; magic 0 and 1 have a message for each."""
    made = [Record(offset + i, 5, b"k", b"v" * value_bytes) for i in range(records)]
    if magic == 2:
        return encode_batch(made, base_offset=offset)
    return b"".join(encode_message(record, magic=magic) for record in made)


def write_segment(directory: str, data: bytes, index: bytes | None) -> SegmentOnDisk:
    path = Path(directory) / str(SegmentFileName(BASE, FileKind.LOG))
    path.write_bytes(data)
    kinds = {FileKind.LOG}
    if index is not None:
        (Path(directory) / str(SegmentFileName(BASE, FileKind.OFFSET_INDEX))).write_bytes(index)
        kinds.add(FileKind.OFFSET_INDEX)
    return SegmentOnDisk(
        str(path), FileStat(1, len(data), 0), frozenset(kinds), SegmentFacts(BASE, len(data), 0, 0, 0, None)
    )


def end_offset(segment: SegmentOnDisk, short_tail_bytes: int) -> int:
    """The log end, with another idea of what a short tail is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "_SHORT_TAIL_BYTES", short_tail_bytes)
        return log_end_offset(FILES, segment)


def end_or_refusal(segment: SegmentOnDisk, short_tail_bytes: int) -> int | str:
    """The log end, or why a log cannot end there (a last offset below the segment's name)."""
    try:
        return end_offset(segment, short_tail_bytes)
    except CorruptFile as error:
        return str(error)


def entry(offset: int, position: int) -> bytes:
    return (offset - BASE).to_bytes(4, "big") + position.to_bytes(4, "big")


shapes = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 200), st.sampled_from([2, 2, 2, 1, 0])), max_size=12
)


@st.composite
def segments(draw: st.DrawFn) -> tuple[bytes, bytes | None, int]:
    """(data, index or None, the offset at which the log ends), with what a crash or a writer at work may leave behind."""
    data, entries, offset = b"", b"", BASE
    for records, value_bytes, magic in draw(shapes):
        if data and draw(st.booleans()):
            entries += entry(offset + records - 1, len(data))
        data += batch(offset, records, value_bytes, magic)
        offset += records
    whole = batch(offset, 1, 50, 2)
    tails = (
        st.just(b"")
        | st.integers(1, 500).map(bytes)
        | st.integers(1, len(whole) - 1).map(lambda n: whole[:n])
    )
    index = draw(st.none() | st.just(entries + bytes(8 * draw(st.integers(0, 3)))))
    return data + draw(tails), index, offset


@settings(deadline=None)
@given(drawn=segments(), short_tail_bytes=st.integers(1, 400))
def test_g_log_end_is_the_same_in_plain_python_and_by_the_kernel(
    drawn: tuple[bytes, bytes | None, int], short_tail_bytes: int
) -> None:
    data, index, end = drawn
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(directory, data, index)
        for limit in (UNLIMITED, KERNEL, short_tail_bytes):
            assert end_offset(segment, limit) == end


@settings(max_examples=200, deadline=None)
@example(drawn=(batch(BASE, 1, 0, 2), None, BASE + 1), at=7, byte=0, limit=1)
@given(drawn=segments(), at=st.integers(0, 10_000), byte=st.integers(0, 255), limit=st.integers(1, 400))
def test_b1_damage_ends_both_walks_at_the_same_place(
    drawn: tuple[bytes, bytes | None, int], at: int, byte: int, limit: int
) -> None:
    """Any byte of the log may be anything; with the index it may end later than without, never differently."""
    data = bytearray(drawn[0])
    if data:
        data[at % len(data)] = byte
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(directory, bytes(data), None)
        ends = [end_or_refusal(segment, short_tail) for short_tail in (limit, KERNEL, UNLIMITED)]
        assert ends == ends[:1] * 3


def large_log() -> tuple[bytes, list[int]]:
    """Twenty batches of one record, and where they start."""
    batches = [batch(BASE + i, 1, 200, 2) for i in range(20)]
    starts = [sum(map(len, batches[:i])) for i in range(20)]
    return b"".join(batches), starts


@pytest.mark.parametrize("index", [
    b"", b"\0\0\0", bytes(800),
    entry(BASE + 5, 2**31 - 1),  # beyond the log
    entry(BASE + 1, 9) * 2,  # not rising
    entry(BASE + 9, 7),  # inside a batch
    entry(BASE + 5, 1),
])  # fmt: skip
@pytest.mark.parametrize("limit", [KERNEL, 300])
def test_b2_index_that_points_nowhere_only_costs_time(tmp_path: Path, index: bytes, limit: int) -> None:
    segment = write_segment(str(tmp_path), large_log()[0], index)
    assert end_offset(segment, limit) == BASE + 20


@pytest.mark.parametrize("damage", ["crc", "torn", "other offset"])
@pytest.mark.parametrize("limit", [KERNEL, 300])
def test_b2_indexed_batch_is_believed_only_if_it_is_sound(tmp_path: Path, damage: str, limit: int) -> None:
    """What looks like a batch and is none would let the log end too high."""
    data, starts = large_log()
    forged = batch(BASE + 900, 1, 200, 2)
    if damage == "torn":
        forged = forged[:-1]
    elif damage == "crc":
        forged = forged[:-1] + b"?"
    offset = BASE + 20 if damage == "other offset" else BASE + 999
    segment = write_segment(str(tmp_path), data + bytes(30) + forged, entry(offset, len(data) + 30))
    assert end_offset(segment, limit) == BASE + 20
    assert starts[-1] < len(data)


def test_tail_behind_the_last_entry_is_all_that_is_read(tmp_path: Path) -> None:
    """A log is not walked again from its start for its end: what is broken before the last entry does not show."""
    data, starts = large_log()
    broken = bytes(starts[1]) + data[starts[1] :]
    segment = write_segment(str(tmp_path), broken, entry(BASE + 15, starts[15]))
    assert end_offset(segment, 2000) == end_offset(segment, KERNEL) == BASE + 20


def test_a_size_beyond_the_end_of_the_segment_ends_the_log_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many bytes follow; a batch that is larger than the buffer is read at once."""
    claim = bytearray(batch(BASE + 2, 1, 10, 2))
    claim[LENGTH_AT : LENGTH_AT + 4] = (1 << 30).to_bytes(4)
    large = batch(BASE + 1, 1, 9 << 20, 2)
    segment = write_segment(str(tmp_path), batch(BASE, 1, 10, 2) + large + claim + bytes(30 << 20), None)
    read: list[int] = []

    def read_at(fd: int, position: int, size: int) -> Bytes:
        read.append(size)
        return file_bytes.read_at(fd, position, size)

    monkeypatch.setattr(scan_module, "read_at", read_at)
    assert end_offset(segment, KERNEL) == BASE + 2
    buffer = scan_module._READ_BYTES
    assert read == [buffer, buffer, len(large), buffer]


def test_preallocated_segment_is_read_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its zeros are longer than any short tail."""
    monkeypatch.setattr(scan_module, "_batches_from", None)
    segment = write_segment(str(tmp_path), large_log()[0] + bytes(1 << 20), None)
    assert end_offset(segment, 1 << 16) == BASE + 20


PROGRAM = """
import sys
from cleanerd.env.files import RealFiles
from cleanerd.format.names import TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, scan_partition
tp = TopicPartition("t", 0)
partition = PartitionDir.of(RealFiles(), sys.argv[1], tp)
found = scan_partition(partition, tp, Checkpoints({}, {}, {}, {}), is_kafka=False)
print(found.log_end_offset, *sorted({"numba", "pyspark", "pandas", "cleanerd.kernels"} & sys.modules.keys()))
"""


def test_a_scan_loads_neither_kernels_nor_spark(tmp_path: Path) -> None:
    """Architecture: an idle daemon stays below 120 MiB."""
    (tmp_path / "t-0").mkdir()
    write_segment(str(tmp_path / "t-0"), large_log()[0], b"")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == [str(BASE + 20)]
