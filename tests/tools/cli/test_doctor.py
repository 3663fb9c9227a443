"""`cleanerd doctor`: documents, exit codes, and that nothing is changed."""

import json
from pathlib import Path

from cleanerd.tools.insight.doctor.facts import HOUR_MS
from tests.harness.command_line import Run
from tests.tools.cli.test_digest import stats
from tests.tools.insight.test_doctor import NOW_MS, dead, two

T = ("--topic-set", "t:cleanup.policy=compact", f"--now-ms={NOW_MS}")


def test_nothing_is_wrong_and_nothing_is_changed(log_dir: Path, run: Run) -> None:
    before = stats(log_dir)
    for path in (log_dir, *log_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ran = run("doctor", f"--log-dir={log_dir}")
    assert (ran.code, ran.out) == (0, "")
    assert "11 logs with" in ran.err
    assert stats(log_dir) == before


def test_a_finding_has_its_place_its_cost_and_its_remedy(tmp_path: Path, run: Run) -> None:
    """Exit 3; the commands of remedies name the same directories and settings."""
    (root := tmp_path / "logs").mkdir()
    dead(root)
    ran = run("doctor", f"--log-dir={root}", *T, "-o", "json")
    report = json.loads(ran.out)
    assert (ran.code, report["at_ms"], report["is_whole"]) == (3, NOW_MS, True)
    (found,) = report["findings"]
    assert (found["code"], found["severity"], found["topic"], found["partition"]) == (
        "cleaner_dead",
        "error",
        "t",
        0,
    )
    assert found["cost_bytes"] == report["logs"][0]["cleanable_bytes"] > 0
    options = f"--log-dir {root} --topic-set t:cleanup.policy=compact"
    assert found["remedy"].endswith(f"`cleanerd clean {options}`")
    assert report["logs"][0]["due_since_ms"] == NOW_MS - 7 * HOUR_MS
    ran = run("doctor", f"--log-dir={root}", *T, "--price=1000000")
    assert (ran.code, f"{found['cost_bytes']} B, 0.14 a month" in ran.out) == (3, True)
    assert run("doctor", f"--log-dir={root}", *T, "--price=cheap").code == 2
    (line,) = run("doctor", f"--log-dir={root}", *T, "-o", "jsonl").out.splitlines()
    assert json.loads(line) == found


def test_what_is_not_there_and_what_is_not_read(tmp_path: Path, run: Run) -> None:
    (root := tmp_path / "logs").mkdir()
    two(root)
    assert run("doctor", f"--log-dir={root}", *T, "--topic=nowhere").code == 1
    ran = run("doctor", f"--log-dir={root}", *T, "--read-max=0", "--io=unlimited")
    assert (ran.code, "not read: 1 compacted log" in ran.err) == (0, True)


def test_reports_are_merged(tmp_path: Path, run: Run) -> None:
    """Also into the page; exit 3 if one of them has a finding, 2 for a file that is no report."""
    (root := tmp_path / "logs").mkdir()
    dead(root)
    (report := tmp_path / "a.json").write_text(run("doctor", f"--log-dir={root}", *T, "-o", "json").out)
    ran = run("doctor", "--merge", str(report))
    assert (ran.code, "cleaner_dead" in ran.out, "WARNINGS" in ran.out) == (3, True, True)
    assert set(json.loads(run("doctor", "--merge", str(report), "-o", "json").out)) == {
        "apiVersion", "brokers", "findings", "growth", "logs"
    }  # fmt: skip
    for words in (("--merge", str(report)), (f"--log-dir={root}", *T)):
        page = run("doctor", *words, "-o", "html").out
        assert (page.startswith("<!doctype html>"), "cleaner_dead" in page) == (True, True)
    for given in (f"--log-dir={root}", "--config=x", "--topic=t", "--set=a=b"):
        ran = run("doctor", given, "--merge", str(report))
        assert (ran.code, ran.out, given.partition("=")[0] in ran.err) == (2, "", True)
    report.write_text("{}")
    assert run("doctor", "--merge", str(report)).code == 2


def test_a_metadata_log_that_cannot_be_read_ends_nothing(log_dir: Path, run: Run) -> None:
    """What needs the settings of topics is not judged, and that is said."""
    path = log_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff\xff\xff" + content[103:])
    ran = run("doctor", f"--log-dir={log_dir}", "-o", "json")
    assert (ran.code, "the settings of the cluster are not known" in ran.err) == (3, True)
    assert [one["code"] for one in json.loads(ran.out)["findings"]] == ["unknown_topics"]
