"""How old an open transaction is for `doctor`: what is proven, and what only timestamps of producers say."""

import os
from pathlib import Path

import pytest

from cleanerd.format.names import FileKind
from cleanerd.format.producer_snapshot import ProducerEntry, render_producer_snapshot
from cleanerd.tools.insight.doctor.facts import DAY_MS, HOUR_MS
from cleanerd.tools.insight.doctor.rules import judge
from tests.harness.logs.logdirs import segment
from tests.tools.insight.test_doctor import LIMITS, NOW_MS, batch, codes, look, put

OPENED = {"transactional": True, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def opened(root: Path) -> tuple[str, str] | None:
    """Severity and evidence of the finding, if any."""
    found = [one for one in judge(look(root), LIMITS) if one.code == "open_transaction"]
    return (str(found[0].severity), found[0].evidence) if found else None


@pytest.mark.parametrize("time_ms", [NOW_MS - DAY_MS, 0, -1])
def test_a_timestamp_proves_no_age_of_a_transaction(time_ms: int, tmp_path: Path) -> None:
    """A producer may write any: proof is when its segment was last written, or a producer snapshot behind it."""
    directory, first = tmp_path / "t-0", batch(0, "a", "1", age_ms=NOW_MS - time_ms, **OPENED)
    has_time = time_ms > 0
    by_timestamp = "by its timestamps since 2027-01-14 08:00:00 UTC"
    put(directory, 0, first, age_ms=1000)
    assert opened(tmp_path) == (("warning", f"producer 7, {by_timestamp}") if has_time else None)
    path = directory / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    os.utime(path, ns=(0, (NOW_MS - 2000) * 1_000_000))
    assert opened(tmp_path) is None, "the log is younger"
    path.unlink()
    proven = "error", f"producer 7, open for 2h at least{f', {by_timestamp}' * has_time}"
    put(directory, 0, first, age_ms=2 * HOUR_MS)
    assert opened(tmp_path) == proven
    put(directory, 0, first, batch(1, "b", "1"), age_ms=1000)
    path = segment(directory, 1, FileKind.PRODUCER_SNAPSHOT)
    path.write_bytes(render_producer_snapshot([ProducerEntry(7, 0, 0, 0, 0, time_ms, 0, 0)]))
    os.utime(path, ns=(0, (NOW_MS - 2 * HOUR_MS) * 1_000_000))
    assert opened(tmp_path) == proven


def test_the_timestamp_of_the_broker_is_the_age_of_a_transaction(tmp_path: Path) -> None:
    first = batch(0, "a", "1", age_ms=2 * HOUR_MS, **OPENED, log_append_time=True)
    put(tmp_path / "t-0", 0, first, age_ms=1000)
    assert opened(tmp_path) == ("error", "producer 7, open for 2h at least")


def test_a_transaction_whose_beginning_is_gone(tmp_path: Path) -> None:
    """A producer snapshot may know more than retention has left."""
    entry = ProducerEntry(7, 0, 0, 1, 0, NOW_MS - DAY_MS, 0, 1)
    for base in (5, 6):
        put(tmp_path / "t-0", base, batch(base, str(base), "1", age_ms=2 * HOUR_MS), age_ms=2 * HOUR_MS)
    segment(tmp_path / "t-0", 6, FileKind.PRODUCER_SNAPSHOT).write_bytes(render_producer_snapshot([entry]))
    assert codes(look(tmp_path)) == ["open_transaction"]
