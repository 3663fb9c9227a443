"""Blocks that lie in files between two steps are those that were shipped, on this host or another (architecture 4)."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.spark_runtime import block_store
from cleanerd.spark_runtime.block_store import (
    HostBytes,
    StoredBytes,
    block_file,
    drop,
    host_block_file,
    load,
    travelling,
)
from tests.harness.daemon.processes import ROOT, wait_until

SIZES = st.lists(st.integers(0, 300), max_size=8)


def blocks(sizes: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, size, np.uint8) for size in sizes]


@given(SIZES)
def test_every_block_comes_back(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    """In any order, empty ones, too."""
    directory = tmp_path_factory.mktemp("blocks")
    expected = blocks(sizes)
    with block_file(str(directory)) as put:
        shipped = [put(block) for block in expected]
    for one, block in list(zip(shipped, expected, strict=True))[::-1]:
        assert isinstance(one, StoredBytes)
        assert one.nbytes == block.nbytes
        np.testing.assert_array_equal(load(one), block)


def test_without_a_directory_blocks_travel() -> None:
    (block,) = blocks([3])
    with travelling() as put:
        assert put(block) is block
        assert load(put(block)) is block


def test_tasks_write_to_files_of_their_own(tmp_path: Path) -> None:
    """One that ships nothing writes none."""
    first, second = blocks([40, 50])
    directory = str(tmp_path)
    with block_file(directory) as put, block_file(directory) as put_other, block_file(directory):
        shipped = put(first), put_other(second)
    np.testing.assert_array_equal(load(shipped[0]), first)
    np.testing.assert_array_equal(load(shipped[1]), second)
    assert len(os.listdir(tmp_path)) == 2


def test_a_file_that_ends_inside_a_block_is_an_error(tmp_path: Path) -> None:
    (block,) = blocks([160])
    with block_file(str(tmp_path)) as put:
        shipped = put(block)
    assert isinstance(shipped, StoredBytes)
    os.truncate(shipped.path, 100)
    with pytest.raises(EOFError, match="60 bytes before the end of a block"):
        shipped.load()


DAEMON = """
import os, sys
from cleanerd.spark_runtime import block_store
block_store.begin_server("127.0.0.1", sys.argv[1])
print(os.environ[block_store._PLACE], flush=True)
sys.stdin.read()
"""
BLOCKS = [np.arange(size, dtype=np.uint8) for size in (200, 0, 7)]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A process that workers are forked from; this one is a worker."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(scratch)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        monkeypatch.setenv(block_store._PLACE, process.stdout.readline().strip())
        yield process
        block_store._open.clear()
        process.kill()


def put(name: str) -> list[HostBytes]:
    with host_block_file(name) as ship:
        shipped = [ship(block) for block in BLOCKS]
    assert all(isinstance(one, HostBytes) for one in shipped)
    return [one for one in shipped if isinstance(one, HostBytes)]


def elsewhere(block: HostBytes) -> HostBytes:
    return block._replace(path=f"/elsewhere{block.path}")


@pytest.mark.usefixtures("daemon")
def test_every_block_comes_back_here_and_elsewhere() -> None:
    """Over one connection."""
    shipped = put(secrets.token_hex(8))
    for one, block in list(zip(shipped, BLOCKS, strict=True))[::-1]:
        assert one.nbytes == block.nbytes
        np.testing.assert_array_equal(one.load(), block)
        np.testing.assert_array_equal(elsewhere(one).load(), block)
    assert len(block_store._open) == 1


@pytest.mark.usefixtures("daemon")
def test_what_was_dropped_is_gone_and_nothing_else() -> None:
    """One after the other: the server answers those that come behind."""
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    shipped, other = put(first)[0], put(second)[0]
    drop(first, {shipped.server})
    assert not os.path.exists(os.path.dirname(shipped.path))
    with pytest.raises((EOFError, OSError)):
        elsewhere(shipped).load()
    np.testing.assert_array_equal(elsewhere(other).load(), BLOCKS[0])


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("name", ["../secret", "0123456789abcdef/../../secret", "/etc/passwd", ""])
def test_nothing_but_blocks_is_given(tmp_path: Path, name: str) -> None:
    (tmp_path / "scratch" / "secret").write_bytes(bytes(9))
    server = put(secrets.token_hex(8))[0].server
    with block_store._connected(server) as connection:
        connection.sendall(block_store._request(name, 0, 9))
        assert connection.recv(9) == b""


@pytest.mark.usefixtures("daemon")
def test_strangers_get_nothing() -> None:
    block = put(secrets.token_hex(8))[0]
    server = replace(block.server, token=bytes(16))
    with pytest.raises((EOFError, OSError)):
        elsewhere(block._replace(server=server)).load()
    drop(block.path.split("/")[-2], [server])
    assert os.path.exists(block.path)


def test_a_server_ends_with_its_daemon(daemon: subprocess.Popen[str]) -> None:
    block = put(secrets.token_hex(8))[0]
    daemon.kill()
    daemon.wait()

    def is_gone() -> bool:
        try:
            socket.create_connection((block.server.host, block.server.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(is_gone, 10)
    np.testing.assert_array_equal(block.load(), BLOCKS[0])
    with pytest.raises((EOFError, OSError)):
        elsewhere(block).load()
