"""How long the phases of a job take that the engine goes through, as far as its messages tell."""

from collections.abc import Iterator

from cleanerd.env.clock import Clock
from cleanerd.pipeline.channel import Phase


class PhaseTimer:
    """Of one job, from its call on. The tasks of a job are in one phase at a time; its logs go through them together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._planned_s: float | None = None
        self._rewrite_s: float | None = None
        self._reported_s = self._began_s

    def planned(self) -> None:
        """The engine knows what there is to do."""
        self._planned_s = self._planned_s or self._clock.monotonic_s()

    def reported(self, phase: Phase) -> None:
        """A task of this phase did something; called by many threads."""
        now_s = self._clock.monotonic_s()
        if phase is not Phase.INDEX and self._rewrite_s is None:
            self._rewrite_s = now_s
        self._reported_s = now_s

    def ended(self) -> Iterator[tuple[str, float]]:
        """The engine has answered: the phases that there were, and their seconds."""
        now_s = self._clock.monotonic_s()
        planned_s, rewrite_s = self._planned_s, self._rewrite_s
        yield "plan", (now_s if planned_s is None else planned_s) - self._began_s
        if planned_s is not None:
            yield "index", (now_s if rewrite_s is None else rewrite_s) - planned_s
        if rewrite_s is not None:
            yield "rewrite", self._reported_s - rewrite_s
            yield "stage", now_s - self._reported_s
