"""`cleanerd salvage`: documents and exit codes."""

import json
from pathlib import Path

from cleanerd.format.names import LOCK, LOG_START_CHECKPOINT
from tests.harness.command_line import Run
from tests.harness.damage import directories as damage
from tests.harness.logs.troubled import lock_of_another


def test_a_whole_copy(run: Run, log_dir: Path, tmp_path: Path) -> None:
    source = log_dir / "plain-0"
    ran = run("salvage", str(source), "--output", str(tmp_path / "plain-0"), "-o", "json")
    document = json.loads(ran.out)
    assert (ran.code, ran.err, document["damage"], document["end_offset"]) == (0, "", [], 16)


def test_what_is_lost_is_listed(run: Run, log_dir: Path, tmp_path: Path) -> None:
    """Exit 1, each range with its bytes; as a table too."""
    log, start = damage.bad_crc(log_dir)
    source = str(log_dir / "plain-0")
    ran = run("salvage", source, "--output", str(tmp_path / "a-0"), "-o", "json")
    (lost,) = json.loads(ran.out)["damage"]
    assert ran.code == 1
    assert (lost["path"], lost["start"], lost["code"]) == (str(log), start, "bad_crc")
    ran = run("salvage", source, "--output", str(tmp_path / "b-0"))
    assert ran.code == 1
    assert (
        "keys that were deleted in a lost range are back in the copy: if the partition has other replicas"
        in ran.err
    )
    assert str(lost["end"]) in ran.out
    assert "in 1 range" in ran.err


def test_a_transaction_without_an_end_is_told(run: Run, log_dir: Path, tmp_path: Path) -> None:
    """On stderr: what to look for when consumers wait."""
    log = max((log_dir / "transactions-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-5])
    ran = run("salvage", str(log.parent), "--output", str(tmp_path / "t-0"), "-o", "json")
    assert "the transaction of producer 1 has no end" in ran.err


def test_refusals(run: Run, log_dir: Path, tmp_path: Path) -> None:
    """2 for directories that make no sense, 1 while a broker runs."""
    assert run("salvage", str(log_dir), "--output", str(tmp_path / "a-0")).code == 2
    with lock_of_another(log_dir / LOCK) as pid:
        ran = run("salvage", str(log_dir / "plain-0"), "--output", str(tmp_path / "a-0"))
    assert ran.code == 1
    assert f"in use by process {pid}" in ran.err


def test_an_output_that_cannot_be_written(run: Run, log_dir: Path, tmp_path: Path) -> None:
    """1, and one line."""
    source = log_dir / "plain-0"
    (tmp_path / "file").touch()
    ran = run("salvage", str(source), "--output", str(tmp_path / "file" / "plain-0"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cleanerd: {tmp_path / 'file' / 'plain-0'}: Not a directory\n"


def test_records_below_the_log_start_are_told(run: Run, log_dir: Path, tmp_path: Path) -> None:
    source = log_dir / "plain-0"
    (source.parent / LOG_START_CHECKPOINT).write_text("0\n1\nplain 0 8\n")
    ran = run("salvage", str(source), "--output", str(tmp_path / "plain-0"), "-o", "json")
    assert (ran.code, json.loads(ran.out)["log_start_offset"]) == (0, 8)
    assert "the original starts at offset 8, by log-start-offset-checkpoint: the copy also has the" in ran.err
