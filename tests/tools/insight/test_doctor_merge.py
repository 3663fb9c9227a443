"""Reports as one: a fleet, replicas, growth; and the page of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cleanerd import API_VERSION
from cleanerd.tools.insight.digest import Question, digest_logs
from cleanerd.tools.insight.digest_report import document as digest_document
from cleanerd.tools.insight.doctor.facts import DAY_MS, HOUR_MS, Limits
from cleanerd.tools.insight.doctor.merge import merged, read_reports
from cleanerd.tools.insight.doctor.page import page
from cleanerd.tools.insight.doctor.report import document
from cleanerd.tools.insight.doctor.rules import judge
from tests.tools.insight.test_digest import DENSE, damaged, put_checkpoint
from tests.tools.insight.test_doctor import LIMITS, NOW_MS, cleaned_duplicates, dead, look


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    """Of a directory whose cleaner is dead, as if it were node 1's."""
    (root := tmp_path / "logs").mkdir()
    dead(root)
    broker = look(root)
    found = document(broker, judge(broker, LIMITS)) | {"node_id": 1, "cluster_id": "c"}
    return dict(json.loads(json.dumps(found)))


def other(report: dict[str, Any], node_id: int, **of_log: object) -> dict[str, Any]:
    return report | {"node_id": node_id, "findings": [], "logs": [report["logs"][0] | of_log]}


def codes(*reports: dict[str, Any]) -> list[tuple[int | None, str]]:
    return [(one["node_id"], one["code"]) for one in merged(reports, Limits())["findings"]]


def test_findings_have_their_node(report: dict[str, Any]) -> None:
    fleet = merged([report, other(report, 2)], Limits())
    assert [(one["node_id"], one["errors"], one["logs"]) for one in fleet["brokers"]] == [
        (1, 1, 1),
        (2, 0, 1),
    ]
    assert [(one["node_id"], one["code"]) for one in fleet["findings"]] == [(1, "cleaner_dead")]
    assert [one["node_id"] for one in fleet["logs"]] == [1, 2]


def test_replicas_that_begin_a_segment_apart(report: dict[str, Any]) -> None:
    """Less than a segment is a matter of moments; another cluster has logs of the same name."""
    assert report["logs"][0]["second_segment"] == 2
    assert codes(report, other(report, 2, log_start=1)) == [(1, "cleaner_dead")]
    assert (None, "log_starts_differ") in codes(report, other(report, 2, log_start=2))
    assert report["logs"][0]["cleanup_policy"] == ["compact"]
    remedies = [
        one["remedy"] for one in merged([report, other(report, 2, log_start=2)], Limits())["findings"]
    ]
    assert "kafka-delete-records" not in "".join(remedies), "refused without the policy delete"
    elsewhere = other(report, 2, log_start=2) | {"cluster_id": "d"}
    assert codes(report, elsewhere) == [(1, "cleaner_dead")]


def test_retention_deletes_on_one_broker_before_the_other(report: dict[str, Any]) -> None:
    """What still lies there when the other one has lacked it for an hour is worth a look."""
    for policy in (["compact", "delete"], None):
        low = other(report, 1, cleanup_policy=policy)
        high, an_hour = other(report, 2, cleanup_policy=policy, log_start=2), {"at_ms": NOW_MS - HOUR_MS}
        assert codes(low, high) == []
        assert codes(low, other(report, 2, log_start=0) | an_hour, high) == []
        assert codes(low, high | an_hour, high) == [(None, "log_starts_differ")]


def digested(
    root: Path, node_id: int, changes: dict[int, bytes | None], cluster: str = "c", at: int | None = None
) -> str:
    """The report of `digest` of a node that has one log, with these changes."""
    directory = damaged(root, changes)
    (root / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id={node_id}\n")
    put_checkpoint(directory, "replication-offset-checkpoint", 16)
    question = Question(at=at)
    (report := root / "digest.json").write_text(
        json.dumps(
            {"apiVersion": API_VERSION, **digest_document(digest_logs([str(directory)], question), question)}
        )
    )
    return str(report)


def test_replicas_whose_digests_differ(tmp_path: Path) -> None:
    """Each log with its replicas of the same cluster; what only one node has taken a digest of says nothing."""
    sound = digested(tmp_path / "1", 1, DENSE)

    def found(*reports: str) -> list[tuple[str, str]]:
        rows = merged([], Limits(), read_reports([sound, *reports])[1])["findings"]
        return [(one["code"], one["evidence"]) for one in rows]

    assert found() == []
    assert found(digested(tmp_path / "2", 2, {**DENSE, 0: None})) == []  # superseded
    lost = digested(tmp_path / "3", 3, {**DENSE, 6: None})
    ((code, evidence),) = found(lost)
    assert (code, evidence) == (
        "digests_differ",
        "node 1 and node 3 differ at offset 16, in 1 bucket of keys",
    )
    (one,) = merged([], Limits(), read_reports([sound, lost])[1])["findings"]
    assert f"cleanerd digest --compare {sound} {lost} --topic t --partition 0 --keys" in one["remedy"]
    assert found(digested(tmp_path / "4", 3, {**DENSE, 6: None}, cluster="d")) == []
    ((code, evidence),) = found(digested(tmp_path / "5", 2, DENSE, at=15))
    assert (code, "ask both --at 16" in evidence) == ("digests_not_compared", True)
    ((code, evidence),) = found(digested(tmp_path / "6", 2, DENSE, at=17))
    assert (code, "is decided up to offset 16, not to 17" in evidence) == ("digests_not_compared", True)


def test_days_until_full_by_two_reports_of_a_broker(report: dict[str, Any]) -> None:
    def grown(days: float, size_bytes: int, **more: object) -> dict[str, Any]:
        directory = report["directories"][0] | {"size_bytes": size_bytes, "free_bytes": 10_000}
        return other(report, 1) | {"at_ms": round(NOW_MS + days * DAY_MS), "directories": [directory]} | more

    (row,) = merged([grown(2, 3000), grown(0, 1000)], Limits())["growth"]
    assert (row["bytes_per_day"], row["days_until_full"]) == (1000, 10.0)
    assert codes(grown(0, 1000), grown(2, 3000)) == [(1, "full_soon")]
    assert codes(grown(0, 1000), grown(2, 1100)) == []
    assert codes(grown(0, 1000), grown(2, 500)) == []
    assert codes(grown(0, 1000), grown(2, 3000, is_whole=False)) == []
    assert merged([grown(0, 1000), grown(0.01, 3000)], Limits())["growth"] == []


def test_the_page_needs_nothing_but_itself(tmp_path: Path, report: dict[str, Any]) -> None:
    """No script, nothing that is loaded, no link to a daemon; names are escaped."""
    (root := tmp_path / "more").mkdir()
    cleaned_duplicates(root)
    broker = look(root)
    second = document(broker, judge(broker, LIMITS))
    report["findings"][0]["evidence"] = "<script>alert(1)</script>"
    html = page(merged([report, second], Limits()), NOW_MS).decode()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html
    assert re.findall(r'(?:src|href)="(?!#|data:)', html) == []
    assert html.index("Needs attention") < html.index("Most superseded") < html.index("All logs")
    empty = page(merged([], Limits()), NOW_MS).decode()
    assert "Nothing needs attention" in empty
