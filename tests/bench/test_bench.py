"""The benchmark's own arithmetic, and that a side which leaves something else than the others ends the run."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.__main__ import measured_rounds
from tests.bench.figures import FLOOR, OURS
from tests.bench.kafka_side import Span, find_span
from tests.bench.sides import Floor, Round, copy_logs
from tests.bench.workloads import WORKLOADS, Built, Workload, build


def tiny(name: str) -> Workload:
    return replace(WORKLOADS[name].scaled(1 / 1024), logs=min(WORKLOADS[name].logs, 2))


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


@pytest.mark.soak
def test_sides_that_leave_the_same_are_measured_in_turns(tmp_path: Path) -> None:
    rounds = run_rounds(tmp_path)
    assert {name: len(of) for name, of in rounds.items()} == {"Kafka": 3, OURS: 3, FLOOR: 3}
    assert all(one.seconds > 0 for one in rounds[FLOOR])


@pytest.mark.parametrize("wrong", [("Kafka",), (OURS,), ("Kafka", OURS)])
def test_a_side_that_loses_a_batch_ends_the_run(wrong: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="records should be left"):
        run_rounds(tmp_path, *wrong)


def test_a_span_takes_in_all_passes_over_all_logs() -> None:
    def messages(began_ms: int, ended_ms: int, log: str, begin: int, end: int) -> list[str]:
        thread = "INFO org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread"
        return [
            f"INFO org.apache.kafka.storage.internals.log.Cleaner {began_ms} Cleaner 0: Beginning cleaning of log {log}",
            f"{thread} {ended_ms} [kafka-log-cleaner-thread-0]: "
            f"\n\tLog cleaner thread 0 cleaned log {log} (dirty section = [{begin}, {end}])"
            "\n\t63.9 MB of log processed in 2.0 seconds (31.9 MB/sec).",
        ]

    t = 1795325980000
    said = messages(t, t + 100, "warm-0", 0, 10) + messages(t + 200, t + 300, "round0-0", 0, 60)
    ends = {"round0-0": 100, "round0-1": 50}
    assert find_span(said, ends) is None
    said += messages(t + 400, t + 500, "round0-1", 0, 50)
    assert find_span(said, ends) is None, "the first log needs another pass"
    said += messages(t + 600, t + 700, "round0-0", 60, 100)
    assert find_span(said, ends) == Span(t + 200, t + 700)
