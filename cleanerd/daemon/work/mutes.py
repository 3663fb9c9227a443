"""Topics from which the live broker's own cleaner is kept away by a lease (`cleaner_leases`): cleanerd alone cleans them.

Nothing lasting is changed, and the cleaners of other brokers go on. What is muted is recorded durably, so that a daemon that
starts again goes on with it.
"""

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from cleanerd.daemon.store import MUTE, Store
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.env.clock import Clock
from cleanerd.errors import CleanerdError


class MuteRefused(CleanerdError):
    """The broker cannot be asked, or does not keep its cleaner from a log of these topics."""


class MuteNotKept(CleanerdError):
    """The state directory cannot be written: a restart would forget the mutes."""


@dataclass(frozen=True, slots=True)
class Mute:
    """A topic that is muted."""

    topic: str
    since_ms: int


_MUTE = TypeAdapter(Mute)  # what it builds takes a millisecond, and the mutes are read every second


class Mutes:
    """All muted topics; thread-safe."""

    def __init__(self, history: Store, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._changing = threading.Lock()

    def all(self) -> tuple[Mute, ...]:
        """All mutes, ordered by topic."""
        found = self._history.all(MUTE, _MUTE.validate_python)
        return tuple(found[topic] for topic in sorted(found))

    def topics(self) -> set[str]:
        """Names of the muted topics."""
        return {mute.topic for mute in self.all()}

    def mute(self, topics: Iterable[str], leases: CleanerLeases) -> list[Mute]:
        """Mute these, again if they are muted already: all or none. Raises MuteRefused, MuteNotKept."""
        with self._changing:
            recorded = {mute.topic: mute for mute in self.all()}
            wanted = {
                topic: recorded.get(topic) or Mute(topic, self._clock.now_ms()) for topic in sorted(topics)
            }
            refused = leases.renew(recorded.keys() | wanted.keys(), wanted.keys() - recorded.keys())
            try:
                if reasons := dict.fromkeys(refused[topic] for topic in wanted if topic in refused):
                    raise MuteRefused("; ".join(reasons))
                for mute in wanted.values():
                    self._record(mute)
            finally:
                if self.topics() != recorded.keys() | wanted.keys():
                    leases.renew(self.topics())
        return list(wanted.values())

    def _record(self, mute: Mute) -> None:
        if mute.topic not in self.topics() and not self._history.put(MUTE, mute.topic, asdict(mute)):
            self._history.delete(MUTE, mute.topic)
            raise MuteNotKept(f"{mute.topic} is not muted: the state directory cannot be written")

    def unmute(self, mutes: Iterable[Mute], leases: CleanerLeases) -> None:
        """Give these back to the broker's cleaner. Raises MuteNotKept."""
        with self._changing:
            for mute in mutes:
                self._history.delete(MUTE, mute.topic)
            leases.renew(self.topics())
            if not self._history.save():
                raise MuteNotKept(
                    "unmuted, but a restart would bring that back: the state directory cannot be written"
                )
