"""Blocks that stay on the host that made them, on a cluster: how large answers of tasks travel from one step to the next.

As on one machine (`block_store`) a task writes them to a file, among the scratch files of its executor, and its answer says
where they are. A task of the same host reads that file. One of another host asks the server that the daemon of the
executor's Python workers has beside it, and gets the bytes over one connection: they pass through no JVM, and nothing moves
that need not.

The server listens where the host reaches the driver, answers those who know its token, which travels with the answers, and
has nothing to give but blocks. It ends with the daemon, as the blocks do with the executor: a step that needs them then is
done again with the one before (`Executor.exchange`).
"""

import contextlib
import hmac
import os
import re
import secrets
import shutil
import socket
import socketserver
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from cleanerd.env.files import open_regular

from .block_store import Bytes, Put, StoredBytes, block_file
from .channel import address_towards

DRIVER = "CLEANERD_DRIVER"
"""Environment variable of executors: address at which they reach the driver."""
_PLACE = "CLEANERD_BLOCKS"
"""Of Python workers: the server beside them and the directory of their blocks."""
_TOKEN_BYTES = 16
_TIMEOUT_S = 60.0
_REQUEST = struct.Struct("!HqQ")  # length of the name, which follows; first byte, _DROP: none; bytes
_DROP = -1
_NAME = re.compile(r"([0-9a-f]{16})(/\w+)?", re.ASCII)  # a set of blocks, or one of its files
_NAME_BYTES_MAX = 64


class Server(NamedTuple):
    """How one is reached."""

    host: str
    port: int
    token: bytes


class HostBytes(NamedTuple):
    """Bytes in a file of an executor. A tuple: thousands of them are pickled."""

    server: Server
    path: str
    position: int
    nbytes: int

    def load(self) -> Bytes:
        """The bytes. Raises OSError, EOFError where they, or their executor, are gone."""
        with contextlib.suppress(FileNotFoundError, PermissionError):  # of another host, or another user
            return StoredBytes(self.path, self.position, self.nbytes).load()
        return _fetch(self)


@contextlib.contextmanager
def host_block_file(name: str) -> Iterator[Put]:
    """Bytes go to a file of one task, with the set of blocks `name`, and stay until that is dropped. Raises OSError."""
    server, directory = _place()
    own = os.path.join(directory, name)
    os.makedirs(own, exist_ok=True)
    with block_file(own) as put:
        yield lambda data: HostBytes(server, *put(data))


def server_here() -> Server:
    """The one beside this worker."""
    return _place()[0]


def drop(name: str, servers: Iterable[Server]) -> None:
    """Have the set of blocks `name` deleted; what cannot be goes with its executor."""
    for server in servers:
        with contextlib.suppress(OSError), _connected(server) as connection:
            connection.sendall(_request(name, _DROP, 0))
            connection.recv(1)


def new_name() -> str:
    """Of a set of blocks."""
    return secrets.token_hex(8)


def begin_server(driver: str, scratch: str) -> None:
    """In the process that workers are forked from: start the server, and leave them word where it is. Raises OSError."""
    directory = tempfile.mkdtemp(prefix="cleanerd-blocks-", dir=scratch)
    token = secrets.token_bytes(_TOKEN_BYTES)
    server = _BlockServer(address_towards(driver), directory, token)
    if os.fork() == 0:
        try:
            devnull = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1):  # those of the daemon are for the daemon alone
                os.dup2(devnull, stream)
            server.serve_forever()
        finally:
            os._exit(0)
    host, port = server.socket.getsockname()[:2]
    server.socket.close()
    os.environ[_PLACE] = f"{host} {port} {token.hex()} {directory}"


def _place() -> tuple[Server, str]:
    host, port, token, directory = os.environ[_PLACE].split(" ", 3)
    return Server(host, int(port), bytes.fromhex(token)), directory


class _BlockServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, directory: str, token: bytes) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.directory = directory
        self.token = token
        self._daemon_pid = os.getpid()
        super().__init__((host, 0), _Caller)

    def service_actions(self) -> None:
        """Twice a second: end with the daemon."""
        if os.getppid() != self._daemon_pid:
            os._exit(0)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that is gone."""


class _Caller(socketserver.StreamRequestHandler):
    """One connection: the token, then request after request."""

    server: _BlockServer
    timeout = _TIMEOUT_S

    def handle(self) -> None:
        if not hmac.compare_digest(self.rfile.read(_TOKEN_BYTES), self.server.token):
            return
        self.connection.settimeout(None)  # it may ask again much later
        while len(head := self.rfile.read(_REQUEST.size)) == _REQUEST.size:
            length, position, size_bytes = _REQUEST.unpack(head)
            name = self.rfile.read(min(length, _NAME_BYTES_MAX)).decode("ascii", "replace")
            if _NAME.fullmatch(name) is None:
                return
            path = os.path.join(self.server.directory, name)
            if position == _DROP:
                shutil.rmtree(path, ignore_errors=True)
                return
            with open_regular(path) as fd, open(fd, "rb", closefd=False) as file:
                self.connection.sendfile(file, position, size_bytes)


def _request(name: str, position: int, size_bytes: int) -> bytes:
    return _REQUEST.pack(len(name), position, size_bytes) + name.encode()


def _connected(server: Server) -> socket.socket:
    connection = socket.create_connection((server.host, server.port), _TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(server.token)
    return connection


_open: dict[Server, socket.socket] = {}  # connections of this worker process


def _fetch(wanted: HostBytes) -> Bytes:
    """From its server. Raises OSError, EOFError."""
    if not wanted.nbytes:
        return np.empty(0, np.uint8)
    name = "/".join(wanted.path.rsplit("/", 2)[1:])
    connection = _open.pop(wanted.server, None) or _connected(wanted.server)
    data = np.empty(wanted.nbytes, np.uint8)
    connection.sendall(_request(name, wanted.position, wanted.nbytes))
    view = data.data
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError(f"{wanted.server.host}: has no {name}")
        view = view[got:]
    _open[wanted.server] = connection
    return data
