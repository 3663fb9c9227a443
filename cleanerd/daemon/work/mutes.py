"""Topics that the brokers' own cleaners are kept away from, so that cleanerd alone cleans them.

The brokers go by the topic's `min.cleanable.dirty.ratio`, and no dirty ratio is above 1.0 (1.21). What a topic had before is
recorded durably before the cluster is asked, so that `unmute` brings back exactly that, also years and restarts later. A
record whose call may or may not have reached the cluster stays: `unmute` takes back what is there.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from cleanerd.daemon.kafka_admin import KafkaAdmin
from cleanerd.daemon.store import MUTE, Store
from cleanerd.env.clock import Clock
from cleanerd.errors import CleanerdError

KEY = "min.cleanable.dirty.ratio"
_MUTED = "1.0"


class MuteNotKept(CleanerdError):
    """The state directory cannot be written: what has to be brought back later would be forgotten."""


@dataclass(frozen=True, slots=True)
class Mute:
    """A topic that is muted. `prior`: the value it had of its own, None for none. Not `is_confirmed`: it was not seen that
    the cluster did it.
    """

    topic: str
    prior: str | None
    since_ms: int
    is_confirmed: bool


class Mutes:
    """All topics that are muted; thread-safe. `connect` opens a connection to the cluster, or raises ClusterRefused."""

    def __init__(self, history: Store, clock: Clock, connect: Callable[[], KafkaAdmin]) -> None:
        self._history = history
        self._clock = clock
        self._connect = connect
        self._changing = threading.Lock()

    def all(self) -> tuple[Mute, ...]:
        """In order of their names."""
        found = self._history.all(MUTE, TypeAdapter(Mute).validate_python)
        return tuple(found[topic] for topic in sorted(found))

    def ratios(self) -> dict[str, float | None]:
        """What cleanerd itself goes by instead, where it has no key of its own; None: the broker's default."""
        return {mute.topic: None if mute.prior is None else float(mute.prior) for mute in self.all()}

    def mute(self, topics: Iterable[str]) -> list[Mute]:
        """Mute these, again if they are muted already. Raises ClusterRefused, MuteNotKept."""
        with self._changing, self._connect() as admin:
            recorded = {mute.topic: mute for mute in self.all()}
            new = []
            for topic, value in admin.own_values(topics, KEY).items():
                mute = recorded.get(topic) or Mute(topic, value, self._clock.now_ms(), is_confirmed=False)
                if not self._history.put(MUTE, topic, asdict(mute)):
                    self._history.delete(MUTE, topic)
                    raise MuteNotKept(f"{topic} is not muted: the state directory cannot be written")
                new.append(mute)
            admin.set_own_values({mute.topic: _MUTED for mute in new}, KEY)
            confirmed = [replace(mute, is_confirmed=True) for mute in new]
            for mute in confirmed:
                self._history.put(MUTE, mute.topic, asdict(mute))
        return confirmed

    def unmute(self, mutes: Iterable[Mute]) -> None:
        """Bring back what was before. A value that was set by others since then stays. Raises ClusterRefused."""
        found = {mute.topic: mute for mute in mutes}
        with self._changing, self._connect() as admin:
            now = admin.own_values(found, KEY)
            ours = {topic: found[topic].prior for topic, value in now.items() if _is_muted(value)}
            if ours:
                admin.set_own_values(ours, KEY)
            for topic in found:
                self._history.delete(MUTE, topic)


def _is_muted(value: str | None) -> bool:
    return value is not None and float(value) == float(_MUTED)
