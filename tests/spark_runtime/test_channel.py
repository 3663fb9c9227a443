"""The channel from tasks to the driver: what is reported, who is let in, and a task in another process."""

import contextlib
import os
import pickle
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cleanerd
from cleanerd.errors import Aborted
from cleanerd.spark_runtime import channel as channel_module
from cleanerd.spark_runtime.channel import Channel, Reporter, driver_host
from cleanerd.spark_runtime.messages import ANSWER, GO_ON, STOP, Moved, Phase, ReportAnswer, pack_message
from tests.harness.daemon.processes import wait_until

IN_ANOTHER_PROCESS = """
import pickle, sys
from cleanerd.spark_runtime.messages import Phase
reporter = pickle.load(sys.stdin.buffer)
with reporter.advance(7, Phase.REWRITE) as advance:
    advance(1 << 40, 2, 3)
    advance(4, 5, 6)
    advance(10, 20, 30)
"""


def test_a_report_arrives_whole_from_another_process() -> None:
    """The reporter is a plain value: whoever holds it may report, wherever it was made. Small steps are said together."""
    heard: list[Moved] = []
    with Channel(lambda moved: heard.append(moved) or GO_ON) as channel:
        environment = {**os.environ, "PYTHONPATH": str(Path(cleanerd.__file__).parents[1])}
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
        subprocess.run(command, input=pickle.dumps(channel.reporter), env=environment, check=True)
    assert heard == [Moved(7, Phase.REWRITE, 1 << 40, 2, 3), Moved(7, Phase.REWRITE, 14, 25, 36)]


def report_once(reporter: Reporter) -> None:
    with reporter.advance(0, Phase.INDEX) as advance:
        advance(1, 0, 1)


def test_an_answer_held_back_is_a_brake() -> None:
    """A task goes on when it is told to, not before."""
    may_go_on = threading.Event()
    with Channel(lambda _: GO_ON if may_go_on.wait(10) else STOP) as channel:
        task = threading.Thread(target=report_once, args=(channel.reporter,))
        task.start()
        task.join(0.05)
        assert task.is_alive()
        may_go_on.set()
        task.join(10)
        assert not task.is_alive()


def failing_task(reporter: Reporter) -> None:
    with reporter.advance(0, Phase.INDEX) as advance:
        advance(1, 0, 1)
        raise OSError("disk")


def test_a_task_that_failed_says_nothing_more() -> None:
    """Its error is the answer; what it had not reported yet does not hide it."""
    heard: list[object] = []
    with (
        Channel(lambda moved: heard.append(moved) or GO_ON) as channel,
        pytest.raises(OSError, match="disk"),
    ):
        failing_task(channel.reporter)
    assert heard == []


def test_a_wrong_token_is_not_answered() -> None:
    heard: list[object] = []
    with Channel(lambda moved: heard.append(moved) or GO_ON) as channel:
        reporter = Reporter(channel.reporter.host, channel.reporter.port, bytes(16))
        with pytest.raises(Aborted, match="does not answer"):
            report_once(reporter)
    assert heard == []


def test_who_has_taken_the_place_of_the_driver_learns_nothing() -> None:
    """Its port is free when it has ended: a task goes on with no one who does not know the token."""
    heard: list[bytes] = []

    def impostor(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(16))
            heard.append(connection.recv(4096))
            connection.sendall(heard[0][:32])  # what the task has proved is no proof for it

    token = os.urandom(16)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor, args=(listener,))
        thread.start()
        with pytest.raises(ConnectionRefusedError):
            Reporter("127.0.0.1", listener.getsockname()[1], token).connect()
        thread.join()
    assert token not in heard[0]


def test_a_lost_connection_costs_one_task() -> None:
    """The next task of the same worker process connects anew."""
    with Channel(lambda _: GO_ON) as channel:
        report_once(channel.reporter)
        for connection in list(channel._served):
            connection.shutdown(2)
        with pytest.raises(Aborted, match="does not answer"):
            report_once(channel.reporter)
        report_once(channel.reporter)


def call(reporter: Reporter, *, token: bool = True) -> socket.socket:
    """A connection as a task makes it, or one that says nothing."""
    if token:
        return reporter.connect()
    return socket.create_connection((reporter.host, reporter.port), 10)


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(pack_message(Moved(0, Phase.INDEX, 1, 0, 1)))
    return connection.recv(ANSWER.size) == ANSWER.pack(GO_ON)


def is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(64):  # the challenge, of a stranger
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a token costs a thread for a short time only."""
    monkeypatch.setattr(channel_module, "_TOKEN_TIMEOUT_S", 0.1)
    with Channel(lambda _: GO_ON) as channel:
        silent, task = call(channel.reporter, token=False), call(channel.reporter)
        assert is_closed(silent)
        assert is_answered(task)  # a task that has shown its token may be silent for as long as it likes
        assert list(channel._served) != []


def test_strangers_push_out_strangers_only() -> None:
    """However many connections are opened, tasks are heard and the number of threads stays bounded."""
    before = threading.active_count()
    with Channel(lambda _: GO_ON) as channel:
        task = call(channel.reporter)
        assert is_answered(task)
        strangers = [call(channel.reporter, token=False) for _ in range(3 * channel_module._STRANGERS_MAX)]
        assert is_closed(strangers[0])
        late = call(channel.reporter)
        assert is_answered(late)
        assert is_answered(task)
        assert (
            threading.active_count() - before <= channel_module._STRANGERS_MAX + 4
        )  # and not a moment later
    for connection in [task, late, *strangers]:
        connection.close()


@pytest.mark.fault("descriptors run out")
def test_it_goes_on_when_descriptors_were_short() -> None:
    """EMFILE ends no channel: who waits is served when there are descriptors again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Channel(lambda _: GO_ON) as channel:
        task = socket.socket()
        task.settimeout(10)
        held = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 20, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            task.connect((channel.reporter.host, channel.reporter.port))
            threading.Event().wait(0.3)
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        channel_module._prove(task, channel.reporter.token)
        assert is_answered(task)
        task.close()


def test_leaving_ends_its_threads_and_sockets() -> None:
    """Also that of the listener, which closing alone does not wake; and those of tasks that are still there."""
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # of earlier tests some may go yet
    for _ in range(30):
        with Channel(lambda _: GO_ON) as channel:
            connections = [call(channel.reporter), call(channel.reporter, token=False)]
            assert is_answered(connections[0])
        for connection in connections:
            assert is_closed(connection)
            connection.close()

    def is_left() -> bool:
        after = threading.active_count(), len(os.listdir("/proc/self/fd"))
        return any(left > there for left, there in zip(after, before, strict=True))

    wait_until(lambda: not is_left(), 10)  # the last thread ends a moment after its socket does


def test_tasks_of_a_cluster_are_given_an_address_that_they_reach() -> None:
    assert driver_host("local[2]") == driver_host("local-cluster[2,1,1024]") == "127.0.0.1"
    assert driver_host("spark://127.0.0.1:7077") == "127.0.0.1"
    assert driver_host("spark://[::1]:7077") == "::1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_channel_listens_at_such_an_address(host: str) -> None:
    with Channel(lambda _: GO_ON, host) as channel:
        report_once(channel.reporter)


def test_bytes_that_pass_fast_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MiB at least and 32 MiB at most in a report; one that was held back is followed by one of 4 MiB."""
    told: list[int] = []

    def answer(moved: Moved) -> ReportAnswer:
        told.append(moved.read_bytes)
        threading.Event().wait(0.1)
        return GO_ON

    with Channel(answer) as channel, channel.reporter.advance(0, Phase.INDEX) as advance:
        with monkeypatch.context() as patched:
            patched.setattr(channel_module, "_REPORT_S", 3600.0)
            for _ in range(32):
                advance(1 << 20, 0, 1)
        for _ in range(4):
            advance(1 << 20, 0, 1)
    assert told == [32 << 20, 4 << 20]
