"""As root, become the owner of the log directories, before any file is created there and before a JVM starts.

Then cleanerd can do no more in a directory than its owner could, whatever files lie there, and new files have the right
owner. The configuration is read before that, because that of a one-shot may be readable by root only. cleanerd stays root
for directories of root, and if their owner cannot reach them or cleanerd's own files: then only `env/trust.py` protects it.
"""

import contextlib
import os
import pwd
import sys
from collections.abc import Iterable, Mapping, Sequence

import cleanerd
from cleanerd.cli.output import print_message
from cleanerd.env.files import RealFiles
from cleanerd.env.trust import open_directory, why_open
from cleanerd.errors import BadUsage, CleanerdError, DirOffline, Fatal
from cleanerd.storage.lock import probe
from cleanerd.storage.no_log_dir import why_no_log_dir


def become_owner(log_dirs: Sequence[str], made_for_him: Iterable[str] = ()) -> bool:
    """Give up root for good, if this is root and the directories belong to somebody else; returns whether it did.

    `made_for_him`: directories that he needs and may not be able to make. Raises BadUsage for directories of several users,
    or one behind a link that somebody else could exchange; Fatal where the system refuses.
    """
    if os.geteuid() != 0:
        return False
    owners = _owners(log_dirs)
    if len({(found.st_uid) for found in owners.values()}) > 1:
        whose = ", ".join(f"{path}: {_name(found.st_uid)}" for path, found in owners.items())
        raise BadUsage(
            f"the log directories belong to different users ({whose}). As root cleanerd becomes their owner: name those of "
            "one user at a time with --log-dir, or give all of them the same owner"
        )
    owner = next(iter(owners.values()), None)
    if owner is None or owner.st_uid == 0:
        return False
    _become(owner.st_uid, owner.st_gid, [*owners], made_for_him)
    return os.geteuid() != 0


def _owners(log_dirs: Sequence[str]) -> Mapping[str, os.stat_result]:
    """Owners by path, as `stat` results; the empty mount point of a missing disk, which is root's, is ignored."""
    found = {}
    for path in log_dirs:
        try:
            with open_directory(path) as fd:
                found[path] = os.fstat(fd)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # whoever uses it says so
        except OSError as error:
            raise BadUsage(f"{path}: {error.strerror}") from error
    return {path: one for path, one in found.items() if _is_log_dir(path)} or found


def _is_log_dir(path: str) -> bool:
    with contextlib.suppress(CleanerdError, OSError):
        return why_no_log_dir(RealFiles(), path) is None
    return False


def _make(directory: str, uid: int, gid: int) -> None:
    """Create a directory if it is missing; failures are reported later, by the code that needs it."""
    parent, name = os.path.split(os.path.abspath(directory))
    try:
        with open_directory(parent) as place:
            if why_open(parent, os.fstat(place), is_sticky_enough=True) is not None:
                return  # somebody could exchange it for another one of root's, and may be able to make it himself
            os.mkdir(name, 0o750, dir_fd=place)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            try:
                os.fchown(made, uid, gid)
            finally:
                os.close(made)
    except OSError:
        return


def _become(uid: int, gid: int, log_dirs: Sequence[str], made_for_him: Iterable[str]) -> None:
    """The user and his groups; the directory's group comes first, as in the broker that made the directory."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:  # a container's
        groups, home = [gid], "/"
    else:
        groups, home = os.getgrouplist(user.pw_name, user.pw_gid), user.pw_dir
    running = _brokers_group(log_dirs, uid)
    if running is not None:
        gid, groups = running, list(dict.fromkeys([running, gid, *groups]))
    mine = os.getgroups(), os.getresgid()
    try:
        os.setgroups(groups)
        os.setresgid(*[gid if gid in groups else groups[0]] * 3)
        os.seteuid(uid)
        needed = (sys.executable, os.__file__, cleanerd.__file__, *log_dirs)
        unreadable = next(filter(_is_unreadable, needed), None)
        os.seteuid(0)
        if unreadable is None:
            for directory in made_for_him:
                _make(directory, uid, os.getegid())
            os.setresuid(uid, uid, uid)
        else:
            os.setresgid(*mine[1])
            os.setgroups(mine[0])
    except OSError as error:
        raise Fatal(
            f"root cannot become {_name(uid)}, who owns the log directories ({error.strerror}): start cleanerd as that user"
        ) from error
    if unreadable is None:
        print_message(f"the log directories belong to {_name(uid)}: cleanerd goes on as that user")
        _settle(home)
    else:
        print_message(
            f"the log directories belong to {_name(uid)}, who cannot read {unreadable}: cleanerd goes on as root"
        )


def _brokers_group(log_dirs: Sequence[str], uid: int) -> int | None:
    """The group of the user's broker that runs there, None for none: its JVM lets in nobody of another one."""
    for path in log_dirs:
        with contextlib.suppress(DirOffline, OSError):
            pid = probe(path)
            found = os.stat(f"/proc/{pid}") if pid else None  # 0: one that the kernel does not name
            if found is not None and found.st_uid == uid:
                return found.st_gid
    return None


def _is_unreadable(path: str) -> bool:
    try:  # not `os.access`, which asks with a call that old sandboxes refuse
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return True
    return False


def _settle(home: str) -> None:
    """Replace root's home and user name in the environment of this process."""
    os.environ["HOME"] = home
    for name in ("TMPDIR", "XDG_CACHE_HOME", "CACHE_DIRECTORY", "NUMBA_CACHE_DIR"):
        if name in os.environ and not os.access(os.environ[name], os.W_OK | os.X_OK):
            del os.environ[name]
    if not os.access(".", os.R_OK | os.X_OK):
        os.chdir("/")


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
