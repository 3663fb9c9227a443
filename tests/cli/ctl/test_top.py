"""`cleanerctl top`: what is on its screen, and what it does to a terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.cli.ctl.top_screen import Look, _cells, screen
from cleanerd.daemon.values import models
from cleanerd.daemon.values.severity import STATES
from tests.cli.conftest import CTL, ENVIRONMENT, Daemon
from tests.daemon.views import NOW_MS, event, job_view, log_view, status_view


def log(topic: str = "orders", state: str = "clean", partition: int = 0, **more: object) -> dict[str, Any]:
    return log_view(topic, partition, state=state, **more).model_dump()


def job(*logs: str, **more: object) -> dict[str, Any]:
    return job_view(*logs, **more).model_dump()


def document(*logs: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    status = status_view().model_dump() | more.pop("status", {})
    return {"status": status, "logs": list(logs), "jobs": [], "holds": [], "events": [], **more}


def shown(found: Mapping[str, Any], width: int = 80, height: int = 24, **look: Any) -> list[str]:
    return [line.plain.rstrip() for line in screen(found, Look(width, height, **look), NOW_MS)]


def names(lines: list[str]) -> list[str]:
    first = next(i for i, line in enumerate(lines) if line.startswith("LOG "))
    return [line.split()[0] for line in lines[first + 1 : first + 1 + len(STATES)]]


def test_those_come_first_that_need_somebody() -> None:
    """By state; among dirty ones those that failed, then the dirtiest."""
    logs = [log(state, state=state, reason=None) for state in reversed(STATES)]
    assert names(shown(document(*logs), height=40)) == [f"{state}-0" for state in STATES]
    dirty = [
        log("a", "dirty", dirty_ratio=0.5),
        log("b", "dirty", dirty_ratio=0.9),
        log("c", "dirty", dirty_ratio=0.1, failures=1, reason="no space"),
    ]
    lines = shown(document(*dirty))
    assert [line.split()[0] for line in lines if " dirty " in line and line[1] == "-"] == [
        "c-0",
        "b-0",
        "a-0",
    ]
    assert "  no space" in lines


def test_of_thousands_of_logs_it_shows_those_that_fit_and_counts_the_rest() -> None:
    """Nothing that needs somebody is hidden behind what is fine."""
    logs = [log("t", partition=number) for number in range(5000)] + [log("bad", "uncleanable", reason="torn")]
    lines = shown(document(*logs))
    assert len(lines) == 24
    assert lines[3] == "5,001 logs: 1 uncleanable, 5,000 clean"
    assert lines[5].startswith("bad-0")
    assert lines[6] == "  torn"
    rest = re.fullmatch(r"and ([\d,]+) more: \1 clean", lines[-2])
    assert rest is not None
    assert int(rest[1].replace(",", "")) == 5000 - sum(line.startswith("t-") for line in lines)


states = st.sampled_from(STATES)
some_logs = st.lists(
    st.builds(
        log,
        st.text("abcß漢\x1b\n", min_size=1, max_size=60),
        states,
        st.integers(0, 10**6),
        reason=st.none() | st.text(max_size=200),
        dirty_ratio=st.none() | st.floats(0, 1),
        failures=st.integers(0, 2),
    ),
    max_size=30,
)


@given(logs=some_logs, width=st.integers(20, 200), height=st.integers(6, 60), jobs=st.integers(0, 9))
def test_it_fits_every_terminal_and_obeys_no_name(logs: Any, width: int, height: int, jobs: int) -> None:
    """Whatever is in names and reasons: no line is longer or later than there is room for, none moves the cursor."""
    hold = models.HoldView(
        id="h", pattern="*", owner="anna\x1b[2J", reason="x" * 300, created_ms=0
    ).model_dump()
    failed = event(outcome="failed", reason="r\r\n" * 99).model_dump()
    found = document(*logs, jobs=[job("orders-0")] * jobs, holds=[hold] * jobs, events=[failed] * (3 * jobs))
    lines = screen(found, Look(width, height), NOW_MS)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    assert all(line.plain.isprintable() for line in lines)


@given(parts=st.lists(st.integers(0, 10**12), min_size=4, max_size=4), width=st.integers(4, 60))
def test_a_bar_is_full_and_hides_nothing(parts: list[int], width: int) -> None:
    """As long as it is to be; whatever is there at all has a cell."""
    cells = _cells(parts, sum(parts), width)
    assert sum(cells) == (width if any(parts) else 0)
    assert [bool(cell) for cell in cells] == [bool(part) for part in parts]


def test_a_bar_tells_clean_dirty_not_yet_and_active_apart_without_colours() -> None:
    """Also where the terminal has no more than ASCII."""
    (line,) = (
        line for line in shown(document(log(clean_bytes=100)), width=60) if line.startswith("orders-0")
    )
    bar = line.split()[-1]
    assert re.fullmatch("█+▓+░+·+", bar)
    assert bar.count("▓") == pytest.approx(2 * bar.count("█"), abs=1)
    lines = shown(document(log(), jobs=[job("orders-0")]), width=80, is_unicode=False)
    assert any(re.search(r"#+x+-+\.+$", line) for line in lines)
    assert "".join(lines).isascii()


def test_jobs_have_progress_rate_and_time_left_and_queued_ones_wait() -> None:
    """Running ones first; a job of many logs names one and counts the others."""
    jobs = [
        job("b-0", state="queued", started_ms=None, bytes_done=0),
        job("a-0", "a-1", "a-2", phase="rewrite", eta_s=10.0),
        job("c-0", state="done"),
    ]
    lines = shown(document(log("a-long-topic-name"), jobs=jobs))
    first = next(i for i, line in enumerate(lines) if line.startswith("JOB"))
    assert re.match(r"a-0 and 2 more +rewrite +5\.0 MB/s +10s +50%  ━+─+$", lines[first + 1])
    assert re.match(r"b-0 +queued$", lines[first + 2])
    assert "c-0" not in "".join(lines)


def test_head_tells_what_is_wrong_with_the_daemon() -> None:
    """Starting, a refused configuration, a log directory that is offline, a live broker, staged bytes."""
    dirs = [
        models.LogDirView(
            path="/a", online=True, free_bytes=5, staged_bytes=7, lock_owner_pid=9, broker_is_live=True
        ),
        models.LogDirView(path="/b", online=False, reason="Input/output error"),
    ]
    status = {
        "ready": False,
        "log_dirs": [place.model_dump() for place in dirs],
        "configuration": {"applied": False},
    }
    lines = shown(document(status=status), trouble="no daemon answers")
    assert "STARTING" in lines[0]
    assert "throttle 1.0 MB/s: 500.0 kB/s read, 0 B/s written" in lines[1]
    assert lines[2].startswith("the last load of the configuration was refused")
    assert lines[3] == "not up to date, trying again: no daemon answers"
    assert lines[4] == "/b  OFFLINE: Input/output error"
    assert lines[5] == "/a  5 B free, 7 B staged, broker live (pid 9)"


def test_without_a_terminal_it_prints_once(daemon: Daemon) -> None:
    """Plain, exit 0; as JSON one document with everything."""
    ran = daemon.ctl("top")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert "orders-3" in ran.stdout
    assert "q quits" not in ran.stdout
    assert set(daemon.json("top")) == {"status", "logs", "jobs", "holds", "events"}


def test_without_a_daemon_it_exits_3() -> None:
    """As every verb, and without touching the screen."""
    with Screen("--socket", "/nowhere/s", "top") as top:
        assert top.process.wait(30) == 3
        assert "\x1b[?1049h" not in top.read_until("systemctl start")


class Screen:
    def __init__(self, *arguments: str, **environment: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(24, 80)
        self.modes = termios.tcgetattr(self.theirs)
        self.received = ""
        sizes = (
            "LINES",
            "COLUMNS",
        )  # as a runner of tests may have set them: they would win over the terminal's
        inherited = {name: value for name, value in ENVIRONMENT.items() if name not in sizes}
        self.process = subprocess.Popen(
            [*CTL, *arguments],
            env=inherited | {"TERM": "xterm", "LC_ALL": "C.UTF-8", "NO_COLOR": ""} | environment,
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs,
        )  # fmt: skip

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, lines: int, columns: int) -> None:
        ioctl(self.theirs, termios.TIOCSWINSZ, pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def read_until(self, text: str) -> str:
        """What came since the last time, up to and with `text`."""
        deadline = time.monotonic() + 30
        while text not in self.received:
            assert time.monotonic() < deadline, self.received
            if select.select([self.ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.received += os.read(self.ours, 65_536).decode(errors="replace")
        seen, _, self.received = self.received.partition(text)
        return seen + text

    def left(self) -> int:
        """Exit code; the terminal has to be as it was."""
        self.read_until("\x1b[?1049l")
        code = self.process.wait(30)
        assert termios.tcgetattr(self.theirs) == self.modes
        return code


@pytest.fixture
def top(daemon: Daemon) -> Iterator[Screen]:
    with Screen("--socket", str(daemon.path), "top", "--interval", "200ms") as screen:
        assert "\x1b[?1049h" in screen.read_until("q quits")
        yield screen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_it(top: Screen, number: signal.Signals, code: int) -> None:
    """And gives the terminal back; to interrupt it is no failure."""
    top.process.send_signal(number)
    assert top.left() == code


def test_it_draws_again_by_itself_and_when_the_size_changes(daemon: Daemon, top: Screen) -> None:
    daemon.ctl("pause", "orders-3", "--reason", "restore", "--owner", "anna")
    top.read_until("anna, until resumed, restore")
    top.resize(30, 120)
    top.process.send_signal(signal.SIGWINCH)
    redrawn = (top.read_until("q quits") for _ in range(10))  # the first ones may have been on their way
    assert any(" " * 81 in screen for screen in redrawn)


def test_it_goes_on_when_the_daemon_comes_back(daemon: Daemon, top: Screen) -> None:
    daemon.server.stop(1.0)
    top.read_until("trying again")
    daemon.serve()
    top.read_until("q quits")
    while "trying again" in top.read_until("q quits"):
        pass


def test_stopped_and_continued_it_has_the_screen_again(top: Screen) -> None:
    """Ctrl-Z gives the terminal back; after `fg` it draws again, and `q` leaves."""
    top.process.send_signal(signal.SIGTSTP)
    top.read_until("\x1b[?1049l")
    while not os.waitid(os.P_PID, top.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT):
        pass
    assert termios.tcgetattr(top.theirs) == top.modes
    top.process.send_signal(signal.SIGCONT)
    top.read_until("\x1b[?1049h")
    top.read_until("q quits")
    top.type(b"q")
    assert top.left() == 0


def test_colours_only_where_they_are_wanted(daemon: Daemon) -> None:
    """NO_COLOR takes colours, not the screen; a dumb terminal gets one snapshot."""
    daemon.ctl("pause", "orders-3")
    with Screen("--socket", str(daemon.path), "top") as coloured:
        assert "\x1b[33m" in coloured.read_until("q quits")
    with Screen("--socket", str(daemon.path), "top", NO_COLOR="1") as plain:
        assert not re.search(r"\x1b\[[0-9;]*m", plain.read_until("q quits"))
    with Screen("--socket", str(daemon.path), "top", TERM="dumb") as dumb:
        assert dumb.process.wait(30) == 0
        assert "\x1b[?" not in dumb.read_until("active")
