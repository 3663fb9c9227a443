"""`cleanerd inspect`: documents, tables and exit codes."""

import csv
import io
import json
import re
import subprocess
import sys

import pytest

from cleanerd.tools.cli import inspect
from tests.harness.command_line import Run
from tests.harness.logs.logdirs import GOLDEN

NOW = ("--now-ms", "1795237300000")


def inspected(*arguments: str) -> str:
    """What the command writes, in a process with a session of its own."""
    command = [sys.executable, "-m", "cleanerd.cli.main", "inspect", f"--log-dir={GOLDEN}", *NOW, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.mark.soak
def test_tables_documents_and_rows_say_the_same() -> None:
    document = json.loads(inspected("--topic=idempotent", "--topic=plain", "-o", "json"))
    assert document["failed"] == []
    assert [log["topic"] for log in document["logs"]] == ["idempotent", "plain"]  # the largest first
    rows = csv.DictReader(io.StringIO(inspected("--topic=plain", "-o", "csv")))
    assert [int(row["records"]) for row in rows] == [document["logs"][1]["records"]]
    table = inspected("--topic=idempotent")
    assert "idempotent-0" in table
    assert "HOT KEYS OF" in table


def test_most_of_it_in_the_active_segment_needs_a_roll(capsys: pytest.CaptureFixture[str]) -> None:
    from cleanerd.tools.spark.inspect import Inspection

    row = {
        "log_dir": "/d",
        "topic": "t",
        "partition": 0,
        "no_key_records": 0,
        "no_key_bytes": 0,
        "tombstones": 0,
    }
    row |= dict.fromkeys(("disk_bytes", "records", "keys", "bytes"), 100)
    for active_bytes, is_advised in ((60, True), (10, False)):
        found = Inspection(logs=[row | {"superseded_bytes": 80, "superseded_active_bytes": active_bytes}])
        inspect._report("table", found)
        assert ("--roll" in capsys.readouterr().out) is is_advised


def test_logs_that_are_not_there(run: Run) -> None:
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=plian", "-o", "json")
    assert (ran.code, json.loads(ran.out)["logs"]) == (1, [])
    assert "no log of topic plian was found; did you mean plain?" in ran.err


def test_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [name for name in sys.modules if re.match(r"cleanerd\.tools\.(spark|cli\.inspect)", name)]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = run("inspect", f"--log-dir={GOLDEN}", "--topic=plain")
    assert (ran.code, ran.out) == (1, "")
    assert "pip install 'cleanerd[spark]'" in ran.err
