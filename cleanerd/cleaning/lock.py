"""The `.lock` of a log directory as cleanerd takes it (architecture 2)."""

import threading

from cleanerd.storage.lock import POLL_S, LogDirLock

_WRITER_LOCK_WAIT_S = 30.0
_GIVE_WAY_S = 1.5 * POLL_S
_SHARE = 3.0
AIM_S = 0.1
"""Half of what one hold of the lock may take: what it is expected to take."""


def commit_lock(log_dir: str, *, is_kafka: bool) -> LogDirLock:
    """The `.lock` of a log directory, to be entered.

    A cooperating writer holds it for the moment of a roll, so it is waited for; a broker for its life, so it is not.
    """
    wait_s = 0.0 if is_kafka else _WRITER_LOCK_WAIT_S
    return LogDirLock(log_dir, wait_s=wait_s, wait=threading.Event().wait)


def pause_after(lock: LogDirLock, held_s: float) -> float:
    """How long to leave a directory alone, in seconds, before its lock, which is still held, is taken again.

    A waiter gets it then. Without a lease nothing tells whether there is one: three quarters of the time are left.
    """
    if lock.is_wanted:
        return _GIVE_WAY_S
    return 0.0 if lock.is_leased else _SHARE * held_s
