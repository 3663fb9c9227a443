"""Parts written straight to their place: the same bytes as parts that are joined, whoever is late, large or fails."""

import fcntl
import os
import random
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cleanerd.errors import Aborted, NoSpace
from cleanerd.pipeline.part_file import PartFile
from cleanerd.spark_runtime.channel import Reporter
from cleanerd.spark_runtime.messages import Place
from cleanerd.spark_runtime.place import PlaceClient, places

PARTS = 9
PATIENCE_S = 20


class Group:
    """The parts of a group, each written by a thread of its own as a task writes it."""

    def __init__(
        self, directory: Path, reporter: Reporter, *, log: int = 0, held_bytes: int = 1 << 20
    ) -> None:
        self.path, self.like = directory / f"{log}.part", directory / "source"
        self.like.write_bytes(b"source")
        self._reporter, self._log, self._held_bytes = reporter, log, held_bytes
        self.errors: dict[int, BaseException] = {}
        self.starts: dict[int, int] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, number: int, slices: Sequence[bytes], then: Callable[[], None] = lambda: None) -> None:
        """Write a part; `then` happens before it is finished."""

        def write() -> None:
            asked = PlaceClient(Place(self._log, 3, number), self._reporter)
            try:
                with PartFile(
                    str(self.path), str(self.like), 0, asked=asked, held_bytes=self._held_bytes
                ) as part:
                    for data in slices:
                        part.write(np.frombuffer(data, np.uint8))
                    then()
                    part.finish()
                    self.starts[number] = part.start
            except (Aborted, OSError, NoSpace) as error:
                self.errors[number] = error

        thread = threading.Thread(target=write)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "it waits for ever"


def contents(seed: int) -> list[list[bytes]]:
    """Slices of parts; one part is empty."""
    rng = random.Random(seed)
    found = [[rng.randbytes(rng.randrange(9000)) for _ in range(rng.randrange(1, 6))] for _ in range(PARTS)]
    found[rng.randrange(PARTS)] = []
    return found


@pytest.mark.parametrize("held_bytes", [0, 5_000, 1 << 30], ids=["nothing held", "a little held", "all held"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_the_file_holds_one_part_behind_the_other(
    tmp_path: Path, seed: int, held_bytes: int
) -> None:
    """Two groups side by side. What is held of a part has an end; behind it the part waits, with no size to tell yet."""
    parts = contents(seed)
    with places() as reporter:
        groups = [Group(tmp_path, reporter, log=log, held_bytes=held_bytes) for log in range(2)]
        order = [(group, number) for group in groups for number in range(PARTS)]
        random.Random(seed).shuffle(order)
        for group, number in order:
            group.begin(number, parts[number])
        for group in groups:
            group.end()
    whole = [b"".join(slices) for slices in parts]
    for group in groups:
        assert group.errors == {}
        assert group.path.read_bytes() == b"".join(whole)
        assert group.starts == {n: len(b"".join(whole[:n])) for n in range(PARTS)}


def test_a_part_is_written_while_no_other_one_is(tmp_path: Path) -> None:
    """Two that write to one file at a time wait for each other at every system call."""
    with places() as reporter:
        group = Group(tmp_path, reporter)
        group.begin(0, [b"0"])
        group.end()
        with group.path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            group.begin(1, [b"1", b"2"])
            group._threads[-1].join(0.2)
            assert group.path.read_bytes() == b"0"
        group.end()
    assert group.path.read_bytes() == b"012"


def test_a_part_that_fails_stops_those_behind_it_and_no_other(tmp_path: Path) -> None:
    """The error of the first one is that of the log: those before it must not fail of it."""

    def fail() -> None:
        raise OSError("disk")

    with places() as reporter:
        group = Group(tmp_path, reporter)
        for number in (4, 3, 2, 1):
            group.begin(number, [b"%d" % number], fail if number == 3 else lambda: None)
        group.begin(0, [b"0"])
        group.end()
    assert sorted(group.starts) == [0, 1, 2]
    assert group.path.read_bytes() == b"012"
    assert str(group.errors.pop(3)) == "disk"
    assert [type(error) for error in group.errors.values()] == [Aborted]


@pytest.mark.fault("a file system that becomes read-only")
def test_a_file_that_cannot_be_made_stops_all_parts(tmp_path: Path) -> None:
    """As on a file system that has become read-only."""
    with places() as reporter:
        group = Group(tmp_path, reporter)
        group.path.mkdir()  # cannot be unlinked, and no file made in its place
        for number in (2, 1, 0):
            group.begin(number, [b"data"])
        group.end()
    assert isinstance(group.errors.pop(0), OSError)
    assert sorted(group.errors) == [1, 2]
    assert {type(error) for error in group.errors.values()} == {Aborted}


def test_when_the_job_ends_nobody_waits(tmp_path: Path) -> None:
    """A task whose predecessor died without a word."""
    waits = threading.Event()
    with places() as reporter:
        group = Group(tmp_path, reporter)
        group.begin(1, [b"1"], waits.set)
        assert waits.wait(PATIENCE_S)
    group.end()
    assert isinstance(group.errors[1], Aborted)


def test_the_first_part_makes_a_new_file_that_looks_like_its_source(tmp_path: Path) -> None:
    """What is left of a session that died may still write to the old one; a broker has to be able to read the new one."""
    with places() as reporter:
        group = Group(tmp_path, reporter)
        group.like.chmod(0o640)
        group.path.write_bytes(b"of an earlier session")
        with group.path.open("r+b") as late:
            group.begin(0, [b"new"])
            group.end()
            late.write(b"xxxxxxxxxxxxxxxxxxxxx")
    assert group.path.read_bytes() == b"new"
    assert stat.S_IMODE(os.stat(group.path).st_mode) == 0o640
