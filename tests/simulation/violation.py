"""What a judge raises."""


class Violation(AssertionError):
    """Something that must hold does not."""
