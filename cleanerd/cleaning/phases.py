"""How long the phases of a cleaning take. Logs that share a job go through plan, index, rewrite and stage together.

==========  ==========================================================================================
phase       what is done
==========  ==========================================================================================
examine     an exact look at the logs of a job, before its seconds begin; measured by the daemon alone,
            with the start of the engine if it was not up
plan        what a cleaning needs to know beside the records is read, the work is divided
start       Spark is started, if it was not up; like examine, no part of the seconds of a cleaning
index       keys are read, and the newest record of each is found
rewrite     records are copied and the copy is verified; counted beforehand where disk space is short;
            small logs are indexed in here, too
stage       the parts of each log are joined and synced, those of several logs side by side
commit      its segments are swapped, its checkpoint is written; several logs of a `clean` do so side by side,
            and each reports its share of the seconds
checkpoint  that is written alone, where nothing had to go
==========  ==========================================================================================
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cleanerd.env.clock import Clock

JOB_PHASES = ("examine", "plan", "start", "index", "rewrite", "stage")
"""Phases of a whole job: each of its logs reports the same seconds."""
LOG_PHASES = ("commit", "checkpoint")


class Stopwatch:
    """Runs from its making on, but for pauses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._paused_s: float | None = None
        self.phase_seconds: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Since it began, without pauses and the start of Spark."""
        now_s = self._clock.monotonic_s() if self._paused_s is None else self._paused_s
        return now_s - self._began_s - self.phase_seconds.get("start", 0.0)

    def pause(self) -> None:
        """Stop the clock while the measured work waits for its turn."""
        self._paused_s = self._clock.monotonic_s()

    def resume(self) -> None:
        """Start the clock again; without a pause before, nothing changes."""
        if self._paused_s is not None:
            self._began_s += self._clock.monotonic_s() - self._paused_s
            self._paused_s = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase; one that ends in an error has none."""
        began_s = self._clock.monotonic_s()
        yield
        self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + self._clock.monotonic_s() - began_s
