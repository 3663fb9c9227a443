"""Whole days of a cleaner's life in seconds, by seed: `python -m tests.simulation` (the head of `__main__`)."""
