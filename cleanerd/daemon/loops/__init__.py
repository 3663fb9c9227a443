"""The loops of the daemon: each a small object with a thread of its own, over the shared parts."""
