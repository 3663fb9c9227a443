"""`cleanerd digest`: documents, comparisons, exit codes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def stats(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path): path.stat() for path in sorted(root.rglob("*"))}
    return {path: (one.st_ino, one.st_size, one.st_mtime_ns) for path, one in found.items()}


def test_nothing_is_changed_and_nothing_needs_to_be_writable(log_dir: Path, run: Run) -> None:
    before = stats(log_dir)
    for path in (log_dir, *log_dir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ran = run("digest", f"--log-dir={log_dir}", "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert stats(log_dir) == before
    found = json.loads(ran.out)
    digests = {row["topic"]: row["digest"] for row in found["logs"]}
    assert len({digests[codec] for codec in ("plain", "gzip", "snappy", "lz4", "zstd")}) == 1
    assert found["failed"] == []


def test_compare_names_the_keys_of_logs_on_this_machine(log_dir: Path, tmp_path: Path, run: Run) -> None:
    """Exit 0 equal, 3 different, 1 not comparable."""
    other = tmp_path / "other"
    shutil.copytree(log_dir, other)
    report = tmp_path / "both.json"

    def compared(*more: str) -> tuple[int, str]:
        ran = run("digest", f"--log-dir={log_dir}", f"--log-dir={other}", "--topic=zstd", "-o", "json", *more)
        report.write_text(ran.out)
        ran = run("digest", "--compare", str(report), "--keys")
        return ran.code, ran.out

    assert compared()[0] == 0
    log = other / "zstd-0" / f"{0:020d}.log"
    shutil.copy(log_dir / "plain-0" / log.name, log)
    assert compared()[0] == 0
    shutil.copy(log_dir / "append-time-0" / log.name, log)
    code, out = compared()
    assert code == 3
    assert "zstd-0 key-7: offset 7, offset 7" in out
    os.rename(other, tmp_path / "elsewhere")
    ran = run("digest", "--compare", str(report), "--keys")
    assert f"cleanerd digest --log-dir {other} --topic zstd --partition 0 --from 0 --at 16" in ran.err
    ran = run("digest", f"--log-dir={log_dir}", "--topic=zstd", "--at=17", "-o", "json")
    assert ran.code == 1
    assert "is decided up to offset 16, not to 17" in ran.err


def test_logs_that_are_not_there(log_dir: Path, tmp_path: Path, run: Run) -> None:
    ran = run("digest", f"--log-dir={log_dir}", "--topic=zstf")
    assert (ran.code, "did you mean zstd" in ran.err) == (1, True)
    (empty := tmp_path / "empty").mkdir()
    ran = run("digest", f"--log-dir={empty}")
    assert (ran.code, str(empty) in ran.err) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("--buckets=3",), ("--buckets=0",), ("--keys=256",), ("--keys=x",), (f"--seed={2**64}",)]
)
def test_arguments_that_make_no_sense(arguments: tuple[str, ...], log_dir: Path, run: Run) -> None:
    ran = run("digest", f"--log-dir={log_dir}", *arguments)
    assert (ran.code, ran.out) == (2, "")


def test_a_report_that_is_none(tmp_path: Path, run: Run) -> None:
    for content in (
        "",
        "[]",
        "{}",
        '{"seed": 0, "buckets": 1, "offsets": true, "keys_of": [], "logs": [{}]}',
    ):
        (tmp_path / "report.json").write_text(content)
        ran = run("digest", "--compare", str(tmp_path / "report.json"))
        assert (ran.code, ran.out) == (2, "")
        assert "expected what `cleanerd digest -o json` writes" in ran.err
    assert run("digest", "--compare", str(tmp_path / "nowhere")).code in (1, 2)
