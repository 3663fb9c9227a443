"""Reports as one: a fleet, replicas, growth; and the page of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cleanerd import API_VERSION
from cleanerd.errors import BadUsage
from cleanerd.tools.insight.doctor.facts import DAY_MS, Limits
from cleanerd.tools.insight.doctor.merge import merged, read_reports
from cleanerd.tools.insight.doctor.page import page
from cleanerd.tools.insight.doctor.report import document
from cleanerd.tools.insight.doctor.rules import judge
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
    elsewhere = other(report, 2, log_start=2) | {"cluster_id": "d"}
    assert codes(report, elsewhere) == [(1, "cleaner_dead")]


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


def test_what_is_no_report_is_named(tmp_path: Path, report: dict[str, Any]) -> None:
    path = tmp_path / "report.json"
    report = {"apiVersion": API_VERSION, **report}
    path.write_text(json.dumps(report))
    assert read_reports([str(path)]) == [report]
    for content in (
        "",
        "{}",
        "[]",
        json.dumps(report | {"apiVersion": "cleanerd/v0"}),
        json.dumps(report | {"logs": [{}]}),
        json.dumps(report | {"findings": [1]}),
        json.dumps(report | {"node_id": {}}),
        json.dumps(report | {"at_ms": float("inf")}),
    ):
        path.write_text(content)
        with pytest.raises(BadUsage, match=f"{path}: expected what `cleanerd doctor -o json` writes"):
            read_reports([str(path)])


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
