"""The rounds of the benchmark: who leaves something else than the others does not win, it ends the run."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.__main__ import measured_rounds
from tests.bench.figures import FLOOR, OURS
from tests.bench.sides import Floor, Round, copy_logs
from tests.bench.workloads import WORKLOADS, Built, build


class Copier:
    """Cleans a log without a superseded record, to which a copy is the right answer; loses the end of it if so asked."""

    def __init__(self, name: str, built: Built, work: Path, lost_bytes: int = 0) -> None:
        self.name = name
        self._built, self._work, self._lost_bytes = built, work / name, lost_bytes

    def prepare(self, number: int) -> None:
        copy_logs(self._built, self._work / str(number), "t")

    def run(self, number: int) -> Round:
        for path in self._work.rglob("*.log"):
            size = path.stat().st_size
            if size:
                with path.open("r+b") as file:
                    file.truncate(size - self._lost_bytes)
        return Round(1.0)

    def cleaned(self, number: int) -> list[Path]:
        return [self._work / str(number) / "t-0"]

    def drop(self, number: int) -> None:
        shutil.rmtree(self._work / str(number))


def all_distinct(cache: Path) -> tuple[Built, int]:
    """A log whose keys come once each, and the size of one of its batches in bytes."""
    tiny = WORKLOADS["W1"].scaled(1 / 1024)
    shape = replace(tiny.shape, distinct_records=tiny.records, keys=tiny.records)
    return build(replace(tiny, shape=shape), 1, cache), len(shape.template())


def test_sides_that_leave_the_same_are_measured_in_turns(tmp_path: Path) -> None:
    built, _ = all_distinct(tmp_path)
    sides = [Copier("Kafka", built, tmp_path), Copier(OURS, built, tmp_path)]
    with Floor(built, tmp_path / "work") as floor:
        rounds = measured_rounds(sides, floor, built, 3)
    assert list(rounds) == ["Kafka", OURS, FLOOR]
    assert [len(of) for of in rounds.values()] == [3, 3, 3]
    assert all(one.seconds > 0 for one in rounds[FLOOR])


@pytest.mark.parametrize("wrong", ["Kafka", OURS])
def test_a_side_that_loses_a_batch_ends_the_run(wrong: str, tmp_path: Path) -> None:
    built, batch_bytes = all_distinct(tmp_path)
    sides = [
        Copier(name, built, tmp_path, lost_bytes=batch_bytes if name == wrong else 0)
        for name in ("Kafka", OURS)
    ]
    with (
        Floor(built, tmp_path / "work") as floor,
        pytest.raises(RuntimeError, match=f"{built.survivors} records"),
    ):
        measured_rounds(sides, floor, built, 1)


def test_both_sides_wrong_in_the_same_way_end_the_run(tmp_path: Path) -> None:
    built, batch_bytes = all_distinct(tmp_path)
    sides = [Copier(name, built, tmp_path, lost_bytes=batch_bytes) for name in ("Kafka", OURS)]
    with Floor(built, tmp_path / "work") as floor, pytest.raises(RuntimeError, match="should be left"):
        measured_rounds(sides, floor, built, 1)
