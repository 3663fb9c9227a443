"""A partition as the controller of its cluster has it, in memory, with everything that may happen to a request.

`chance` draws what goes wrong at each call; `calm` ends that, so that every story comes to an end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cleanerd.errors import ClusterRefused
from cleanerd.install.machine import REQUEST_MS
from cleanerd.install.values import ClusterView

REPLICAS = (2, 1, 3)
BROKER = 1
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAw"


class Killed(BaseException):
    """kill -9 of cleanerd."""


class Monotonic(Protocol):
    """The part of a clock that a cluster goes by."""

    def monotonic_s(self) -> float: ...


@dataclass
class SimCluster:
    """Truth about the partition: `replicas`, `adding` and `removing` of the controller, `lists` as brokers saw them in turn.

    `asked`: the lists that were asked for; an empty one is a reassignment that was to be cancelled. `delayed`: requests that
    nobody has heard of since, in seconds. It is `cleanerd.install.cluster.Cluster` but for the clock.
    """

    clock: Monotonic
    chance: Callable[[int], int] = lambda _: 0
    replicas: tuple[int, ...] = REPLICAS
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: set[int] = field(default_factory=lambda: set(REPLICAS))
    leader: int = REPLICAS[0]
    topic_id: str | None = TOPIC_ID
    alive: set[int] = field(default_factory=lambda: set(REPLICAS))
    controller: tuple[int, int] = (1, 1)
    is_calm: bool = False
    claim: str = ""
    delayed: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    lists: list[tuple[int, ...]] = field(default_factory=lambda: [REPLICAS])
    asked: list[tuple[int, ...]] = field(default_factory=list)

    # -- what happens by itself

    def go_on(self) -> None:
        """What is due by now: late requests, what brokers do, the end of a reassignment, another leader."""
        for entry in list(self.delayed):
            when_s, wanted = entry
            if (self.clock.monotonic_s() - when_s) * 1000 > REQUEST_MS:
                self.delayed.remove(entry)
            elif not self.chance(4):
                self.delayed.remove(entry)
                self.apply(wanted)
        self._broker()
        self.isr &= set(self.replicas)
        self._complete()
        if self.leader not in self.isr and self.isr:
            self.leader = min(self.isr)
        self.lists.append(self.replicas)

    def _broker(self) -> None:
        """Brokers follow what the controller says."""

    def _hosted_in(self, broker: int) -> str | None:
        """The log directory in which a broker has the partition open, if it does and answers."""
        raise NotImplementedError

    def apply(self, wanted: tuple[int, ...]) -> None:
        """The controller carries out a request as Kafka's does: what is new replaces what was asked for before only where it
        adds or removes anything itself.
        """
        if self.topic_id is None:
            return
        if not wanted:  # cancelled
            self.replicas = tuple(one for one in self.replicas if one not in self.adding)
            self.isr &= set(self.replicas)
            self.adding = self.removing = ()
            return
        adding = tuple(one for one in wanted if one not in self.replicas)
        removing = tuple(one for one in self.replicas if one not in wanted)
        self.replicas = wanted + removing
        self.adding, self.removing = adding or self.adding, removing or self.removing
        self._complete()

    def _complete(self) -> None:
        """The reassignment is over when all that is added is in sync among those that stay."""
        staying = self.isr - set(self.removing)
        if staying and set(self.adding) <= staying:
            self.replicas = tuple(one for one in self.replicas if one not in self.removing)
            self.isr = staying
            self.adding = self.removing = ()

    # -- Cluster

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        self._trouble()
        is_moving = bool(self.adding or self.removing)
        lag = 0 if self.is_calm or is_moving else self.chance(3)
        replicas = self.lists[-1 - min(lag, len(self.lists) - 1)] if lag else self.replicas
        topic_id = self.topic_id if self.is_calm or self.chance(20) != 19 else None
        return ClusterView(
            topic_id, replicas, frozenset(self.isr), self.leader, self.adding, self.removing, frozenset(self.alive),
            self.controller, self._hosted_in(broker), 1,
        )  # fmt: skip

    def min_isr(self, topic: str) -> int:
        return 2

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        self.asked.append(tuple(replicas))
        outcome = 0 if self.is_calm or not replicas else self.chance(6)
        if outcome == 5 and self._may_be_late():
            self.delayed.append((self.clock.monotonic_s(), tuple(replicas)))
            raise ClusterRefused("timed out")
        self._trouble()
        self.apply(tuple(replicas))
        self._trouble()

    def _may_be_late(self) -> bool:
        return True

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        assert self.adding or self.removing, "there is nothing to be cancelled"
        self.ask_for_replicas(topic, partition, ())

    def prefer_log_dir(self, topic: str, partition: int, broker: int, log_dir: str) -> None: ...

    def elect_preferred(self, topic: str, partition: int) -> None:
        self._trouble()
        if self.replicas[0] in self.isr:
            self.leader = self.replicas[0]

    def read_claim(self) -> str:
        return self.claim

    def write_claim(self, text: str) -> None:
        self._trouble()
        self.claim = text

    def _trouble(self) -> None:
        if self.is_calm:
            return
        found = self.chance(12)
        if found == 11:
            raise Killed
        if found == 10:
            raise ClusterRefused("no answer")
