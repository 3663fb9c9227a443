"""What `clean` makes of damaged files beside the `.log`, next to what `verify` says of them: one rule for each format.

Each damage is done to a log directory of its own.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.format.names import FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.segments import live_bases
from cleanerd.tools.insight.findings import Finding, Severity
from cleanerd.tools.insight.verify import verify
from tests.cleaning.test_merge import append, bytes_of
from tests.harness.damage import directories as damage
from tests.harness.damage.logs import HINTS
from tests.harness.logs.logdirs import broker_log_dir
from tests.harness.logs.troubled import clean, contents, segment

FILES = (".index", ".timeindex", ".txnindex", ".snapshot", "-checkpoint")
"""Ends of the names of what a cleaning reads beside the `.log`."""
CODES = ("index", "time_index", "txn_index", "snapshot", "epoch", "checkpoint", "log_start", "not_regular")
OF_VERIFY = [harm for harm, code in damage.DAMAGES.items() if code.startswith(CODES)]
VERIFY_ALONE: dict[Callable[[Path], object], str] = {
    damage.time_index_too_old: "it takes the timestamps of all batches to see it",
    damage.time_index_too_young: "the same",
    damage.txn_index_without_an_abort: "in the active segment, and no transaction that was cleaned reaches it",
    damage.fifo_as_log: "no file beside the `.log`",
}
"""Errors that a cleaning does not meet, and why."""


def findings(log_dir: Path) -> list[Finding]:
    return [finding for finding in verify([str(log_dir)]).findings if finding.path.endswith(FILES)]


def line(finding: Finding) -> str:
    """As a cleaning puts it."""
    return f"{finding.path}: at byte {finding.position}: expected {finding.expected}, found {finding.found}"


@pytest.mark.parametrize("harm", OF_VERIFY, ids=lambda harm: harm.__name__)
def test_clean_and_verify_agree(harm: Callable[[Path], object], spark: LazySpark, tmp_path: Path) -> None:
    """What stops a cleaning is an error of `verify`; what it does without is a finding, in the same words, and is mended."""
    log_dir = broker_log_dir(tmp_path / "logs")
    harm(log_dir)
    before = findings(log_dir)
    ran = clean(spark, log_dir)
    errors = [finding for finding in before if finding.kind.severity is Severity.ERROR]
    reasons = [str(result["reason"]) for result in ran.results.values() if result["outcome"] == "failed"]
    for reason in reasons:
        assert any(os.path.basename(finding.path) in reason for finding in errors) or ".log: " in reason, (
            reason
        )
    told = [text for text in ran.told.splitlines() if "damaged indexes" in text]
    met = [finding for finding in before if any(text.endswith(line(finding)) for text in told)]
    assert len(met) == len(told), (told, before)
    assert not {finding.path for finding in met} & {finding.path for finding in findings(log_dir)}
    if harm not in VERIFY_ALONE:
        assert errors or met or not (reasons or told)
        for finding in errors:
            assert finding in met or any(os.path.basename(finding.path) in reason for reason in reasons), (
                finding
            )


@pytest.mark.parametrize("harm", HINTS)
def test_e2_a_damaged_index_does_not_outlive_a_cleaning_in_which_nothing_goes(
    harm: Callable[[Path], str], spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker goes on using it, and its readers miss records. The segments beside it are not written again."""
    directory = append(tmp_path, [150] * 3)
    before = contents(directory)
    harm(directory)
    monkeypatch.setattr("cleanerd.cleaning.clean.merge_neighbours", lambda plan, _: plan)
    options = ["--set=log.segment.bytes=1000", "--set=log.index.interval.bytes=300"]
    ran = clean(spark, tmp_path, options=options)
    (result,) = ran.results.values()
    assert (result["outcome"], result["removed"], live_bases(str(directory))) == (
        "committed", {}, [0, 150, 300, 450],
    )  # fmt: skip
    after = contents(directory)
    assert bytes_of(after) == bytes_of(before)
    new = {name for name, (inode, _, _) in after.items() if name in before and inode != before[name][0]}
    assert {name for name in new if name.endswith(".log")} == {segment(directory, 1).name}
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        name = segment(directory, 1, kind).name
        assert after[name][2] == before[name][2], "as it was before the damage"
    assert clean(spark, tmp_path, options=options).told == ""
