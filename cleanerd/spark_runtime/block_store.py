"""Blocks in files: how large answers of tasks travel to the next step, past the JVM (architecture 4).

A task writes them to a file of its own, and its answer only has where in it they are. On a cluster the file lies among the
scratch files of its executor; a task of another host asks the server that the daemon of the executor's Python workers has
beside it. That is a `channel.Listener` where the host reaches the driver. Its token travels with the answers, and it has
nothing to give but blocks. It ends with the daemon, as the blocks do with the executor (`Executor.exchange`).
"""

import contextlib
import os
import re
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from functools import partial
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from cleanerd.env.files import open_regular
from cleanerd.errors import naming
from cleanerd.storage.file_bytes import read_at

from .channel import Endpoint, Listener, address_towards
from .pyspark_privates import scratch_root

Bytes = npt.NDArray[np.uint8]

DRIVER = "CLEANERD_DRIVER"
"""Environment variable of executors: address at which they reach the driver."""
_PLACE = "CLEANERD_BLOCKS"
"""Of Python workers: the server beside them and the directory of their blocks."""
_TIMEOUT_S = 60.0
_LOOK_S = 0.5  # between two looks whether the daemon lives
_REQUEST = struct.Struct("!HqQ")  # length of the name, which follows; first byte, _DROP: none; bytes
_DROP = -1
_NAME = re.compile(r"([0-9a-f]{16})(/\w+)?", re.ASCII)  # a set of blocks, or one of its files
_NAME_BYTES_MAX = 64


class StoredBytes(NamedTuple):
    """A run of bytes in a file. A tuple: thousands of them are pickled."""

    path: str
    position: int
    nbytes: int

    def load(self) -> Bytes:
        """The bytes. Raises OSError, EOFError for a file that ends before them."""
        with open_regular(self.path) as fd:
            stored = read_at(fd, self.position, self.nbytes)
        if len(stored) < self.nbytes:
            raise EOFError(f"{self.path}: ends {self.nbytes - len(stored)} bytes before the end of a block")
        return stored


class HostBytes(NamedTuple):
    """Bytes in a file of an executor. A tuple: thousands of them are pickled."""

    server: Endpoint
    path: str
    position: int
    nbytes: int

    def load(self) -> Bytes:
        """The bytes. Raises OSError, EOFError where they, or their executor, are gone."""
        with contextlib.suppress(FileNotFoundError, PermissionError):  # of another host, or another user
            return StoredBytes(self.path, self.position, self.nbytes).load()
        return _fetch(self)


Shipped = Bytes | StoredBytes | HostBytes
"""A reference to the bytes of an array; `load` returns them."""
Put = Callable[[Bytes], Shipped]
"""The function with which a task ships an array."""


def load(shipped: Shipped) -> Bytes:
    """The bytes. Raises OSError, EOFError."""
    return shipped if isinstance(shipped, np.ndarray) else shipped.load()


@contextlib.contextmanager
def travelling() -> Iterator[Put]:
    """Bytes travel with the answers: tasks have no directory in common."""
    yield lambda data: data


@contextlib.contextmanager
def block_file(directory: str) -> Iterator[Callable[[Bytes], StoredBytes]]:
    """Bytes go to a file of one task, and can be loaded when it is left. Raises OSError."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None
        path = ""

        def put(data: Bytes) -> StoredBytes:
            nonlocal file, path
            if file is None:  # most steps put nothing
                fd, path = tempfile.mkstemp(dir=directory)
                file = stack.enter_context(open(fd, "wb"))
            position = file.tell()
            with naming(path):
                file.write(data.data)
            return StoredBytes(path, position, data.nbytes)

        yield put


@contextlib.contextmanager
def scratch_directory(spark: SparkContext) -> Iterator[str]:
    """A directory for the files of one job, in that of its session, which Spark deletes at its end."""
    directory = tempfile.mkdtemp(dir=scratch_root(spark))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def host_block_file(name: str) -> Iterator[Put]:
    """Bytes go to a file of one task, with the set of blocks `name`, and stay until that is dropped. Raises OSError."""
    server, directory = _place()
    own = os.path.join(directory, name)
    os.makedirs(own, exist_ok=True)
    with block_file(own) as put:
        yield lambda data: HostBytes(server, *put(data))


def server_here() -> Endpoint:
    """The server beside this worker."""
    return _place()[0]


def drop(name: str, servers: Iterable[Endpoint]) -> None:
    """Delete the set of blocks `name`; the rest goes with its executor."""
    for server in servers:
        with contextlib.suppress(OSError), _connected(server) as connection:
            connection.sendall(_request(name, _DROP, 0))
            connection.recv(1)


def begin_server(driver: str, scratch: str) -> None:
    """Start the server in the process that workers are forked from, and publish its address. Raises OSError."""
    directory = tempfile.mkdtemp(prefix="cleanerd-blocks-", dir=scratch)
    listener, daemon_pid = Listener(partial(_answer, directory), address_towards(driver)), os.getpid()
    if os.fork() == 0:
        _serve(listener, daemon_pid)
    listener.leave_to_fork()
    host, port, token = astuple(listener.endpoint)
    os.environ[_PLACE] = f"{host} {port} {token.hex()} {directory}"


def _serve(listener: Listener, daemon_pid: int) -> NoReturn:
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # those of the daemon are for the daemon alone
            os.dup2(devnull, stream)
        with listener:
            while os.getppid() == daemon_pid:
                threading.Event().wait(_LOOK_S)
    finally:
        os._exit(0)


def _place() -> tuple[Endpoint, str]:
    host, port, token, directory = os.environ[_PLACE].split(" ", 3)
    return Endpoint(host, int(port), bytes.fromhex(token)), directory


def _answer(directory: str, connection: socket.socket) -> None:
    with connection.makefile("rb") as requests:
        while len(head := requests.read(_REQUEST.size)) == _REQUEST.size:
            length, position, size_bytes = _REQUEST.unpack(head)
            name = requests.read(min(length, _NAME_BYTES_MAX)).decode("ascii", "replace")
            if _NAME.fullmatch(name) is None:
                return
            path = os.path.join(directory, name)
            if position == _DROP:
                shutil.rmtree(path, ignore_errors=True)
                return
            with open_regular(path) as fd, open(fd, "rb", closefd=False) as file:
                connection.sendfile(file, position, size_bytes)


def _request(name: str, position: int, size_bytes: int) -> bytes:
    return _REQUEST.pack(len(name), position, size_bytes) + name.encode()


def _connected(server: Endpoint) -> socket.socket:
    connection = server.connect()
    connection.settimeout(_TIMEOUT_S)
    return connection


_open: dict[Endpoint, socket.socket] = {}  # connections of this worker process


def _fetch(wanted: HostBytes) -> Bytes:
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
