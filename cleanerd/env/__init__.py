"""The outside world as values: clock and file system, handed in so that tests can stop time and cut power."""
