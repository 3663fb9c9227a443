"""Real files of a process that is killed before some operation: nothing of it and of what follows happens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

from tests.harness.disks.counted import CountedFiles
from tests.harness.disks.simulated import SwitchedOff


class KilledFiles(CountedFiles):
    """Raises SwitchedOff instead of doing operation number `left`; `done` counts those before."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.done = 0

    def count(self) -> None:
        if self.done >= self.left:
            raise SwitchedOff
        self.done += 1

    def fsync(self, path: str) -> None:
        """Only counted: what a killed process did is seen whether it was synced or not."""
        self.count()


def killed_at_every_operation(
    pristine: Path, work: Path, action: Callable[[Path, KilledFiles], object]
) -> Iterator[Path]:
    """A copy of `pristine` for every operation before which the process of `action` can be killed, and one all done."""
    for left in range(10_000):
        log_dir = work / str(left)
        copytree(pristine, log_dir)
        try:
            action(log_dir, KilledFiles(left))
        except SwitchedOff:
            yield log_dir
            continue
        yield log_dir
        return
    raise AssertionError("it never ends")
