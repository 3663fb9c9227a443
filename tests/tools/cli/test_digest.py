"""`cleanerd digest`: documents, comparisons, exit codes."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from cleanerd.tools.insight import live
from tests.harness.command_line import Run


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
        wrote = run(
            "digest", f"--log-dir={log_dir}", f"--log-dir={other}", "--topic=zstd", "-o", "json", *more
        )
        report.write_text(wrote.out)
        ran = run("digest", "--compare", str(report), "--keys")
        assert wrote.code == ran.code, "two replicas are compared in the run that reads them, too"
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


def test_logs_by_their_names(log_dir: Path, tmp_path: Path, run: Run) -> None:
    """Those of one topic and partition each; what is not there is no success."""
    ran = run("digest", "zstd-0", "plain-0", f"--log-dir={log_dir}", "-o", "json")
    assert (ran.code, [row["topic"] for row in json.loads(ran.out)["logs"]]) == (0, ["plain", "zstd"])
    (report := tmp_path / "a.json").write_text(ran.out)
    ran = run("digest", "zstd-0", "--compare", str(report), str(report), "-o", "json")
    assert [row["topic"] for row in json.loads(ran.out)["compared"]] == ["zstd"]
    ran = run("digest", "zstd-0", "zstd-1", f"--log-dir={log_dir}")
    assert (ran.code, "no log zstd-1 was found" in ran.err, "zstd-0" in ran.out) == (1, True, True)
    for named in ("__cluster_metadata-0", "--topic=__cluster_metadata"):
        ran = run("digest", named, f"--log-dir={log_dir}")
        assert (ran.code, "__cluster_metadata has no digest" in ran.err) == (1, True)
    for words in (("zstd",), ("zstd-0", "--topic=plain")):
        ran = run("digest", *words, f"--log-dir={log_dir}")
        assert (ran.code, ran.out) == (2, "")


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


@pytest.fixture
def reports(log_dir: Path, tmp_path: Path, run: Run) -> tuple[Path, Path]:
    """Of the same logs, on two machines."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path in paths:
        path.write_text(run("digest", f"--log-dir={log_dir}", "-o", "json").out)
    return paths


def test_a_log_that_one_report_lacks_or_has_no_digest_of_is_not_equal(
    reports: tuple[Path, Path], run: Run
) -> None:
    """Unknown means no: what was lost, or is damaged, on one side must not pass for the same."""
    a, b = reports
    whole = json.loads(b.read_text())
    lost = {**whole, "logs": [row for row in whole["logs"] if row["topic"] != "zstd"]}
    failed = {"directory": "/there/zstd-0", "reason": "/there/zstd-0/x.log: at byte 0: expected a batch"}
    for report, why in (
        (lost, f"only {a}"),
        ({**lost, "failed": [failed]}, "at byte 0: expected a batch"),
        ({**whole, "failed": [{"directory": "/there", "reason": "Permission denied"}]}, "Permission denied"),
    ):
        b.write_text(json.dumps(report))
        ran = run("digest", "--compare", str(a), str(b))
        assert ran.code == 1, why
        assert why in ran.out + ran.err
    b.write_text(json.dumps(lost))
    assert run("digest", "--compare", str(a), str(b), "--topic=plain", "--partition=0").code == 0
    assert run("digest", "--compare", str(a), str(b), "--topic=nowhere").code == 1


def test_a_directory_that_cannot_be_read_is_no_success(tmp_path: Path, run: Run) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path}/nowhere\n")
    ran = run("digest", f"--config={config}", "-o", "json")
    assert (ran.code, f"{tmp_path}/nowhere: expected a readable directory" in ran.err) == (1, True)
    assert json.loads(ran.out)["failed"][0]["directory"] == f"{tmp_path}/nowhere"


@pytest.mark.parametrize("command", [("digest",), ("find", "--key=k")])
def test_many_logs_whose_high_watermarks_no_broker_will_write_down_wait_for_nothing(
    command: tuple[str, ...], log_dir: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds for each would be hours; and the first of them say enough on a screen."""
    monkeypatch.setattr(live, "_wait", Mock(side_effect=AssertionError))
    shutil.copy(log_dir / "meta.properties", tmp_path)
    for number in range(60):
        shutil.copytree(log_dir / "plain-0", tmp_path / f"plain-{number}")
    ran = run(*command, f"--log-dir={tmp_path}", "-o", "json")
    assert (ran.code, len(json.loads(ran.out)["failed"])) == (1, 60)
    assert ran.err.count("no broker runs here") == 50
    assert "and 10 more; `-o json` has all" in ran.err


@pytest.mark.parametrize("command", [("digest",), ("verify",), ("inspect",), ("find", "--key=k")])
def test_no_directory_is_named_by_nothing(command: tuple[str, ...], run: Run) -> None:
    """Kafka's default, a directory below /tmp, is not meant."""
    ran = run(*command)
    assert (ran.code, ran.out) == (2, "")
    assert "which logs?" in ran.err


def test_keys_are_listed_for_people_too(log_dir: Path, run: Run) -> None:
    ran = run("digest", f"--log-dir={log_dir}", "--topic=zstd", "--keys")
    assert (ran.code, "zstd-0 key-7: offset " in ran.out) == (0, True)


def test_what_compare_would_not_heed_is_refused(reports: tuple[Path, Path], log_dir: Path, run: Run) -> None:
    a, b = map(str, reports)
    for given in (f"--log-dir={log_dir}", "--config=x", "--at=5", "--from=0", "--no-offsets"):
        ran = run("digest", given, "--compare", a, b)
        assert (ran.code, ran.out) == (2, "")
        assert given.partition("=")[0] in ran.err


def test_a_report_of_another_version_or_without_a_field(reports: tuple[Path, Path], run: Run) -> None:
    a, b = reports
    whole = json.loads(b.read_text())

    def compared(report: object) -> str:
        b.write_text(json.dumps(report))
        ran = run("digest", "--compare", str(a), str(b))
        assert (ran.code, ran.out) == (2, "")
        assert str(b) in ran.err
        return ran.err

    assert "found 'cleanerd/v0'" in compared({**whole, "apiVersion": "cleanerd/v0"})
    assert "the number Infinity" in compared({**whole, "buckets": float("inf")})
    listed = [{"key": [], "offset": 0, "timestamp_ms": 0, "hash": ""}]
    assert "logs[0].listed[0].key: expected a valid string, found []" in compared(
        {**whole, "logs": [{**whole["logs"][0], "listed": listed}]}
    )
    for name in whole["logs"][0]:
        logs = [{key: value for key, value in row.items() if key != name} for row in whole["logs"]]
        assert f"found no logs[0].{name}\n" in compared({**whole, "logs": logs})


def test_a_report_that_is_none(tmp_path: Path, run: Run) -> None:
    for content in (
        "",
        "[]",
        "{}",
        '{"apiVersion": "cleanerd/v1"}',
    ):
        (tmp_path / "report.json").write_text(content)
        ran = run("digest", "--compare", str(tmp_path / "report.json"))
        assert (ran.code, ran.out) == (2, "")
        assert "expected what `cleanerd digest -o json` writes" in ran.err
    assert run("digest", "--compare", str(tmp_path / "nowhere")).code == 2
    assert run("digest", "--compare", str(tmp_path)).code == 2
