"""sd_notify(3) against a real datagram socket: the messages, and when a real daemon sends them."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.daemon.notify import EXTENSION_S, ServiceManager
from cleanerd.daemon.reports.status_line import StatusLine
from tests.harness.clock import HandClock
from tests.harness.daemon.manager import Manager
from tests.harness.daemon.processes import DaemonProcess
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import leave_to_nobody, write_logs

WATCHDOG_USEC = 60_000_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as manager:
        yield manager


def notifier(manager: Manager, clock: HandClock, **variables: object) -> ServiceManager:
    environ = {"NOTIFY_SOCKET": manager.variable} | {name: str(value) for name, value in variables.items()}
    return ServiceManager(environ, os.getpid(), clock)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_messages_arrive_at_either_kind_of_address(kind: str, tmp_path: Path, clock: HandClock) -> None:
    address = tmp_path / "notify" if kind == "path" else f"@cleanerd-test-{os.getpid()}"
    with Manager(address) as manager:
        notifier(manager, clock).ready("all\nis well")
        assert manager.all() == [{"READY": "1", "STATUS": "all is well"}]


def test_reloading_carries_its_instant_in_the_same_datagram(manager: Manager, clock: HandClock) -> None:
    notifier(manager, clock).reloading()
    (message,) = manager.all()
    assert message == {"RELOADING": "1", "MONOTONIC_USEC": str(round(clock.monotonic_s() * 1e6))}


def test_status_is_sent_when_it_is_another_one(manager: Manager, clock: HandClock) -> None:
    notify = notifier(manager, clock)
    notify.ready("a")
    for text in ("a", "b", "b", "a"):
        notify.status(text)
    assert [message["STATUS"] for message in manager.all()] == ["a", "b", "a"]


def test_stopping_asks_for_the_time_it_may_take_and_quietens_the_watchdog(
    manager: Manager, clock: HandClock
) -> None:
    notifier(manager, clock).stopping(35.0)
    notifier(manager, clock, WATCHDOG_USEC=WATCHDOG_USEC).stopping(90.0)
    plain, watched = manager.all()
    assert plain == {"STOPPING": "1", "STATUS": "stopping", "EXTEND_TIMEOUT_USEC": "35000000"}
    assert (watched["WATCHDOG"], watched["WATCHDOG_USEC"]) == ("1", "90000000")


def test_a_long_recovery_extends_the_timeout_at_most_every_few_seconds(
    manager: Manager, clock: HandClock
) -> None:
    notify = notifier(manager, clock)
    for _ in range(100):
        notify.extend_timeout()
        clock.advance(1000)
        manager.receive()
    assert len(manager.heard) == 20
    assert {message["EXTEND_TIMEOUT_USEC"] for message in manager.heard} == {str(round(EXTENSION_S * 1e6))}


@pytest.mark.parametrize("address", ["", "relative", "/does/not/exist", "@nobody-listens-here", "@"])
def test_nobody_who_listens_is_no_error(address: str, clock: HandClock) -> None:
    notify = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}, os.getpid(), clock)
    clock.advance(10000)
    notify.ready("x")
    notify.reloading()
    notify.extend_timeout()
    notify.keep_watch(is_alive=True)
    notify.stopping(1)


def test_a_full_queue_is_no_error_and_no_hang(manager: Manager, clock: HandClock) -> None:
    notify = notifier(manager, clock)
    qlen = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    for number in range(qlen + 2):  # the last does not fit and is given up after a second
        notify.status(str(number))
    assert len(manager.all()) == qlen + 1


def test_children_inherit_none_of_the_variables(manager: Manager, clock: HandClock) -> None:
    environ = {"NOTIFY_SOCKET": manager.variable, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager(environ, 1, clock)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("usec", "pid", "expected_s"),
    [("60000000", "", 60.0), ("60000000", "7", 60.0), ("60000000", "1", 0), ("", "", 0), ("soon", "", 0)],
)
def test_watchdog_is_ours_only_if_it_names_our_pid(
    usec: str, pid: str, expected_s: float, clock: HandClock
) -> None:
    environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    assert ServiceManager(environ, 7, clock).watchdog_s == expected_s


def test_watchdog_is_pinged_at_half_of_its_period(manager: Manager, clock: HandClock) -> None:
    notify = notifier(manager, clock, WATCHDOG_USEC=WATCHDOG_USEC)
    for _ in range(120):  # seconds
        clock.advance(1000)
        notify.keep_watch(is_alive=True)
    assert manager.all() == [{"WATCHDOG": "1"}] * 4


@pytest.fixture
def world(tmp_path: Path, clock: HandClock) -> Iterator[World]:
    (tmp_path / "world").mkdir()
    world = World(tmp_path / "world", clock)
    yield world
    world.close()


def test_pings_stop_when_a_worker_hangs_and_only_then(
    manager: Manager, clock: HandClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, workers = world.daemon, world.daemon.cleaners.workers
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(30)

    monkeypatch.setattr(world.parts.schedule, "next", hang)
    monkeypatch.setattr(world.parts.schedule, "next_express", lambda: None)
    notify = notifier(manager, clock, WATCHDOG_USEC=WATCHDOG_USEC)
    workers.start(1)
    try:
        assert entered.wait(10)
        seconds_pinged = []
        for second in range(1, 1001):
            clock.advance(1000)
            notify.keep_watch(is_alive=supervisor.is_alive(600.0))
            if manager.receive() is not None:
                seconds_pinged.append(second)
        assert seconds_pinged == list(range(30, 600, 30))
        for worker in workers.all():
            worker.beat()  # its tasks report after all
        notify.keep_watch(is_alive=supervisor.is_alive(600.0))
        assert manager.all() == [{"WATCHDOG": "1"}]
    finally:
        workers.stop()
        leave.set()
        assert workers.join(10)


def test_status_line_counts_dirty_logs_and_names_the_dirtiest(clock: HandClock, world: World) -> None:
    line = StatusLine(world.parts.conditions, world.parts.bells.work, world.reloader)
    assert line.text() == "3/3 partitions dirty, dirtiest one-0 100 %"
    shutil.rmtree(world.a / "one-0")
    world.scan()
    assert line.text().startswith("3/3"), "made anew only now and then"
    clock.advance(60_000)
    assert line.text() == "2/2 partitions dirty, dirtiest three-0 100 %"


def test_status_line_says_what_needs_somebody(world: World) -> None:
    world.configure(cleanerd_retry_max=-1)
    world.parts.obstacles.offline["/gone"] = "not there"
    text = StatusLine(world.parts.conditions, world.parts.bells.work, world.reloader).text()
    assert text.endswith("; 1 log directory offline; the last reload was rejected, see the log")


@pytest.mark.soak
def test_a_real_daemon_from_start_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready once and not too early, reloads framed, stopping announced, the watchdog fed meanwhile."""
    log_dir = write_logs(tmp_path / "logs", "first")
    leave_to_nobody(log_dir)
    leftover = log_dir / "first-0" / "00000000000000009999.log.cleanerd"
    leftover.touch()
    daemon = DaemonProcess(
        tmp_path, [log_dir], {"log.cleanup.policy": "compact", "log.cleaner.enable": "false"}
    )
    with Manager(tmp_path / "notify") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.variable)
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with daemon:
            process = daemon.spawn()
            ready = manager.wait_for("READY")
            assert not leftover.exists(), "recovered before it is ready"
            status = daemon.ask("status")["status"]
            assert status["ready"]
            assert sum(status["logs_by_state"].values()) == 1, "the first scan is done"
            assert ready["STATUS"] == "1/1 partitions dirty, dirtiest first-0 100 %"
            assert [sorted(message) for message in manager.heard[:-1]] == [["EXTEND_TIMEOUT_USEC"]]

            before_usec = time.monotonic_ns() // 1000
            process.send_signal(signal.SIGHUP)
            reloading = manager.wait_for("RELOADING", 10)
            assert before_usec <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            assert "READY" not in reloading
            manager.wait_for("READY", 10)
            manager.wait_for("WATCHDOG", 5)

            process.send_signal(signal.SIGTERM)
            stopping = manager.wait_for("STOPPING", 10)
            assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 20_000_000, "more than cleanerd.shutdown.timeout.ms"
            assert process.wait(30) == 0
            assert sum("READY" in message for message in [*manager.heard, *manager.all()]) == 2
