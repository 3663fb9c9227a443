"""cleanerctl against a daemon of real parts behind a real socket: what it prints and how it exits."""

import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cleanerd.cleaning.throttle import RateLimit
from cleanerd.cli.ctl.verbs import VERBS
from cleanerd.daemon.api.http import RequestLimits
from cleanerd.daemon.api.verbs import ROUTES
from tests.harness.command_line import CLEANERD, CTL, ENVIRONMENT, Daemon, python
from tests.harness.ctl import ctl
from tests.harness.daemon.processes import wait_until


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that everybody can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


ANSWERS = [
    (["status"], "status"),
    (["logs"], "logs"),
    (["logs", "orders", "--state", "dirty"], "logs"),
    (["log", "orders-3"], "logs"),
    (["clean", "orders-3", "--force"], "jobs"),
    (["clean", "orders", "--dry-run"], "explanations"),
    (["jobs"], "jobs"),
    (["jobs", "JOB"], "job"),
    (["pause", "orders", "--reason", "restore", "--ttl", "2h"], "hold"),
    (["holds"], "holds"),
    (["abort", "orders-3"], "logs"),
    (["retry", "orders-*"], "logs"),
    (["explain", "orders-3"], "explanations"),
    (["history", "orders", "--limit", "1", "--since", "1h"], "events"),
    (["throttle"], "throttle"),
    (["throttle", "--io", "50MB", "--read", "unlimited"], "throttle"),
    (["throttle", "5MB"], "throttle"),
    (["forecast"], "forecast"),
    (["forecast", "orders-3"], "forecast"),
    (["retention", "orders", "--dry-run"], "retention"),
    (["retention", "orders-3"], "retention"),
    (["delete-records", "orders-3", "17", "--yes"], "deleted"),
    (["await", "orders-3", "17"], "logs"),
    (["commit"], "commits"),
    (["reload"], "reload"),
]
"""Of every verb but `resume`, and `mute` and `unmute`, which need a cluster: arguments, and the key of its answer."""


@pytest.mark.parametrize(("arguments", "key"), ANSWERS)
def test_every_verb_prints_a_table_or_a_document(daemon: Daemon, arguments: list[str], key: str) -> None:
    """Exit 0 both ways; a document has apiVersion and the key of the API, with what the model of the answer takes."""
    daemon.clean_up_to(17)
    job = daemon.job()
    arguments = [job if word == "JOB" else word for word in arguments]
    if arguments[0] == "explain":  # what nothing stands against an engine looks at
        daemon.ctl("pause", "orders")
    daemon.parts.life.is_ready = arguments[0] == "commit"
    ran = daemon.ctl(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()
    assert "None" not in ran.stdout
    assert not any(line.endswith(" ") for line in ran.stdout.splitlines())
    document = daemon.json(*arguments)
    daemon.parts.life.is_ready = False
    assert list(document) == [key]
    verb = next(verb for verb in VERBS if verb.name == arguments[0])
    endpoint = next(endpoint for endpoint in verb.endpoints if endpoint.key == key)
    route = next(route for route in ROUTES if (route.method, route.path) == endpoint[:2])
    route.answer.validate_json(json.dumps(document[key]))


def test_every_request_has_both_halves() -> None:
    """What a command of cleanerctl asks for a function of the daemon answers, and the other way round."""
    asked = {endpoint for verb in VERBS for endpoint in verb.endpoints}
    assert asked == {(route.method, route.path, route.key) for route in ROUTES}
    assert len(ROUTES) == len(asked)


def test_resume_by_id(daemon: Daemon) -> None:
    """A pause is held in the name of the user, and gone when it is resumed."""
    hold = daemon.json("pause", "orders")["hold"]
    assert hold["owner"]
    assert daemon.ctl("resume", hold["id"]).stdout == f"resumed orders (hold {hold['id']})\n"
    assert daemon.json("holds") == {"holds": []}
    assert daemon.ctl("holds").stdout == "nothing is paused\n"


def test_history_is_of_logs_unless_all_is_asked_for(daemon: Daemon) -> None:
    daemon.parts.events.record("daemon", "started")
    assert daemon.ctl("history").stdout == "nothing happened\n"
    assert "started" in daemon.ctl("history", "--all").stdout


def test_a_history_that_cannot_be_read_is_an_error(daemon: Daemon) -> None:
    """Not "nothing happened", nor a forecast without what it is made of."""
    path = daemon.root / "history.sqlite"
    path.rename(path.with_suffix(".away"))
    for verb in ("history", "forecast"):
        ran = daemon.ctl(verb)
        assert (ran.returncode, ran.stdout) == (75, "")
        assert ran.stderr.startswith(f"cleanerctl: {path}: the history cannot be read: ")


def test_a_rate_alone_is_for_reads_and_writes_together(daemon: Daemon) -> None:
    assert daemon.ctl("throttle", "5MB").returncode == 0
    assert daemon.parts.throttle.limits()[RateLimit.TOTAL] == 5e6


def test_a_topic_with_one_partition_needs_no_number(daemon: Daemon) -> None:
    """One with several asks which, one that is not there says so."""
    which = daemon.ctl("log", "orders")
    assert (which.returncode, which.stdout) == (2, "")
    assert which.stderr.startswith("cleanerctl: orders has 2 partitions: name one of orders-0 to orders-3\n")
    nothing = daemon.ctl("explain", "nosuch")
    assert nothing.returncode == 4
    assert nothing.stderr.startswith("cleanerctl: there is no topic nosuch")
    shutil.rmtree(daemon.a / "orders-0")
    daemon.scan()
    assert daemon.ctl("log", "orders").stdout == daemon.ctl("log", "orders-3").stdout


def test_formats_for_programs_have_the_same_content(daemon: Daemon) -> None:
    """yaml is the document; jsonl a line for each item."""
    document = json.loads(daemon.ctl("logs", "-o", "json").stdout)
    assert yaml.safe_load(daemon.ctl("logs", "-o", "yaml").stdout) == document
    lines = daemon.ctl("logs", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == document["logs"]
    assert len(daemon.ctl("status", "-o", "jsonl").stdout.splitlines()) == 1
    assert (
        daemon.ctl("logs", "-o", "wide").stdout == daemon.ctl("logs").stdout
    )  # a pipe is as wide as it takes


def test_explain_marks_what_stands_in_the_way(daemon: Daemon) -> None:
    """The decision first, then the facts; their rules are for programs."""
    daemon.ctl("pause", "orders", "--owner", "anna")
    out = daemon.ctl("explain", "orders-3").stdout
    assert out.startswith(f"orders-3 in {daemon.a}: not cleaned: ")
    assert re.search(r"^! .*anna", out, re.MULTILINE)


def test_exit_1_when_it_failed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload that is refused names every problem; what its configuration rules out is not tried again; a bug of the daemon
    is not explained away.
    """
    daemon.configure(cleanerd_retry_max=0)
    refused = daemon.ctl("reload")
    assert refused.returncode == 1
    assert "cleanerd.retry.max: " in refused.stdout
    daemon.configure(cleanerd_retry_max=1)
    assert daemon.ctl("reload").returncode == 0
    muted = daemon.ctl("mute", "orders")
    assert (muted.returncode, muted.stdout) == (1, "")
    assert muted.stderr.startswith("cleanerctl: cleanerd.commit.live is off: with auto"), (
        "to ask again changes nothing"
    )
    daemon.configure(log_cleanup_policy="delete")
    assert daemon.ctl("clean", "orders").returncode == 1, "nor is a topic that is not compacted"
    daemon.configure(log_cleanup_policy="compact,delete")
    monkeypatch.setattr(type(daemon.parts.failures), "forget", lambda *_: 1 / 0)
    assert daemon.ctl("retry", "orders").returncode == 1


def test_exit_3_when_no_daemon_answers(tmp_path: Path) -> None:
    """No socket, a stale one, a daemon that dies: says how to start it."""
    ran = ctl("status", CLEANERD_SOCKET=str(tmp_path / "none"))
    assert (ran.returncode, ran.stdout) == (3, "")
    assert f"no daemon answers on {tmp_path}/none" in ran.stderr
    assert "systemctl start cleanerd" in ran.stderr
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    assert ctl("status", "--socket", str(tmp_path / "stale")).returncode == 3
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(tmp_path / "dying"))
        dying.listen()
        asking = subprocess.Popen(
            [*CTL, "--socket", str(tmp_path / "dying"), "status"], env=ENVIRONMENT, stderr=subprocess.PIPE
        )
        dying.accept()[0].close()
        assert asking.communicate(timeout=30)[1].startswith(b"cleanerctl: the daemon")
    assert asking.returncode == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("log orders-7", "there is no log orders-7; did you mean orders-0 or orders-3?"),
        ("explain oders-0", "there is no log oders-0; did you mean orders-0 or orders-3?"),
        ("clean ordrs", "no log matches ordrs; did you mean orders?"),
        ("retry payments", "no log matches payments; `cleanerctl logs` lists them"),
        ("jobs j9", "there is no job j9; `cleanerctl jobs` lists those that are remembered"),
        ("resume h9", "there is no hold with the id or the pattern h9; `cleanerctl holds` lists them"),
    ],
)
def test_exit_4_when_there_is_no_such_log(daemon: Daemon, line: str, told: str) -> None:
    """Also for jobs and holds; with names that may have been meant, partitions of the topic first."""
    ran = daemon.ctl(*line.split())
    assert (ran.returncode, ran.stdout, ran.stderr) == (4, "", f"cleanerctl: {told}\n")


@pytest.mark.parametrize("line", ["pause orders-0 --reason=\udcff", "explain \udcff-0", "mute \udcff"])
def test_exit_2_for_words_that_are_no_utf_8(daemon: Daemon, line: str) -> None:
    """A file name, say: no topic has such a one, and no hold can be kept with it."""
    ran = daemon.ctl(*line.split())
    assert (ran.returncode, "cleanerctl: expected words in UTF-8, found " in ran.stderr) == (2, True)


def test_exit_75_when_it_is_busy(daemon: Daemon) -> None:
    """Conflict, time limit, a staged result that still waits."""
    assert daemon.ctl("commit").returncode == 75  # it is not ready
    assert daemon.parts.states.try_start_all([daemon.order(3)])
    assert daemon.ctl("pause", "orders", "--timeout", "0").returncode == 75
    daemon.ctl("pause", "orders-0")
    assert daemon.ctl("clean", "orders-0").returncode == 75
    full = Daemon(daemon.root / "full", limits=RequestLimits(max_connections=1))
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(full.path))
        other.sendall(b"POST /v1/clean HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        threading.Event().wait(0.5)  # until its head has been read
        ran = full.ctl("status")
    assert (ran.returncode, "too many connections" in ran.stderr) == (75, True)
    full.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_exit_77_without_permission(open_dir: Path, tmp_path: Path) -> None:
    """A stranger cannot connect; one who can connect may look only."""
    open_dir.chmod(0o755)
    daemon = Daemon(tmp_path, open_dir / "control.sock")
    script = (
        "import os, sys; from cleanerd.cli.ctl.main import main\n"
        "main(['--socket', '/nowhere', 'status'])  # imports all while Python can be read\n"
        "os.setgroups([]); os.setgid(4711); os.setuid(4711); sys.exit(main())"
    )

    def as_stranger(*arguments: str) -> subprocess.CompletedProcess[str]:
        return python("-c", script, "--socket", daemon.path, *arguments)

    ran = as_stranger("status")
    assert (ran.returncode, "member of the group" in ran.stderr) == (77, True)
    daemon.path.chmod(0o666)
    assert as_stranger("status").returncode == 0
    assert as_stranger("reload").returncode == 77
    os.chown(daemon.path, 0, 4711)
    assert as_stranger("retry", "orders").returncode == 0
    daemon.close()


def test_clean_without_wait_says_how_to_follow_its_job(daemon: Daemon) -> None:
    (job, *_) = daemon.json("clean", "orders")["jobs"]
    ran = daemon.ctl("clean", "orders")
    assert ran.returncode == 0
    assert f"`cleanerctl jobs {job['id']}` follows it; --wait waits for the end" in ran.stdout
    assert daemon.ctl("jobs", job["id"]).returncode == 0


def test_a_dry_run_explains_each_log_and_starts_nothing(daemon: Daemon) -> None:
    ran = daemon.ctl("clean", "orders", "--dry-run")
    assert ran.returncode == 0
    assert {
        f"{one['topic']}-{one['partition']}"
        for one in daemon.json("clean", "orders", "--dry-run")["explanations"]
    } == {f"{one['topic']}-{one['partition']}" for one in daemon.json("logs", "orders")["logs"]}
    assert daemon.json("jobs")["jobs"] == []
    assert daemon.ctl("clean", "nosuch", "--dry-run").returncode == 4


def test_pause_says_when_nothing_matches_yet(daemon: Daemon) -> None:
    hint = "nothing matches now; what appears later is held"
    assert hint in daemon.ctl("pause", "nosuch").stdout
    assert hint not in daemon.ctl("pause", "orders").stdout


@pytest.mark.parametrize(("outcome", "code"), [("committed", 0), ("failed", 1)])
def test_clean_waits_for_its_jobs(daemon: Daemon, outcome: str, code: int) -> None:
    """Fails when one failed, and gives up in time."""
    assert daemon.ctl("clean", "orders-0", "--wait", "--timeout", "50ms").returncode == 75
    (job,) = daemon.parts.jobs.requested()

    def end() -> None:
        wait_until(lambda: len(daemon.audit()) == 2, 30)  # it asks for the same job, and waits
        daemon.parts.jobs.end(job, [outcome], None)

    ending = threading.Thread(target=end)
    ending.start()
    ran = daemon.ctl("clean", "orders-0", "--wait")
    ending.join()
    assert (ran.returncode, "follows it" in ran.stdout) == (code, False)


def test_await_waits_until_the_offset_is_reached(daemon: Daemon) -> None:
    """Kafka's awaitCleaned; without a limit it goes on."""
    assert daemon.ctl("await", "orders-3", "17", "--timeout", "50ms").returncode == 75
    cleaning = threading.Timer(0.2, daemon.clean_up_to, [17])
    cleaning.start()
    assert daemon.ctl("await", "orders-3", "17").returncode == 0
    cleaning.join()


def test_delete_records_asks_on_a_terminal(daemon: Daemon) -> None:
    """`n` deletes nothing, `y` and --yes do, and without a terminal nobody is asked."""

    def on_terminal(typed: bytes, *arguments: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        command = [*CTL, "--socket", str(daemon.path), "delete-records", "orders-3", "17", *arguments]
        child = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.write(ours, typed)
        _, error = child.communicate(timeout=30)
        os.close(ours)
        os.close(theirs)
        return child.returncode, error.decode()

    code, error = on_terminal(b"n\n")
    assert (code, "below offset 17 for good?" in error, daemon.audit()) == (1, True, [])
    assert on_terminal(b"y\n")[0] == 0
    assert on_terminal(b"", "--yes") == (0, "")
    assert daemon.ctl("delete-records", "orders-3", "17").returncode == 0
    assert daemon.audit() == [("ok", "delete_records topic_partition=orders-3 offset=17")] * 3


def test_watch_asks_again_until_it_is_interrupted(daemon: Daemon) -> None:
    """As JSON one document a line; interrupting it is no failure."""
    command = [*CTL, "--socket", str(daemon.path), "status", "--watch", "0.1", "-o", "json"]
    watching = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert watching.stdout is not None
    for _ in range(3):
        assert json.loads(watching.stdout.readline())["status"]["pid"] == os.getpid()
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=30)
    assert watching.returncode == 0


def in_bash(line: str) -> "subprocess.CompletedProcess[str]":
    """A line of a script, in which the programs are commands."""
    functions = (
        f'cleanerctl() {{ {shlex.join(CTL)} "$@"; }}',
        f'cleanerd() {{ {shlex.join(CLEANERD)} "$@"; }}',
    )
    return subprocess.run(
        ["bash", "-c", "\n".join(["set -o pipefail", *functions, line])],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "cleanerctl logs | head -1",
        "cleanerctl --help | true",
        "cleanerctl logs --help | true",
        "cleanerctl status --watch 0.1 | head -1",
        "cleanerd config reference | true",
    ],
)
def test_nobody_reads_what_is_printed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Quiet, exit 0, and a watch comes to its end."""
    monkeypatch.setitem(ENVIRONMENT, "CLEANERD_SOCKET", str(daemon.path))
    ran = in_bash(line)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [(">/dev/full", 1, "cannot be written"), (">&-", 0, ""), ("<&- >&- 2>&-", 0, "")],
)
def test_nowhere_to_print(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, redirection: str, code: int, told: str
) -> None:
    """A full disk is an error; closed streams are none, and nothing else takes their place."""
    monkeypatch.setitem(ENVIRONMENT, "CLEANERD_SOCKET", str(daemon.path))
    ran = in_bash(f"cleanerctl logs {redirection}")
    assert ran.returncode == code
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_timeout_bounds_the_answer_of_verbs_that_look(tmp_path: Path) -> None:
    """For health checks: a daemon that hangs is as bad as none, and exit 75 says which it was."""
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "hangs"))
        hanging.listen()
        ran = ctl("--socket", str(tmp_path / "hangs"), "status", "--timeout", "100ms")
    assert ran.returncode == 75
    assert "does not answer" in ran.stderr
