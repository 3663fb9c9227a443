"""A part that cannot be made leaves no descriptor open: a worker makes thousands of them."""

import os
from pathlib import Path

import pytest

from cleanerd.pipeline.part_file import PartFile


def test_part_that_cannot_be_made_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = tmp_path / "like"
    like.touch(mode=0o600)

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "fchmod", refuse)
    part = str(tmp_path / "part")
    with pytest.raises(PermissionError), PartFile(part, str(like), 0):
        pass
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    assert part not in [os.readlink(fd) for fd in fds if os.path.islink(fd)]
