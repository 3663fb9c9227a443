"""Notifications to the service manager: sd_notify(3), one datagram for each message.

==============================  ==================================================================================
message                         when
==============================  ==================================================================================
READY=1                         recovered, first scan done, control socket and metrics port answer; after a reload
STATUS=...                      with READY, and whenever what is dirty has changed: `systemctl status` shows it
RELOADING=1, MONOTONIC_USEC=    SIGHUP was received; without the instant systemd 253 waits for ever (notify-reload)
STOPPING=1                      no new work from here on
EXTEND_TIMEOUT_USEC=            a recovery makes progress; a stop may take as long as cleanerd.shutdown.timeout.ms
WATCHDOG=1                      at half of WatchdogSec, as long as every thread that works shows life
==============================  ==================================================================================

Without a service manager nothing is sent. Nothing here ever raises or blocks for long: a daemon does not fail because
no manager listens to it.
"""

import contextlib
import socket
from collections.abc import MutableMapping

from cleanerd.env.clock import Clock

EXTENSION_S = 60.0
_EXTEND_EVERY_S = 5.0
_SEND_S = 1.0
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The one that started this process, if any. Takes its variables out of `environ`, so that children do not get them."""

    def __init__(self, environ: MutableMapping[str, str], pid: int, clock: Clock) -> None:
        path, usec, watched = (environ.pop(name, "") for name in _VARIABLES)
        self._address = _address(path)
        self._clock = clock
        self._status = ""
        self._extended_s: float | None = None
        self._pinged_s = clock.monotonic_s()
        is_ours = watched in ("", str(pid))
        self.watchdog_s = int(usec) / 1e6 if is_ours and usec.isascii() and usec.isdecimal() else 0.0

    @property
    def listens(self) -> bool:
        """Whether a service manager listens."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """The daemon does its work, or does it again after a reload."""
        self._status = status
        self._send("READY=1", f"STATUS={_line(status)}")

    def status(self, status: str) -> None:
        """One line for people; sent if it is another one than before."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={_usec(self._clock.monotonic_s())}")

    def stopping(self, within_s: float) -> None:
        """The daemon stops, and may need so many seconds for it."""
        time_limits = [f"EXTEND_TIMEOUT_USEC={_usec(within_s)}"]
        if 0 < self.watchdog_s < within_s:  # there are no more pings
            time_limits.append(f"WATCHDOG_USEC={_usec(within_s)}")
        self._send("STOPPING=1", "STATUS=stopping", *time_limits, *self._ping())

    def extend_timeout(self) -> None:
        """A start that takes long got a step further: `EXTENSION_S` for the next one. May be called at every step."""
        now_s = self._clock.monotonic_s()
        if self._extended_s is None or now_s - self._extended_s >= _EXTEND_EVERY_S:
            self._extended_s = now_s
            self._send(f"EXTEND_TIMEOUT_USEC={_usec(EXTENSION_S)}")

    def keep_watch(self, *, is_alive: bool) -> None:
        """Ping the watchdog if it is time to and the daemon `is_alive`; call it several times in half a watchdog period."""
        is_time = self._clock.monotonic_s() - self._pinged_s >= self.watchdog_s / 2
        if self.watchdog_s and is_time and is_alive:
            self._send(*self._ping())

    def _ping(self) -> tuple[str, ...]:
        self._pinged_s = self._clock.monotonic_s()
        return ("WATCHDOG=1",) if self.watchdog_s else ()

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            sender.sendto("\n".join(assignments).encode(errors="replace"), self._address)


def _address(path: str) -> str | None:
    """Address of the socket that NOTIFY_SOCKET names; None if it is unset or of an unknown kind."""
    if path.startswith("@"):
        return "\0" + path[1:]
    return path if path.startswith("/") else None


def _line(text: str) -> str:
    return " ".join(text.split())


def _usec(seconds: float) -> int:
    return round(seconds * 1e6)
