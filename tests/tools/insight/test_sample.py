"""What a sample of a log says can go; `test_doctor` has the estimate and the rules."""

from pathlib import Path

from cleanerd.tools.insight.doctor.facts import HOUR_MS, Sample
from tests.tools.insight.test_doctor import COMPACT, codes, duplicates, look


def test_what_a_limit_holds_back_cannot_go_now(tmp_path: Path) -> None:
    """No command would make it go (`test_each_rule_finds_its_fault_and_no_other`: it can without a lag)."""
    duplicates(tmp_path)
    broker = look(tmp_path, topic_sets=[COMPACT, ("t", "min.compaction.lag.ms", str(2 * HOUR_MS))])
    sample = broker.directories[0].logs[0].sample
    assert sample == Sample(records=21, keys=2)
    assert codes(broker) == []
