"""The benchmark's own arithmetic, and that a side which leaves something else than the others ends the run."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.cleaning.result import LogResult
from cleanerd.format.batch import iterate_batches
from tests.bench.__main__ import measured_rounds
from tests.bench.contents import contents
from tests.bench.figures import FLOOR, OURS, Row
from tests.bench.kafka_side import Span, find_span
from tests.bench.neighbours import resident_bytes
from tests.bench.processes import PAGE_BYTES, Meter
from tests.bench.sides import Floor, Round, copy_logs, place
from tests.bench.worker import phases
from tests.bench.workloads import WORKLOADS, Built, Workload, build


def tiny(name: str) -> Workload:
    return replace(WORKLOADS[name].scaled(1 / 1024), logs=min(WORKLOADS[name].logs, 2))


def digest(built: Built) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in built.directory.rglob("*") if path.suffix not in {"", ".json"}):
        found.update(str(path.relative_to(built.directory)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", sorted({workload.data_name for workload in WORKLOADS.values()}))
def test_a_seed_makes_the_same_bytes(name: str, tmp_path: Path) -> None:
    first, again, other = (
        build(tiny(name), seed, tmp_path / where) for seed, where in ((1, "a"), (1, "b"), (2, "a"))
    )
    assert digest(first) == digest(again) != digest(other)
    assert first.logs == again.logs


@pytest.mark.parametrize(("name", "share", "indexes"), [("W1-noindex", 1, 0), ("W1-cold", 0, 1)])
def test_a_variant_has_the_bytes_of_its_workload_under_other_conditions(
    name: str, share: int, indexes: int, tmp_path: Path
) -> None:
    """Made once for both; without indexes, or on the disk alone."""
    built = build(tiny(name), 1, tmp_path)
    assert build(tiny("W1"), 1, tmp_path).directory == built.directory
    built.copy(0, tmp_path / "copy")
    files = [path for path in (tmp_path / "copy").glob("*.log") if path.stat().st_size]
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in built.log_files()]
    assert sum(bool(path.stat().st_size) for path in (tmp_path / "copy").glob("*.index")) == indexes
    place(built, files)
    if resident_bytes(files) and share == 0:
        pytest.skip("a file system without a page cache of its own (tmpfs)")
    pages = sum(-(-path.stat().st_size // PAGE_BYTES) for path in files)
    assert resident_bytes(files) == share * pages * PAGE_BYTES


class Copier:
    """Cleans a log without a superseded record, to which a copy is the right answer; loses the end of it if so asked."""

    def __init__(self, name: str, built: Built, work: Path, lost_bytes: int) -> None:
        self.name = name
        self._built, self._work, self._lost_bytes = built, work / name, lost_bytes

    def prepare(self, number: int) -> None:
        copy_logs(self._built, self._work / str(number), "t")

    def run(self, number: int) -> Round:
        for path in self._work.rglob("*.log"):
            os.truncate(path, max(path.stat().st_size - self._lost_bytes, 0))
        return Round(1.0)

    def cleaned(self, number: int) -> list[Path]:
        return [self._work / str(number) / "t-0"]

    def drop(self, number: int) -> None:
        shutil.rmtree(self._work / str(number))


def run_rounds(tmp_path: Path, *wrong: str) -> dict[str, list[Round]]:
    """Three rounds over a log whose keys come once each; a side that is wrong loses a batch."""
    small = tiny("W1")
    shape = replace(small.shape, distinct_records=small.records, keys=small.records)
    built = build(replace(small, shape=shape), 1, tmp_path)
    sides = [
        Copier(name, built, tmp_path, len(shape.template()) if name in wrong else 0)
        for name in ("Kafka", OURS)
    ]
    with Floor(built, tmp_path / "work") as floor:
        return measured_rounds(sides, floor, built, 3)


def test_sides_that_leave_the_same_are_measured_in_turns(tmp_path: Path) -> None:
    rounds = run_rounds(tmp_path)
    assert {name: len(of) for name, of in rounds.items()} == {"Kafka": 3, OURS: 3, FLOOR: 3}
    assert all(one.seconds > 0 for one in rounds[FLOOR])


@pytest.mark.parametrize("wrong", [("Kafka",), (OURS,), ("Kafka", OURS)])
def test_a_side_that_loses_a_batch_ends_the_run(wrong: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="records should be left"):
        run_rounds(tmp_path, *wrong)


def test_a_lost_batch_changes_the_contents(tmp_path: Path) -> None:
    built = build(tiny("W1"), 1, tmp_path)
    whole = contents([built.directory / "0"])
    assert whole.records == built.records
    (path,) = built.log_files()
    data = np.fromfile(path, np.uint8)
    size = next(size for _, size, _ in iterate_batches(data.tobytes()))
    path.write_bytes(data[size:].tobytes())
    lost = contents([built.directory / "0"])
    assert lost.records == whole.records - 128
    assert lost.digest != whole.digest


def test_ratio_of_the_medians_and_its_range_by_round() -> None:
    seconds = {"Kafka": (9, 8, 20), OURS: (2, 4, 2), FLOOR: (1, 1, 1)}
    row = Row(
        "W1", "small", 2_000_000, 1000, 10, {side: list(map(Round, of)) for side, of in seconds.items()}
    )
    assert (row.rival, row.median(OURS), row.ratio("Kafka")) == ("Kafka", 2, 4.5)
    assert row.ratio_range("Kafka") == (2, 10)
    assert row.document()["records_per_s"] == 500


def test_phases_and_what_is_in_none_of_them() -> None:
    rounds = [Round(2, phases={"index": 1.0, "stage": 0.25}), Round(4, phases={"index": 2.0})]
    row = Row("W1", "small", 2_000_000, 1000, 10, {OURS: rounds})
    assert row.phase_medians() == {"index": 1.5, "stage": 0.125, "other": 1.375}


def test_logs_of_a_job_share_its_phases() -> None:
    def result(partition: int, **seconds: float) -> LogResult:
        return LogResult("t", partition, "/d", "committed", phase_seconds=seconds)

    found = phases(
        [
            result(0, plan=0.5, index=1.0, rewrite=2.0, stage=0.1, commit=0.3),
            result(1, plan=0.5, index=1.0, rewrite=2.0, stage=0.1, commit=0.2),
            result(2, plan=0.25, index=1.0, rewrite=2.0, stage=0.2, checkpoint=0.1),
        ]
    )
    expected = {"plan": 0.75, "index": 2.0, "rewrite": 4.0, "stage": 0.3, "commit": 0.5, "checkpoint": 0.1}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_a_span_takes_in_all_passes_over_all_logs() -> None:
    def lines(began_ms: int, ended_ms: int, log: str, begin: int, end: int) -> list[str]:
        thread = "INFO org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread"
        return [
            f"INFO org.apache.kafka.storage.internals.log.Cleaner {began_ms} Cleaner 0: Beginning cleaning of log {log}",
            f"{thread} {ended_ms} [kafka-log-cleaner-thread-0]: ",
            f"\tLog cleaner thread 0 cleaned log {log} (dirty section = [{begin}, {end}])",
            "\t63.9 MB of log processed in 2.0 seconds (31.9 MB/sec).",
        ]

    t = 1795325980000
    said = lines(t, t + 100, "warm-0", 0, 10) + lines(t + 200, t + 300, "round0-0", 0, 60)
    ends = {"round0-0": 100, "round0-1": 50}
    assert find_span(said, ends) is None
    said += lines(t + 400, t + 500, "round0-1", 0, 50)
    assert find_span(said, ends) is None, "the first log needs another pass"
    said += lines(t + 600, t + 700, "round0-0", 60, 100)
    assert find_span(said, ends) == Span(t + 200, t + 700)


def test_a_meter_counts_descendants_that_are_gone() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        with Meter(process.pid) as meter:
            while meter.cpu_seconds < 0.3:
                os.sched_yield()
        process.communicate(b"\n")
    assert 0.3 <= meter.cpu_seconds < 5
    assert meter.peak_rss_bytes > 5 << 20
