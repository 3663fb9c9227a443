"""Messages between daemon and engine: plain values that load no compiled code."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cleanerd.cleaning.result import Step
from cleanerd.config.model import CleanerdConfig, TopicConfig
from cleanerd.format.names import TopicPartition
from cleanerd.policy.tombstones import Stay
from cleanerd.spark_runtime.channel import Reporter
from cleanerd.storage.scan import Checkpoints


@dataclass(frozen=True, slots=True)
class ExamineCall:
    """Look at logs of one log directory as exactly as before a cleaning. Answered by a `LogResult`.

    `checkpoints`: as `examine_all` takes them. `tombstones`: why those of a log must stay.
    """

    log_dir: str
    partitions: tuple[TopicPartition, ...]
    config: CleanerdConfig
    topic_configs: Mapping[str, TopicConfig]
    checkpoints: Checkpoints | None = None
    tombstones: Mapping[TopicPartition, Stay] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCall(ExamineCall):
    """Examine logs of one log directory, clean those that qualify as one job, stage the results.

    `is_owned`: a broker lives in the log directory; `jobs_at_once`: how many share the memory for keys.
    `force`: whatever the dirty ratio; `horizons`: also where only a delete horizon has expired. `goes_on`: with the groups
    of a log that its last call has left, which are committed by now but for them.
    Answered by a list with a `LogResult` per log: staged, unchanged, skipped, failed or aborted.
    """

    force: bool
    horizons: bool
    reporter: Reporter
    is_owned: bool
    jobs_at_once: int
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class RestDropped:
    """Nobody will ask for the groups that are left of a log: of its directory."""

    directory: str


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A request; its messages carry its `id`."""

    id: int
    task: ExamineCall


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """The next log that the tasks of a call will report about: the first is number 0."""

    call_id: int
    topic_partition: TopicPartition
    total_bytes: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """A log of a call got on, where the log level is debug."""

    call_id: int
    step: Step


@dataclass(frozen=True, slots=True)
class EngineReply:
    """The answer to a call, or the `CleanerdError` that it ended with."""

    call_id: int
    value: object


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A call begins (`is_running`) or ends a Spark job: meanwhile its tasks report."""

    call_id: int
    is_running: bool
