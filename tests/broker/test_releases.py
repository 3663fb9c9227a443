"""Each older release of the table, by its own broker (`python -m tests.broker.matrix` takes more topics)."""

from pathlib import Path

import pytest

from cleanerd.broker_agent.releases import TESTED_RELEASES
from tests.harness.broker.compact import prove
from tests.harness.broker.releases import SWITCH, releases

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "version", list(releases())[:-1]
)  # all other tests of this directory are about the last one
def test_a_broker_and_cleanerd_agree(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cleaners leave the same; that broker loads it without a complaint, and takes it in while it runs."""
    monkeypatch.setenv(SWITCH, version)
    assert prove(tmp_path / "proof").faults == []


def test_the_agent_works_in_what_is_tested() -> None:
    """The agent's own table names the releases of this one, no more and no fewer."""
    assert tuple(version.rpartition(".")[0] for version in releases()) == TESTED_RELEASES
