"""Which session a log directory gets, and for how long a broker that cannot be asked is left alone."""

import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cleanerd.broker_agent import attach, brokers
from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.session import Session
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.files import RealFiles
from cleanerd.errors import NoWayIn
from tests.harness.clock import HandClock

PID = 4711


class Answered(Session):
    """A broker that has answered, of which nothing is wanted."""

    def __init__(self, *log_dirs: str) -> None:
        self.pid, self._who = PID, f"the broker, process {PID},"
        self.hello = {"release": "4.4.0", "node_id": 7, "capabilities": ["swap"], "log_dirs": [*log_dirs]}

    @property
    def is_open(self) -> bool:
        return True


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def asked(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> LiveBrokers:
    monkeypatch.setattr(brokers, "other_holder", lambda _: PID)
    config = resolve(read_sources(None, [("cleanerd.commit.live", "auto")])).broker
    return LiveBrokers(RealFiles(), clock, lambda: config)


def test_a_broker_that_could_not_be_asked_and_can_is_no_longer_known_as_one(
    asked: LiveBrokers, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was met while it started."""
    answers = [NoWayIn("it has not started yet"), Answered("/data")]

    def answer(*_: object, **__: object) -> Session:
        found = answers.pop(0)
        if isinstance(found, NoWayIn):
            raise found
        return found

    monkeypatch.setattr(brokers, "Session", answer)
    for _ in range(2):
        assert asked.why_not("/data") == asked.known_refusal("/data") == "it has not started yet"
    clock.advance(61_000)
    assert asked.why_not("/data") is None
    assert asked.known_refusal("/data") is None


def test_a_directory_that_the_broker_has_under_another_path_is_refused_alone(
    asked: LiveBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is swapped is named by its path. A link to the directory is no other path."""
    here, link = tmp_path / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    monkeypatch.setattr(brokers, "Session", lambda *_, **__: Answered("/elsewhere", str(here)))
    assert asked.report(str(link)).broker_log_dirs == ["/elsewhere", str(here)]
    reason = asked.why_not(str(tmp_path))
    expected = (
        f"{tmp_path} is not where the broker, process {PID}, has it, among /elsewhere, {here}: mount the "
    )
    assert (
        reason == asked.known_refusal(str(tmp_path)) == f"{expected}log directories at the same path in both"
    )
    assert asked.why_not(str(here)) is None


def test_a_broker_that_hangs_keeps_nobody_from_the_others(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architecture 2: directories of several brokers fail alone. Nor does one that hangs in the middle of a request."""
    hangs, may_end = threading.Event(), threading.Event()

    class Hung(Answered):
        @property
        def is_open(self) -> bool:
            hangs.set()
            assert may_end.wait(60)
            return True

    def session(_pid: int, log_dir: str, *_: object, **_options: object) -> Session:
        if log_dir == "/opens":
            hangs.set()
            assert may_end.wait(60)
        return Hung(log_dir) if log_dir == "/asked" else Answered(log_dir)

    pids = {"/opens": 1, "/asked": 2, "/other": 3}
    monkeypatch.setattr(brokers, "other_holder", pids.__getitem__)
    monkeypatch.setattr(brokers, "Session", session)
    config = resolve(read_sources(None, [("cleanerd.commit.live", "auto")])).broker
    asked = LiveBrokers(RealFiles(), clock, lambda: config)
    asked.session("/asked")
    for path in ("/opens", "/asked"):
        hangs.clear()
        may_end.clear()
        thread = threading.Thread(target=asked.session, args=(path,))
        thread.start()
        try:
            assert hangs.wait(60)
            assert asked.why_not("/other") is None
            assert asked.known_refusal("/asked") is None
        finally:
            may_end.set()
            thread.join(60)
    assert asked.why_not("/opens") is None


def test_a_backlog_that_is_full_holds_nobody_up(tmp_path: Path) -> None:
    """Of a JVM that hangs: each try leaves a connection there, until a connect that waits would wait for ever."""
    path = str(tmp_path / "hangs")
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as tries:
        listening.bind(path)
        listening.listen(0)
        jvm = cast(attach.Jvm, SimpleNamespace(pid=os.getpid(), uid=os.geteuid(), socket_path=path))
        connected = attach._try_connect(jvm)
        assert connected is not None
        tries.enter_context(connected)
        with pytest.raises(NoWayIn, match="nobody accepts connections"):
            attach._try_connect(jvm)
