"""The name of a file goes at once, its space a little later, and nobody decides by free space before that."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.env import space
from cleanerd.env.trust import open_directory


@pytest.fixture
def may_free() -> Iterator[threading.Event]:
    """Nothing is freed until the event is set."""
    event = threading.Event()
    space._thread.submit(event.wait, 30)
    yield event
    event.set()


def _unlink(path: str) -> None:
    with open_directory(os.path.dirname(path)) as directory:
        space.unlink(os.path.basename(path), directory)


def _large(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(32 << 20)
    return path


def test_the_name_does_not_wait_for_the_space(tmp_path: Path, may_free: threading.Event) -> None:
    """With a `.lock` held nobody waits for a disk, yet who asks for room sees all of it."""
    _unlink(str(_large(tmp_path / "a")))
    assert not (tmp_path / "a").exists()
    waited = threading.Thread(target=space.wait_for_deleted)
    waited.start()
    waited.join(0.05)
    assert waited.is_alive()
    may_free.set()
    waited.join(30)
    assert not waited.is_alive()


def test_open_files_are_bounded(tmp_path: Path, may_free: threading.Event) -> None:
    """Ten thousand segments that go at once are not ten thousand open files."""

    def count_open() -> int:
        """What else this process has open may be closed meanwhile."""
        links = Path("/proc/self/fd").iterdir()
        return sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

    for number in range(2 * space._MAX_PENDING):
        _unlink(str(_large(tmp_path / str(number))))
    assert os.listdir(tmp_path) == []
    assert 0 < count_open() <= space._MAX_PENDING
    may_free.set()
    space.wait_for_deleted()
    assert count_open() == 0


def test_the_space_comes_back(tmp_path: Path) -> None:
    """By `statvfs` of a real file system, on which others write at the same time: once in a few tries none is in the way."""

    def gained_bytes() -> int:
        (tmp_path / "a").write_bytes(os.urandom(32 << 20))
        os.sync()
        before = space.space_of(str(tmp_path)).free_bytes
        _unlink(str(tmp_path / "a"))
        space.wait_for_deleted()
        return space.space_of(str(tmp_path)).free_bytes - before

    assert any(gained_bytes() > 24 << 20 for _ in range(5))


def test_errors_are_those_of_unlink(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _unlink(str(tmp_path / "nothing"))
    with pytest.raises(IsADirectoryError):
        _unlink(str(tmp_path))


def test_a_link_goes_and_its_target_stays(tmp_path: Path) -> None:
    target = _large(tmp_path / "target")
    (tmp_path / "link").symlink_to(target)
    _unlink(str(tmp_path / "link"))
    assert os.listdir(tmp_path) == ["target"]
