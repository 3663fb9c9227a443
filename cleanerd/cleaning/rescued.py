"""What a rescue has done, or would do (`cleaning.rescue`)."""

from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["planned", "done", "no_room", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a rescue, done or foreseen. `logs`: what it is about. Bytes that it needs before it frees any."""

    name: Literal["resumed", "leftovers", "retention", "indexes", "compaction", "spare"]
    logs: str
    needs_bytes: int
    frees_bytes: int
    outcome: Outcome
    reason: str | None = None


@dataclass(slots=True)
class Rescued:
    """The result of a rescue in a log directory, or its forecast. Bytes are those of the file system.

    `start_bytes`: what a start of its broker takes; `until_bytes`: when to stop. `settings_as_of_ms`: the last sign of life
    of the broker; None where what is configured holds. `reserved_bytes`: free for root alone, where nothing is for others:
    if root has written into what is kept for it (ext4), that much has to be freed before anything shows. `is_interrupted`:
    of some log a part lies on a spare alone. `lacks_names`: too few files can be made for a start (inodes).
    `would_help`: what is never done here, in words.
    """

    log_dir: str
    free_bytes: int
    start_bytes: int
    until_bytes: int
    settings_as_of_ms: int | None = None
    reserved_bytes: int = 0
    steps: list[Step] = field(default_factory=list)
    free_bytes_after: int = 0
    would_help: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    lacks_names: bool = False

    def add_indexes(self, step: Step) -> None:
        """Of indexes that a start of the broker makes again: it takes so much more."""
        self.steps.append(step)
        self.start_bytes += step.frees_bytes
        self.until_bytes = max(self.until_bytes, self.start_bytes)

    @property
    def missing_bytes(self) -> int:
        """What a start of the broker takes beyond what is free then."""
        return max(self.start_bytes - self.free_bytes_after, 0)

    @property
    def is_enough(self) -> bool:
        """Whether the broker can start."""
        return not (self.missing_bytes or self.is_interrupted or self.lacks_names)
