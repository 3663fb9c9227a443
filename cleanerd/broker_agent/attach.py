"""HotSpot's attach protocol: load an agent into a running JVM, without a JDK and without configuring that JVM.

1. The JVM listens on `/tmp/.java_pid<N>` once it was asked to. It is asked by a file `.attach_pid<N>` in its working
   directory, or in its /tmp, and SIGQUIT. N is the pid in the JVM's own namespace; /tmp is its own, too.
2. SIGQUIT ends a JVM that does not catch it (-Xrs). Such a one listens from its start.
3. The request `load` names the library "instrument", and in its last argument the jar and a text for the agent.
4. The answer begins with 0 if the request was understood; `return code: 0` follows if the agent was loaded (Java 8: 0).

The JVM answers its own user and group, and root.
"""

import contextlib
import os
import re
import signal
import socket
import stat
import struct
import threading
from dataclasses import dataclass

from cleanerd.env.clock import Clock
from cleanerd.env.files import open_regular
from cleanerd.errors import NoWayIn

TIMEOUT_S = 10.0
_POLL_S = 0.01
_ARGUMENT_MAX = 1024  # of HotSpot before 24
_ANSWER_MAX = 1 << 16
_IN_FILES = ("@", "-XX:Flags=", "-XX:VMOptionsFile=")
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_LOADED = re.compile(rb"0\n(return code: )?0\s*")
_OTHERS = (
    "cleanerd must run as the user and the group of the broker, and see its processes: no PrivateUsers=yes in its unit, "
    "and in containers one pid namespace for both. Or the broker is started with -javaagent:cleanerd-agent.jar"
)
_WITH_AGENT = "start it with -javaagent:cleanerd-agent.jar"
_WITHOUT = "start it without, or with -javaagent:cleanerd-agent.jar"


@dataclass(frozen=True, slots=True)
class Jvm:
    """A process that is a JVM, as /proc shows it.

    `inner_pid`: in its own pid namespace. `uid`: of its user. `starts_listener`: it was told to listen from its start.
    """

    pid: int
    uid: int
    inner_pid: int
    catches_sigquit: bool
    starts_listener: bool

    @property
    def socket_path(self) -> str:
        """Path of the socket on which the JVM listens, through its own root."""
        return f"{self.tmp}/.java_pid{self.inner_pid}"

    @property
    def tmp(self) -> str:
        """The /tmp that a JVM sees, where it listens even if java.io.tmpdir is another directory."""
        return f"/proc/{self.pid}/root/tmp"

    @property
    def remedy(self) -> str:
        """The options with which the broker would let the agent in."""
        listener = "" if self.starts_listener else "-XX:+StartAttachListener or "
        return f"start it with {listener}-javaagent:cleanerd-agent.jar"


def find_jvm(pid: int) -> Jvm:
    """The JVM of a process id, 0 for one that the kernel does not name. Raises NoWayIn unless it can be attached to."""
    if pid == 0:
        raise NoWayIn(f"the process that holds .lock cannot be seen from here: {_OTHERS}")
    try:
        status = _status(pid)
        _check_user(pid, status)
        with open(f"/proc/{pid}/maps", "rb") as maps:
            libraries = maps.read()
        options = _options(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise NoWayIn(f"process {pid} has ended: the next attempt finds its successor") from None
    except OSError as error:
        where = error.filename or error.strerror
        raise NoWayIn(f"process {pid} cannot be inspected ({where}): {_OTHERS}") from error
    if b"/libjvm.so" not in libraries:
        raise NoWayIn(
            f"process {pid}, which holds .lock, is not a JVM: only a Kafka broker can swap segments"
        )
    if b"/libj9vm" in libraries:  # it would write a dump at each SIGQUIT
        raise NoWayIn(f"the JVM of process {pid} is OpenJ9, to which cleanerd does not attach: {_WITH_AGENT}")
    for option in ("-XX:+DisableAttachMechanism", "-XX:-EnableDynamicAgentLoading"):
        if option in options:
            raise NoWayIn(f"the JVM of process {pid} runs with {option}: {_WITHOUT}")
    caught = int(status["SigCgt"], 16) >> (signal.SIGQUIT - 1) & 1
    return Jvm(
        pid,
        int(status["Uid"].split()[1]),
        int(status["NSpid"].split()[-1]),
        bool(caught),
        starts_listener="-XX:+StartAttachListener" in options,
    )


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        rows = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in rows}


def _check_user(pid: int, status: dict[str, str]) -> None:
    """The JVM compares effective ids."""
    theirs = (int(status["Uid"].split()[1]), int(status["Gid"].split()[1]))
    ours = (os.geteuid(), os.getegid())
    if ours[0] != 0 and ours != theirs:
        raise NoWayIn(
            f"process {pid} runs as user {theirs[0]} and group {theirs[1]}, cleanerd as {ours[0]} and {ours[1]}: "
            "a JVM admits its own user and group only"
        )


def _options(pid: int) -> set[str]:
    """Options of a JVM: from its command line, and from the variables that add to it."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    words += [option for word in words for option in _in_file(pid, word)]
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = file.read().decode(errors="replace").split("\0")
    for variable in variables:
        name, _, value = variable.partition("=")
        if name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
            words += value.split()
    return set(words)


def _in_file(pid: int, word: str) -> list[str]:
    """The options in the file that an option names, as the launcher (`@FILE`) and the JVM take them."""
    path = next((word.removeprefix(prefix) for prefix in _IN_FILES if word.startswith(prefix)), "")
    if not path:
        return []
    place = "root" if path.startswith("/") else "cwd"
    try:
        with open_regular(f"/proc/{pid}/{place}/{path}", follow_links=True) as fd:
            found = os.read(fd, _ANSWER_MAX).decode(errors="replace").split()
    except OSError:  # the JVM itself reports the reason when it is asked
        return []
    return [f"-XX:{option}" if word.startswith("-XX:Flags=") else option for option in found]


def load_agent(jvm: Jvm, jar: str, text: str, clock: Clock) -> None:
    """Load an agent, whose `agentmain` gets `text`; returns when that has returned. Raises NoWayIn."""
    argument = f"{jar}={text}"
    if "=" in jar or len(argument.encode()) >= _ARGUMENT_MAX:
        raise NoWayIn(
            f"{jar}: its path must have no =, and with that of the log directory fewer than 900 bytes"
        )
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    with contextlib.closing(_connect(jvm, clock, deadline_s)) as connected:
        connected.settimeout(TIMEOUT_S)
        try:
            words = ("1", "load", "instrument", "false", argument)
            connected.sendall(b"".join(word.encode() + b"\0" for word in words))
            answer = b""
            while (more := connected.recv(4096)) and len(answer) < _ANSWER_MAX:
                answer += more
        except OSError as error:
            raise NoWayIn(
                f"the JVM of process {jvm.pid} does not answer ({error}): look for a broker that hangs"
            ) from error
    if not _LOADED.fullmatch(answer):
        reason = " ".join(answer.decode(errors="replace").split())
        raise NoWayIn(f"the JVM of process {jvm.pid} did not load the agent: {reason}")


def _connect(jvm: Jvm, clock: Clock, deadline_s: float) -> socket.socket:
    found = _try_connect(jvm)
    if found is not None:
        return found
    check_tmp(jvm)
    if not jvm.catches_sigquit:
        raise NoWayIn(f"the JVM of process {jvm.pid} does not listen and runs with -Xrs: {jvm.remedy}")
    trigger = _create_trigger(jvm)
    try:
        os.kill(jvm.pid, signal.SIGQUIT)
        while clock.monotonic_s() < deadline_s:
            found = _try_connect(jvm)
            if found is not None:
                return found
            threading.Event().wait(_POLL_S)
    except OSError as error:
        raise NoWayIn(f"process {jvm.pid} cannot be sent SIGQUIT ({error.strerror}): {_OTHERS}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(trigger)
    raise NoWayIn(
        f"the JVM of process {jvm.pid} was asked to listen on {jvm.socket_path} and does not within {TIMEOUT_S:.0f} s: "
        f"{_of_another(jvm)}{jvm.remedy}"
    )


def check_tmp(jvm: Jvm) -> None:
    """Raise NoWayIn if a JVM does not listen and cannot start to listen."""
    if not os.path.exists(jvm.socket_path) and not _can_write_to_its_tmp(jvm):
        raise NoWayIn(
            f"the JVM of process {jvm.pid} cannot listen: its /tmp cannot be written: {_WITH_AGENT}, or give it another /tmp"
        )


def _can_write_to_its_tmp(jvm: Jvm) -> bool:
    """Whether the JVM's /tmp looks writable for it: it exists, is not read-only, and its mode admits the JVM's user."""
    try:
        found = os.stat(jvm.tmp)
    except FileNotFoundError:
        return False
    except OSError:  # out of our sight
        return True
    if not os.access(jvm.tmp, os.W_OK | os.X_OK):  # a read-only file system says so to root, too
        return False
    bits = stat.S_IWOTH | stat.S_IWGRP  # it may belong to the group
    return jvm.uid in (0, found.st_uid) or bool(found.st_mode & bits)


def _try_connect(jvm: Jvm) -> socket.socket | None:
    """None while the JVM does not listen: a socket may be left of one that has ended, or be somebody else's, in a /tmp where
    everybody may make files. To that one nothing is said.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connected.connect(jvm.socket_path)
    except (FileNotFoundError, ConnectionRefusedError):
        connected.close()
        return None
    except BlockingIOError:  # a full backlog, at which a connect that waits would wait for ever
        connected.close()
        raise NoWayIn(
            f"{jvm.socket_path}: nobody accepts connections: the JVM of process {jvm.pid} hangs"
        ) from None
    except OSError as error:
        connected.close()
        raise NoWayIn(f"{jvm.socket_path}: cannot be connected to ({error.strerror}): {_OTHERS}") from error
    if peer_of(connected) == (jvm.pid, jvm.uid):
        return connected
    connected.close()
    return None


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Pid and user of the process that listens on a unix socket; pid 0 if the kernel does not show it here."""
    pid, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def _of_another(jvm: Jvm) -> str:
    """The foreign owner of a socket at the JVM's path, in words; empty if the JVM owns it or there is none."""
    try:
        found = os.lstat(jvm.socket_path)
    except OSError:
        return ""
    if found.st_uid == jvm.uid:
        return ""
    return f"user {found.st_uid} has put a socket there, which is in its way: delete it, and see who that is; or "


def _create_trigger(jvm: Jvm) -> str:
    triggers = [f"/proc/{jvm.pid}/{place}/.attach_pid{jvm.inner_pid}" for place in ("cwd", "root/tmp")]
    for path in triggers:
        with contextlib.suppress(OSError):  # of a session that was killed
            os.unlink(path)
        try:
            os.close(
                os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            )
        except OSError as error:
            last = error
        else:
            return path
    raise NoWayIn(
        f"{' and '.join(triggers)}: neither can be written ({last.strerror}): "
        f"{jvm.remedy}, or let cleanerd write to its /tmp"
    )
