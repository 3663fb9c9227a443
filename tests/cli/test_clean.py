"""`cleanerd clean`: the interface that others script against."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cleaning.outcomes import Aborted, Committed, Failed, Outcome, Planned, Skipped, Unchanged
from cleanerd.cleaning.result import LogResult, Size, Statistics
from cleanerd.cli.main import main
from cleanerd.cli.progress import Bars
from cleanerd.env.clock import SystemClock
from cleanerd.errors import BadConfiguration, CleanerdError, Fatal, LockHeld
from cleanerd.format.names import META_PROPERTIES, TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.units import utc
from tests.cleaning.test_knowledge import Stopped
from tests.harness.command_line import ENVIRONMENT, FakeCleaning, Run, make_log_dir, read_all

COMMITTED = LogResult(
    TopicPartition("orders", 3),
    "/data",
    Committed(),
    first_dirty_offset=0,
    end_offset=1000,
    before=Size(6_000_000, 4),
    after=Size(1_234_567, 2),
    statistics=Statistics(
        bytes_read=5_000_000,
        records_read=1000,
        removed={"tombstone": 100, "superseded": 500, "no_key": 0},
        seconds=2.50049,
        phase_seconds={"plan": 0.0004, "index": 1.25049},
        peak_extra_bytes=1_000_000,
    ),
)
DAY_MS = 86_400_000
FAILED = LogResult(
    TopicPartition("bad", 0), "/data", Failed("/data/bad-0/0.log: at byte 3: expected [x], found y")
)
T = TopicPartition("t", 0)


def test_json_document_is_exactly_the_published_shape(run: Run, cleaning: FakeCleaning) -> None:
    """apiVersion and results; keys in their order, whole numbers as such, null for what is not known."""
    cleaning.results = [COMMITTED, FAILED]
    ran = run("clean", "--log-dir", ".", "-o", "json")
    committed = {
        "topic": "orders",
        "partition": 3,
        "log_dir": "/data",
        "outcome": "committed",
        "reason": None,
        "remedy": None,
        "committed_by": None,
        "first_dirty_offset": 0,
        "end_offset": 1000,
        "bytes_read": 5_000_000,
        "bytes_before": 6_000_000,
        "bytes_after": 1_234_567,
        "records_read": 1000,
        "records_kept": 400,
        "removed": {"tombstone": 100, "superseded": 500, "no_key": 0},
        "segments_before": 4,
        "segments_after": 2,
        "seconds": 2.5,
        "mb_per_s": 2.0,
        "records_per_s": 399.922,
        "phase_seconds": {"plan": 0.0, "index": 1.25},
        "tombstones_stay": None,
        "peak_extra_bytes": 1_000_000,
        "topic_codec_saves_bytes": None,
    }
    failed = {
        **dict.fromkeys(committed, 0),
        "topic": "bad",
        "log_dir": "/data",
        "outcome": "failed",
        "reason": FAILED.reason,
        **dict.fromkeys(("remedy", "committed_by", "first_dirty_offset", "end_offset", "tombstones_stay")),
        "topic_codec_saves_bytes": None,
        "removed": {},
        "phase_seconds": {},
    }
    assert json.loads(ran.out) == {"apiVersion": "cleanerd/v1", "results": [committed, failed]}
    assert list(json.loads(ran.out)["results"][0])[:4] == ["topic", "partition", "log_dir", "outcome"]


def test_no_log_is_an_empty_document(run: Run) -> None:
    """A program always gets its document."""
    ran = run("clean", "--log-dir", ".", "-o", "json")
    assert (ran.code, json.loads(ran.out)) == (0, {"apiVersion": "cleanerd/v1", "results": []})
    assert "no log was found whose cleanup.policy contains compact" in ran.err


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["--topic=typo"], "no log of topic typo was found"),
        (["--topic=emptty"], "no log of topic emptty was found; did you mean empty?"),
        (
            ["--topic=empty,other"],
            "no log of topic empty,other was found; give each topic with a --topic of its own",
        ),
        (["--topic=emp*"], "no log of topic emp* was found; --topic takes names, not patterns"),
        (["--topic=empty-0"], "no log of topic empty-0 was found; did you mean --topic empty --partition 0?"),
        (["--topic=empty", "--partition=7"], "topic empty has no partition 7 here"),
        (["--partition=7"], "no log of partition 7 was found"),
    ],
)
@pytest.mark.parametrize("command", ["clean", "inspect", "verify"])
def test_where_none_of_those_that_were_named_is_there_that_is_a_failure(
    run: Run, tmp_path: Path, command: str, named: list[str], said: str
) -> None:
    """A slip must not look like work that is done. By every command that takes names."""
    make_log_dir(tmp_path / "logs")
    ran = run(command, "--log-dir", "logs", *named)
    assert ran.code == 1
    assert f"cleanerd: {said}\n" in ran.err


def test_what_is_missing_beside_something_that_is_there_is_said(run: Run, tmp_path: Path) -> None:
    make_log_dir(tmp_path / "logs")
    ran = run("clean", "--log-dir", "logs", "--topic=empty", "--topic=other")
    assert ran.code == 0
    assert "cleanerd: no log of topic other was found\n" in ran.err


@pytest.mark.parametrize("command", ["clean", "inspect", "verify"])
def test_a_directory_that_was_named_and_is_no_log_directory_is_a_failure(
    run: Run, tmp_path: Path, command: str
) -> None:
    """The one above, or that of a partition. Beside one that is a log directory it is a warning."""
    make_log_dir(tmp_path / "logs")
    (tmp_path / "above").mkdir()
    assert run(command, "--log-dir", "above").code == 1
    assert run(command, "--log-dir", "logs/empty-0").code == 1
    assert run(command, "--log-dir", "logs", "--log-dir", "above").code == 0


def test_a_directory_of_another_node_is_left_alone(
    spark: LazySpark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a broker, which does not start with it: a volume that came back to the wrong machine (spec disk A2)."""
    make_log_dir(tmp_path / "logs")
    (tmp_path / "logs" / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=7\n")
    conf = tmp_path / "server.properties"
    work = partial(clean_once, session=spark)
    for own, code in {"node.id=1": 1, "broker.id=1": 1, "node.id=7": 0, "broker.id=-1": 0, "": 0}.items():
        conf.write_text(f"log.dirs={tmp_path}/logs\nlog.cleanup.policy=compact\n{own}\n")
        assert main(["clean", "--config", str(conf)], clean_once=work) == code
        said = "expected a directory of node 1 (node.id, broker.id), found one of node 7 (meta.properties)"
        assert (said in capsys.readouterr().out) == (code == 1)
    (tmp_path / "more").mkdir()
    conf.write_text(f"log.dirs={tmp_path}/logs,{tmp_path}/more\nlog.cleanup.policy=compact\nnode.id=7\n")
    for cluster, code in (("c", 0), ("another", 1)):
        (tmp_path / "more" / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id=7\n")
        assert main(["clean", "--config", str(conf)], clean_once=work) == code
        said = capsys.readouterr().out
        assert ("expected cluster c, as" in said, "expected cluster another, as" in said) == (bool(code),) * 2
    conf.write_text("log.dirs=/configured\nlog.cleanup.policy=compact\nnode.id=1\n")
    assert main(["clean", "--config", str(conf), "--log-dir", f"{tmp_path}/logs"], clean_once=work) == 0
    capsys.readouterr()


def test_table_shows_before_after_reasons_and_seconds(run: Run, cleaning: FakeCleaning) -> None:
    """A plain table for a pipe; reasons with the largest count first; no columns that say nothing."""
    cleaning.results = [COMMITTED]
    ran = run("clean", "--log-dir", ".")
    header, row = ran.out.splitlines()
    assert header.split() == ["LOG", "OUTCOME", "BEFORE", "AFTER", "REMOVED", "SECONDS", "MB/S"]
    assert "orders-3  committed  6.0 MB  1.2 MB  superseded 500, tombstone 100     2.50   2.0" in row
    assert (ran.code, ran.err) == (0, "")


def test_a_table_says_that_what_a_broker_deletes_later_was_deleted_at_once(
    run: Run, cleaning: FakeCleaning, tmp_path: Path
) -> None:
    """Only where one could start, as in no demo; and not where it has swapped, for it deletes itself."""
    for by, is_brokers, is_said in (("lock", False, False), ("lock", True, True), ("swap", True, False)):
        cleaning.results = [replace(COMMITTED, log_dir=str(tmp_path), outcome=Committed(by))]
        if is_brokers:
            (tmp_path / META_PROPERTIES).touch()
        told = run("clean", "--log-dir", str(tmp_path)).err
        assert ("old segments were deleted at once: cleanerd had .lock" in told) == is_said


def test_table_tells_log_dirs_apart_and_does_not_read_markup(run: Run, cleaning: FakeCleaning) -> None:
    """Two directories make a column; brackets in a reason are text."""
    cleaning.results = [COMMITTED, FAILED, LogResult(T, "/other", Skipped("dirty ratio [0.1]"))]
    ran = run("clean", "--log-dir", ".")
    assert "LOG DIR" in ran.out
    assert "0 B" not in ran.out, "the size of a log that was not looked at is not known"
    assert "expected [x], found y" in ran.out
    assert "dirty ratio [0.1]" in ran.out


def test_dry_run_shows_the_peak_of_extra_space(run: Run, cleaning: FakeCleaning) -> None:
    """As a column, and as one key more in the document."""
    found = Statistics(removed={"superseded": 5}, peak_extra_bytes=1_500_000)
    planned = LogResult(T, "/data", Planned(), statistics=found)
    cleaning.results = [planned]
    table = run("clean", "--log-dir", ".", "--dry-run")
    assert "PEAK EXTRA" in table.out
    assert "1.5 MB" in table.out
    assert "superseded 5" in table.out
    document = json.loads(run("clean", "--log-dir", ".", "--dry-run", "-o", "json").out)
    assert document["results"][0]["peak_extra_bytes"] == 1_500_000
    assert cleaning.request is not None
    assert cleaning.request.dry_run


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_exit_code_of_outcomes(run: Run, cleaning: FakeCleaning, outcome: type) -> None:
    """0 all done, 1 some partition is not, whatever became of the others."""
    basis = ["basis"] if outcome is Unchanged else []
    cleaning.results = [COMMITTED, LogResult(T, "/data", outcome(*basis, reason="why"))]
    assert run("clean", "--log-dir", ".", "-o", "json").code == (outcome in (Failed, Aborted))


def test_a_failure_is_named_once_with_its_reason(run: Run, cleaning: FakeCleaning) -> None:
    """On stderr beside a document; a table has it, and stderr does not repeat it."""
    cleaning.results = [COMMITTED, FAILED]
    ran = run("clean", "--log-dir", ".", "-o", "json")
    assert ran.err == f"cleanerd: bad-0 in /data: failed: {FAILED.reason}\n"
    json.loads(ran.out)
    ran = run("clean", "--log-dir", ".")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.count(str(FAILED.reason)) == 1


def test_without_any_log_directory_it_says_what_to_give(run: Run, cleaning: FakeCleaning) -> None:
    """Kafka's default, a directory under /tmp, is not what a call without arguments means."""
    ran = run("clean")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "cleanerd: which logs? give the broker's --config FILE, or --log-dir DIR\n"


def test_options_become_the_request(run: Run, cleaning: FakeCleaning, tmp_path: Path) -> None:
    """Every option of architecture section 6 arrives."""
    make_log_dir(tmp_path / "a")
    now_ms = SystemClock().now_ms() - 123
    (tmp_path / "server.properties").write_text("log.dirs=/configured\nlog.cleaner.backoff.ms=1\n")
    ran = run(
        *("clean", "--config", "server.properties", "--log-dir", "a", "--log-dir", str(tmp_path)),
        *(
            "--topic",
            "t",
            "--topic",
            "u",
            "--partition",
            "0",
            "--partition",
            "7",
            "--force",
            "--now-ms",
            str(now_ms),
        ),
        *("--set", "log.cleaner.threads=2", "--topic-set", "t:cleanup.policy=compact"),
    )
    request = cleaning.request
    assert request is not None
    assert request.log_dirs == (str(tmp_path / "a"), str(tmp_path))
    assert (request.topics, request.partitions) == ({"t", "u"}, {0, 7})
    assert (request.force, request.dry_run, cleaning.now_ms) == (True, False, now_ms)
    assert (request.config.log_cleaner_threads, request.config.backoff_ms) == (2, 1)
    assert (request.topic_config("t").compact, request.topic_config("u").compact) == (True, False)
    assert ran.err == "cleanerd: no log of topic t was found\ncleanerd: no log of topic u was found\n"


def test_without_options_everything_configured_is_cleaned_now(
    run: Run, cleaning: FakeCleaning, tmp_path: Path
) -> None:
    """All log directories of the configuration, all topics, all partitions, the machine's clock."""
    (tmp_path / "server.properties").write_text("log.dirs=/x,/y\n")
    assert run("clean", "--config", "server.properties").code == 0
    request = cleaning.request
    assert request is not None
    assert request.log_dirs == ("/x", "/y")
    assert (request.topics, request.partitions, request.force) == (None, None, False)
    assert cleaning.now_ms > 1_600_000_000_000


@pytest.mark.parametrize("directories", [["missing"], [".", "./"]])
def test_directories_that_cannot_be_meant(run: Run, cleaning: FakeCleaning, directories: list[str]) -> None:
    """Exit 2, a message on stderr, nothing on stdout, no cleaning."""
    ran = run("clean", *(f"--log-dir={directory}" for directory in directories))
    assert (ran.code, ran.out, cleaning.request) == (2, "", None)
    assert "cleanerd" in ran.err


def test_bad_configuration_lists_every_problem(run: Run, cleaning: FakeCleaning) -> None:
    """Exit 78, one line for each problem."""
    ran = run("clean", "--set", "log.cleaner.threads=0", "--topic-set", "t:cleanup.policy=x")
    assert (ran.code, ran.out, cleaning.request) == (78, "", None)
    assert ran.err.splitlines() == [
        "cleanerd: the configuration is not valid:",
        "  log.cleaner.threads: expected a number ≥ 1, found '0' (command line: --set log.cleaner.threads)",
        "  topic t: cleanup.policy: expected a list out of compact, delete, found 'x' "
        "(command line: --topic-set t:cleanup.policy)",
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fatal("no Java"), 1),
        (BadConfiguration(["no"]), 78),
        (LockHeld("held", 7), 1),
        (CleanerdError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_the_run_become_exit_codes(
    run: Run, cleaning: FakeCleaning, error: BaseException, code: int
) -> None:
    """One line on stderr, no traceback, no half document."""
    cleaning.error = error
    ran = run("clean", "--log-dir", ".", "-o", "json")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("cleanerd: ")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["clean", "inspect", "verify", "config check"])
def test_a_directory_that_is_no_log_directory_is_named(run: Run, tmp_path: Path, command: str) -> None:
    """By every command, with what lies there: a wrong path, or a volume that is not mounted, is no success."""
    for name in ("gc.log", "kafka", "server.log", "state-change.log"):
        (tmp_path / "application-logs" / name).mkdir(parents=True)
    (tmp_path / "server.properties").write_text(f"log.dirs={tmp_path},{tmp_path}/application-logs\n")
    ran = run(*command.split(), "--config", "server.properties")
    assert ran.code == 0
    if command == "verify":
        assert ran.out.count("no_log_dir") == 2  # its row, and what it means
    else:
        assert f"{tmp_path}/application-logs: expected a log directory" in ran.err
        assert "found gc.log, kafka, server.log and 1 more\n" in ran.err
        assert f"{tmp_path}: expected" not in ran.err


def test_missing_metadata_log_of_a_kafka_directory_is_said(run: Run, tmp_path: Path) -> None:
    """Topic overrides are then not known; a directory of nobody needs none."""
    assert "metadata log" not in run("clean", "--log-dir", ".").err
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    ran = run("clean", "--log-dir", ".")
    assert (ran.code, ran.err[:43]) == (0, "cleanerd: no metadata log found: the cluste")


SCRIPT = """
import sys
from cleanerd.cleaning.outcomes import Committed
from cleanerd.cleaning.result import LogResult, Size
from cleanerd.cli.main import main
from cleanerd.format.names import META_PROPERTIES, TopicPartition

def clean_once(requests, progress, clock):
    tp = TopicPartition("orders", 3)
    progress.planned(tp, "/data", 100)
    progress.advanced(tp, "/data", "rewrite", 50, 10)
    result = LogResult(tp, "/data", Committed(), before=Size(2), after=Size(1))
    progress.finished(result)
    return [result]

sys.exit(main(["clean", "--log-dir", "."], clean_once=clean_once))
"""


def run_on_terminal(tmp_path: Path, **environment: str) -> tuple[bytes, bytes]:
    """Stdout and stderr of a run, each on a terminal of its own."""
    out_master, out = pty.openpty()
    err_master, err = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "160", **environment}
    environment.setdefault("NO_COLOR", "")
    command = [sys.executable, "-c", SCRIPT]
    subprocess.run(command, stdout=out, stderr=err, env=environment, cwd=tmp_path, check=True)
    os.close(out)
    os.close(err)
    return read_all(out_master), read_all(err_master)


def test_logs_of_one_name_in_two_directories_have_a_bar_each() -> None:
    """The end of one takes away no bar but its own, which the tasks of the other go on to move."""
    tp = TopicPartition("orders", 3)
    with Bars(io.StringIO()) as bars:
        bars.planned(tp, "/a", 100)
        bars.planned(tp, "/b", 100)
        bars.finished(LogResult(tp, "/a", Committed()))
        bars.advanced(tp, "/b", "rewrite", 50, 10)
        bars.finished(LogResult(tp, "/b", Committed()))


def test_terminal_gets_colour_and_a_bar(tmp_path: Path) -> None:
    """The bar goes to stderr only."""
    out, err = run_on_terminal(tmp_path)
    assert b"\x1b[32mcommitted" in out
    assert b"orders-3" in err
    assert b"starting Spark ..." in err
    assert b"starting" not in out


def test_no_color_is_honoured(tmp_path: Path) -> None:
    """No escape sequence at all on stdout; the bar on stderr moves the cursor, and has no colour."""
    out, err = run_on_terminal(tmp_path, NO_COLOR="1")
    assert b"starting Spark ..." in err
    assert not re.search(rb"\x1b\[[0-9;]*m", err)
    assert b"committed" in out
    assert b"\x1b" not in out


def test_dumb_terminal_gets_no_bar(tmp_path: Path) -> None:
    """It could not draw one."""
    make_log_dir(tmp_path)
    assert run_on_terminal(tmp_path, TERM="dumb")[1] == b""


@pytest.mark.parametrize("factor", [0, 1 / 1000, 1000, 1_000_000])
def test_a_time_beyond_the_newest_file_and_the_clock_needs_a_second_word(
    factor: float, run: Run, cleaning: FakeCleaning, tmp_path: Path
) -> None:
    """Microseconds or nanoseconds, say; or seconds, from before there was a Kafka (rule A.7). A usage error that names both
    times; nothing was touched.
    """
    wrong_ms = round(SystemClock().now_ms() * factor)
    ran = run("clean", "--log-dir", ".", "--now-ms", str(wrong_ms))
    assert (ran.code, cleaning.request) == (2, None)
    assert f"--now-ms {wrong_ms} is " in ran.err
    assert f"are at {utc(SystemClock().now_ms())[:10]}" in ran.err
    assert "--assume now" in ran.err
    assert run("clean", "--log-dir", ".", "--now-ms", str(wrong_ms), "--assume", "now").code == 0
    assert cleaning.now_ms == wrong_ms


def test_a_time_within_a_day_of_the_newest_file_or_the_clock_is_taken(
    run: Run, cleaning: FakeCleaning, tmp_path: Path
) -> None:
    """Files from the future of this machine's clock are as good as a clock."""
    now_ms = SystemClock().now_ms()
    assert run("clean", "--log-dir", ".", "--now-ms", str(now_ms + DAY_MS - 60_000)).code == 0
    assert run("clean", "--log-dir", ".", "--now-ms", str(now_ms + 10 * DAY_MS)).code == 2
    later_s = now_ms / 1000 + 9.5 * 86_400
    os.utime(tmp_path / "empty-0" / "00000000000000000000.log", (later_s, later_s))
    assert run("clean", "--log-dir", ".", "--now-ms", str(now_ms + 10 * DAY_MS)).code == 0


def test_what_may_be_assumed(run: Run, cleaning: FakeCleaning) -> None:
    assert run("clean", "--log-dir", ".", "--assume", "settings,replicas").code == 0
    assert cleaning.request is not None
    assert cleaning.request.assumed == {"settings", "replicas"}
    cleaning.results = [COMMITTED]
    ran = run("clean", "--log-dir", ".", "--assume", "settings,replicas", "-o", "json")
    assert json.loads(ran.out)["results"][0]["assumed"] == ["replicas", "settings"]
    assert ran.err == "cleanerd: assumed, as --assume says: replicas, settings\n"
    ran = run("clean", "--log-dir", ".", "--assume", "everything")
    assert ran.code == 2
    assert "expected settings, replicas, now, found 'everything'" in ran.err


def test_assumed_settings_are_shown_with_the_last_sign_of_life(
    run: Run, cleaning: FakeCleaning, tmp_path: Path
) -> None:
    """Also in a dry run: whoever gives their word sees since when."""
    stopped = Stopped(tmp_path / "broker")
    hour_ago_ms = SystemClock().now_ms() - 3_600_000
    stopped.write_metadata(hour_ago_ms)
    for more in ((), ("--dry-run",)):
        ran = run("clean", "--log-dir", str(stopped.path), "--assume", "settings", *more)
        assert f"the settings as of {utc(hour_ago_ms)}, the last sign of life of its broker" in ran.err


def test_the_holds_of_the_daemon_of_a_configuration_bind_in_its_directories(
    run: Run, cleaning: FakeCleaning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a disk that it has not seen yet, whose lock file names no daemon; not in a copy elsewhere (rule A.7)."""
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr(
        "cleanerd.daemon.work.kept_holds.HoldsOnDisk",
        lambda _clock, state_dirs, _warn: asked.append(tuple(state_dirs)) or Mock(),
    )
    for name in ("its", "copy"):
        make_log_dir(tmp_path / name)
    (tmp_path / "server.properties").write_text(f"log.dirs={tmp_path}/its\n")
    for name in ("its", "copy"):
        run("clean", "--config", "server.properties", "--log-dir", name)
        assert cleaning.request is not None
        cleaning.request.holds_of(str(tmp_path / name))
    assert asked == [("/var/lib/cleanerd",), ()]
