"""The one error of pure format code: it knows the byte, its caller knows the file."""

from collections.abc import Iterator
from contextlib import contextmanager

from cleanerd.errors import CorruptFile, as_fact


class FormatError(ValueError):
    """Bytes do not follow the format.

    `position` is the byte at which it shows, in the data handed to the parser; `expected` and `found` in
    words or numbers. A caller that knows the path turns it into a `CorruptFile`, see `corruption_in`.
    """

    def __init__(self, position: int, expected: object, found: object) -> None:
        super().__init__(f"at byte {position}: expected {expected}, found {found}")
        self.position = position
        self.expected = as_fact(expected)
        self.found = as_fact(found)

    def __reduce__(self) -> tuple[type["FormatError"], tuple[int, object, object]]:
        """Crosses process borders (Spark tasks) with its facts."""
        return (type(self), (self.position, self.expected, self.found))


class Padded(FormatError):
    """The file has only zeros from `position` on: preallocated space that was never written."""


@contextmanager
def corruption_in(path: str, start: int = 0) -> Iterator[None]:
    """Turn a FormatError inside the block into a CorruptFile; `start` is the file position of the parsed bytes."""
    try:
        yield
    except FormatError as error:
        raise CorruptFile(path, start + error.position, error.expected, error.found) from error
