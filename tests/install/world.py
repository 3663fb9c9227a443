"""A cluster, a broker and a disk as an install sees them, in memory, with everything that may happen meanwhile.

`chance` draws what goes wrong at each call; `calm` ends that, so that every story comes to an end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cleanerd.errors import ClusterRefused
from cleanerd.install.driver import Driver
from cleanerd.install.machine import REQUEST_MS, Limits
from cleanerd.install.values import ClusterView, Install, PlaceContent, Step

REPLICAS = (2, 1, 3)
BROKER = 1
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAw"
LIMITS = Limits(step_ms=5_000, catch_up_ms=20_000)


class Killed(BaseException):
    """kill -9 of cleanerd."""


def fresh_install(replicas: tuple[int, ...] = REPLICAS, *, was_leader: bool = False) -> Install:
    return Install(
        id="i1", topic="t", partition=0, topic_id=TOPIC_ID, broker=BROKER, log_dir="/logs", replicas=replicas,
        was_leader=was_leader, controller=(1, 1), end_offset=100, round_end=90, freed_bytes=1000, tail_bytes=10,
        began_ms=0, step=Step.PREPARED, step_ms=0,
    )  # fmt: skip


@dataclass
class Clock:
    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@dataclass
class World:
    """Truth about the partition: `replicas`, `adding` and `removing` of the controller, `lists` as brokers saw them in turn.

    `asked`: the lists that were asked for; an empty one is a reassignment that was to be cancelled.
    """

    chance: Callable[[int], int] = lambda _: 0
    clock: Clock = field(default_factory=Clock)
    replicas: tuple[int, ...] = REPLICAS
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    isr: set[int] = field(default_factory=lambda: set(REPLICAS))
    leader: int = REPLICAS[0]
    topic_id: str | None = TOPIC_ID
    alive: set[int] = field(default_factory=lambda: set(REPLICAS))
    controller: tuple[int, int] = (1, 1)
    place: PlaceContent = PlaceContent.OTHER
    is_loaded: bool = True
    loaded_ours: bool = False
    hosted_in: str = "/logs"
    refuses: bool = False
    is_calm: bool = False
    prepared_id: str = TOPIC_ID
    rival: tuple[int, ...] | None = None
    rival_adding: tuple[int, ...] = ()
    claim: str = ""
    journal_text: Install | None = None
    is_prepared: bool = True
    is_full: bool = False
    delayed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    lists: list[tuple[int, ...]] = field(default_factory=lambda: [REPLICAS])
    told: list[tuple[Step, str | None]] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)

    # -- what happens by itself

    def tick(self, ms: int = 200) -> None:
        self.clock.ms += ms
        for entry in list(self.delayed):
            when, wanted = entry
            if self.clock.ms - when > REQUEST_MS:
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
        """Broker 1 follows what the controller says."""
        if BROKER not in self.alive or self.topic_id is None:
            self.isr.discard(BROKER)
            return
        if BROKER not in self.replicas:
            if self.is_loaded:
                self.is_loaded, self.place = False, PlaceContent.NOTHING
        elif not self.is_loaded:
            if self.place is PlaceContent.OURS and self.refuses:
                return
            self.loaded_ours = self.place is PlaceContent.OURS
            self.is_loaded = True
            self.place = self.place if self.loaded_ours else PlaceContent.OTHER
        else:
            self.isr.add(BROKER)

    def restart_broker(self) -> None:
        """It starts: what is assigned is loaded, what is not becomes stray."""
        self.alive.add(BROKER)
        if BROKER not in self.replicas and self.place is not PlaceContent.NOTHING:
            self.place, self.is_loaded = PlaceContent.NOTHING, False

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
        is_moving = bool(self.adding or self.removing or self.rival_adding)
        is_told = self.is_loaded and broker in self.alive
        lag = 0 if self.is_calm or is_moving else self.chance(3)
        replicas = self.lists[-1 - min(lag, len(self.lists) - 1)] if lag else self.replicas
        topic_id = self.topic_id if self.is_calm or self.chance(20) != 19 else None
        return ClusterView(
            topic_id, replicas, frozenset(self.isr), self.leader, self.adding + self.rival_adding,
            self.removing, frozenset(self.alive), self.controller, self.hosted_in if is_told else None, 1,
        )  # fmt: skip

    def min_isr(self, topic: str) -> int:
        return 2

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        assert not self.rival_adding, "a foreign reassignment was touched"
        assert self.rival is None or self.replicas != self.rival, "a foreign list was touched"
        self.asked.append(tuple(replicas))
        outcome = 0 if self.is_calm or not replicas else self.chance(6)
        if outcome == 5 and self.rival is None:
            self.delayed.append((self.clock.ms, tuple(replicas)))
            raise ClusterRefused("timed out")
        self._trouble()
        self.apply(tuple(replicas))
        self._trouble()

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

    # -- Area and Journal

    @property
    def journal(self) -> "World":
        return self

    def write(self, install: Install) -> None:
        self._trouble()
        if self.is_full and not self.is_calm:
            raise OSError(28, "No space left on device")
        self.journal_text = install
        self._trouble()

    def is_prepared_for(self) -> bool:
        return self.is_prepared

    def drive(self, install: Install) -> Driver:
        told = lambda i: self.told.append((i.step, i.reason))  # noqa: E731
        return Driver(SimArea(self), self, self.clock, LIMITS, install, told)  # type: ignore[arg-type]


@dataclass
class SimArea:
    """The part of `Area` that a driver uses."""

    world: World

    @property
    def journal(self) -> World:
        return self.world

    def place(self, _: Install) -> PlaceContent:
        return self.world.place

    def topic_id(self, _: Install) -> str | None:
        return self.world.prepared_id

    def is_prepared(self, _: Install) -> bool:
        return self.world.is_prepared

    def move_in(self, _: Install) -> None:
        world = self.world
        world._trouble()
        assert world.is_prepared
        if world.place is not PlaceContent.NOTHING:
            raise OSError(39, "Directory not empty")
        world.place, world.is_prepared = PlaceContent.OURS, False
        world._trouble()

    def take_away(self, _: Install) -> None:
        world = self.world
        world._trouble()
        is_open = world.is_loaded and world.hosted_in == "/logs"
        assert not is_open, "a directory was taken from under a broker"
        world.place = PlaceContent.NOTHING
        world._trouble()

    def clear(self, install: Install, *, is_brokers: bool) -> None:
        world = self.world
        if world.place is PlaceContent.OURS and not is_brokers:
            self.take_away(install)
        world.is_prepared = False
        world._trouble()
        world.journal_text = None
