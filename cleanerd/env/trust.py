"""Which other users could have put a file or link at a path, by its owners and permissions.

With a link, another user could make us write, give away or load a file that is not theirs. So directories are opened through
no link that anybody but root and our own user could have made; everything after that goes through the directory's
descriptor.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40  # as the kernel's


@contextlib.contextmanager
def open_directory(path: str, flags: int = os.O_PATH) -> Iterator[int]:
    """A descriptor of a directory, closed at the end of the block.

    A link on the way is followed if root or we made it, where nobody else can exchange it: so an operator may name a log
    directory by a link. Raises OSError, with ELOOP for any other link.
    """
    fd = _open_directly(path or ".", flags)
    if fd is None:
        way = _walk(path or ".")
        try:
            fd = os.open(".", flags | _DIRECTORY, dir_fd=way)
        finally:
            os.close(way)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_directly(path: str, flags: int) -> int | None:
    """The directory, if no link was followed: the kernel knows it by the very name that was asked for. A tenth of a walk."""
    try:
        fd = os.open(path, flags | _DIRECTORY)
    except NotADirectoryError:
        return None
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{fd}") == path:
            return fd
    os.close(fd)
    return None


def _walk(path: str) -> int:
    """The directory, name by name."""
    fd, left, links = os.open("/" if path.startswith("/") else ".", os.O_PATH | _DIRECTORY), _names(path), 0
    try:
        while left:
            name = left.pop()
            try:
                inner = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=fd)
            except NotADirectoryError:
                links += 1
                target = _link(name, fd, path, links)
                left += _names(target)
                if not target.startswith("/"):
                    continue
                inner = os.open("/", os.O_PATH | _DIRECTORY)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _names(path: str) -> list[str]:
    """The components of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name]


def _link(name: str, directory: int, path: str, links: int) -> str:
    """The target of a link that may be followed. Raises OSError."""
    found, place = os.stat(name, dir_fd=directory, follow_symlinks=False), os.fstat(directory)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    wrong = why_open(f"the directory of {name}", place, is_sticky_enough=True)
    if found.st_uid not in (0, os.geteuid()):
        wrong = f"{name} belongs to user {found.st_uid}"
    if wrong is not None or links > _LINKS_MAX:
        reason = (
            f"a symbolic link that another user could have put there ({wrong})"
            if wrong
            else "links that end nowhere"
        )
        raise OSError(errno.ELOOP, f"expected a directory, found {reason}", path)
    return os.readlink(name, dir_fd=directory)


def why_open(
    name: str, found: os.stat_result, *, is_sticky_enough: bool = False, user: int | None = None
) -> str | None:
    """Why another user could change this file, or the names in this directory; None if only root and `user` can.

    `is_sticky_enough`: accept a directory with the sticky bit, where everybody may create names but remove only their own.
    `user`: None for our own.
    """
    user = os.geteuid() if user is None else user
    if found.st_uid not in (0, user):
        return f"{name} belongs to user {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (is_sticky_enough and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"every user may write to {name}"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, user):
        return f"group {found.st_gid} may write to {name}"
    return None


def why_exposed(path: str, *, above: bool = True, user: int | None = None) -> str | None:
    """Why another user could have put this file there, or one of the directories up to the root; None if nobody could.

    `above`: False to trust the directories above, because the operator named the path. `user`: as in `why_open`.
    """
    path = place = os.path.realpath(path)
    wrong = why_exposed_itself(path, user=user)
    while above and wrong is None and place != (place := os.path.dirname(place)):
        wrong = why_exposed_itself(place, is_sticky_enough=True, user=user)
    return wrong


def why_exposed_itself(path: str, *, is_sticky_enough: bool = False, user: int | None = None) -> str | None:
    """As `why_exposed`, without the directories above; None also if nothing is there. A link is not followed."""
    try:
        return why_open(path, os.lstat(path), is_sticky_enough=is_sticky_enough, user=user)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path}: {error.strerror}"


def _is_private(gid: int, user: int) -> bool:
    """Whether a group has no member but this user: `useradd` makes such ones, and their files are often open to it."""
    try:
        me = pwd.getpwuid(user)
        return me.pw_gid == gid and set(grp.getgrgid(gid).gr_mem) <= {me.pw_name}
    except KeyError:
        return False
