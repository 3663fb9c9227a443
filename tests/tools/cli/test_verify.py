"""`cleanerd verify`: documents, tables and exit codes."""

import json
import os
from pathlib import Path

from cleanerd.tools.cli.verify import FINDING_FIELDS
from tests.harness.command_line import Run
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import broker_log_dir


def test_a_healthy_directory(run: Run, log_dir: Path) -> None:
    """Exit 0, nothing on stdout but the document."""
    ran = run("verify", "--log-dir", str(log_dir), "-o", "json")
    document = json.loads(ran.out)
    assert (ran.code, document["apiVersion"], document["findings"]) == (0, "cleanerd/v1", [])
    assert document["summary"]["errors"] == 0
    assert document["summary"]["records"] > 300


def test_findings_as_a_document(run: Run, log_dir: Path) -> None:
    """Exit 1 for an error; every field is there, null where it does not apply."""
    log, position = damage.bad_crc(log_dir)
    checkpoint, _ = damage.checkpoint_partition(log_dir)
    ran = run("verify", "--log-dir", str(log_dir), "-o", "json")
    document = json.loads(ran.out)
    assert ran.code == 1
    assert document["summary"]["errors"] == document["summary"]["warnings"] == 1
    warning, error = document["findings"]
    assert tuple(error) == FINDING_FIELDS
    assert (error["code"], error["path"], error["position"]) == ("bad_crc", str(log), position)
    assert (error["topic"], error["partition"], error["severity"]) == ("plain", 0, "error")
    assert (warning["path"], warning["topic"], warning["partition"]) == (str(checkpoint), None, None)
    assert warning["position"] is None


def test_lines(run: Run, log_dir: Path) -> None:
    """A finding a line, the summary last; each line is a document."""
    damage.bad_crc(log_dir)
    lines = [
        json.loads(line) for line in run("verify", f"--log-dir={log_dir}", "-o", "jsonl").out.splitlines()
    ]
    assert [line["apiVersion"] for line in lines] == ["cleanerd/v1"] * 2
    assert lines[0]["finding"]["code"] == "bad_crc"
    assert lines[1]["summary"]["errors"] == 1


def test_table(run: Run, log_dir: Path) -> None:
    """File, byte and what to do on stdout; the sums on stderr; warnings alone are no failure."""
    damage.orphan_index(log_dir)
    ran = run("verify", "--log-dir", str(log_dir))
    assert ran.code == 0
    assert f"{7:020d}.index" in ran.out
    assert "remedy: nothing: the broker deletes" in ran.out
    assert "0 errors, 1 warnings, 0 infos" in ran.err


def test_directories_come_from_the_configuration(run: Run, log_dir: Path, tmp_path: Path) -> None:
    """`log.dirs`; nothing in a directory is read to find them, so that a damaged metadata log does not matter."""
    os.truncate(log_dir / "__cluster_metadata-0" / f"{0:020d}.log", 100)
    (tmp_path / "server.properties").write_text(f"log.dirs={log_dir}\n")
    ran = run("verify", "--config", str(tmp_path / "server.properties"), "-o", "json")
    assert {finding["topic"] for finding in json.loads(ran.out)["findings"]} == {"__cluster_metadata"}
    assert run("verify", "--log-dir", str(tmp_path / "nowhere")).code == 2


def test_logs_that_are_not_there_are_not_sound(run: Run, tmp_path: Path) -> None:
    ran = run("verify", f"--log-dir={broker_log_dir(tmp_path / 'logs')}", "--topic=plian")
    assert ran.code == 1
    assert "no log of topic plian was found; did you mean plain?" in ran.err


def test_what_is_only_worth_knowing_is_listed_on_demand(run: Run, log_dir: Path) -> None:
    """A healthy broker has dozens of such findings. They are counted in any case."""
    damage.bad_crc(log_dir)
    damage.orphan_index(log_dir)
    stray = log_dir / "plain-0" / "notes.txt"
    stray.touch()
    found = {}
    for level in ("error", "warning", "info"):
        document = json.loads(run("verify", f"--log-dir={log_dir}", f"--severity={level}", "-o", "json").out)
        found[level] = {one["severity"] for one in document["findings"]}
        assert (document["summary"]["errors"], document["summary"]["infos"]) == (1, 1)
    assert found == {
        "error": {"error"},
        "warning": {"error", "warning"},
        "info": {"error", "warning", "info"},
    }
    assert "info " not in run("verify", f"--log-dir={log_dir}").out
