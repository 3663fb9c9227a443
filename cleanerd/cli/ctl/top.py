"""`cleanerctl top`: polls, draws on the alternate screen, and restores the terminal.

`q` and Ctrl-C leave. While the daemon is away it reports that, and goes on when it is back. Where the answer takes long,
as with very many logs, it asks less often than configured: most of the daemon's time is for its work.
"""

import io
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console

from cleanerd.cli.ctl.top_screen import Look, screen
from cleanerd.cli.output import write
from cleanerd.daemon.api.client import KINDS_OF_LOGS, Client, ControlError

_EVENTS = 50
_LEAST_INTERVAL_S = 0.2
_ASKING_PART = 5  # ask for at most a fifth of the time
_NO_TERMINAL = (120, 50)
_TERMINATED = 128 + signal.SIGTERM
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def ask(client: Client) -> dict[str, Any]:
    """Everything that the screen shows. Raises `ControlError`."""
    document = client.get("/v1/status")
    for part in ("logs", "jobs", "holds"):
        document |= client.get(f"/v1/{part}")
    return document | client.get("/v1/history", limit=_EVENTS, kinds=KINDS_OF_LOGS)


def is_possible() -> bool:
    """Whether this is a terminal on which something can be drawn."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def snapshot(document: Mapping[str, Any]) -> str:
    """The screen once, for a pipe or a terminal that cannot do more."""
    width, height = shutil.get_terminal_size(_NO_TERMINAL)
    return "".join(
        f"{line}\n" for line in _drawn(document, Look(width, height, _is_unicode(), is_live=False))
    )


def watch(client: Client, interval_s: float) -> None:
    """Until the user leaves. Raises `ControlError` only if there is no daemon at the beginning."""
    document, asked_s, trouble = ask(client), 0.0, None
    with _Terminal() as terminal:
        while True:
            width, height = shutil.get_terminal_size()
            terminal.draw(_drawn(document, Look(width, height, _is_unicode(), trouble=trouble)))
            if terminal.is_left_within(max(interval_s, _LEAST_INTERVAL_S, _ASKING_PART * asked_s)):
                return
            began_s = time.monotonic()
            try:
                document, trouble = ask(client), None
            except ControlError as error:
                trouble = str(error)
            asked_s = time.monotonic() - began_s


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8")


def _drawn(document: Mapping[str, Any], look: Look) -> list[str]:
    """The lines with their colours, as far as the terminal has any."""
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(
        file=io.StringIO(),
        width=look.width + 1,  # the lines fit already
        force_terminal=has_colour,
        color_system="auto" if has_colour else None,
        highlight=False,
        markup=False,
    )
    lines = []
    for line in screen(document, look, time.time_ns() // 1_000_000):
        with console.capture() as capture:
            console.print(line, end="", no_wrap=True)
        lines.append(capture.get() if has_colour else capture.get().rstrip())
    return lines


class _Terminal:
    """The terminal while `top` has it: alternate screen, no echo, keys at once. Put back however it ends."""

    def __enter__(self) -> Self:
        self._modes = termios.tcgetattr(sys.stdin)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._wake_before = signal.set_wakeup_fd(self._wake)
        self._handlers = [
            (number, signal.signal(number, handler))
            for number, handler in (
                (signal.SIGWINCH, _ignore),
                (signal.SIGTSTP, self._suspend),
                (signal.SIGTERM, _terminate),
            )
        ]
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._give_back()
        for number, handler in self._handlers:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._wake)
        os.close(self._woken)
        return isinstance(error, KeyboardInterrupt)

    def draw(self, lines: list[str]) -> None:
        """Over what is there, in one write: nothing flickers."""
        write(_HOME + "\r\n".join(line + _END_OF_LINE for line in lines) + _END_OF_SCREEN)

    def is_left_within(self, seconds: float) -> bool:
        """Wait; True for `q`, sooner False for any other key and when the size has changed."""
        ready, _, _ = select.select([sys.stdin, self._woken], [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if sys.stdin not in ready:
            return False
        keys = os.read(sys.stdin.fileno(), 4096)
        return not keys or b"q" in keys.lower()

    def _take(self) -> None:
        tty.setcbreak(sys.stdin)
        write(_ENTER)

    def _give_back(self) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        write(_LEAVE)

    def _suspend(self, _: int, __: FrameType | None) -> None:
        """Ctrl-Z: goes on here after `fg`."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


def _ignore(_: int, __: FrameType | None) -> None:
    """Only to wake up."""


def _terminate(_: int, __: FrameType | None) -> None:
    raise SystemExit(_TERMINATED)
