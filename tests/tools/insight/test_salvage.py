"""`salvage`: every sound batch byte for byte, nothing else, and files that fit them; never a change of the original."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import BadUsage, LockHeld, SourceChanged
from cleanerd.format import names
from cleanerd.format.batch import iterate_batches
from cleanerd.format.names import RESCUE, FileKind
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.storage import file_bytes
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from cleanerd.tools.insight import regular_files
from cleanerd.tools.insight.salvage import SalvageReport, salvage
from cleanerd.tools.insight.verify import verify
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import GOLDEN, codes, segment
from tests.harness.logs.troubled import lock_of_another

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


def salvaged(source: Path, **options: Any) -> tuple[SalvageReport, Path]:
    """What is reported, and the copy."""
    return salvage(str(source), str(copy_of(source)), **options), copy_of(source)


def aborts(partition: Path) -> dict[str, bytes]:
    """Its transaction indexes."""
    return {path.name: path.read_bytes() for path in partition.glob("*.txnindex")}


def committed(partition: Path) -> list[int]:
    """Offsets that consumers see."""
    return [record.offset for record in read_records(str(partition), isolation="read_committed")]


def batches(partition: Path) -> list[bytes]:
    """The bytes of all batches; what follows the last whole one of a segment does not count."""
    found = []
    for log in sorted(partition.glob("*.log")):
        data = log.read_bytes()
        found += [data[at : at + size] for at, size, _ in iterate_batches(data)]
    return found


@pytest.mark.parametrize("name", LOGS)
def test_a_healthy_log_is_copied(name: str, log_dir: Path) -> None:
    """Same segments, same bytes, same transactions; the producer states that the broker wrote."""
    source = log_dir / name
    report, copy = salvaged(source)
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
def test_what_is_sound_is_kept_and_what_is_not_is_listed(harm: damage.Damage, log_dir: Path) -> None:
    """Ranges of damage and batches of the copy make up the original."""
    source = log_dir / HARM[harm]
    before = batches(source)
    path, position = harm(log_dir)
    original = {
        log.name: log.read_bytes() if log.stat().st_size < 1 << 30 else b"" for log in source.glob("*.log")
    }
    report, copy = salvaged(source)
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


def test_an_overflowed_segment_is_split(log_dir: Path) -> None:
    """Every offset fits its index then; nothing is lost."""
    source = log_dir / "idempotent-0"
    damage.segment_overflow(log_dir)
    report, copy = salvaged(source)
    assert report.segments == [0, 2**31, 2**32]
    assert report.damage == []
    assert batches(copy) == batches(source)
    assert "segment_overflow" not in codes(copy.parent)


def test_a_segment_that_is_too_large_is_split(log_dir: Path) -> None:
    """Where the next batch does not fit; each with its own indexes."""
    source = log_dir / "transactions-0"
    report, copy = salvaged(source, segment_bytes_max=400, index_interval_bytes=100)
    assert all(path.stat().st_size <= 400 or len(batches_of(path)) == 1 for path in copy.glob("*.log"))
    assert len(report.segments) > 4
    assert batches(copy) == batches(source)
    assert verify([str(copy.parent)]).findings == []
    assert committed(copy) == committed(source)


def batches_of(path: Path) -> list[int]:
    return [at for at, _, _ in iterate_batches(path.read_bytes())]


def lose(source: Path, number: int) -> None:
    """A batch of the first segment."""
    log = segment(source, 0)
    damage.overwrite(log, batches_of(log)[number] + 65, b"\xff")


def unlink_indexes(source: Path) -> None:
    for path in source.glob("*.txnindex"):
        path.unlink()


def claim(source: Path, base_offset: int, entry: bytes) -> None:
    """Other offsets in the transaction index; no CRC covers it."""
    damage.overwrite(segment(source, base_offset, FileKind.TXN_INDEX), 10, entry)


INDEXES = {
    "rebuilt from the markers": ("transactions-0", unlink_indexes),
    "of an abort whose marker is lost": ("transactions-0", lambda source: lose(source, 5)),
    "without an abort that never was": (
        "transactions-0", lambda source: claim(source, 17, (0).to_bytes(8) + (20).to_bytes(8))
    ),
    "of an abort before which the marker of a commit is lost": ("t-0", lambda source: lose(source, 10)),
    "of an abort that begins where its records do, damage elsewhere or not": (
        "t-0", lambda source: (claim(source, 0, (15).to_bytes(8)), lose(source, 5))
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", INDEXES)
def test_the_transaction_index_is_right(rule: str, log_dir: Path) -> None:
    """And consumers see what they saw, but for what is lost."""
    name, harm = INDEXES[rule]
    with LogWriter(str(log_dir), "t", 0, segment_bytes=1 << 20) as writer:
        producer = Producer(writer, producer_id=7)
        for end in (producer.commit, producer.abort):
            producer.begin()
            for _ in range(10):
                producer.put(b"k", b"v")
            end()
    source = log_dir / name
    expected, visible = aborts(source), committed(source)
    harm(source)
    _, copy = salvaged(source)
    assert expected
    assert aborts(copy) == expected
    assert set(visible) - set(committed(copy)) == ({5} if "elsewhere" in rule else set())


def test_a_lost_segment_leaves_a_gap(log_dir: Path) -> None:
    """A `.log` that cannot be read, the last one too: the log goes on at the same offset."""
    source = log_dir / "idempotent-0"
    log = segment(source, 20)
    log.unlink()
    os.mkfifo(log)
    report, _ = salvaged(source)
    assert [lost.code for lost in report.damage] == ["unreadable"]
    assert report.segments == [0, 20]
    assert report.end_offset == 20


def test_bad_sectors_are_left_out(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk cannot read is damage; what lies around it is read."""
    source = log_dir / "plain-0"
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
    report, _ = salvaged(source)
    lost = sum(lost.end - lost.start for lost in report.damage)
    assert 4096 <= lost < 4096 + 2 * len(one)
    assert report.bytes_kept == len(many) - lost


def test_a_transaction_that_has_lost_its_end_is_told(log_dir: Path) -> None:
    """At the end of the log no index entry may name an offset that the next batch will have."""
    source = log_dir / "transactions-0"
    log = segment(source, 17)
    os.truncate(log, log.stat().st_size - 5)
    report, copy = salvaged(source)
    assert report.open_transactions == (1,)
    assert report.end_offset == 27
    assert not segment(copy, 17, FileKind.TXN_INDEX).exists()
    assert codes(copy.parent) == {}


class FullDisk(RealFiles):
    """Room for so many files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: str, data: bytes, like: str | None = None) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().write(path, data, like)


@pytest.mark.parametrize("room", range(6))
def test_a_copy_that_fails_leaves_nothing(room: int, log_dir: Path) -> None:
    """No half of a log that somebody could take for a whole one."""
    source = log_dir / "transactions-0"
    with pytest.raises(OSError, match="No space"):
        salvage(str(source), str(copy_of(source)), files=FullDisk(room))
    assert not copy_of(source).exists()


class Killed(RealFiles):
    """The process ends when the first file would get its name."""

    def rename(self, source: str, target: str) -> None:
        raise KeyboardInterrupt

    def unlink(self, path: str) -> None:
        raise KeyboardInterrupt


def test_until_everything_is_written_there_is_no_log(log_dir: Path) -> None:
    """What a killed copy leaves has names that a broker ignores, but for what goes with any log."""
    source = log_dir / "transactions-0"
    with pytest.raises(KeyboardInterrupt):
        salvage(str(source), str(copy_of(source)), files=Killed())
    left = {path.name for path in copy_of(source).iterdir()}
    assert not [name for name in left if name.endswith((".log", ".index", ".timeindex", ".txnindex"))]
    assert f"{0:020d}.log.cleanerd" in left


def test_a_segment_that_waits_to_be_swapped_in_is_not_forgotten(log_dir: Path) -> None:
    """Its sources are `.deleted`; what the broker would delete as unfinished, beside its sources, is no hindrance."""
    source = log_dir / "idempotent-0"
    log = segment(source, 0)
    shutil.copy(log, f"{log}.deleted")
    log.rename(f"{log}.swap")
    for _ in range(2):
        with pytest.raises(BadUsage, match=f"{log.name}.swap waits .* start the broker once"):
            salvage(str(source), str(copy_of(source)))
        Path(f"{log}.cleaned").touch()
    assert not copy_of(source).exists()
    Path(f"{log}.deleted").rename(log)
    (source / RESCUE).touch()
    with pytest.raises(BadUsage, match="records of this log lie on its --spare"):
        salvage(str(source), str(copy_of(source)))
    (source / RESCUE).unlink()
    assert salvage(str(source), str(copy_of(source))).damage == []


def test_the_log_start_offset_is_told(log_dir: Path) -> None:
    """It lies beside the partition: a copy of the partition alone shows what was deleted."""
    source = log_dir / "plain-0"
    copy = copy_of(source)
    checkpoint = source.parent / names.LOG_START_CHECKPOINT
    for content, expected in (("0\n2\nplain 1 9\nplain 0 8\n", 8), ("0\n1\nplain 1 9\n", 0), ("nonsense", 0)):
        checkpoint.write_text(content)
        assert salvage(str(source), str(copy)).log_start_offset == expected
        shutil.rmtree(copy)


def test_directories_that_make_no_sense(log_dir: Path, tmp_path: Path) -> None:
    """Refused before anything is written."""
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_gives_nothing_to_who_exchanges_a_file(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link at the name, until it is open, has root read the log of another user: the copy is his (rule B.8)."""
    source, mine = log_dir / "plain-0", tmp_path / "mine.log"
    mine.touch()
    os.chown(mine, 65534, 65534)

    def exchanged(fd: int) -> int:
        if mine.exists():
            mine.rename(segment(source, 0))
        return regular_files.file_size(fd)

    monkeypatch.setattr("cleanerd.tools.insight.salvage.file_size", exchanged)
    with pytest.raises(SourceChanged, match="was exchanged for a file of another user"):
        salvaged(source)
    assert not copy_of(source).exists()
