"""Which daemon keeps the holds of a log directory: `.cleanerd.lock` names the state directory of the last that worked there.

So whoever finds the log directory finds the holds, without the configuration of that daemon.

====  =======================================  ==================================================================
line  holds                                    what for
====  =======================================  ==================================================================
1     `cleanerd.state.dir=PATH`                the state, which has the holds
2     `state=ID`                               another host may have another state at that path
3     `inode=N` of the log directory           a copy of it has another one
4     the holds, as JSON                       they bind where that state cannot be seen: in another container, or
                                               once it is lost
5     `crc32=N` of the lines before it         a power failure may leave a part of each of two writes
====  =======================================  ==================================================================

The file is empty where no daemon has worked. A write that was interrupted may leave the end of a longer one behind that.
A text that is not whole names a state, but neither its holds nor a copy.
"""

import os
import zlib
from dataclasses import dataclass

from cleanerd.errors import DirOffline
from cleanerd.format.names import CLEANERD_LOCK
from cleanerd.storage.lock import LogDirLock, read_text

_KEY, _ID, _INODE, _CRC = "cleanerd.state.dir=", "state=", "inode=", "crc32="


@dataclass(frozen=True, slots=True)
class Keeper:
    """The daemon that worked in a log directory last. `is_copied`: that was another directory, of which this is a copy.

    `holds`: JSON, empty if they are not known.
    """

    state_dir: str
    state_id: str | None
    is_copied: bool
    holds: str


def read_keeper(log_dir: str) -> Keeper | None:
    """The daemon that worked in `log_dir` last, None for none. Raises DirOffline."""
    text = read_text(log_dir, CLEANERD_LOCK)
    if not text:
        return None
    named, *more = text.split("\n")
    path = named.removeprefix(_KEY)
    if not more or path == named or not path.startswith("/"):
        raise DirOffline(
            f"{log_dir}/{CLEANERD_LOCK}: expected {_KEY}PATH, found {text[:80]!r}, and so the holds are not known; "
            "remove the file while no cleanerd works there, if no hold has to be kept"
        )
    state_id, inode, holds, crc, *_ = [*more, "", "", "", ""]
    is_whole = crc == _crc_of("\n".join((named, state_id, inode, holds, "")))
    is_copied = is_whole and inode != f"{_INODE}{_inode(log_dir)}"
    return Keeper(path, state_id.removeprefix(_ID) or None, is_copied, holds if is_whole else "")


def write_keeper(log_dir: str, lock: LogDirLock, state_dir: str, state_id: str, holds: str) -> None:
    """Have the lock file of `log_dir`, which is held, say what a `Keeper` is made of. Raises DirOffline."""
    text = f"{_KEY}{state_dir}\n{_ID}{state_id}\n{_INODE}{_inode(log_dir)}\n{holds}\n"
    text += f"{_crc_of(text)}\n"
    if read_text(log_dir, CLEANERD_LOCK) != text:
        lock.write(text)


def _crc_of(text: str) -> str:
    return f"{_CRC}{zlib.crc32(text.encode())}"


def _inode(log_dir: str) -> int:
    try:
        return os.stat(log_dir).st_ino
    except OSError as error:
        raise DirOffline(f"{log_dir}: cannot reach the log directory: {error.strerror}") from error
