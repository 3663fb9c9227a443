"""Topics from which the brokers' own cleaners are kept away, so that cleanerd alone cleans them.

1. By a lease (`cleaner_leases`), where the live broker of every log of the topic can be asked for it: nothing lasting is
   changed, and the cleaners of other brokers go on.
2. Else in the cluster, for all brokers.

The brokers go by the topic's `min.cleanable.dirty.ratio`, and no dirty ratio is above 1.0 (1.21). What a topic had before is
recorded durably before the cluster is asked, so that `unmute` brings back exactly that, also years and restarts later. A
record whose call may or may not have reached the cluster stays: `unmute` takes back what is there.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from cleanerd.config.load import Configuration
from cleanerd.daemon.kafka_admin import KafkaAdmin
from cleanerd.daemon.store import MUTE, Store
from cleanerd.daemon.work.cleaner_leases import CleanerLeases
from cleanerd.env.clock import Clock
from cleanerd.errors import CleanerdError, ClusterRefused

KEY = "min.cleanable.dirty.ratio"
_MUTED = "1.0"


class MuteNotKept(CleanerdError):
    """The state directory cannot be written: what has to be restored later would be forgotten."""


@dataclass(frozen=True, slots=True)
class Mute:
    """A topic that is muted. `prior`: the value it had of its own, None for none. Not `is_confirmed`: it was not seen that
    the cluster did it. `by_lease`: the cluster was not asked.
    """

    topic: str
    prior: str | None
    since_ms: int
    is_confirmed: bool
    by_lease: bool = False


class Mutes:
    """All muted topics; thread-safe."""

    def __init__(self, history: Store, clock: Clock, configuration: Callable[[], Configuration]) -> None:
        self._history = history
        self._clock = clock
        self._configuration = configuration
        self._changing = threading.Lock()

    def all(self) -> tuple[Mute, ...]:
        """In order of their names."""
        found = self._history.all(MUTE, TypeAdapter(Mute).validate_python)
        return tuple(found[topic] for topic in sorted(found))

    def ratios(self) -> dict[str, float | None]:
        """The ratio for cleanerd instead, where it has no key of its own; None: the broker's default."""
        return {
            mute.topic: None if mute.prior is None else float(mute.prior)
            for mute in self.all()
            if not mute.by_lease
        }

    def leased(self) -> set[str]:
        """Topics that are muted by a lease."""
        return {mute.topic for mute in self.all() if mute.by_lease}

    def mute(self, topics: Iterable[str], leases: CleanerLeases) -> list[Mute]:
        """Mute these, again if they are muted already. Raises ClusterRefused, MuteNotKept."""
        with self._changing:
            recorded = {mute.topic: mute for mute in self.all()}
            new = {topic for topic in topics if topic not in recorded or recorded[topic].by_lease}
            refused = leases.renew(self.leased() | new)
            try:
                by_lease = [
                    recorded.get(topic) or Mute(topic, None, self._clock.now_ms(), True, by_lease=True)
                    for topic in sorted(new - refused.keys())
                ]
                others = [topic for topic in topics if topic not in new or topic in refused]
                in_cluster = self._mute_in_cluster(others, refused) if others else []
                for mute in by_lease:
                    self._record(mute)
            finally:
                if refused:
                    leases.renew(self.leased())
        return by_lease + in_cluster

    def _record(self, mute: Mute) -> None:
        before = next((one for one in self.all() if one.topic == mute.topic), None)
        if not self._history.put(MUTE, mute.topic, asdict(mute)):
            if before is None:
                self._history.delete(MUTE, mute.topic)
            else:  # what it had before the first mute is known from here alone
                self._history.put(MUTE, mute.topic, asdict(before))
            raise MuteNotKept(f"{mute.topic} is not muted: the state directory cannot be written")

    def _mute_in_cluster(self, topics: Iterable[str], refused: Mapping[str, str]) -> list[Mute]:
        try:
            connected = KafkaAdmin.of(self._configuration().broker)
        except ClusterRefused as error:
            reasons = {refused[topic]: None for topic in topics if topic in refused}
            raise ClusterRefused("; ".join([str(error), *reasons])) from error
        with connected as admin:
            recorded = {mute.topic: mute for mute in self.all()}
            new = []
            for topic, value in admin.own_values(topics, KEY).items():
                mute = recorded.get(topic) or Mute(topic, value, self._clock.now_ms(), is_confirmed=False)
                self._record(mute)
                new.append(mute)
            admin.set_own_values({mute.topic: _MUTED for mute in new}, KEY)
            confirmed = [replace(mute, is_confirmed=True) for mute in new]
            for mute in confirmed:
                self._history.put(MUTE, mute.topic, asdict(mute))
        return confirmed

    def unmute(self, mutes: Iterable[Mute], leases: CleanerLeases) -> None:
        """Bring back what was before. A value set by others since then stays. Raises ClusterRefused, MuteNotKept."""
        with self._changing:
            in_cluster = {}
            for mute in mutes:
                if mute.by_lease:
                    self._history.delete(MUTE, mute.topic)
                else:
                    in_cluster[mute.topic] = mute
            leases.renew(self.leased())
            if in_cluster:
                self._unmute_in_cluster(in_cluster)
            if not self._history.save():
                raise MuteNotKept(
                    "unmuted, but a restart would bring that back: the state directory cannot be written"
                )

    def _unmute_in_cluster(self, found: Mapping[str, Mute]) -> None:
        with KafkaAdmin.of(self._configuration().broker) as admin:
            now = admin.own_values(found, KEY)
            muted = (
                topic for topic, value in now.items() if value is not None and float(value) == float(_MUTED)
            )
            ours = {topic: found[topic].prior for topic in muted}
            if ours:
                admin.set_own_values(ours, KEY)
            for topic in found:
                self._history.delete(MUTE, topic)
