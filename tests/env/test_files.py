"""Directories that are synced side by side."""

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
