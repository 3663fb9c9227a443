"""cleanerd against the broker's own cleaner, over the same directories.

Three passes. The broker's cleaner makes one pass over copy A; cleanerd makes the same pass over copy B;
then every surviving record, every field of every batch header, the transaction indexes and the cleaner
checkpoint are compared. The next pass starts from the broker's result, so that a difference does not hide a
later one. Before the second and third pass the checkpoint is emptied, which makes the whole log dirty again:
tombstones and markers get past their horizon, and the markers of emptied transactions go (rule 4.21).

Nothing races in copy A: nobody writes to it, its transactions stay open longer than the test runs, and the
broker's cleaner takes each log once (see `clean_by_broker`).
"""

from pathlib import Path

import pytest

from tests.broker.agreement import Pass, disagreements, make_passes
from tests.broker.conftest import Origin
from tests.broker.logdump import dump_partition
from tests.broker.model import survivors
from tests.broker.swapping import build_agent
from tests.broker.tools import first_dirty_offset

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

PASSES = (1, 2, 3)


@pytest.fixture(scope="module")
def passes(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> list[Pass]:
    root = tmp_path_factory.mktemp("broker-cleaner")
    return make_passes(origin.log_dir, origin.plans, root, [0] * len(PASSES))


@pytest.mark.parametrize("number", PASSES)
def test_model_agrees_with_the_broker(origin: Origin, passes: list[Pass], number: int) -> None:
    """The plain model of the round trips keeps exactly the records that the broker keeps."""
    made = passes[number - 1]
    wrong: list[str] = []
    for plan in origin.plans:
        before = dump_partition(made.before / plan.directory)
        start = first_dirty_offset(made.before, before)
        expected = survivors(before, first_dirty_offset=start, now_ms=made.started_ms)
        if expected != dump_partition(made.after / plan.directory).records:
            wrong.append(plan.topic)
    assert wrong == []


@pytest.mark.parametrize("number", PASSES)
def test_cleanerd_agrees_with_the_broker(
    origin: Origin, passes: list[Pass], number: int, tmp_path: Path
) -> None:
    """Same input, same log: records, headers, aborted transactions, checkpoint."""
    assert disagreements(passes[number - 1], origin.plans, tmp_path / "ours") == []


@pytest.mark.parametrize("number", PASSES[1:])
def test_swaps_agree_with_the_broker(origin: Origin, passes: list[Pass], number: int, tmp_path: Path) -> None:
    """The same where a broker lives: past delete horizons, and with the markers of transactions that are empty by now."""
    build_agent()
    assert disagreements(passes[number - 1], origin.plans, tmp_path / "ours", by_swaps=True) == []
