"""What one gate runs, and that all of it runs in time."""

import re
from collections import defaultdict

from tests.rotation import KINDS, Unit, header, part_of

FILES = [
    *(("broker/test_releases.py", f"test_agree[{n}]", {"broker"}) for n in range(11)),
    *(("daemon/test_faults.py", f"test_fault[{n}]", {"soak"}) for n in range(20)),
    *(("operate/test_container.py", f"test_{n}", {"skipif"}) for n in range(6)),
    *((f"operate/test_{name}.py", "test", {"soak"}) for name in ("booted", "newer_python", "install")),
    *((f"broker_agent/test_{n}.py", "test", {"broker"}) for n in range(12)),
    *((f"broker/test_{n}.py", "test", {"broker", "timeout"}) for n in range(20)),
    *((f"daemon/test_{n}.py", "test", {"soak"}) for n in range(14)),
    *((f"spark_runtime/test_{n}.py", "test", {"soak"}) for n in range(8)),
]
UNITS = {unit for unit in (Unit.of(*row) for row in FILES) if unit is not None}
COMMITS = [f"{n:040x}" for n in range(60)]


def test_the_gate_of_a_commit_has_some_of_each_kind_and_is_the_same_again() -> None:
    for commit in COMMITS[:5]:
        ours = part_of(UNITS, commit)
        assert ours == part_of(UNITS, commit)
        assert {unit.kind for unit in ours} == set(KINDS)
        assert len(ours) < len(UNITS) / 2


def test_every_unit_is_run_within_some_commits() -> None:
    assert set[Unit]().union(*(part_of(UNITS, commit) for commit in COMMITS)) == UNITS


def test_what_proves_that_nothing_is_lost_is_in_every_gate() -> None:
    for directory in ("format", "policy", "kernels", "storage", "simulation", "pipeline", "proofs"):
        assert Unit.of(f"{directory}/test_any.py", "test", {"soak"}) is None
    assert Unit.of("proofs/test_swap.py", "test", {"broker"}) is None


def test_short_tests_are_in_every_gate() -> None:
    assert Unit.of("broker/test_model.py", "test", set()) is None
    assert Unit.of("daemon/test_states.py", "test", {"parametrize"}) is None


def test_tests_that_share_a_broker_stay_together() -> None:
    by_file = defaultdict(set)
    for row in FILES:
        unit = Unit.of(*row)
        assert unit is not None
        by_file[row[0]].add(unit)
    assert len(by_file["broker/test_1.py"]) == 1
    assert len(by_file["broker/test_releases.py"]) == 11


def test_the_top_of_a_run_tells_how_to_repeat_it(monkeypatch) -> None:
    monkeypatch.setenv("CLEANERD_TEST_ROTATION", "abc")
    assert re.search(r"CLEANERD_TEST_ROTATION=abc \.ci/run", "\n".join(header()))
    monkeypatch.delenv("CLEANERD_TEST_ROTATION")
    assert not header()
