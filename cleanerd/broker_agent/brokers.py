"""The brokers that a process of cleanerd talks to: one session each, opened on demand."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cleanerd.config.model import CleanerdConfig
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import DirOffline, LockHeld, NoWayIn
from cleanerd.format.names import TopicPartition
from cleanerd.storage.lock import other_holder
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.scan import Checkpoints

from .live_logs import LiveLog, describe, live_checkpoints
from .releases import TESTED_RELEASES, kafka_release
from .session import NotLoaded, Session
from .swap import Swap, Swapped

_BUSY_S, _BUSY_TRIES = 0.05, 40
_OFF = "cleanerd.commit.live is off"
_RETRY_S = 60.0
"""How long a broker that cannot be asked is left alone."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The broker of a log directory, with its answer to `Session.hello`. `reason`: why it cannot swap, None if it can.

    Without `is_asked` no obstacle is known, but the agent has not been loaded.
    """

    log_dir: str
    pid: int | None = None
    node_id: int | None = None
    release: str | None = None
    capabilities: Sequence[str] = ()
    broker_log_dirs: Sequence[str] = ()
    reason: str | None = None
    is_asked: bool = True


class LiveBrokers:
    """Thread-safe."""

    def __init__(
        self, files: Files, clock: Clock, config: Callable[[], CleanerdConfig], *, loads: bool = True
    ) -> None:
        """Without `loads`, only brokers that have brought the agent along are asked."""
        self._files = files
        self._clock = clock
        self._config = config
        self._loads = loads
        self._mutex = threading.Lock()
        self._sessions: dict[int | str, Session] = {}  # by pid; by log directory where that cannot be seen
        self._turns: dict[int | str, threading.Lock] = {}  # to open, by the same
        self._refused: dict[tuple[str, int], tuple[float, str]] = {}  # until when, and why

    def swap(self, log_dir: str, swap: Swap) -> Swapped:
        """Ask the broker that lives in a log directory. Raises NoWayIn, and as `Swap.by`.

        Its cleaner takes every compacted log for a moment, each log.cleaner.backoff.ms: it is asked again, for a while.
        """
        answer = swap.by(self.session(log_dir))
        for _ in range(_BUSY_TRIES):
            if answer.outcome != "busy" or answer.lock_s:
                break
            threading.Event().wait(_BUSY_S)
            answer = swap.by(self.session(log_dir))
        return answer

    def describe_if_live(
        self, log_dir: str, wanted: Iterable[TopicPartition] | None = None
    ) -> tuple[LiveLog, ...] | None:
        """The live broker's description of its logs in a log directory; None if no broker can be asked."""
        try:
            return describe(self.session(log_dir), log_dir, wanted)
        except (NoWayIn, DirOffline):
            return None

    def session(self, log_dir: str) -> Session:
        """The session with the broker that lives in a log directory. Raises NoWayIn, DirOffline."""
        if self._config().commit_live == "off":
            raise NoWayIn(_OFF)
        pid = other_holder(log_dir)
        if pid is None:
            raise NoWayIn(f"{log_dir}: no broker runs there")
        with self._mutex:
            turn = self._turns.setdefault(pid or log_dir, threading.Lock())
        with turn:  # one broker that hangs keeps nobody from the others
            session = self._sessions.get(pid or log_dir)
            if session is None or not session.is_open:
                session = None
                until_s, reason = self._refused.get((log_dir, pid), (0.0, ""))
                if self._clock.monotonic_s() < until_s:
                    raise NoWayIn(reason)
            try:
                session = session or self._open(log_dir, pid)
                session.check_has(log_dir)
            except NoWayIn as error:
                self._note(log_dir, pid, str(error))
                raise
            self._note(log_dir, pid, None)
            return session

    def _note(self, log_dir: str, pid: int, reason: str | None) -> None:
        """Why the broker of a log directory cannot be asked for a while; None if it can."""
        with self._mutex:
            others = {key: value for key, value in self._refused.items() if key[0] != log_dir}
            if reason is not None:
                others[log_dir, pid] = (self._clock.monotonic_s() + _RETRY_S, reason)
            self._refused = others

    def why_not(self, log_dir: str) -> str | None:
        """Why a broker in a log directory cannot be asked to swap; None if it can."""
        return self.report(log_dir).reason

    def report(self, log_dir: str) -> BrokerReport:
        """The broker in a log directory, and whether it can be asked."""
        try:
            session = self.session(log_dir)
        except (NoWayIn, DirOffline) as error:
            is_asked = not isinstance(error, NotLoaded)
            return BrokerReport(log_dir, reason=str(error), is_asked=is_asked)
        hello = session.hello
        return BrokerReport(
            log_dir, session.pid, hello["node_id"], hello["release"], hello["capabilities"], hello["log_dirs"]
        )

    def check(self, held: LockHeld, log_dir: LogDir) -> None:
        """Raise `held`, with the reason, unless the holder of `.lock` is a broker that can be asked."""
        if not log_dir.is_kafka or held.pid == os.getpid():
            raise held
        reason = self.why_not(log_dir.path)
        if reason is not None:
            raise LockHeld(f"{held}; {reason}", held.pid) from held

    def checkpoints(
        self, log_dir: LogDir, wanted: Iterable[TopicPartition] | None = None
    ) -> Checkpoints | None:
        """The offsets that the live broker of a log directory goes by; None where none can be asked: then what is in its
        checkpoint files counts: it is older, and for the first half minute of a broker's life there is none.

        To be read before the logs are scanned. `wanted`: of which logs, None for all. Raises CorruptFile, OSError.
        """
        logs = self.describe_if_live(log_dir.path, wanted)
        return None if logs is None else live_checkpoints(logs, log_dir.checkpoints())

    def known_refusal(self, log_dir: str) -> str | None:
        """As `why_not`, from the last attempt, without asking again; None also before the first attempt."""
        if self._config().commit_live == "off":
            return _OFF
        return next((reason for (path, _), (_, reason) in self._refused.items() if path == log_dir), None)

    def close(self) -> None:
        """End all sessions."""
        with self._mutex:
            ended = list(self._sessions.values())
            self._sessions.clear()
        for session in ended:
            session.close()

    def _open(self, log_dir: str, pid: int) -> Session:
        """Open a session, in the turn of this broker; drops sessions and turns of ended processes."""
        with self._mutex:
            ended = [key for key in self._sessions if key == (pid or log_dir) or not _runs(key)]
            left = [self._sessions.pop(key) for key in ended]
            self._turns = {key: turn for key, turn in self._turns.items() if _runs(key) or turn.locked()}
        for session in left:
            session.close()
        session = Session(pid, log_dir, self._files, self._clock, loads=self._loads)
        self._check_release(session)
        with self._mutex:
            self._sessions[pid or log_dir] = session
        return session

    def _check_release(self, session: Session) -> None:
        version = str(session.hello.get("release"))
        release = kafka_release(version)
        if release not in TESTED_RELEASES and not self._config().broker_agent_untested:
            session.close()
            read = f", which is {release}," if release is not None and not version.startswith(release) else ""
            raise NoWayIn(
                f"the broker is Kafka {version}{read}: the agent is tested with {', '.join(TESTED_RELEASES)}. "
                "cleanerd.broker.agent.untested=true uses it all the same"
            )


def _runs(key: int | str) -> bool:
    """Whether there is still a process of that id; True for a log directory."""
    return isinstance(key, str) or os.path.exists(f"/proc/{key}")
