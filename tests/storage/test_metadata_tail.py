"""The metadata log of a live broker, looked at often and read rarely (spec disk F1 to F5)."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format.control import ControlType
from cleanerd.format.offset_index import OffsetIndex, render_offset_index
from cleanerd.storage.metadata_log import index_position, read_metadata
from cleanerd.storage.metadata_tail import MetadataTail
from tests.harness.logs.metadata import SAMPLE_CONFIG as POLICY
from tests.harness.logs.metadata import SAMPLE_ID, batch, control, remove, voters
from tests.harness.logs.metadata import SAMPLE_TOPIC as TOPIC

NO_OP = bytes((1, 20, 0, 0))
REMOVED = remove(SAMPLE_ID)


class Log:
    """A metadata log that a test appends to and cuts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.next_offset = 0
        self.path = directory / f"{0:020d}.log"
        directory.mkdir(parents=True)
        self.path.touch()

    def append(self, *frames: bytes, epoch: int = 1) -> int:
        """One batch; the position at which it starts."""
        position = self.path.stat().st_size
        data = batch(self.next_offset, frames, leader_epoch=epoch)
        with self.path.open("ab") as file:
            file.write(data)
        self.next_offset += len(frames)
        return position

    def roll(self) -> None:
        self.path = self.directory / f"{self.next_offset:020d}.log"
        self.path.touch()

    def cut(self, position: int, next_offset: int) -> None:
        os.truncate(self.path, position)
        self.next_offset = next_offset


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "__cluster_metadata-0")


def tail_of(*directories: Path) -> MetadataTail:
    return MetadataTail(RealFiles(), [str(directory) for directory in directories])


def test_only_records_that_matter_are_news(log: Log) -> None:
    """Two batches a second of a controller that has nothing to say are none."""
    log.append(TOPIC, POLICY)
    tail = tail_of(log.directory)
    assert tail.has_changed()  # nobody knows what was read before
    assert not tail.has_changed()
    for frame, is_news in [(NO_OP, False), (POLICY, True), (NO_OP, False), (REMOVED, True), (TOPIC, True)]:
        log.append(NO_OP)
        log.append(NO_OP, frame)
        log.append(NO_OP)
        assert tail.has_changed() == is_news
        assert not tail.has_changed()


def test_new_voters_matter_and_a_new_leader_does_not(log: Log) -> None:
    """C2: with other voters nothing expires by this log."""
    log.append(TOPIC)
    tail = tail_of(log.directory)
    assert tail.has_changed()
    for kind, value, is_news in [
        (ControlType.LEADER_CHANGE, b"\x00\x00\x00", False),
        (ControlType.KRAFT_VOTERS, voters(1, 2), True),
    ]:
        with log.path.open("ab") as file:
            file.write(control(log.next_offset, kind, value))
        log.next_offset += 1
        assert tail.has_changed() is is_news


def test_a_torn_batch_is_read_when_it_is_whole(log: Log) -> None:
    """A live broker may be writing it."""
    log.append(NO_OP)
    tail = tail_of(log.directory)
    tail.has_changed()
    position = log.append(POLICY)
    whole = log.path.read_bytes()
    for size in (position + 5, position + 40, len(whole) - 1):
        log.path.write_bytes(whole[:size])
        assert not tail.has_changed()
    log.path.write_bytes(whole)
    assert tail.has_changed()


@pytest.mark.parametrize("appended", [0, 1, 2])
def test_truncation_is_news(log: Log, appended: int) -> None:
    """The quorum undid records: they may have mattered, also where as many others follow at once."""
    log.append(NO_OP)
    position = log.append(NO_OP, epoch=1)
    tail = tail_of(log.directory)
    tail.has_changed()
    log.cut(position, 1)
    for _ in range(appended):
        log.append(NO_OP, epoch=2)
    assert tail.has_changed()
    tail.has_changed()  # once more at most
    assert not tail.has_changed()
    log.append(POLICY, epoch=2)
    assert tail.has_changed()


def test_a_new_segment_is_news(log: Log) -> None:
    """What stood at the end of the old one is not read a second time."""
    log.append(NO_OP)
    tail = tail_of(log.directory)
    tail.has_changed()
    log.roll()
    assert tail.has_changed()
    assert not tail.has_changed()
    log.append(NO_OP)
    assert not tail.has_changed()
    log.append(POLICY)
    assert tail.has_changed()


def test_a_log_that_comes_and_goes_is_news_once(tmp_path: Path) -> None:
    """A disk is unmounted and mounted again; the first directory that is there counts."""
    directory = tmp_path / "__cluster_metadata-0"
    tail = tail_of(tmp_path / "other", directory)
    assert not tail.has_changed()
    log = Log(directory)
    log.append(NO_OP)
    assert tail.has_changed()
    assert not tail.has_changed()
    directory.rename(tmp_path / "away")
    assert tail.has_changed()
    assert not tail.has_changed()
    (tmp_path / "away").rename(directory)
    assert tail.has_changed()


def test_bytes_never_written_are_no_news(log: Log) -> None:
    """Zeros that a power failure left behind a stopped broker's last batch: they cost nothing, and a broker
    that starts again cuts them off."""
    log.append(NO_OP)
    with log.path.open("ab") as file:
        file.write(bytes(100))
    tail = tail_of(log.directory)
    assert tail.has_changed()
    assert not tail.has_changed()
    log.cut(log.path.stat().st_size - 100, 1)
    log.append(POLICY)
    assert tail.has_changed()


def test_unreadable_records_and_system_errors_are_news(log: Log) -> None:
    """`read_metadata` says what is wrong."""
    log.append(NO_OP)
    tail = tail_of(log.directory)
    tail.has_changed()
    log.append(b"\x07")
    assert tail.has_changed()

    class Broken(RealFiles):
        def list_names(self, directory: str) -> list[str]:
            raise OSError(errno.EIO, "Input/output error")

    assert MetadataTail(Broken(), [str(log.directory)]).has_changed()


def write_index(log: Log, offsets: Iterable[int], positions: Iterable[int], size_bytes: int = 0) -> None:
    index = OffsetIndex(np.array(list(offsets), np.int64), np.array(list(positions), np.int64))
    data = render_offset_index(index, 0)
    log.path.with_suffix(".index").write_bytes(data.ljust(size_bytes, b"\0"))


@given(
    kinds=st.lists(st.sampled_from([NO_OP, POLICY, TOPIC, REMOVED]), min_size=1, max_size=30),
    every=st.integers(1, 5),
    snapshot=st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_the_index_only_saves_time(
    kinds: list[bytes], every: int, snapshot: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever offset is looked for, reading starts at a batch that is not above it."""
    log = Log(tmp_path_factory.mktemp("m") / "__cluster_metadata-0")
    positions = [log.append(kind, NO_OP) for kind in kinds]
    indexed = list(enumerate(positions))[every::every]
    without = read_metadata(RealFiles(), str(log.directory))
    write_index(log, (2 * slot + 1 for slot, _ in indexed), (at for _, at in indexed), size_bytes=800)
    assert read_metadata(RealFiles(), str(log.directory)) == without
    offset = min(snapshot, log.next_offset - 1)
    expected = max((at for slot, at in indexed if 2 * slot + 1 <= offset), default=0)
    assert index_position(RealFiles(), str(log.path), offset) == expected


@pytest.mark.parametrize(
    "index", [b"", bytes(80), b"\0\0\0\5\0\0\0\7", b"\0\0\0\5\x7f\xff\xff\xff", b"\0\0\0\5", b"\xff" * 16]
)
def test_an_index_that_is_wrong_is_not_believed(log: Log, index: bytes) -> None:
    """Between two batches, behind the end, all zeros, no entries: then everything is read."""
    for _ in range(10):
        log.append(NO_OP)
    log.path.with_suffix(".index").write_bytes(index)
    log.append(TOPIC, POLICY)
    assert read_metadata(RealFiles(), str(log.directory)).topic_configs.keys() == {"m-a"}
    tail = tail_of(log.directory)
    assert tail.has_changed()
    log.append(NO_OP)
    assert not tail.has_changed()


def test_damage_behind_the_start_is_still_found(log: Log) -> None:
    """Skipping what the snapshot covers does not skip checks of what it does not; the position is the file's."""
    positions = [log.append(NO_OP, NO_OP) for _ in range(20)]
    write_index(log, [21], [positions[10]])
    log.append(POLICY)
    data = bytearray(log.path.read_bytes())
    data[positions[15] + 16] = 9  # the magic
    log.path.write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        read_metadata(RealFiles(), str(log.directory))
    assert caught.value.position == positions[15] + 16
