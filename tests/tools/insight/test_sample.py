"""What follows from a sample of a log; `test_doctor` has the estimate and the other rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from cleanerd.tools.insight.doctor.facts import HOUR_MS, Sample
from cleanerd.tools.insight.doctor.rules import judge
from tests.tools.insight.test_doctor import COMPACT, LIMITS, codes, duplicates, look, two


def test_what_a_limit_holds_back_cannot_go_now(tmp_path: Path) -> None:
    """No command would make it go (`test_each_rule_finds_its_fault_and_no_other`: it can without a lag)."""
    duplicates(tmp_path)
    broker = look(tmp_path, topic_sets=[COMPACT, ("t", "min.compaction.lag.ms", str(2 * HOUR_MS))])
    sample = broker.directories[0].logs[0].sample
    assert sample == Sample(records=21, keys=2)
    assert codes(broker) == []


@pytest.mark.parametrize(
    ("keys", "remedy"), [(5_000_000, None), (5_100_000, "set"), (80_000_000, "set"), (81_000_000, "in ")]
)
def test_more_keys_than_the_dedupe_buffer_has_room_for(keys: int, remedy: str | None, tmp_path: Path) -> None:
    """134 MB of one thread, 24 bytes a key, 0.9 full: 5.03 million keys. A thread has 2 GiB at most (rule 3.1)."""
    two(tmp_path)
    broker = look(tmp_path)
    (directory,), (log,) = broker.directories, broker.directories[0].logs
    logs = (replace(log, sample=Sample(keys=keys)),)
    found = judge(replace(broker, directories=(replace(directory, logs=logs),)), LIMITS)
    assert [(one.code, one.remedy[:3]) for one in found] == ([("dedupe_buffer", remedy)] if remedy else [])
