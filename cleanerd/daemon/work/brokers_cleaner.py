"""Whether the cleaner of a live broker is seen at work: cleanerd leaves it what it will clean by itself.

Configuration is not enough: Kafka 5 ignores log.cleaner.enable, and a cleaner thread that died goes unnoticed. But
while a broker owns a log directory only the broker writes `cleaner-offset-checkpoint` there, and its cleaner does so after
every log. So a checkpoint file that is another one than when this owner was first seen means a cleaner that works,
unless the broker has answered that its cleaner is off: then whoever swaps writes that file.
"""

import os

from cleanerd.broker_agent.swap import Swapped
from cleanerd.env.files import Files, FileStat
from cleanerd.format.names import CLEANER_OFFSET_CHECKPOINT


class BrokersCleaner:
    """Signs of the broker's cleaner in each log directory. Thread-safe: every entry is replaced as a whole."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._first_seen: dict[str, tuple[int, FileStat | None]] = {}
        self._is_off: set[str] = set()  # in the broker that owns the log directory

    def observe(self, log_dir: str, owner: int | None) -> None:
        """Note who owns the log directory now: a pid, 0 if the kernel does not name it, None if nobody does."""
        if owner is None:
            self._first_seen.pop(log_dir, None)
            self._is_off.discard(log_dir)
        elif self._first_seen.get(log_dir, (None, None))[0] != owner:
            self._first_seen[log_dir] = (owner, self._checkpoint(log_dir))
            self._is_off.discard(log_dir)

    def asked_to_swap(self, log_dir: str, answer: Swapped) -> None:
        """The answer of the broker that owns the log directory."""
        if not answer.has_cleaner:
            self._is_off.add(log_dir)

    def is_at_work(self, log_dir: str) -> bool:
        """Whether the broker that owns the log directory has cleaned a log since it was first seen there."""
        seen = self._first_seen.get(log_dir)
        return seen is not None and log_dir not in self._is_off and self._checkpoint(log_dir) != seen[1]

    def is_off(self, log_dir: str) -> bool:
        """Whether the broker that owns the log directory has said that its cleaner is off."""
        return log_dir in self._is_off

    def _checkpoint(self, log_dir: str) -> FileStat | None:
        try:
            return self._files.stat(os.path.join(log_dir, CLEANER_OFFSET_CHECKPOINT))
        except OSError:
            return None
