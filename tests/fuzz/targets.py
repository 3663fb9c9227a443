"""What is fed: a target has valid inputs, a way to spoil them, and a reader that may refuse but never fall."""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cleanerd.errors import CleanerdError, Fatal, InternalError
from cleanerd.format.errors import FormatError
from tests.harness.damage.bytes import Mutate, mutated


@dataclass(frozen=True)
class Target:
    """`valid`: inputs of which everything is made. `run`: reads one, with a directory of its own; raises what it meets.

    `names_file`: an error has to name a file below that directory. `cost`: of an input, beside that of a parser: so many
    fewer are made of it. `refusals`: other errors that refuse an input on purpose. Not `is_sound`: the valid inputs are what
    a crash leaves, and may be refused too.
    """

    valid: Callable[[], Sequence[bytes]]
    run: Callable[[bytes, Path], object]
    mutate: Mutate = mutated
    names_file: bool = False
    cost: int = 1
    refusals: tuple[type[Exception], ...] = ()
    is_sound: bool = True

    def input(self, name: str, seed: int) -> bytes:
        return self.mutate(random.Random(f"{name} {seed}"), self._valid)

    def check_valid(self, directory: Path) -> None:
        """The inputs of which everything is made are taken; else there is little to spoil."""
        for data in self._valid:
            assert self.feed(data, directory) or not self.is_sound, f"refused: {data[:100]!r}"

    @functools.cached_property
    def _valid(self) -> Sequence[bytes]:
        found = self.valid()
        assert found
        return found

    def feed(self, data: bytes, directory: Path) -> bool:
        """Whether it was taken; False when it was refused as it should be. Raises everything else."""
        try:
            self.run(data, directory)
        except self.refusals:
            return False
        except FormatError:
            assert not self.names_file, "an error without a file"
            return False
        except (InternalError, Fatal):
            raise
        except CleanerdError as error:
            if self.names_file and str(directory) not in str(error):
                raise AssertionError(f"names no file: {error}") from error
            return False
        return True


def all_targets() -> Mapping[str, Target]:
    """By name. Loads what they need, numba, the daemon and the kernels among it: processes are forked from here."""
    from tests.fuzz import decoders, directories, requests

    directories.load_kernels()
    return {**decoders.TARGETS, **directories.TARGETS, **requests.TARGETS}
