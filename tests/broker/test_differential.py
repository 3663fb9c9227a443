"""A round of `python -m tests.broker.differential`, which takes as many seeds as one likes; here of each scenario twice."""

from pathlib import Path

import pytest

from tests.broker.differential import differences
from tests.harness.broker.workload import SCENARIOS

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]


def test_both_cleaners_agree_and_the_broker_goes_on(tmp_path: Path) -> None:
    """Two log directories, old magics, three passes with time between them (rules 4.15-4.21), and the broker afterwards."""
    assert differences(tmp_path / "round", range(2 * len(SCENARIOS))) == []
