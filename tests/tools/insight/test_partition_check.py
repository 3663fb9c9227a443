"""What only shows when the segments of a log, its indexes and the checkpoints are put together."""

from pathlib import Path

import pytest

from cleanerd.tools.insight.verify import verify
from tests.tools.insight import damage_beside
from tests.tools.insight.logdirs import broker_log_dir


def test_the_end_of_a_log_is_known_from_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they answer is a copy."""
    log_dir = broker_log_dir(tmp_path / "logs")
    for harm in damage_beside.WRITTEN:
        if harm.name in {"log_start_beyond_end", "checkpoint_beyond_end", "epoch_beyond_end"}:
            harm(log_dir)
    monkeypatch.setattr("cleanerd.tools.insight.processes.INLINE_BYTES", 0)
    alone, together = (verify([str(log_dir)], processes=processes) for processes in (1, 2))
    assert {finding.code for finding in alone.findings} >= {
        "log_start_beyond_end", "checkpoint_beyond_end", "epoch_beyond_end"
    }  # fmt: skip
    assert together.findings == alone.findings
