"""An install, as the journal has it, and what is seen of the cluster and the disk."""

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Self

from pydantic import TypeAdapter

from cleanerd.format.names import TopicPartition


class Step(Enum):
    """Where an install is; the head of the package tells what each means."""

    PREPARED = "prepared"
    REMOVING = "removing"
    MOVING = "moving"
    ADDING = "adding"
    EVICTING = "evicting"
    ELECTING = "electing"
    CLEARING = "clearing"


class Outcome(Enum):
    """What became of an install."""

    INSTALLED = "installed"
    RETURNED = "returned"  # the replica was taken back: its log is the old one, or fetched from the leader
    ABANDONED = "abandoned"  # nothing was asked of the cluster
    DROPPED = "dropped"  # the topic is gone, or was created again
    FOREIGN = "foreign"  # the partition was given another list of replicas meanwhile, which stays


@dataclass(frozen=True, slots=True)
class Install:
    """One install. Times in ms since 1970; `controller`: id and epoch of the leader of the metadata quorum at the start.

    `replicas`: the list that is brought back. `end_offset`: of the prepared log. `round_end`: up to where it is clean.
    `is_moved`: the prepared directory was given to the broker. `reason`: why it is taken back, None while all goes well.
    """

    id: str
    topic: str
    partition: int
    topic_id: str
    broker: int
    log_dir: str
    replicas: tuple[int, ...]
    was_leader: bool
    controller: tuple[int, int]
    end_offset: int
    round_end: int
    freed_bytes: int
    tail_bytes: int
    began_ms: int
    step: Step
    step_ms: int
    is_moved: bool = False
    reason: str | None = None
    outcome: Outcome | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the replica."""
        return TopicPartition(self.topic, self.partition)

    @property
    def rest(self) -> tuple[int, ...]:
        """The list without this broker, in its order."""
        return tuple(one for one in self.replicas if one != self.broker)

    def to(self, step: Step, now_ms: int, **changes: Any) -> Self:
        """The same in another step."""
        return replace(self, step=step, step_ms=now_ms, **changes)

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        return found | {
            "step": self.step.value,
            "outcome": None if self.outcome is None else self.outcome.value,
        }

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> Self:
        """From `fields`. Raises ValueError."""
        return TypeAdapter(cls).validate_python(fields)


class PlaceContent(Enum):
    """What lies under the partition's name in the log directory."""

    NOTHING = "nothing"
    OURS = "ours"  # the prepared directory of this install
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the cluster says of a partition. `topic_id` None: it knows no such topic.

    `adding`, `removing`: of a reassignment that is under way. `hosted_in`: the log directory in which the broker has it,
    None for none. `log_dirs`: how many log directories the broker has that work.
    """

    topic_id: str | None
    replicas: tuple[int, ...]
    isr: frozenset[int]
    leader: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    alive: frozenset[int]
    controller: tuple[int, int]
    hosted_in: str | None
    log_dirs: int


@dataclass(frozen=True, slots=True)
class Observation:
    """All that decides about the next step. Times in ms, None for never in this process.

    `asked_ago_ms`: since the action of this step was last carried out. `in_step_ms`: since this process entered the step, or
    found it in the journal; both by a monotonic clock. `absent_for_ms`: how long the topic has been unknown
    each time it was looked for. `topic_id_in_place`: in our directory under the partition's name.
    `failure`: what the last action of this step ended with.
    """

    cluster: ClusterView
    place: PlaceContent
    is_prepared: bool
    asked_ago_ms: int | None
    topic_id_in_place: str | None = None
    absent_for_ms: int = 0
    failure: str | None = None
    is_abort_asked: bool = False
    in_step_ms: int = 0
