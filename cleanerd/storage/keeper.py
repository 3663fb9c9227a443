"""Which daemon keeps the holds of a log directory: `.cleanerd.lock` names the state directory of the last that worked there.

So whoever finds the log directory finds the holds, without the configuration of that daemon. The file holds one line,
`cleanerd.state.dir=PATH`; it is empty where no daemon has worked.
"""

from cleanerd.errors import DirOffline
from cleanerd.format.names import CLEANERD_LOCK
from cleanerd.storage.lock import LogDirLock, read_text

_KEY = "cleanerd.state.dir="


def read_keeper(log_dir: str) -> str | None:
    """The state directory of the daemon that worked in `log_dir` last, None for none. Raises DirOffline."""
    text = read_text(log_dir, CLEANERD_LOCK)
    if not text:
        return None
    line, end, _ = text.partition("\n")  # a write that was interrupted may leave the end of a longer one
    path = line.removeprefix(_KEY)
    if not end or path == line or not path.startswith("/"):
        raise DirOffline(
            f"{log_dir}/{CLEANERD_LOCK}: expected {_KEY}PATH, found {text[:80]!r}, and so the holds are not known; "
            "remove the file while no cleanerd works there, if no hold has to be kept"
        )
    return path


def write_keeper(log_dir: str, lock: LogDirLock, state_dir: str) -> None:
    """Have the lock file of `log_dir`, which is held, name the daemon that keeps `state_dir`. Raises DirOffline."""
    if read_keeper(log_dir) != state_dir:
        lock.write(f"{_KEY}{state_dir}\n")
