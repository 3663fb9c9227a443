"""The cluster around a broker: the replica that leads, the controller, and what others do there.

What a controller makes of requests is `tests.install.cluster`, one for each partition. The replica that leads has all that
was ever written, in memory; the broker of this world follows it (`hosting`), also where the controller calls it the leader:
for what lies in its directory that makes no difference.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace

from cleanerd.errors import ClusterRefused
from cleanerd.format.uuid_text import render_uuid
from cleanerd.install.area import Area
from cleanerd.install.values import ClusterView
from cleanerd.storage.producer_state import ProducerState
from tests.install.cluster import BROKER, SimCluster
from tests.simulation.judge import Batch, Model
from tests.simulation.rules import Violation
from tests.simulation.stage import FILES, Stage
from tests.simulation.writer import Log

LISTS = ((2, 1, 3), (1, 2, 3), (1, 2), (2, 3, 1))
RIVALS = ((2, 3, 4), (4, 2), (3, 2, 1), (4, 1, 2))
OTHERS = json.dumps({"id": "of another broker"})
DELETES = (0.0, 0.0, 0.1)
"""How much more often topics are deleted and created again in a world, one of them."""


class Leader:
    """The log of the replica that leads. It is what producers write to."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._state = ProducerState()

    @property
    def log_end_offset(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    @property
    def producers(self) -> tuple[object, ...]:
        return self._state.entries

    def append(self, raw: bytes) -> None:
        batch = Batch.of(raw)
        self._state.apply(batch.header, raw)
        self.batches.append(batch)

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self._state = ProducerState()
        for batch in self.batches:
            self._state.apply(batch.header, batch.raw)


class Partition(SimCluster):
    """`expected`: the lists of which it must have one in the end. `behind`: other replicas that do not keep up."""

    def __init__(self, stage: Stage, log: Log, alive: set[int], behind: set[int]) -> None:
        replicas = stage.chance.choice(LISTS)
        super().__init__(
            stage.clock, stage.chance.randrange, replicas, isr=set(replicas), leader=replicas[0], alive=alive,
            lists=[replicas], topic_id=_fresh_id(stage),
        )  # fmt: skip
        self._stage, self._log, self._behind = stage, log, behind
        self.expected = {replicas}
        self.preferred: str | None = None  # log directory that broker 1 shall put its next replica into
        log.leader = Leader()

    # -- what happens by itself

    def _broker(self) -> None:
        for one in {*self.replicas, *self.adding}:
            keeps_up = self._is_caught_up() if one == BROKER else one not in self._behind
            if one in self.alive and keeps_up and self.topic_id is not None:
                self.isr.add(one)
            else:
                self.isr.discard(one)

    def _is_caught_up(self) -> bool:
        log = self._log
        is_open = log.writer is not None and log.known == self.topic_id and log.leader is not None
        return is_open and log.writer.log_end_offset == log.leader.log_end_offset  # type: ignore[union-attr]

    def _hosted_in(self, broker: int) -> str | None:
        log = self._log
        is_open = log.hosted is not None and log.log_dir not in self._stage.directories.offline
        return log.log_dir if is_open and broker in self.alive else None

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        return replace(super().view(topic, partition, broker), log_dirs=len(self._stage.log_dirs))

    def delete(self) -> None:
        """No such topic any more."""
        self.topic_id, self.adding, self.removing, self.delayed = None, (), (), []

    def create(self) -> None:
        """A topic of that name, which has nothing of the other one but its window of rules."""
        log, stage = self._log, self._stage
        replicas = stage.chance.choice(LISTS)
        self.topic_id, self.replicas, self.isr, self.leader = (
            _fresh_id(stage),
            replicas,
            set(replicas),
            replicas[0],
        )
        self.lists, self.expected = [replicas], {replicas}
        log.model = Model(limit=0, window=log.model.window)
        log.leader, log.cut, log.is_exchanged, log.is_whole = Leader(), None, True, False
        log.producers.clear()

    def rival(self, wanted: tuple[int, ...]) -> None:
        """An operator asks for another list, unless he is at it; during an install the old one may come back."""
        if {*self.adding, *self.removing} - {BROKER}:
            return
        self.expected = {wanted, *self.expected} if self._is_installing() else {wanted}
        self.apply(wanted)

    def _is_installing(self) -> bool:
        found = Area(FILES, self._log.log_dir).journal.read()
        return found is not None and found.topic_partition == self._log.tp

    # -- Cluster

    def min_isr(self, topic: str) -> int:
        self._trouble()
        return 1

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        is_taking_out = BROKER not in replicas and bool(replicas) and BROKER in self.isr
        if is_taking_out and not set(replicas) <= self.isr:
            self._stage.problems.append(f"{replicas} are asked for, and only {sorted(self.isr)} are in sync")
        super().ask_for_replicas(topic, partition, replicas)

    def _trouble(self) -> None:
        self._stage.asks(f"the cluster about {self._log.tp}")


class Replicas:
    """All partitions; to cleanerd it is `daemon.kafka_replicas.KafkaReplicas`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.alive, self._behind = {BROKER, 2, 3, 4}, set[int]()
        self.claim = ""
        self._deletes = stage.chance.choice(DELETES)
        self.partitions = {
            log.tp.topic: Partition(stage, log, self.alive, self._behind) for log in stage.logs
        }

    def has(self, log: Log) -> bool:
        """Whether broker 1 uses what lies in its directory of a partition, or has when it lived."""
        return log.is_used and log.known == self.partitions[log.tp.topic].topic_id

    # -- what happens

    def go_on(self) -> None:
        """With every step of the world."""
        for partition in self.partitions.values():
            partition.go_on()

    def something(self) -> None:
        """Others do something."""
        stage, draw = self._stage, self._stage.chance.random()
        topic = stage.chance.choice(sorted(self.partitions))
        if stage.chance.random() < self._deletes:
            self._delete_or_create(topic)
            return
        partition = self.partitions[topic]
        other = stage.chance.choice([2, 3, 4])
        if draw < 0.15:
            dead = sorted({2, 3, 4} - self.alive)
            self.alive.symmetric_difference_update(dead or {other})
            stage.note(f"replicas {dead} live" if dead else f"replica {other} dies")
        elif draw < 0.35:
            if self._behind:
                self._behind.clear()
            else:
                self._behind.add(other)
            stage.note(f"behind are {sorted(self._behind)}")
        elif draw < 0.5:
            controller = (stage.chance.choice([2, 3]), partition.controller[1] + 1)
            for one in self.partitions.values():
                one.controller = controller
            stage.note(f"the controller is {controller}")
        elif draw < 0.65:
            self._claim_of_another()
        elif draw < 0.8 and partition.topic_id is not None and not partition.delayed:
            wanted = stage.chance.choice(RIVALS)
            stage.note(f"an operator asks for {wanted} of {topic}, which has {partition.replicas}")
            stage.counts["rivals"] += 1
            partition.rival(wanted)
        elif draw < 0.87 or partition.topic_id is None:
            self._delete_or_create(topic)

    def _claim_of_another(self) -> None:
        if self.claim in ("", OTHERS):
            self.claim = "" if self.claim else OTHERS
            self._stage.note(f"another broker's install {'begins' if self.claim else 'is over'}")

    def _delete_or_create(self, topic: str) -> None:
        partition = self.partitions[topic]
        if partition.topic_id is not None:
            self._stage.note(f"topic {topic} is deleted")
            partition.delete()
        if partition.topic_id is None and (self._stage.is_calm or self._stage.chance.random() < 0.6):
            partition.create()
            self._stage.counts["topics created again"] += 1
            self._stage.note(
                f"topic {topic} is created again as {partition.topic_id} on {partition.replicas}"
            )

    def calm(self) -> None:
        """Nothing is wrong with anybody, and every topic is there."""
        self.alive.update({2, 3, 4})
        self._behind.clear()
        if self.claim == OTHERS:
            self._claim_of_another()
        for topic, partition in self.partitions.items():
            partition.is_calm = True
            if partition.topic_id is None:
                self._delete_or_create(topic)

    def is_quiet(self) -> bool:
        """Whether no reassignment is under way, and all replicas are in sync."""
        found = self.partitions.values()
        return all(not one.adding and not one.removing and set(one.replicas) == one.isr for one in found)

    def judge(self) -> None:
        """At the end of all installs. Raises Violation."""
        for topic, one in self.partitions.items():
            if one.replicas not in one.expected:
                raise Violation(
                    f"the replicas of {topic} are {one.replicas}, must be {sorted(one.expected)}: {one.asked[-6:]}"
                )
        if self.claim:
            raise Violation(f"the claim was not given back: {self.claim}")

    def told(self) -> str:
        """For whoever waits."""
        return "; ".join(
            f"{topic}: {one.replicas}, in sync {sorted(one.isr)}, leader {one.leader}, adding {one.adding}"
            for topic, one in self.partitions.items()
        )

    def bring_back(self) -> None:
        """An operator gives broker 1 a replica of all that it has none of."""
        for one in self.partitions.values():
            if BROKER not in one.replicas:
                one.rival((BROKER, *one.replicas))

    # -- Cluster

    def connect(self) -> "Replicas":
        self._stage.asks("for a connection")
        return self

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, *_: object) -> None: ...

    def view(self, topic: str, partition: int, broker: int) -> ClusterView:
        return self.partitions[topic].view(topic, partition, broker)

    def min_isr(self, topic: str) -> int:
        return self.partitions[topic].min_isr(topic)

    def ask_for_replicas(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        if BROKER not in replicas and self.claim in ("", OTHERS):
            self._stage.problems.append(f"a replica is taken out, and the claim is {self.claim or 'free'}")
        self.partitions[topic].ask_for_replicas(topic, partition, replicas)

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        found = self.partitions[topic]
        if not found.adding and not found.removing:
            raise ClusterRefused("no reassignment is under way")
        found.cancel_reassignment(topic, partition)

    def prefer_log_dir(self, topic: str, partition: int, broker: int, log_dir: str) -> None:
        self._stage.asks(f"for {topic} in {log_dir}")
        self.partitions[topic].preferred = log_dir

    def elect_preferred(self, topic: str, partition: int) -> None:
        self.partitions[topic].elect_preferred(topic, partition)

    def read_claim(self) -> str:
        self._stage.asks("for the claim")
        return self.claim

    def write_claim(self, text: str) -> None:
        self._stage.asks("to write the claim")
        self.claim = text
        self._stage.asks("and is not told")


def _fresh_id(stage: Stage) -> str:
    return render_uuid(uuid.UUID(int=stage.chance.getrandbits(128)))
