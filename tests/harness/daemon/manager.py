"""The service manager's end of sd_notify: a real datagram socket."""

import socket
import time
from pathlib import Path


class Manager:
    """Listens at a path, or at an abstract address if that is given as `@name`."""

    def __init__(self, address: Path | str) -> None:
        self.variable = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.variable[1:] if self.variable.startswith("@") else self.variable)
        self.heard: list[dict[str, str]] = []

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self, timeout_s: float = 0.0) -> dict[str, str] | None:
        """The next datagram as its assignments, None if none comes in time."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            text = self._socket.recv(65_536).decode()
        except TimeoutError:
            return None
        message = dict(line.split("=", 1) for line in text.split("\n"))
        self.heard.append(message)
        return message

    def wait_for(self, name: str, timeout_s: float = 60.0) -> dict[str, str]:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            message = self.receive(left_s)
            if message is not None and name in message:
                return message
        raise AssertionError(f"no {name} within {timeout_s} s; heard {self.heard}")

    def all(self) -> list[dict[str, str]]:
        """What has come in by now and was not received yet."""
        messages = []
        while (message := self.receive()) is not None:
            messages.append(message)
        return messages
