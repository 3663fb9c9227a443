"""The daemon under a real Prometheus while it cleans: its metrics, our rules, every query of the dashboard."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.daemon.telemetry.metric_table import METRICS
from tests.harness.daemon.processes import wait_until
from tests.harness.daemon.scrape import get, has_moved, parse
from tests.harness.programs import need, run
from tests.operate.server import DASHBOARD, RULES, Prometheus, filled, names_in, panels, queries, scraping
from tests.operate.story import MOVED_BY_STORY, Story, begun, tell

FIRES = {"CleanerdErrors"}
"""Alerts without a delay whose case is in the story. All others have a delay, or are about what is not in it."""
IS_TRUE = FIRES | {"CleanerdUncleanablePartitions", "CleanerdPausedForLong"}
"""Alerts whose condition holds at the end of the story: two logs cannot be cleaned or are paused."""
NOT_YET = {"instance:cleanerd_throttled:ratio_avg15m"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def told(place: Path) -> Iterator[tuple[Story, Prometheus | None]]:
    """The whole story, with a Prometheus that watched it if there is one on this machine."""
    with begun(place) as story:
        try:
            need("prometheus", "prometheus")
        except pytest.skip.Exception:
            tell(story)
            yield story, None
            return
        with scraping(place / "server", story.address) as prometheus:
            tell(story)
            yield story, prometheus


@pytest.fixture(scope="module")
def story(told: tuple[Story, Prometheus | None]) -> Story:
    return told[0]


@pytest.fixture(scope="module")
def prometheus(told: tuple[Story, Prometheus | None]) -> Prometheus:
    need("prometheus", "prometheus")
    assert told[1] is not None
    return told[1]


# -- without Prometheus ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_what_cleaning_counts_moves(story: Story) -> None:
    begun, ended = story.scrapes["begun"], story.scrapes["ended"]
    cleaned = story.scrapes["cleaned"]
    is_moved = {m for m in MOVED_BY_STORY if has_moved(m, begun, cleaned) or has_moved(m, begun, ended)}
    assert [metric.name for metric in MOVED_BY_STORY if metric not in is_moved] == []
    assert {"idle", "busy", "throttled"} <= story.states_of_workers


@pytest.mark.soak
def test_numbers_are_those_of_the_files(story: Story) -> None:
    cleaned, a = story.scrapes["cleaned"], str(story.a)
    history = [event for name in ("first-0", "second-0") for event in story.daemon.history(name)]
    first = [e for e in history if e["outcome"] == "committed"][::-1]
    by_log = {e["topic"]: e for e in first}
    saved = sum(e["bytes_before"] - e["bytes_after"] for e in by_log.values())
    assert cleaned.total("cleanerd_reclaimed_bytes_total", log_dir=a, by="compaction") == saved > 0
    removed = sum(sum(e["removed"].values()) for e in by_log.values())
    assert cleaned.total("cleanerd_records_removed_total", log_dir=a, reason="superseded") == removed > 0
    assert cleaned.total("cleanerd_records_read_total", log_dir=a) >= sum(
        e["records_read"] for e in by_log.values()
    )
    assert cleaned.total("cleanerd_cleaning_errors_total", log_dir=a, cause="corrupt_file") == 3
    assert cleaned.total("cleanerd_partitions", state="uncleanable") == 1
    assert cleaned.total("cleanerd_throttle_seconds_total") > 1
    assert 0 < cleaned.total("cleanerd_dedupe_buffer_max_utilization_ratio") < 0.01
    ended = story.scrapes["ended"]
    sizes = sum(path.stat().st_size for path in story.a.glob("*/*.log"))
    assert ended.total("cleanerd_log_bytes", log_dir=a) == sizes


@pytest.mark.soak
def test_the_control_socket_serves_the_same_pages(story: Story) -> None:
    def ask(path: str) -> str:
        command = ["curl", "-sS", "--unix-socket", str(story.daemon.socket), f"http://localhost{path}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    need("curl", "curl")
    assert ask("/healthz") == get(story.address, "/healthz")[2] == "alive\n"
    assert ask("/readyz") == get(story.address, "/readyz")[2] == "ready\n"
    assert parse(ask("/metrics")).samples.keys() >= story.scrapes["ended"].samples.keys()
    wait_until(
        lambda: story.scrape().total("cleanerd_control_requests_total", method="healthz", code="200") == 1, 5
    )


def test_dashboard_and_rules_name_every_metric_and_only_what_there_is() -> None:
    """But those of partitions that somebody has asked for, and their number."""
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    named = names_in(asked) | names_in(RULES.read_text())
    always = {metric.name for metric in METRICS if "topic" not in metric.labels}
    assert always - named == {"cleanerd_partition_metrics_dropped"}
    assert named <= {metric.name for metric in METRICS}
    recorded = set(re.findall(r"- record: (\S+)", RULES.read_text()))
    assert set(re.findall(r"instance[\w]*:cleanerd_\w+:\w+", asked)) <= recorded


def test_every_panel_says_what_it_shows() -> None:
    assert [panel["title"] for panel in panels() if not panel["description"]] == []


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


# -- promtool -------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_promtool_finds_nothing_to_say_about_the_metrics(story: Story) -> None:
    """But for the names of Kafka's own cleaner, which are not ours to choose."""
    text = "".join(line for line in get(story.address)[2].splitlines(keepends=True) if "kafka_" not in line)
    promtool = need("promtool", "prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_rules_and_sample_configuration_are_valid() -> None:
    promtool = need("promtool", "prometheus")
    run(promtool, "check", "rules", RULES)
    run(promtool, "check", "config", RULES.with_name("prometheus.yml"))


@pytest.mark.soak
def test_rules_fire_when_they_should_and_only_then() -> None:
    run(
        need("promtool", "prometheus"),
        "test",
        "rules",
        RULES.with_name("cleanerd.rules.test.yml"),
        timeout_s=120,
    )


def test_every_alert_has_a_test_a_severity_and_something_to_do() -> None:
    tests, rules = RULES.with_name("cleanerd.rules.test.yml").read_text(), RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert [alert for alert in alerts if alert not in tests] == []
    for word in ("severity: (critical|warning|info)", "summary: .+", "description: "):
        assert len(re.findall(f"(?m)^ +{word}", rules)) == len(alerts)


# -- Prometheus -----------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_prometheus_scrapes_without_an_error(story: Story, prometheus: Prometheus) -> None:
    (target,) = prometheus.targets()
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.instant("min_over_time(up[10m])")[0]["value"][1] == "1"

    def is_whole() -> bool:  # a series may have come since the last scrape
        scraped = prometheus.instant("scrape_samples_scraped")[0]["value"][1]
        return scraped == str(len(story.scrape().samples))

    wait_until(is_whole, 20)


@pytest.mark.soak
def test_every_rule_is_evaluated_and_has_data_where_it_must(story: Story, prometheus: Prometheus) -> None:
    """Recording rules have values; alerts are true where the story has their case, and nowhere else."""
    rules = prometheus.rules()
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    recorded = {
        rule["name"]: prometheus.values(rule["name"]) for rule in rules if rule["type"] == "recording"
    }
    assert len(recorded) == 4
    assert [name for name, values in recorded.items() if not values] == []
    wait_until(lambda: _firing(prometheus) == FIRES, 20)
    true = {
        rule["name"] for rule in rules if rule["type"] == "alerting" and prometheus.instant(rule["query"])
    }
    assert true - {"CleanerdLowDisk"} == IS_TRUE, "the disk of the machine is not the daemon's"


def _firing(prometheus: Prometheus) -> set[str]:
    return {found["metric"]["alertname"] for found in prometheus.instant('ALERTS{alertstate="firing"}')}


@pytest.mark.soak
def test_every_query_of_the_dashboard_has_data(story: Story, prometheus: Prometheus) -> None:
    told, empty = [], []
    for panel in panels():
        for query in queries(panel):
            values = prometheus.values(query)
            told.append((panel["title"], query, values))
            if not values:
                empty.append((panel["title"], query))
    if report := os.environ.get("CLEANERD_TEST_REPORT"):
        Path(report).write_text(json.dumps(told, indent=1))
    assert empty == []


@pytest.mark.soak
def test_variables_of_the_dashboard_have_values(prometheus: Prometheus, story: Story) -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "instance", "log_dir"]
    for variable, expected in zip(
        variables[1:], ({story.address}, {str(story.a), str(story.b)}), strict=True
    ):
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
        assert {found["metric"][label] for found in prometheus.instant(filled(series))} == expected
