"""Real files of which every change is counted before it is made: the places at which a process can be killed."""

from abc import ABC, abstractmethod
from typing import Any

from cleanerd.env.files import RealFiles
from tests.harness.disks.simulated import SwitchedOff

CHANGES = (
    "write",
    "truncate",
    "fsync",
    "fsync_dir",
    "rename",
    "unlink",
    "rmdir",
    "set_mtime_ns",
    "copy_in",
)


class CountedFiles(RealFiles, ABC):
    """What to do before a change is for those who derive from it."""

    @abstractmethod
    def count(self) -> None:
        """A change is about to be made; whoever raises here prevents it."""


class StoppingFiles(CountedFiles):
    """Raises SwitchedOff instead of the operation after so many."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise SwitchedOff


def _counted(name: str) -> Any:
    real = getattr(RealFiles, name)

    def change(files: CountedFiles, *arguments: Any) -> None:
        files.count()
        real(files, *arguments)

    return change


for _name in CHANGES:
    setattr(CountedFiles, _name, _counted(_name))
