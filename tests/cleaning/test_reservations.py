"""Disk space and memory that cleanings side by side share: reserved before, and a floor that no write crosses."""

import contextlib
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from cleanerd.cleaning.room import Reservations
from cleanerd.env.files import RealFiles
from cleanerd.env.space import Space, floor_bytes, room, space_of
from cleanerd.errors import NoSpace
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import GOOD, assert_cleaned, clean, contents, put, stop_broker, write_logs

GIB = 1 << 30
SLICE_BYTES = 64 << 10


@pytest.mark.parametrize(
    ("total_bytes", "ratio", "floor"),
    [(100 * GIB, 0.1, 10 * GIB), (100 * GIB, 0.0, 64 << 20), (1 << 20, 0.0, (1 << 20) // 100)],
)
def test_floor(total_bytes: int, ratio: float, floor: int) -> None:
    assert floor_bytes(Space(total_bytes, 0), ratio) == floor


def test_a_partition_that_is_deleted_meanwhile_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "t-1").mkdir()
    reservations = Reservations(RealFiles())
    assert reservations.take({str(tmp_path / "t-0"): 1, str(tmp_path / "t-1"): 1}, 0) is None
    with pytest.raises(FileNotFoundError):
        reservations.take({str(tmp_path / "t-0"): 1}, 0)


def test_what_one_cleaning_was_granted_is_not_free_for_another(tmp_path: Path) -> None:
    """But what it has staged of that is used already, and is not counted twice."""
    one, other = tmp_path / "t-0", tmp_path / "t-1"
    one.mkdir()
    other.mkdir()
    free = space_of(str(tmp_path)).free_bytes
    most, slack = free * 6 // 10, free // 20  # others use this disk, too
    reservations = Reservations(RealFiles())
    assert reservations.take({str(one): most}, 0) is None
    room = reservations.take({str(other): most}, 0)
    assert room == pytest.approx(free - most, abs=slack)
    assert reservations.take({str(other): free // 10}, 0) is None
    reservations.release([str(other)])
    with (one / f"{0:020d}.part.cleanerd").open("wb") as part:
        part.truncate(most)  # sparse: of the grant nothing is left, of the disk nothing is taken
    assert reservations.take({str(other): most}, 0) is None
    reservations.release([str(one), str(other)])
    assert reservations.take({str(other): most}, free // 2) == pytest.approx(free - free // 2, abs=slack)


def _fill(place: str, least_free_bytes: int, start: "Barrier") -> None:
    """What a task does: it writes slice after slice while there is room, to a disk that takes its time."""
    start.wait()
    with open(f"{place}/{os.getpid()}", "wb", buffering=0) as part, contextlib.suppress(NoSpace):
        while True:
            with room(place, SLICE_BYTES, least_free_bytes):
                time.sleep(0.001)  # noqa: TID251  # whoever looks now sees what is free no longer
                part.write(bytes(SLICE_BYTES))


def test_the_floor_is_not_crossed_by_processes_that_all_think_they_have_room(tmp_path: Path) -> None:
    """The engines of a daemon know nothing of each other's reservations: who writes sees what is left, one at a time."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=24m", "none"):
        floor, fork = 4 << 20, multiprocessing.get_context("fork")
        start = fork.Barrier(8)
        tasks = [fork.Process(target=_fill, args=(str(tmp_path), floor, start)) for _ in range(8)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join(30)
        assert [task.exitcode for task in tasks] == [0] * 8
        free = space_of(str(tmp_path)).free_bytes
        assert floor <= free < floor + SLICE_BYTES


class Filling(Reservations):
    """Somebody else fills the disk, but for a little more than the floor, once room was granted."""

    def take(self, wanted: "dict[str, int]", least_free_bytes: int) -> int | None:  # type: ignore[override]
        room = super().take(wanted, least_free_bytes)
        place = next(iter(wanted))
        if room is None and "small" in place:
            left = space_of(place).free_bytes - least_free_bytes - 8192
            Path(place).parent.joinpath("filler").write_bytes(bytes(left))
        return room


@pytest.mark.fault("no room before a write")
def test_a_write_that_would_cross_the_floor_fails_its_log_alone(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of it, and the floor still is free."""
    monkeypatch.setattr("cleanerd.cleaning.clean.Reservations", Filling)
    good = write_logs(tmp_path / "logs", GOOD)
    small = tmp_path / "small"
    small.mkdir()
    with mounted(small, "-t", "tmpfs", "-o", "size=24m", "none"):
        write_logs(small, "bad")
        unique = ((b"key %d" % (number % 2_000), os.urandom(60)) for number in range(3_000))  # most stay
        stop_broker(small, {"bad": put(small, "bad", unique, segment_bytes=100_000)})
        before = contents(small / "bad-0")
        ran = clean(spark, small, good)
        assert contents(small / "bad-0") == before
        assert space_of(str(small)).free_bytes >= floor_bytes(space_of(str(small)), 0.0)
    assert "are free on its file system" in ran.reason("bad", "small")
    assert_cleaned(ran, good / f"{GOOD}-0")
