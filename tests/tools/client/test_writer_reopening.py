"""The cooperating writer after a stop, a crash, damage: what it finds, rebuilds, refuses and repairs."""

import errno

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import CorruptFile
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.errors import FormatError
from cleanerd.storage.lock import probe
from cleanerd.tools.client.producer import Producer
from tests.harness.logs.written import busy, check_indexes, contents, open_writer


def test_reopening_leaves_no_trace(tmp_path):
    """Closing and opening between any two appends gives the files of a writer that never stopped."""
    with open_writer(tmp_path / "once", segment_bytes=600) as writer:
        for n in range(30):
            busy(writer, range(n, n + 1))
    for n in range(30):
        with open_writer(tmp_path / "often", segment_bytes=600) as writer:
            busy(writer, range(n, n + 1))
    assert contents(tmp_path / "often") == contents(tmp_path / "once")
    assert check_indexes(tmp_path / "once") > 5


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("damage", [None, b"", b"garbage"])
def test_everything_but_the_log_is_rebuilt(tmp_path, suffix, damage):
    """A crash may leave any of the other files of the active segment missing, empty or wrong."""
    for name in ("good", "bad"):
        with open_writer(tmp_path / name, segment_bytes=2500) as writer:
            busy(writer, range(10))
            last = writer.active_base_offset
    path = tmp_path / "bad" / "t-0" / f"{last:020d}{suffix}"
    assert path.exists()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    for name in ("good", "bad"):
        with open_writer(tmp_path / name, segment_bytes=2500) as writer:
            busy(writer, range(10, 20))
    good, bad = contents(tmp_path / "good"), contents(tmp_path / "bad")
    if suffix == ".snapshot":  # it belongs to the segment before: replayed from older ones, not written again
        good.pop(path.name)
        bad.pop(path.name, None)
    assert bad == good


def test_half_a_commit_of_a_cleaner_does_not_keep_the_writer_out(tmp_path):
    """A killed cleaner leaves `.swap` files; active segment and snapshot are all a writer needs."""
    with open_writer(tmp_path) as writer:
        busy(writer, range(10))
        end = writer.log_end_offset
    first = tmp_path / "t-0" / f"{0:020d}.log"
    first.rename(f"{first}.swap")
    with open_writer(tmp_path) as writer:
        assert writer.log_end_offset == end
        busy(writer, range(10, 12))


def test_damaged_marker_is_refused(tmp_path):
    """Its CRC is right, its key is not."""
    marker = encode_batch(
        [Record(0, 0, b"\0", b"")],
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    with open_writer(tmp_path) as writer:
        with pytest.raises(FormatError, match="control key"):
            writer.append(marker)
        Producer(writer).put(b"k", b"v")
    assert contents(tmp_path)["00000000000000000000.log"][:1] == b"\0"
    with open(tmp_path / "t-0" / "00000000000000000000.log", "ab") as file:
        file.write(b"\0" * 7 + b"\1" + marker[8:])
    with pytest.raises(CorruptFile, match="control key"):
        open_writer(tmp_path)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 200, "half", "crc", "magic", "offset"])
def test_damaged_tail_is_an_error_unless_repaired(tmp_path, tail):
    """The error names file and position and changes nothing; `repair` cuts off just that."""
    with open_writer(tmp_path) as writer:
        busy(writer, range(1, 4))
        end, base, producers = writer.log_end_offset, writer.active_base_offset, writer.producers
    batch = encode_batch([Record(end, 0, b"k", b"v" * 50)], base_offset=end)
    damage = {
        "half": batch[:-1],
        "crc": batch[:-1] + b"\1",
        "magic": batch[:16] + b"\7" + batch[17:],
        "offset": encode_batch([Record(0, 0, b"k", b"v")], base_offset=base - 1 if base else 0),
    }.get(tail, tail)
    path = tmp_path / "t-0" / f"{base:020d}.log"
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(damage)
    before = contents(tmp_path)
    with pytest.raises(CorruptFile) as caught:
        open_writer(tmp_path)
    assert caught.value.path == str(path)
    assert size <= caught.value.position <= size + 17
    assert contents(tmp_path) == before
    assert probe(str(tmp_path)) is None
    with open_writer(tmp_path, repair=True) as writer:
        assert (writer.log_end_offset, writer.producers) == (end, producers)
        assert path.stat().st_size == size
        Producer(writer).put(b"k", b"v")
    check_indexes(tmp_path)


class FullDisk(RealFiles):
    """Leaves half of a file behind, once, after `left` whole ones."""

    def __init__(self, left):
        self.left = left

    def write(self, path, data):
        self.left -= 1
        super().write(path, data[: len(data) // 2] if self.left == -1 else data)
        if self.left == -1:
            raise OSError(errno.ENOSPC, "no space left", path)


@pytest.mark.parametrize("whole", range(3))
def test_failed_write_of_a_roll_is_made_up_for_by_opening_anew(tmp_path, whole):
    """Snapshot or index of the next segment: the writer is dead then, and nothing is lost."""

    def fill(log_dir, files):
        with open_writer(log_dir) as writer:
            Producer(writer, producer_id=1).put(b"k", b"v", 1)
            writer._files = files
            writer.roll()

    fill(tmp_path / "good", RealFiles())
    with pytest.raises(OSError, match="no space left"):
        fill(tmp_path / "bad", FullDisk(whole))
    for log_dir in (tmp_path / "good", tmp_path / "bad"):
        with open_writer(log_dir) as writer:
            assert writer.log_end_offset == 1
            writer.roll()
            Producer(writer).put(b"k", b"v", 2)
    assert contents(tmp_path / "bad") == contents(tmp_path / "good")
