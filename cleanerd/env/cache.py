"""Where cleanerd keeps what it can make again: what Java runtimes report, wrappers, compiled kernels.

All of that is executed sooner or later, so a directory in which another user could have put something is not used.
"""

import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator, Mapping


def cache_directory(environment: Mapping[str, str]) -> str:
    """systemd's cache directory, else that of the user. It may not exist yet, and it may not be writable.

    A user without a home that can be written, as in containers, has one among the temporary files.
    """
    given = environment.get("CACHE_DIRECTORY", "").split(":")[0]
    if given:
        return given
    if environment.get("XDG_CACHE_HOME"):
        return os.path.join(environment["XDG_CACHE_HOME"], "cleanerd")
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.access(home, os.W_OK | os.X_OK):
        return os.path.join(home, ".cache", "cleanerd")
    return os.path.join(tempfile.gettempdir(), f"cleanerd-{os.geteuid()}")


def write_whole(path: str, text: str, mode: int) -> None:
    """Write a file there whole or not at all, also with another process at the same. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(temporary, path)


def why_untrusted(directory: str, *, is_vouched_for: bool = False) -> str | None:
    """Why another user could have written what lies in `directory`; None if only this one or root could.

    `is_vouched_for`: whoever named the directory answers for those above, in which another user could put one in its place.
    """
    path = os.path.realpath(directory)
    above = "/" if is_vouched_for else path
    while above != (above := os.path.dirname(above)):
        wrong = _why_open(above, is_sticky_enough=True)
        if wrong is not None:
            return wrong
    return next((wrong for place in _below(path) if (wrong := _why_open(place)) is not None), None)


def _below(path: str) -> Iterator[str]:
    """The directory and all in it; not what lies in a directory that only its owner can enter."""
    yield path
    for root, directories, files in os.walk(path):
        if not os.stat(root).st_mode & 0o077:
            directories.clear()
            continue
        yield from (os.path.join(root, name) for name in (*directories, *files))


def _why_open(path: str, *, is_sticky_enough: bool = False) -> str | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (is_sticky_enough and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"every user may write to {path}"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return f"group {found.st_gid} may write to {path}"
    return None


def _is_private(gid: int) -> bool:
    """Whether a group has no member but this user: `useradd` makes such ones, and their files are often open to it."""
    try:
        me = pwd.getpwuid(os.geteuid())
        return me.pw_gid == gid and set(grp.getgrgid(gid).gr_mem) <= {me.pw_name}
    except KeyError:
        return False
