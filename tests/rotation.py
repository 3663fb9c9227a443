"""Which of the long tests one gate runs: a part of each kind, another for the next commit, all of them over some commits.

A gate of everything takes an hour, mostly because brokers, daemons and containers start and wait. What proves that nothing
is lost and nothing comes back runs in every gate: `tests/proofs`, formats, policy, kernels, storage, simulation. The rest
rotates: `CLEANERD_TEST_ROTATION` is the name of a commit, and the units of a kind that one gate runs are the first ones in
the order of a hash of that name and theirs. Without the variable everything runs (`.ci/run --all`).

A unit is a file, whose tests share what is dear, or a single test where they share nothing.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from math import ceil
from pathlib import Path

import pytest

VARIABLE = "CLEANERD_TEST_ROTATION"
_TESTS = Path(__file__).parent
_IN_EVERY_GATE = (
    "config/*", "format/*", "policy/*", "kernels/*", "storage/*", "simulation/*", "pipeline/*", "proofs/*",
    "broker/test_live_broker.py",
)  # fmt: skip
_LONG = ("broker", "soak")
"""The markers of what is skipped unless it is asked for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long test: the files that have it, and which share of its units one gate runs (at least one)."""

    name: str
    files: tuple[str, ...]
    share: float
    is_unit_a_test: bool = False
    is_long_by_file: bool = False  # whatever the markers of its tests are

    def fits(self, file: str, markers: Collection[str]) -> bool:
        """Whether a test of this file with these markers rotates with the others of this kind."""
        is_long = self.is_long_by_file or not set(_LONG).isdisjoint(markers)
        return is_long and any(fnmatch(file, pattern) for pattern in self.files)

    def part(self, units: Iterable[str], commit: str) -> list[str]:
        """The units that the gate of a commit runs."""
        order = sorted(set(units), key=lambda unit: hashlib.sha256(f"{commit} {unit}".encode()).digest())
        return order[: ceil(self.share * len(order))]


KINDS = (
    Kind("releases", ("broker/test_releases.py",), 0.18, is_unit_a_test=True),
    Kind("faults", ("daemon/test_faults.py",), 0.3, is_unit_a_test=True),
    Kind("images", ("operate/test_container.py",), 0.34, is_unit_a_test=True, is_long_by_file=True),
    Kind("machines", ("operate/test_booted.py", "operate/test_newer_python.py", "operate/test_install.py"), 0.3,
         is_long_by_file=True),
    Kind("swaps", ("broker_agent/*", "broker/test_*swap*"), 0.34),
    Kind("stories", ("broker/*", "tools/*", "cli/*"), 0.34),
    Kind("daemons", ("daemon/*", "operate/*"), 0.34),
    Kind("the rest", ("*",), 0.5),
)  # fmt: skip
"""The first that fits counts."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What rotates as one."""

    kind: Kind
    name: str

    @classmethod
    def of(cls, file: str, test: str, markers: Collection[str]) -> "Unit | None":
        """That of a test; None for one that is in every gate. `file`: below `tests/`."""
        if any(fnmatch(file, pattern) for pattern in _IN_EVERY_GATE):
            return None
        kind = next((kind for kind in KINDS if kind.fits(file, markers)), None)
        return None if kind is None else cls(kind, f"{file}::{test}" if kind.is_unit_a_test else file)


def part_of(units: Collection[Unit], commit: str) -> set[Unit]:
    """Those of these units that the gate of a commit runs."""
    return {
        Unit(kind, name)
        for kind in {unit.kind for unit in units}
        for name in kind.part((unit.name for unit in units if unit.kind == kind), commit)
    }


def rotate(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what another commit's gate runs."""
    commit = os.environ.get(VARIABLE)
    if not commit:
        return
    units = [_unit(item) for item in items]
    ours = part_of({unit for unit in units if unit is not None}, commit)
    is_ours = [unit is None or unit in ours for unit in units]
    left = [item for item, keep in zip(items, is_ours, strict=True) if not keep]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item, keep in zip(items, is_ours, strict=True) if keep]


def header() -> Sequence[str]:
    """What is said at the top of a run."""
    commit = os.environ.get(VARIABLE)
    if not commit:
        return []
    shares = ", ".join(f"{kind.share:.0%} of {kind.name}" for kind in KINDS)
    return [
        f"rotation of {commit}: {shares}",
        f"the same again: {VARIABLE}={commit} .ci/run; everything: .ci/run --all",
    ]


def _unit(item: pytest.Item) -> Unit | None:
    file = item.path.relative_to(_TESTS).as_posix()
    return Unit.of(file, item.name, {marker.name for marker in item.iter_markers()})
