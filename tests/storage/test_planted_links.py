"""Somebody who may write to a log directory puts links there while cleanerd works: nothing outside of it ever changes.

Before an operation the name that it is about is exchanged for a link to somebody else's file; or the partition, or the log
directory, for a link to a directory like it. What the links lead to stays as it was, to the last bit of its times.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from cleanerd.cleaning.delete_records import delete_records
from cleanerd.cleaning.retain import retain_log
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import Files, new_file, open_own
from cleanerd.errors import CleanerdError
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.generation import begin_truncation
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from tests.harness.disks import by_hand
from tests.harness.disks.by_hand import FILES, RETAINED, TP, write_log
from tests.harness.disks.hooked import HookedFiles

Run = Callable[[str, Files], object]
CHANGES = {"write", "truncate", "fsync", "rename", "unlink", "set_mtime_ns"}
SOMEBODY = 65534


def _clean_and_recover(log_dir: str, files: Files) -> None:
    by_hand.clean(log_dir, files)
    recover(PartitionDir.of(files, log_dir, TP), is_kafka=False)


def _recover_what_was_left(log_dir: str, files: Files) -> None:
    by_hand.clean_until(log_dir, ".log.deleted")
    recover(PartitionDir.of(files, log_dir, TP), is_kafka=False)


def _retain(log_dir: str, files: Files) -> None:
    done = retain_log(
        LogDir.at(files, log_dir, FixedNow(330)),
        TP,
        read_checkpoints(FILES, log_dir),
        RETAINED,
        dry_run=False,
    )
    if isinstance(done, CleanerdError):
        raise done


def _delete_records(log_dir: str, files: Files) -> None:
    delete_records(LogDir.at(files, log_dir, FixedNow(330)), TP, 60, RETAINED)


def _begin_another_generation(log_dir: str, files: Files) -> None:
    partition = PartitionDir.of(files, log_dir, TP)
    begin_truncation(partition, "token", like=f"{partition.path}/{min(os.listdir(partition.path))}")


RUNS = (_clean_and_recover, _recover_what_was_left, _retain, _delete_records, _begin_another_generation)


@dataclass
class World:
    """A log, and beside it what nobody may touch: `canary`, a file, and `like_it`, a copy of the log directory."""

    log_dir: Path
    canary: Path
    like_it: Path

    def everything(self) -> dict[str, tuple[object, ...]]:
        paths = [self.canary, self.like_it, *self.like_it.rglob("*")]
        return {str(path): (*_identity(path), path.read_bytes() if path.is_file() else b"") for path in paths}


def _identity(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    return found.st_ino, found.st_uid, found.st_gid, found.st_mode, found.st_mtime_ns, found.st_size


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_dir = tmp_path_factory.mktemp("original") / "logs"
    log_dir.mkdir()
    write_log(log_dir, seed=7)
    return log_dir


@pytest.fixture
def worlds(original: Path, tmp_path: Path) -> Iterator[Callable[[], World]]:
    def fresh() -> World:
        shutil.rmtree(tmp_path / "world", ignore_errors=True)
        (tmp_path / "world").mkdir()
        world = World(
            tmp_path / "world" / "logs", tmp_path / "world" / "canary", tmp_path / "world" / "like it"
        )
        shutil.copytree(original, world.log_dir)
        shutil.copytree(original, world.like_it)
        world.canary.write_bytes(b"root:secret")
        world.canary.chmod(0o600)
        if os.geteuid() == 0:  # so that it would be seen if the canary were given away
            for path in (world.log_dir, *world.log_dir.rglob("*")):
                os.chown(path, SOMEBODY, SOMEBODY)
        return world

    yield fresh
    shutil.rmtree(tmp_path / "world", ignore_errors=True)


def _exchange(path: str, target: Path) -> None:
    """What has the name goes aside; the link is somebody else's where we can make it so."""
    if os.path.lexists(path):
        os.rename(path, f"{path}.aside")
    os.symlink(target, path)
    if os.geteuid() == 0:
        os.lchown(path, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("run", RUNS)
def test_a_link_where_a_new_file_or_name_is_about_to_be(run: Run, worlds: Callable[[], World]) -> None:
    """It gives way: the outcome is the same, and what it leads to stays as it was."""
    plain = worlds()
    run(str(plain.log_dir), FILES)
    expected = _files(plain.log_dir)
    world, planted = worlds(), set[str]()
    before = world.everything()

    def plant(call: str, path: str) -> None:
        if call in ("write", "rename") and not os.path.lexists(path):
            planted.add(path)
            os.symlink(world.canary, path)

    run(str(world.log_dir), HookedFiles(before=plant))
    assert planted
    assert world.everything() == before
    assert _files(world.log_dir) == expected


def _files(directory: Path) -> set[str]:
    """Not a link that was put where nothing came to be after all."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_symlink()}


@pytest.mark.parametrize("run", RUNS)
def test_a_link_in_the_place_of_a_file_at_any_moment(run: Run, worlds: Callable[[], World]) -> None:
    for world, _ in _moments(run, worlds, lambda world, path: _exchange(path, world.canary), step=17):
        assert world.canary.read_bytes() == b"root:secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else's")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("place", ["", str(TP)])
def test_a_link_in_the_place_of_a_directory_at_any_moment(
    run: Run, worlds: Callable[[], World], place: str
) -> None:
    """The partition's, or the log directory itself, for one like it that is not his."""

    def exchange(world: World, _path: str) -> None:
        _exchange(str(world.log_dir / place).rstrip("/"), world.like_it / place)

    for world, is_refused in _moments(run, worlds, exchange, step=13):
        assert is_refused or world.log_dir.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("run", [_clean_and_recover, _begin_another_generation])
def test_another_file_in_the_place_of_one_that_was_just_written_is_not_given_away(
    run: Run, worlds: Callable[[], World]
) -> None:
    """Owner and permissions are those of what was made, by its descriptor: a name may lead to root's by then."""
    world = worlds()
    exchanged = 0

    def exchange(call: str, path: str) -> None:
        nonlocal exchanged
        if call == "write" and not path.endswith(".log.cleanerd"):  # which is cut and joined
            exchanged += 1
            os.unlink(path)
            os.link(world.canary, path)

    with contextlib.suppress(OSError, CleanerdError):
        run(str(world.log_dir), HookedFiles(after=exchange))
    found = world.canary.stat()
    assert exchanged
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)


@dataclass
class Meeting:
    """Calls `exchange` with its path before the change after so many."""

    moment: int
    exchange: Callable[[str], None]
    changes: int = 0

    def __call__(self, call: str, path: str) -> None:
        if call in CHANGES:
            self.changes += 1
            if self.changes == self.moment + 1:
                self.exchange(path)


def _moments(
    run: Run, worlds: Callable[[], World], exchange: Callable[[World, str], None], *, step: int
) -> Iterator[tuple[World, bool]]:
    """Run again and again, with one exchange before a later change each time; nothing outside has changed.

    Yields the world, and whether the run was refused.
    """
    moment = 0
    while True:
        world = worlds()
        before, meeting, is_refused = world.everything(), Meeting(moment, partial(exchange, world)), True
        with contextlib.suppress(OSError, CleanerdError):
            run(str(world.log_dir), HookedFiles(before=meeting))
            is_refused = False
        if meeting.changes <= moment:
            assert moment > 0
            return
        assert world.everything() == before, f"exchanged before change {moment}"
        yield world, is_refused
        moment += step


def test_a_link_that_root_or_we_made_is_followed(worlds: Callable[[], World]) -> None:
    """An operator may name a log directory by a link, as long as nobody else can exchange that."""
    world = worlds()
    link = world.log_dir.parent / "link"
    link.symlink_to(world.log_dir)
    FILES.write(f"{link}/new", b"content")
    assert (world.log_dir / "new").read_bytes() == b"content"
    link.parent.chmod(0o777)
    with pytest.raises(OSError, match="another user could have put there"):
        FILES.write(f"{link}/other", b"content")
    link.parent.chmod(0o1777)
    FILES.write(f"{link}/other", b"content")


def test_a_new_file_never_runs_as_its_owner(tmp_path: Path) -> None:
    """The permissions of the file that it replaces, without set-user-ID; a link has no permissions to give."""
    (tmp_path / "like").touch()
    (tmp_path / "like").chmod(0o6755)
    os.close(new_file(str(tmp_path / "new"), str(tmp_path / "like")))
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o755
    (tmp_path / "link").symlink_to("like")
    link = str(tmp_path / "link")
    with pytest.raises(OSError, match="found a symbolic link"):
        new_file(str(tmp_path / "new"), link)
    with pytest.raises(OSError, match="found a symbolic link"):
        open_own(link, os.O_RDONLY)
