"""The unix socket of the control API: its creation, and the identity of its peers.

Creation, in this order, under a lock on the directory so that two daemons cannot do it at once:

1. connect to an existing socket: if a process answers, it keeps the socket and this process ends with an error;
2. remove a socket that does not answer; any other kind of file is an error;
3. bind under a umask of 0117, so that the socket never has any other mode than 0660;
4. listen.

A socket that the service manager has made already (LISTEN_FDS, LISTEN_PID) is taken as it is, with mode and group of its
unit, and is never removed.
"""

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

from cleanerd.errors import Fatal

_BACKLOG = 64
_UMASK = 0o117  # leaves 0660
_FIRST_PASSED_FD = 3
_SO_PEERGROUPS = 59  # Linux 4.13; the socket module has no name for it
_PROBE_TIMEOUT_S = 2.0


class SocketUnusable(Fatal):
    """The control socket cannot be made: another process answers on it, or its path is not usable."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has connected; `groups` are its supplementary groups."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Listening:
    """The socket that requests come in on; `inode` is that of its file, None where the service manager made it."""

    socket: socket.socket
    inode: int | None

    def close(self) -> None:
        """Stop listening and remove the socket file that `listen` made, unless another file has replaced it."""
        with contextlib.suppress(OSError):
            path = self.socket.getsockname()
            if os.stat(path).st_ino == self.inode:
                os.unlink(path)
        self.socket.close()


def listen(path: str, environ: MutableMapping[str, str]) -> Listening:
    """The socket that the service manager has passed, else a new one at `path`; raises `SocketUnusable`."""
    passed = _activated(environ, os.getpid())
    if passed is not None:
        return Listening(passed, None)
    return Listening(bind(path), os.stat(path).st_ino)


def may_change(peer: Peer, own_uid: int, socket_gid: int | None) -> bool:
    """Whether a peer may do more than look: root, the daemon's own user, and the group that the socket belongs to."""
    return peer.uid in {0, own_uid} or (socket_gid is not None and socket_gid in {peer.gid, *peer.groups})


def peer_of(connection: socket.socket) -> Peer:
    """Credentials that the kernel took when the peer connected."""
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return Peer(pid, uid, gid, _groups_of(connection))


def _groups_of(connection: socket.socket) -> frozenset[int]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:  # an old kernel, or more groups than fit: the primary group has to do
        return frozenset()
    return frozenset(struct.unpack(f"{len(packed) // 4}I", packed))


def group_of(listening: socket.socket) -> int | None:
    """Group that the socket file belongs to now, None when the file is gone."""
    try:
        return os.stat(listening.getsockname()).st_gid
    except OSError:
        return None


def bind(path: str) -> socket.socket:
    """A listening socket at `path`, mode 0660. Call it before there are threads: the umask is of the whole process.

    Raises:
        SocketUnusable: another process answers there, something else lies there, or the path cannot be bound.

    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory_lock(os.path.dirname(path) or "."):
            _remove_stale(path)
            before = os.umask(_UMASK)
            try:
                listening.bind(path)
            finally:
                os.umask(before)
            listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SocketUnusable(f"control socket {path}: {error.strerror or error}") from error
    except SocketUnusable:
        listening.close()
        raise
    return listening


@contextlib.contextmanager
def _directory_lock(directory: str) -> Iterator[None]:
    os.makedirs(directory, mode=0o750, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(
            OSError
        ):  # a file system without locks: two daemons that start at the same moment
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketUnusable(f"control socket {path}: it exists and is not a socket; remove it")
    pid = _who_answers(path)
    if pid is not None:
        answers = f"process {pid} answers there; is cleanerd running already?"
        raise SocketUnusable(f"control socket {path}: {answers}")
    os.unlink(path)


def _who_answers(path: str) -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        return peer_of(probe).pid


def _activated(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """The first listening unix socket that the service manager has passed to this process, or None.

    The variables are removed, so that no child takes them for its own.
    """
    count, owner = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if owner != str(pid) or not count.isdecimal():
        return None
    passed = map(_listening_unix_socket, range(_FIRST_PASSED_FD, _FIRST_PASSED_FD + int(count)))
    return next(filter(None, passed), None)


def _listening_unix_socket(fd: int) -> socket.socket | None:
    try:
        os.set_inheritable(fd, False)
        passed = socket.socket(fileno=fd)
    except OSError:
        return None
    is_stream = passed.family == socket.AF_UNIX and passed.type == socket.SOCK_STREAM
    if is_stream and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return passed
    passed.detach()  # not ours to close
    return None
