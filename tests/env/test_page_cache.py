"""What the page cache holds of a file, and what it holds no more."""

import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanerd.env.page_cache import Ranges, borrowed, cold_ranges, drop, size_bytes, within

BLOCK = 2 << 20
BLOCKS = 8
SIZE = BLOCKS * BLOCK + 5000  # the last block is short


@contextmanager
def cold_file(path: Path) -> Iterator[int]:
    path.write_bytes(os.urandom(BLOCK) * BLOCKS + bytes(5000))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        drop(fd, ((0, SIZE),))
        if not cold_ranges(fd, SIZE):
            pytest.skip("a file system without a page cache of its own (tmpfs)")
        yield fd
    finally:
        os.close(fd)


def resident_bytes(path: Path) -> int:
    """The plain twin."""
    told = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, check=True
    )
    return int(told.stdout)


def test_a_block_is_cold_as_long_as_no_page_of_it_is_read(tmp_path: Path) -> None:
    with cold_file(tmp_path / "log") as fd:
        assert cold_ranges(fd, SIZE) == ((0, SIZE),)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        os.pread(fd, 1, 3 * BLOCK + 70_000)
        assert cold_ranges(fd, SIZE) == ((0, 3 * BLOCK), (4 * BLOCK, SIZE))
        os.pread(fd, 1, SIZE - 1)
        assert cold_ranges(fd, SIZE) == ((0, 3 * BLOCK), (4 * BLOCK, BLOCKS * BLOCK))
        assert resident_bytes(tmp_path / "log") == 2 * mmap.PAGESIZE, "to ask reads nothing"


def test_what_was_borrowed_is_given_back_and_what_was_there_stays(tmp_path: Path) -> None:
    with cold_file(tmp_path / "log") as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, BLOCK, 2 * BLOCK)
        with borrowed(fd, SIZE):
            os.pread(fd, SIZE, 0)
            assert cold_ranges(fd, SIZE) == ()
        assert cold_ranges(fd, SIZE) == ((0, 2 * BLOCK), (3 * BLOCK, SIZE))
        assert resident_bytes(tmp_path / "log") == BLOCK


def test_holes_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(8 << 40)
        file.seek(4 << 40)
        file.write(bytes(BLOCK))
        file.flush()
        os.fsync(file.fileno())
        drop(file.fileno(), ((4 << 40, (4 << 40) + BLOCK),))
    with path.open("rb") as file:
        assert cold_ranges(file.fileno(), 8 << 40) in (((4 << 40, (4 << 40) + BLOCK),), ())


def test_an_empty_file_and_one_of_another_kind_have_nothing_to_give_back(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    fd = os.open(tmp_path / "empty", os.O_RDONLY)
    reading, writing = os.pipe()
    try:
        assert cold_ranges(fd, 0) == ()
        assert cold_ranges(reading, 4096) == ()
    finally:
        for one in (fd, reading, writing):
            os.close(one)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 100, ((10, 20), (40, 60))), (15, 50, ((15, 20), (40, 50))), (20, 40, ()), (60, 61, ())],
)
def test_ranges_are_clipped(start: int, end: int, expected: Ranges) -> None:
    found = within(((10, 20), (40, 60)), start, end)
    assert found == expected
    assert size_bytes(found) == sum(stop - begin for begin, stop in expected)
