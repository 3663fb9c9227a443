"""Beside a live broker a log is cleaned as far as the broker's own cleaner would: it is asked, not its checkpoint files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.broker.swapping import TOPIC, TXN_TOPIC, Swapping
from tests.harness.broker.tools import offset_checkpoint

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

NO_RECOVERY_POINT = {"log.initial.task.delay.ms": str(3_600_000)}
"""By default a broker of an earlier release waits for half a minute before it writes the first one."""


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Swapping]:
    with Swapping(tmp_path, NO_RECOVERY_POINT) as world:
        yield world


def active_base(swapping: Swapping, topic: str = TOPIC) -> int:
    return max(int(path.stem) for path in swapping.directory(topic).glob("*.log"))


def test_a_broker_that_has_written_no_recovery_point_is_cleaned_up_to_its_active_segments(
    swapping: Swapping,
) -> None:
    """By its files nothing is flushed. Then also the active segment, which the broker closes."""
    refused = swapping.clean("--roll", "--set", "cleanerd.commit.live=off")
    assert {row["outcome"] for row in refused.values()} == {"failed"}
    assert all("cleanerd.commit.live is off" in row["reason"] for row in refused.values())
    end, txn_base = active_base(swapping), active_base(swapping, TXN_TOPIC)
    results = swapping.clean()
    assert f"{TOPIC}-0" not in offset_checkpoint(swapping.log_dir / "recovery-point-offset-checkpoint")
    assert (results[TOPIC]["committed_by"], results[TOPIC]["end_offset"]) == ("swap", end)
    assert results[TXN_TOPIC]["committed_by"] == "swap"
    rolled = swapping.clean("--roll")
    written = 1 + max(swapping.ledgers[TOPIC].written)
    assert (rolled[TOPIC]["outcome"], rolled[TOPIC]["end_offset"]) == ("committed", written)
    assert active_base(swapping) == written
    assert active_base(swapping, TXN_TOPIC) > txn_base
    assert rolled[TXN_TOPIC]["end_offset"] <= txn_base, "not past the transaction that is open"
    swapping.transactions.end(commit=True)
    with swapping.traffic:
        pass
    swapping.check_in_order()
