"""What is asked of the file system: directories that are synced side by side, and what is not there."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cleanerd.env import files
from cleanerd.env.files import RealFiles


def test_what_goes_wrong_with_one_directory_is_its_own(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("a", "gone", "b")]
    for directory in (directories[0], directories[2]):
        directory.mkdir()
    found = RealFiles().fsync_dirs([str(directory) for directory in directories])
    assert [type(error) for error in found] == [type(None), FileNotFoundError, type(None)]
    assert found[1] is not None
    assert found[1].filename == str(directories[1])
    assert RealFiles().fsync_dirs([]) == []


def test_a_process_that_is_ending_syncs_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads take nothing any more, and a commit that is under way goes on."""
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(files, "_sync_threads", ended)
    assert RealFiles().fsync_dirs([str(tmp_path)] * 3) == [None] * 3


def test_what_cannot_be_looked_up_is_not_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a broker's directory whose `meta.properties` cannot be reached for a moment would pass for nobody's."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    absent = ("none", "file/none", "loop", "x" * 300)
    assert not any(RealFiles().exists(str(tmp_path / name)) for name in absent)
    assert RealFiles().exists(str(tmp_path / "file"))

    def stat(path: str) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(OSError, match="Input/output"):
        RealFiles().exists("file")


def test_a_file_frees_what_it_takes_of_the_disk_with_its_last_name_only(tmp_path: Path) -> None:
    """A backup by hard links makes no other file of it."""
    path, real = tmp_path / "file", RealFiles()
    path.write_bytes(bytes(10_000))
    with path.open("r+b") as file:
        file.truncate(10 << 20)
    alone = real.stat(str(path))
    os.link(path, tmp_path / "backup")
    linked = real.stat(str(path))
    assert alone == linked
    assert (10_000 <= alone.frees_bytes <= 64 << 10, linked.frees_bytes) == (True, 0)


def test_errors_name_the_whole_path(tmp_path: Path) -> None:
    """What goes by descriptors, too: an operator has to find the file."""
    gone, target = str(tmp_path / "none" / "file"), str(tmp_path / "target")
    real = RealFiles()
    for call in (
        lambda: real.write(gone, b""),
        lambda: real.fsync(gone),
        lambda: real.truncate(gone, 0),
        lambda: real.unlink(gone),
        lambda: real.unlink(target),
        lambda: real.fsync(target),
        lambda: real.rmdir(target),
        lambda: real.rename(target, gone),
        lambda: real.rename(gone, target),
        lambda: real.set_mtime_ns(target, 0),
    ):
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            call()
