"""The loops of the daemon: each a small object with a `step` that a thread of its own repeats."""
