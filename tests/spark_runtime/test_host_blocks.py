"""Blocks that stay on their host are read there from a file, and elsewhere over a connection (architecture 4)."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleanerd.spark_runtime import host_blocks
from cleanerd.spark_runtime.host_blocks import HostBytes, drop, host_block_file, new_name
from tests.daemon.processes import ROOT, wait_until

DAEMON = """
import os, sys
from cleanerd.spark_runtime import host_blocks
host_blocks.begin_server("127.0.0.1", sys.argv[1])
print(os.environ[host_blocks._PLACE], flush=True)
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
        monkeypatch.setenv(host_blocks._PLACE, process.stdout.readline().strip())
        yield process
        host_blocks._open.clear()
        process.kill()


def put(name: str) -> list[HostBytes]:
    with host_block_file(name) as ship:
        shipped = [ship(block) for block in BLOCKS]
    assert all(isinstance(one, HostBytes) for one in shipped)
    return [one for one in shipped if isinstance(one, HostBytes)]


def elsewhere(block: HostBytes) -> HostBytes:
    """As it is for a host without the file."""
    return block._replace(path=f"/elsewhere{block.path}")


@pytest.mark.usefixtures("daemon")
def test_every_block_comes_back_here_and_elsewhere() -> None:
    """Over one connection."""
    shipped = put(new_name())
    for one, block in list(zip(shipped, BLOCKS, strict=True))[::-1]:
        assert one.nbytes == block.nbytes
        np.testing.assert_array_equal(one.load(), block)
        np.testing.assert_array_equal(elsewhere(one).load(), block)
    assert len(host_blocks._open) == 1


@pytest.mark.usefixtures("daemon")
def test_what_was_dropped_is_gone_and_nothing_else() -> None:
    """One after the other: the server answers those that come behind."""
    first, second = new_name(), new_name()
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
    server = put(new_name())[0].server
    with host_blocks._connected(server) as connection:
        connection.sendall(host_blocks._request(name, 0, 9))
        assert connection.recv(9) == b""


@pytest.mark.usefixtures("daemon")
def test_strangers_get_nothing() -> None:
    block = put(new_name())[0]
    server = replace(block.server, token=bytes(16))
    with pytest.raises((EOFError, OSError)):
        elsewhere(block._replace(server=server)).load()
    drop(block.path.split("/")[-2], [server])
    assert os.path.exists(block.path)


def test_a_server_ends_with_its_daemon(daemon: subprocess.Popen[str]) -> None:
    block = put(new_name())[0]
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
