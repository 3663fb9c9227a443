"""`salvage`: every sound batch byte for byte, nothing else, and files that fit them; never a change of the original."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage, LockHeld
from cleanerd.format import names
from cleanerd.format.batch import encode_batch, iterate_batches, parse_header
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.names import FileKind
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.format.record import Record
from cleanerd.format.txn_index import AbortedTxn, render_txn_index
from cleanerd.storage import file_bytes
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight import regular_files
from cleanerd.tools.insight.salvage import salvage
from cleanerd.tools.insight.verify import verify
from tests.cleaning.logs import lock_of_another
from tests.tools.insight import damage
from tests.tools.insight.logdirs import GOLDEN, broker_log_dir, codes, segment

LOGS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
HARM = {
    damage.bad_crc: "plain-0",
    damage.bad_crc_of_a_size: "plain-0",
    damage.bad_batch: "plain-0",
    damage.bad_records: "zstd-0",
    damage.offset_order: "plain-0",
    damage.torn_batch: "idempotent-0",
    damage.zeros: "idempotent-0",
    damage.preallocated: "plain-0",
    damage.segment_too_large: "plain-0",
}
"""What is done to a `.log`, and to which."""


def copy_of(partition: Path) -> Path:
    """Where a copy goes: into the log directory of another broker."""
    log_dir = partition.parent.parent / "restored"
    log_dir.mkdir(exist_ok=True)
    shutil.copy(partition.parent / names.META_PROPERTIES, log_dir)
    return log_dir / partition.name


def batches(partition: Path) -> list[bytes]:
    """The bytes of all batches; what follows the last whole one of a segment does not count."""
    found = []
    for log in sorted(partition.glob("*.log")):
        data = log.read_bytes()
        found += [data[at : at + size] for at, size, _ in iterate_batches(data)]
    return found


@pytest.mark.parametrize("name", LOGS)
def test_a_healthy_log_is_copied(name: str, tmp_path: Path) -> None:
    """Same segments, same bytes, same transactions; the producer states that the broker wrote."""
    source = broker_log_dir(tmp_path / "logs") / name
    copy = copy_of(source)
    report = salvage(str(source), str(copy))
    assert (report.damage, report.bytes_lost, report.open_transactions) == ([], 0, ())
    for kind in (".log", ".txnindex"):
        expected = {path.name: path.read_bytes() for path in source.glob(f"*{kind}")}
        assert {path.name: path.read_bytes() for path in copy.glob(f"*{kind}")} == expected
    for small in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA):
        assert (copy / small).read_bytes() == (source / small).read_bytes()
    for path in copy.glob("*.snapshot"):
        if name != "__cluster_metadata-0" and (source / path.name).exists():
            mine, theirs = (
                parse_producer_snapshot((directory / path.name).read_bytes(), int(path.stem))
                for directory in (copy, source)
            )
            assert sorted(mine) == sorted(theirs) if mine else True
    assert verify([str(copy.parent)]).findings == []


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_what_is_sound_is_kept_and_what_is_not_is_listed(harm: damage.Damage, tmp_path: Path) -> None:
    """Ranges of damage and batches of the copy make up the original."""
    log_dir = broker_log_dir(tmp_path / "logs")
    source = log_dir / HARM[harm]
    before = batches(source)
    path, position = harm(log_dir)
    original = {
        log.name: log.read_bytes() if log.stat().st_size < 1 << 30 else b"" for log in source.glob("*.log")
    }
    copy = copy_of(source)
    report = salvage(str(source), str(copy))
    kept = batches(copy)
    assert report.batches == len(kept) >= len(before) - 1
    assert set(kept) <= set(before)
    (lost,) = report.damage
    assert lost.path == str(path)
    assert lost.start == position or harm == damage.segment_too_large
    assert report.bytes_kept + report.bytes_lost == sum(log.stat().st_size for log in source.glob("*.log"))
    assert codes(copy.parent) == {}
    assert {
        log.name: log.read_bytes() if log.stat().st_size < 1 << 30 else b"" for log in source.glob("*.log")
    } == original


def test_an_overflowed_segment_is_split(tmp_path: Path) -> None:
    """Every offset fits its index then; nothing is lost."""
    log_dir = broker_log_dir(tmp_path / "logs")
    source = log_dir / "idempotent-0"
    damage.segment_overflow(log_dir)
    report = salvage(str(source), str(copy_of(source)))
    assert report.segments == [0, 2**31, 2**32]
    assert report.damage == []
    assert batches(copy_of(source)) == batches(source)
    assert "segment_overflow" not in codes(copy_of(source).parent)


def test_a_segment_that_is_too_large_is_split(tmp_path: Path) -> None:
    """Where the next batch does not fit; each with its own indexes."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    copy = copy_of(source)
    report = salvage(str(source), str(copy), segment_bytes_max=400, index_interval_bytes=100)
    assert all(path.stat().st_size <= 400 or len(batches_of(path)) == 1 for path in copy.glob("*.log"))
    assert len(report.segments) > 4
    assert batches(copy) == batches(source)
    assert verify([str(copy.parent)]).findings == []
    committed = [record.offset for record in read_records(str(source), isolation="read_committed")]
    assert [record.offset for record in read_records(str(copy), isolation="read_committed")] == committed


def batches_of(path: Path) -> list[int]:
    return [at for at, _, _ in iterate_batches(path.read_bytes())]


def test_a_transaction_index_is_rebuilt(tmp_path: Path) -> None:
    """From the markers; a consumer never sees what was aborted."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    expected = {path.name: path.read_bytes() for path in source.glob("*.txnindex")}
    assert len(expected) == 2
    for path in source.glob("*.txnindex"):
        path.unlink()
    copy = copy_of(source)
    salvage(str(source), str(copy))
    assert {path.name: path.read_bytes() for path in copy.glob("*.txnindex")} == expected


def test_an_abort_whose_marker_is_lost_is_known_from_the_index(tmp_path: Path) -> None:
    """Its records stay hidden."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    expected = {path.name: path.read_bytes() for path in source.glob("*.txnindex")}
    log = segment(source, 0)
    last_offset = int.from_bytes(segment(source, 0, FileKind.TXN_INDEX).read_bytes()[18:26])
    for at in batches_of(log):
        if parse_header(log.read_bytes(), at).base_offset == last_offset:
            damage.overwrite(log, at + 70, b"\xff")
    copy = copy_of(source)
    report = salvage(str(source), str(copy))
    assert [lost.code for lost in report.damage] == ["bad_crc"]
    assert {path.name: path.read_bytes() for path in copy.glob("*.txnindex")} == expected


def transactions(directory: Path) -> Path:
    """Producer 7 commits 0 to 9, with the marker at 10, and aborts 11 to 20."""
    parts = []
    for first, kind in ((0, ControlType.COMMIT), (11, ControlType.ABORT)):
        records = [Record(first + n, 1000, b"k", b"v") for n in range(10)]
        parts += [
            encode_batch(
                [one],
                base_offset=one.offset,
                producer_id=7,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            for one in records
        ]
        parts.append(
            encode_end_txn_marker(kind, offset=first + 10, timestamp_ms=1000, producer_id=7, producer_epoch=0)
        )
    directory.mkdir(parents=True)
    segment(directory, 0).write_bytes(b"".join(parts))
    segment(directory, 0, FileKind.TXN_INDEX).write_bytes(render_txn_index([AbortedTxn(7, 11, 21, 22)]))
    return directory


def test_a_commit_whose_marker_is_lost_is_known_from_the_index(tmp_path: Path) -> None:
    """The index says where the abort after it began; what was committed stays visible."""
    source = transactions(tmp_path / "logs" / "t-0")
    expected = segment(source, 0, FileKind.TXN_INDEX).read_bytes()
    log = segment(source, 0)
    damage.overwrite(log, batches_of(log)[10] + 70, b"\xff")
    copy = tmp_path / "t-0"
    assert [lost.code for lost in salvage(str(source), str(copy)).damage] == ["bad_crc"]
    assert segment(copy, 0, FileKind.TXN_INDEX).read_bytes() == expected
    committed = read_records(str(copy), isolation="read_committed")
    assert [record.offset for record in committed] == list(range(10))


def test_where_no_marker_is_lost_an_abort_begins_where_its_records_do(tmp_path: Path) -> None:
    """Whatever the index says; damage elsewhere does not make it right."""
    source = transactions(tmp_path / "logs" / "t-0")
    index, log = segment(source, 0, FileKind.TXN_INDEX), segment(source, 0)
    expected = index.read_bytes()
    damage.overwrite(index, 10, (15).to_bytes(8))
    damage.overwrite(log, batches_of(log)[5] + 70, b"\xff")
    salvage(str(source), str(tmp_path / "t-0"))
    assert segment(tmp_path / "t-0", 0, FileKind.TXN_INDEX).read_bytes() == expected


def test_a_lost_segment_leaves_a_gap(tmp_path: Path) -> None:
    """A `.log` that cannot be read, the last one too: the log goes on at the same offset."""
    source = broker_log_dir(tmp_path / "logs") / "idempotent-0"
    log = segment(source, 20)
    log.unlink()
    os.mkfifo(log)
    report = salvage(str(source), str(copy_of(source)))
    assert [lost.code for lost in report.damage] == ["unreadable"]
    assert report.segments == [0, 20]
    assert report.end_offset == 20


def test_bad_sectors_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk cannot read is damage; what lies around it is read."""
    source = broker_log_dir(tmp_path / "logs") / "plain-0"
    log = segment(source, 0)
    data = log.read_bytes()
    one = data[: batches_of(log)[1]]
    many = b"".join((100 * n).to_bytes(8) + one[8:] for n in range(400))
    log.write_bytes(many)
    real = file_bytes.read_at

    def read_at(fd: int, position: int, size: int) -> np.ndarray:
        if position < 8192 and position + size > 4096 and os.readlink(f"/proc/self/fd/{fd}") == str(log):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, position, size)

    monkeypatch.setattr(regular_files, "read_at", read_at)
    report = salvage(str(source), str(copy_of(source)))
    lost = sum(lost.end - lost.start for lost in report.damage)
    assert 4096 <= lost < 4096 + 2 * len(one)
    assert report.bytes_kept == len(many) - lost


def test_an_abort_that_never_was_is_not_taken_over(tmp_path: Path) -> None:
    """Committed records must not disappear because of a damaged index, which no CRC covers."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    expected = {path.name: path.read_bytes() for path in source.glob("*.txnindex")}
    committed = [record.offset for record in read_records(str(source), isolation="read_committed")]
    index = segment(source, 17, FileKind.TXN_INDEX)
    damage.overwrite(index, 10, (0).to_bytes(8) + (20).to_bytes(8))
    copy = copy_of(source)
    salvage(str(source), str(copy))
    assert {path.name: path.read_bytes() for path in copy.glob("*.txnindex")} == expected
    assert [record.offset for record in read_records(str(copy), isolation="read_committed")] == committed


def test_a_transaction_that_has_lost_its_end_is_told(tmp_path: Path) -> None:
    """At the end of the log no index entry may name an offset that the next batch will have."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    log = segment(source, 17)
    os.truncate(log, log.stat().st_size - 5)
    report = salvage(str(source), str(copy_of(source)))
    assert report.open_transactions == (1,)
    assert report.end_offset == 27
    assert not segment(copy_of(source), 17, FileKind.TXN_INDEX).exists()
    assert codes(copy_of(source).parent) == {}


class FullDisk(RealFiles):
    """Room for so many files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: str, data: bytes) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().write(path, data)


@pytest.mark.parametrize("room", range(6))
def test_a_copy_that_fails_leaves_nothing(room: int, tmp_path: Path) -> None:
    """No half of a log that somebody could take for a whole one."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    with pytest.raises(OSError, match="No space"):
        salvage(str(source), str(copy_of(source)), files=FullDisk(room))
    assert not copy_of(source).exists()


class Killed(RealFiles):
    """The process ends when the first file would get its name."""

    def rename(self, source: str, target: str) -> None:
        raise KeyboardInterrupt

    def unlink(self, path: str) -> None:
        raise KeyboardInterrupt


def test_until_everything_is_written_there_is_no_log(tmp_path: Path) -> None:
    """What a killed copy leaves has names that a broker ignores, but for what goes with any log."""
    source = broker_log_dir(tmp_path / "logs") / "transactions-0"
    with pytest.raises(KeyboardInterrupt):
        salvage(str(source), str(copy_of(source)), files=Killed())
    left = {path.name for path in copy_of(source).iterdir()}
    assert not [name for name in left if name.endswith((".log", ".index", ".timeindex", ".txnindex"))]
    assert f"{0:020d}.log.cleanerd" in left


def test_a_segment_that_waits_to_be_swapped_in_is_not_forgotten(tmp_path: Path) -> None:
    """Its sources are `.deleted`; what the broker would delete as unfinished, beside its sources, is no hindrance."""
    source = broker_log_dir(tmp_path / "logs") / "idempotent-0"
    log = segment(source, 0)
    shutil.copy(log, f"{log}.deleted")
    log.rename(f"{log}.swap")
    for _ in range(2):
        with pytest.raises(BadUsage, match=f"{log.name}.swap waits .* start the broker once"):
            salvage(str(source), str(copy_of(source)))
        Path(f"{log}.cleaned").touch()
    assert not copy_of(source).exists()
    Path(f"{log}.deleted").rename(log)
    assert salvage(str(source), str(copy_of(source))).damage == []


def test_the_log_start_offset_is_told(tmp_path: Path) -> None:
    """It lies beside the partition: a copy of the partition alone shows what was deleted."""
    source = broker_log_dir(tmp_path / "logs") / "plain-0"
    copy = copy_of(source)
    checkpoint = source.parent / names.LOG_START_CHECKPOINT
    for content, expected in (("0\n2\nplain 1 9\nplain 0 8\n", 8), ("0\n1\nplain 1 9\n", 0), ("nonsense", 0)):
        checkpoint.write_text(content)
        assert salvage(str(source), str(copy)).log_start_offset == expected
        shutil.rmtree(copy)


def test_directories_that_make_no_sense(tmp_path: Path) -> None:
    """Refused before anything is written."""
    log_dir = broker_log_dir(tmp_path / "logs")
    source = log_dir / "plain-0"
    for bad_source, output in (
        (log_dir, tmp_path / "copy"),
        (log_dir / "nowhere-0", tmp_path / "copy"),
        (source, source),
        (source, source / "copy-0"),
        (source, log_dir / "copy"),
    ):
        with pytest.raises(BadUsage):
            salvage(str(bad_source), str(output))
    with lock_of_another(log_dir / names.LOCK), pytest.raises(LockHeld):
        salvage(str(source), str(tmp_path / "copy-0"))
    assert not (tmp_path / "copy-0").exists()
