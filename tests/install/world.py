"""A cluster, a broker and a disk as an install sees them, in memory, with everything that may happen meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cleanerd.install.driver import Driver
from cleanerd.install.machine import Limits
from cleanerd.install.values import ClusterView, Install, PlaceContent, Step
from tests.install.cluster import BROKER, REPLICAS, TOPIC_ID, SimCluster

LIMITS = Limits(step_ms=5_000, catch_up_ms=20_000)


def fresh_install(replicas: tuple[int, ...] = REPLICAS, *, was_leader: bool = False) -> Install:
    return Install(
        id="i1", topic="t", partition=0, topic_id=TOPIC_ID, broker=BROKER, log_dir="/logs", replicas=replicas,
        was_leader=was_leader, controller=(1, 1), end_offset=100, round_end=90, freed_bytes=1000, tail_bytes=10,
        began_ms=0, step=Step.PREPARED, step_ms=0,
    )  # fmt: skip


@dataclass
class Clock:
    """`ahead_ms`: of what it says, as somebody set it."""

    ms: int = 1_000_000
    ahead_ms: int = 0

    def now_ms(self) -> int:
        return self.ms + self.ahead_ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@dataclass
class World(SimCluster):
    """The cluster, and broker 1 with its directory."""

    clock: Clock = field(default_factory=Clock)
    place: PlaceContent = PlaceContent.OTHER
    is_loaded: bool = True
    loaded_ours: bool = False
    hosted_in: str = "/logs"
    refuses: bool = False
    prepared_id: str = TOPIC_ID
    rival: tuple[int, ...] | None = None
    rival_adding: tuple[int, ...] = ()
    journal_text: Install | None = None
    is_prepared: bool = True
    is_full: bool = False
    told: list[tuple[Step, str | None]] = field(default_factory=list)

    # -- what happens by itself

    def tick(self, ms: int = 200) -> None:
        self.clock.ms += ms
        self.go_on()

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

    # -- Cluster

    def _hosted_in(self, broker: int) -> str | None:
        return self.hosted_in if self.is_loaded and broker in self.alive else None

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        found = super().view(topic, partition, broker)
        return replace(found, adding=found.adding + self.rival_adding)

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        assert not self.rival_adding, "a foreign reassignment was touched"
        assert self.rival is None or self.replicas != self.rival, "a foreign list was touched"
        super().ask_for_replicas(topic, partition, replicas)

    def _may_be_late(self) -> bool:
        return self.rival is None

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
