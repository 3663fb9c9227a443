"""Bounds of a `LogRange` by time, control records and batch columns, and parts whose segments are exchanged meanwhile."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format.batch import encode_batch
from cleanerd.format.names import FileKind
from cleanerd.format.record import Record
from cleanerd.storage.segments import LogBatch, log_batches
from cleanerd.tools.client.writer import LogWriter
from cleanerd.tools.insight import live
from cleanerd.tools.insight.records import Columns, LogRange, open_log, split
from tests.harness.logs.logdirs import GOLDEN, segment
from tests.tools.insight.test_records import ISOLATIONS, LOGS, records, rows


def all_records(partition: Path) -> list[Record]:
    """Those of consumers and those that end transactions."""
    return [record for batch in log_batches(str(partition), 0) for record in batch.records()]


def offset_since(found: list[Record], timestamp_ms: int, otherwise: int) -> int:
    """What Kafka's ListOffsets answers."""
    return next((record.offset for record in found if record.timestamp_ms >= timestamp_ms), otherwise)


def times_of(found: list[Record]) -> list[int]:
    every = sorted({record.timestamp_ms for record in found})
    return [every[0] - 1, *every, *(time + 1 for time in every)]


def written(root: Path, seed: int, batches: int = 300) -> Path:
    """A log of many segments whose times go to and fro."""
    rng = random.Random(seed)
    with LogWriter(str(root), "t", seed, segment_bytes=8000, index_interval_bytes=300) as writer:
        for n in range(batches):
            start = writer.log_end_offset
            kept = [Record(start + i, 1000 + 10 * n + rng.randrange(400), b"k", b"v" * 20) for i in range(3)]
            writer.append(encode_batch(kept, base_offset=start))
    return root / f"t-{seed}"


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", LOGS)
def test_times_of_what_a_broker_wrote(name: str, isolation: str) -> None:
    """From the first record that is as late on, before the first that is as late as the end."""
    path = GOLDEN / name
    every, visible = all_records(path), records(open_log(str(path), isolation=isolation))
    end = open_log(str(path), isolation=isolation).readable_end
    for start_ms in times_of(every):
        first = offset_since(every, start_ms, end)
        found = open_log(str(path), isolation=isolation, start_timestamp_ms=start_ms)
        assert records(found) == [record for record in visible if record.offset >= first]
        found = open_log(str(path), isolation=isolation, end_timestamp_ms=start_ms)
        assert records(found) == [record for record in visible if record.offset < first]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_times_that_go_to_and_fro(seed: int, has_index: bool, tmp_path: Path) -> None:
    """Exact in the active segment too, whose index lags behind; one that is missing costs a walk, no record."""
    path = written(tmp_path, seed)
    for index in path.glob("*.timeindex") if not has_index else ():
        index.unlink()
    every = all_records(path)
    end = every[-1].offset + 1
    assert len(list(path.glob("*.log"))) > 5
    for time in random.Random(seed).sample(times_of(every), 60 if has_index else 5):
        first = offset_since(every, time, end)
        assert records(open_log(str(path), start_timestamp_ms=time)) == every[first:]
        later = offset_since(every, time + 500, end)
        between = open_log(str(path), start_timestamp_ms=time, end_timestamp_ms=time + 500)
        assert records(between) == every[first:later]


def test_segments_that_end_before_are_not_read(tmp_path: Path) -> None:
    """Costs follow what is read: by time index and offset index."""
    path = written(tmp_path, 0)
    every = all_records(path)
    logs = sorted(path.glob("*.log"))
    for older in logs[:-3]:
        older.write_bytes(b"\xff" * older.stat().st_size)
    log = open_log(str(path), start_timestamp_ms=every[-1].timestamp_ms - 200)
    assert records(log) == every[offset_since(every, every[-1].timestamp_ms - 200, 0) :]
    assert log.size_bytes < 3 * 8000


def control_batches(partition: Path) -> list[LogBatch]:
    return [batch for batch in log_batches(str(partition), 0) if batch.header and batch.header.is_control]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", ["transactions-0", "transactions-v2-0", "plain-0"])
def test_control_records(name: str, isolation: str) -> None:
    """Those that end transactions, among the others, whether these were aborted or not."""
    path = GOLDEN / name
    log = open_log(str(path), isolation=isolation)
    markers = [record for batch in control_batches(path) for record in batch.records()]
    assert (len(markers) > 0) == (name != "plain-0")
    found = records(log, with_control=True)
    assert found == sorted(records(log) + markers, key=lambda record: record.offset)


def copied(path: Path) -> None:
    """Another file with the same content under the same name, as a cleaning leaves it."""
    other = path.with_suffix(".new")
    shutil.copyfile(path, other)
    other.rename(path)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(live, "_wait", found.append)
    return found


def read(part: LogRange) -> list[Record]:
    found: list[Columns] = list(live.read_part(part, "read_uncommitted"))
    return [record for columns in found for record in rows(columns)]


def by_segment(path: Path) -> list[LogRange]:
    """A part for each segment."""
    log = open_log(str(path))
    return split(log, max(part.end - part.start for part in log.ranges))


def test_a_part_is_read_although_its_segment_was_exchanged(log_dir: Path, waits: list[float]) -> None:
    """No record twice, none left out, whatever the cut."""
    path = log_dir / "idempotent-0"
    parts = split(open_log(str(path)), 300)
    expected = records(open_log(str(path)))
    for log in path.glob("*.log"):
        copied(log)
    assert [record for part in parts for record in read(part)] == expected
    assert len(waits) == len(parts)
    offsets = [(part.start_offset, part.end_offset) for part in parts]
    assert offsets[0][0] == 0
    assert [end for _, end in offsets[:-1]] == [start for start, _ in offsets[1:]]


def test_a_part_is_read_although_segments_were_merged(log_dir: Path) -> None:
    """The next part finds its records in the file of the one before."""
    path = log_dir / "idempotent-0"
    parts = by_segment(path)
    expected = records(open_log(str(path)))
    bases = sorted(int(log.stem) for log in path.glob("*.log"))
    assert len(bases) == len(parts) == 2
    merged = path / "merged"
    merged.write_bytes(b"".join(segment(path, base).read_bytes() for base in bases))
    for base in bases:
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            segment(path, base, kind).unlink()
    merged.rename(segment(path, 0))
    assert [record for part in parts for record in read(part)] == expected


def test_a_part_whose_records_were_deleted(log_dir: Path) -> None:
    """Is told: retention took the first segment."""
    path = log_dir / "idempotent-0"
    parts = by_segment(path)
    segment(path, 0).unlink()
    with pytest.raises(SourceChanged, match="were deleted"):
        read(parts[0])
    assert read(parts[1])
    shutil.rmtree(path)
    with pytest.raises(SourceChanged, match="is gone"):
        read(parts[1])


def test_a_segment_that_is_exchanged_while_its_log_is_divided(
    log_dir: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is opened again: of its digest, and of a data source on its driver."""
    path = log_dir / "idempotent-0"
    expected = records(open_log(str(path)))

    def and_then_exchanged(directory: str, **bounds: Any) -> LogRange:
        monkeypatch.undo()
        monkeypatch.setattr(live, "_wait", waits.append)
        log = open_log(directory, **bounds)
        for one in path.glob("*.log"):
            copied(one)
        return log

    monkeypatch.setattr(live, "open_log", and_then_exchanged)
    log, parts = live.open_parts(str(path), 300)
    assert len(waits) == 1
    assert [record for part in parts for record in records(part)] == records(log) == expected


def test_a_segment_that_is_deleted_between_listing_and_looking(
    log_dir: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By retention: the log is listed again. A log that is gone as a whole is not waited for."""
    path, listed = log_dir / "idempotent-0", RealFiles.list_names

    def list_names(files: RealFiles, directory: str) -> list[str]:
        names = listed(files, directory)
        if directory == str(path):
            monkeypatch.setattr(RealFiles, "list_names", listed)
            segment(path, 0).unlink()
        return names

    monkeypatch.setattr(RealFiles, "list_names", list_names)
    assert live.open_settled(str(path)).start_offset > 0
    assert len(waits) == 1
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError):
        live.open_settled(str(path))
    assert len(waits) == 1


def test_a_log_that_does_not_come_to_rest(log_dir: Path, waits: list[float]) -> None:
    """Is given up after some attempts."""
    path = log_dir / "plain-0"
    part = split(open_log(str(path)), 1 << 30)[0]
    segment(path, 0).rename(path / f"{0:020d}.log.swap")
    with pytest.raises(SourceChanged):
        read(part)
    assert 10 < len(waits) < 100
