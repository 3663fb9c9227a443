"""`cleanerd` itself and `cleanerd config`."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.harness.command_line import Run, python


def test_python_o_is_refused() -> None:
    """The assertions guard data."""
    done = python("-O", "-m", "cleanerd.cli.main", "config", "check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -O" in done.stderr


def test_config_show_as_json(run: Run, tmp_path: Path) -> None:
    """Values by key; those of the topics asked for beside them."""
    (tmp_path / "c").write_text("log.dirs=/a,/b\nlog.retention.hours=1\n")
    document = json.loads(run("config", "show", "--config", "c", "--topic", "t", "-o", "json").out)
    assert document["apiVersion"] == "cleanerd/v1"
    assert document["broker"]["log.dirs"] == ["/a", "/b"]
    assert document["broker"]["log.cleaner.enable"] is True
    assert document["topics"]["t"]["retention.ms"] == 3_600_000


def test_config_show_tells_origins(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and line, variable, option, default; as JSON and as a table."""
    (tmp_path / "c").write_text("\nlog.retention.hours=1\n")
    monkeypatch.setenv("KAFKA_LOG_CLEANER_THREADS", "2")
    without_topic = ("config", "show", "--config", "c", "--origin", "--set", "log.dir=/x")
    arguments = (*without_topic, "--topic", "t")
    document = json.loads(run(*arguments, "-o", "json").out)
    assert document["broker"]["log.retention.hours"] == {"value": 1, "origin": "config file: c:2"}
    assert document["broker"]["log.cleaner.threads"]["origin"] == "environment: KAFKA_LOG_CLEANER_THREADS"
    assert document["broker"]["log.dir"]["origin"] == "command line: --set log.dir"
    assert document["topics"]["t"]["retention.ms"]["origin"] == "config file: c:2"
    assert document["topics"]["t"]["segment.bytes"]["origin"] == "default"
    assert "log.cleaner.enable" not in run(*arguments).out, "of the topic alone"
    table = run(*without_topic).out
    assert "log.cleaner.enable" in table
    assert "environment: KAFKA_LOG_CLEANER_THREADS" in table
    assert "ORIGIN" not in run("config", "show").out


def test_config_check(run: Run, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(f"log.dirs={tmp_path}\n")
    ran = run("config", "check", "--config", "c")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"cleanerd: the configuration is valid; log directories: {tmp_path}\n"
    (tmp_path / "c").write_text("log.retention.ms=0\n")
    ran = run("config", "check", "--config", "c")
    assert (ran.code, ran.out) == (78, "")
    assert "(config file: c:1)" in ran.err


def test_config_check_names_all_problems_at_once(run: Run, tmp_path: Path) -> None:
    """Values, names, directories and the metadata log; one that is not valid hides no other."""
    logs = tmp_path / "logs"
    (logs / "__cluster_metadata-0").mkdir(parents=True)
    (logs / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(bytes(11) + b"\1" + b"x" * 100)
    (logs / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (tmp_path / "c").write_text(
        f"log.dirs=/nowhere/a,{logs},/nowhere/b\n"
        "log.cleaner.threads=8\nlog.cleaner.dedupe.buffer.size=8388608\n"
        "log.cleaner.min.compaction.lag.ms=2\nlog.cleaner.max.compaction.lag.ms=1\n"
        "cleanerd.scan.intervall.ms=1\nlog.retention.hours=x\nmetadata.log.dir=/nowhere/m\n"
    )
    ran = run("config", "check", "--config", "c")
    assert ran.code == 78
    starts = [line.strip() for line in ran.err.splitlines()[1:]]
    expected = [
        "cleanerd.scan.intervall.ms: expected a key of cleanerd",
        "log.retention.hours: expected a 32-bit integer",
        "log.cleaner.dedupe.buffer.size: expected more than 1048576 for each of 8",
        "min.compaction.lag.ms: expected at most max.compaction.lag.ms, which is 1",
        "/nowhere/a: expected a readable directory",
        "/nowhere/b: expected a readable directory",
        "/nowhere/m: expected a readable directory",
        f"{logs}/__cluster_metadata-0/{0:020d}.log: at byte ",
    ]
    assert [line[: len(start)] for line, start in zip(starts, expected, strict=True)] == expected
    assert "did you mean cleanerd.scan.interval.ms?" in starts[0]


def test_a_directory_that_is_left_alone_makes_no_configuration_invalid(run: Run, tmp_path: Path) -> None:
    """Of a broker, and not known of which: a warning. The daemon starts, and takes it for offline (architecture 2)."""
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    (tmp_path / "logs" / "t-0" / f"{0:020d}.log").touch()
    (tmp_path / "c").write_text(f"log.dirs={tmp_path}/logs\nnode.id=3\n")
    ran = run("config", "check", "--config", "c")
    assert ran.code == 0
    assert "meta.properties: expected the file, found none beside node.id (config file: c:2)" in ran.err


def test_config_show_tells_what_topics_have_of_their_own(run: Run, tmp_path: Path) -> None:
    """Topic files and the metadata log of a real broker, each value with its origin."""
    golden = Path(__file__).parents[1] / "golden" / "logs"
    (tmp_path / "topics.d").mkdir()
    (tmp_path / "topics.d" / "Mine.properties").write_text("retention.ms=5\n")
    (tmp_path / "c").write_text(f"log.dirs={golden}\n")
    document = json.loads(run("config", "show", "--config", "c", "--origin", "-o", "json").out)
    topics = document["topics"]
    mine = f"topic file: {tmp_path}/topics.d/Mine.properties:1"
    assert topics["Mine"] == {"retention.ms": {"value": 5, "origin": mine}}
    from_log = f'metadata log: TOPIC "snappy" in {golden}/__cluster_metadata-0'
    assert topics["snappy"]["index.interval.bytes"] == {"value": 300, "origin": from_log}
    table = run("config", "show", "--config", "c", "--origin").out
    assert "\nMine " in table
    assert from_log in table


def test_config_check_warns_of_what_is_valid_and_perhaps_not_meant(run: Run, tmp_path: Path) -> None:
    """The broker's switch switches cleanerd off, too; a mistyped key of the cleaner is ignored, by the broker as well."""
    (tmp_path / "c").write_text(f"log.dirs={tmp_path}\nlog.cleaner.enable=false\n")
    ran = run("config", "check", "--config", "c")
    assert (ran.code, ran.out) == (0, "")
    assert "warning: cleaning is off: log.cleaner.enable is false (config file: c:2)" in ran.err
    assert "cleanerd.log.cleaner.enable=true" in ran.err
    (tmp_path / "c").write_text(
        f"log.dirs={tmp_path}\nlog.cleaner.enable=false\ncleanerd.log.cleaner.enable=true\nlog.cleaner.enabel=false\n"
    )
    ran = run("config", "check", "--config", "c")
    assert ran.code == 0
    assert "cleaning is off" not in ran.err
    assert "log.cleaner.enabel: expected a key of Kafka's cleaner" in ran.err
    assert "did you mean log.cleaner.enable?" in ran.err


def test_config_check_warns_of_a_cluster_without_a_secret(run: Run, tmp_path: Path) -> None:
    """A local session draws its own; a cluster has one only if it is configured."""
    secret = "cleanerd.spark.conf.spark.authenticate.secret=s3cret"
    for lines, is_warned in [
        (["cleanerd.spark.master=spark://host:7077"], True),
        (["cleanerd.spark.master=spark://host:7077", secret], False),
        (["cleanerd.spark.master=local[2]"], False),
        ([], False),
    ]:
        (tmp_path / "c").write_text("\n".join([f"log.dirs={tmp_path}", *lines, ""]))
        ran = run("config", "check", "--config", "c")
        assert ran.code == 0
        assert ("Spark runs unauthenticated" in ran.err) is is_warned
        assert "s3cret" not in ran.err


def test_config_check_of_a_missing_file_names_that_file_alone(run: Run, tmp_path: Path) -> None:
    ran = run("config", "check", "--config", "missing")
    assert ran.code == 78
    assert "missing: expected a readable file" in ran.err
    assert "/tmp/kafka-logs" not in ran.err
    ran = run("config", "check", "--config", "missing", "--set", "log.dirs=/nowhere/a")
    assert "/nowhere/a: expected a readable directory" in ran.err


_INTERRUPTED_IN_A_CALLBACK = """
import os, signal, sys, weakref
from cleanerd.cli.main import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cleanerd.cli.run":
            class Short: ...
            short = Short()
            watched = weakref.ref(short, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del short

sys.meta_path.insert(0, Finder())
sys.exit(main(["run", "--config", sys.argv[1]]))
"""


def test_a_daemon_that_is_interrupted_while_it_imports_ends(tmp_path: Path) -> None:
    """Where Python ignores an exception, too: in a callback, as the import system has them."""
    ended = python("-c", _INTERRUPTED_IN_A_CALLBACK, tmp_path / "none")
    assert (ended.returncode, ended.stderr) == (130, "cleanerd: interrupted\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("no name 'Sentinel'"), "internal error: ImportError: no name 'Sentinel'; CLEANERD_LOG_LEVEL=debug"),
        (ValueError("two\nlines"), "internal error: ValueError: two lines; CLEANERD_LOG_LEVEL=debug shows where"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (OSError(24, "Too many open files"), "too many open files: raise ulimit -n (LimitNOFILE= of a unit, --ulimit"),
        (RuntimeError("can't start new thread"), "internal error: no more processes or threads can be started: raise"),
        (MemoryError(), "out of memory: raise the limit on this process"),
    ],
)  # fmt: skip
def test_what_no_code_expected_is_a_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    """No traceback reaches a user who has not asked for it."""
    monkeypatch.setattr("cleanerd.cli.config.load", Mock(side_effect=error))
    ran = run("config", "show")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"cleanerd: {said}")
    assert ran.err.count("\n") == 1
    monkeypatch.setenv("CLEANERD_LOG_LEVEL", "debug")
    assert "Traceback" in run("config", "show").err


def test_what_a_thread_or_a_destructor_raises_is_a_line() -> None:
    script = """
import threading
from cleanerd.cli.output import print_message
from cleanerd.cli.unexpected import catch_unexpected

class Left:
    def __del__(self):
        raise ValueError("in a destructor")

def fail():
    raise ValueError("in a thread")

catch_unexpected(print_message)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
Left()
raise ValueError("at last")
"""
    done = python("-c", script)
    assert done.returncode == 1
    assert [
        line[: len("cleanerd: internal error: ValueError: in a")] for line in done.stderr.splitlines()
    ] == [
        "cleanerd: internal error: ValueError: in a",
        "cleanerd: internal error: ValueError: at l",
    ]


def test_a_host_that_has_python_inspect_what_ended_gets_the_exit_code() -> None:
    done = python("-i", "-m", "cleanerd.cli.main", "verify", "--log-dir=/nowhere")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
