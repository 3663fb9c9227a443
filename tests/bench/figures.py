"""Figures of a run: rounds in, medians and ratios out; and the one document that they are kept in."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.sides import Round
from tests.bench.workloads import Built

OURS, FLOOR = "cleanerd", "floor"


@dataclass(frozen=True)
class Row:
    """One workload: what it is, and the rounds of each side in their order.

    `cpu_phases`: CPU seconds of cleanerd by phase; `exact_memory_bytes`: of each side of several processes, without counting
    a page twice. Both are from rounds of their own that are not among those.
    """

    name: str
    title: str
    bytes: int
    records: int
    survivors: int
    sides: Mapping[str, Sequence[Round]]
    cpu_phases: Mapping[str, float] = field(default_factory=dict)
    exact_memory_bytes: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(built: Built, sides: Mapping[str, Sequence[Round]], **more: Any) -> "Row":
        workload = built.workload
        return Row(workload.name, workload.title, built.bytes, built.records, built.survivors, sides, **more)

    @property
    def rival(self) -> str | None:
        return next((name for name in self.sides if name not in {OURS, FLOOR}), None)

    def median(self, side: str, of: Callable[[Round], float] = lambda one: one.seconds) -> float:
        """Of a side's rounds: seconds, unless another figure is asked for."""
        return statistics.median(of(one) for one in self.sides[side])

    def peak_bytes(self, side: str) -> int:
        """The most memory that a side took."""
        return self.exact_memory_bytes.get(side) or max(one.peak_bytes for one in self.sides[side])

    def phase_medians(self) -> dict[str, float]:
        """Wall seconds of cleanerd's phases; `other` is what is in none of them."""
        rounds = self.sides[OURS]
        names = list(dict.fromkeys(name for one in rounds for name in one.phases))
        medians = {name: statistics.median(one.phases.get(name, 0.0) for one in rounds) for name in names}
        if medians:
            medians["other"] = max(self.median(OURS) - sum(medians.values()), 0.0)
        return medians

    def ratio(self, side: str) -> float:
        """How many times as long as cleanerd a side takes, by the medians."""
        return self.median(side) / self.median(OURS)

    def ratio_range(self, side: str) -> tuple[float, float]:
        pairs = zip(self.sides[side], self.sides[OURS], strict=True)
        ratios = [theirs.seconds / ours.seconds for theirs, ours in pairs]
        return min(ratios), max(ratios)

    @property
    def others_cpu(self) -> float:
        """Cores that the rest of the machine kept busy, on average over all rounds."""
        return statistics.fmean(one.others_cpu_s for rounds in self.sides.values() for one in rounds)

    def document(self) -> dict[str, Any]:
        derived = {
            "median_seconds": {side: self.median(side) for side in self.sides},
            "ratio": {side: self.ratio(side) for side in self.sides if side != OURS},
            "mb_per_s": self.bytes / 1e6 / self.median(OURS),
            "records_per_s": self.records / self.median(OURS),
            "phase_seconds": self.phase_medians(),
            "others_cpu": self.others_cpu,
        }
        return {**asdict(self), **derived}
