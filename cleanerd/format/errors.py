"""The one error of pure format code: it knows the byte, its caller knows the file."""


class FormatError(ValueError):
    """Bytes are not what the format says.

    `position` is the byte at which it shows, in the data handed to the parser; `expected` and `found` in
    words or numbers. A caller that knows the path turns it into `cleanerd.errors.CorruptFile`.
    """

    def __init__(self, position: int, expected: object, found: object) -> None:
        super().__init__(f"at byte {position}: expected {expected}, found {found}")
        self.position = position
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type["FormatError"], tuple[int, object, object]]:
        """Crosses process borders (Spark tasks) with its facts."""
        return (FormatError, (self.position, self.expected, self.found))
