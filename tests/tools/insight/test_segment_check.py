"""A segment against its indexes."""

from pathlib import Path

import pytest

from cleanerd.format.names import FileKind
from cleanerd.tools.insight import segment_check
from cleanerd.tools.insight.segment_check import SegmentReport
from tests.tools.insight.logdirs import broker_log_dir, findings, segment


def test_a_transaction_index_that_was_not_listed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer without a lock makes it with the first abort."""
    log_dir = broker_log_dir(tmp_path / "logs")
    index = segment(log_dir / "transactions-0", 0, FileKind.TXN_INDEX)
    index.rename(tmp_path / "index")

    def appears(report: SegmentReport) -> None:
        if (tmp_path / "index").exists():
            (tmp_path / "index").rename(index)
        check(report)

    check = segment_check._check
    monkeypatch.setattr(segment_check, "_check", appears)
    assert [finding.severity for finding in findings(log_dir)] == []
