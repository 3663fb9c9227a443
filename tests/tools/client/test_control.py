"""A writer asks the daemon to keep off: against the real control server, and against none."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import Retryable
from cleanerd.format.names import TopicPartition
from cleanerd.tools.client.control import HOLD_TTL_MS, DaemonControl
from cleanerd.tools.client.producer import Producer
from tests.daemon.served import Served
from tests.tools.client.logs import open_writer

TP = TopicPartition("orders", 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@pytest.fixture
def daemon(tmp_path: Path, path: Path) -> Iterator[Served]:
    """What is behind the socket."""
    served = Served(tmp_path / "daemon", path)
    yield served
    served.close()


def test_hold_is_taken_with_owner_reason_and_ttl_and_lifted(path: Path, daemon: Served) -> None:
    """The hold of a writer that dies ends by itself."""
    with DaemonControl(str(path), owner="orders service").stopped(TP):
        (hold,) = daemon.parts.states.holds()
    assert (hold.pattern, hold.owner) == ("orders-3", "orders service")
    assert hold.reason
    assert hold.expires_ms == hold.created_ms + HOLD_TTL_MS
    assert daemon.parts.states.holds() == []


def test_daemon_that_says_no_is_an_error(path: Path, daemon: Served) -> None:
    assert daemon.parts.states.try_start_all([daemon.order(3)])
    refused = pytest.raises(Retryable, match=r"control\.sock: .*still being cleaned")
    with refused, DaemonControl(str(path), timeout_ms=0).stopped(TP):
        raise AssertionError("it is still being cleaned")
    assert daemon.parts.states.holds() == []


def test_where_nobody_listens_nobody_cleans(path: Path) -> None:
    """No socket, or one that a dead daemon left: the writer goes on. Nor is a hold lifted of a daemon that is gone."""
    control = DaemonControl(str(path), timeout_ms=10)
    with control.stopped(TP):
        went_on = ["no socket"]
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with control.stopped(TP):
        went_on.append("left by a dead one")
    served = Served(path.parent / "daemon", path)
    with control.stopped(TP):
        assert served.parts.states.holds()
        served.close()
        went_on.append("it ends meanwhile")
    assert len(went_on) == 3


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"junk\r\n\r\n"])
def test_answer_that_makes_no_sense_is_an_error(path: Path, answer: bytes) -> None:
    """Something else listens there: better not to go on."""

    def serve_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve_once)
        thread.start()
        refused = pytest.raises(Retryable, match=r"control\.sock")
        with refused, DaemonControl(str(path), timeout_ms=10).stopped(TP):
            raise AssertionError("nobody understood the answer")
        thread.join()


def test_writer_and_daemon_together(tmp_path: Path, path: Path, daemon: Served) -> None:
    """While closed segments are truncated the hold is there, and not after."""
    seen = []

    class Watching(RealFiles):
        def truncate(self, path: str, size_bytes: int) -> None:
            seen.append([hold.pattern for hold in daemon.parts.states.holds()])
            super().truncate(path, size_bytes)

    with open_writer(
        tmp_path, segment_bytes=100, control=DaemonControl(str(path)), files=Watching()
    ) as writer:
        for n in range(5):
            Producer(writer).put(b"k", b"v" * n)
        writer.truncate(1)
    assert seen == [["t-0"]]
    assert daemon.parts.states.holds() == []
