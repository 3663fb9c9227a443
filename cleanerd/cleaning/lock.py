"""The `.lock` of a log directory as cleanerd takes it (architecture 2)."""

import threading

from cleanerd.storage.lock import LogDirLock

_WRITER_LOCK_WAIT_S = 30.0


def commit_lock(log_dir: str, *, is_kafka: bool) -> LogDirLock:
    """The `.lock` of a log directory, to be entered.

    A cooperating writer holds it for the moment of a roll, so it is waited for; a broker for its life, so it is not.
    """
    wait_s = 0.0 if is_kafka else _WRITER_LOCK_WAIT_S
    return LogDirLock(log_dir, wait_s=wait_s, wait=threading.Event().wait)
