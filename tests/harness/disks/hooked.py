"""Real files of which a call is met by something: it fails, somebody else changes the file, a test takes a note."""

from collections.abc import Callable
from typing import Any

from cleanerd.env.files import RealFiles

CALLS = (
    "list_names", "read", "read_to_hole", "write", "truncate", "fsync", "fsync_dir", "rename", "unlink", "rmdir",
    "set_mtime_ns",
)  # fmt: skip
Hook = Callable[[str, str], object]


def nothing(_call: str, _path: str) -> None:
    """Nothing happens."""


class HookedFiles(RealFiles):
    """`before` and `after` get each call and its path, of a rename the target. Where `before` raises, nothing is done."""

    def __init__(self, before: Hook = nothing, after: Hook = nothing) -> None:
        self.before, self.after = before, after


def _hooked(name: str) -> Any:
    real = getattr(RealFiles, name)

    def call(files: HookedFiles, *arguments: Any) -> Any:
        path = arguments[1] if name == "rename" else arguments[0]
        files.before(name, path)
        found = real(files, *arguments)
        files.after(name, path)
        return found

    return call


for _name in CALLS:
    setattr(HookedFiles, _name, _hooked(_name))
