"""Log lines: their table and the code, their form, and what real lines of a daemon at work carry."""

import ast
import io
import json
import logging
import os
import pty
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

import cleanerd
from cleanerd.cleaning.outcomes import Outcome
from cleanerd.cleaning.phases import JOB_PHASES, LOG_PHASES
from cleanerd.daemon.configuration.reload import ReloadStatus
from cleanerd.daemon.loops.cleanings import Cleanings
from cleanerd.daemon.telemetry import log_setup as logs
from cleanerd.daemon.telemetry.event_table import BOUND, EVENTS, Event
from cleanerd.daemon.values.job import Job
from cleanerd.daemon.values.models import HistoryEventKind
from tests.harness.daemon.processes import DaemonProcess, running, wait_until
from tests.harness.daemon.scrape import Scrape, get, parse
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import RECORDS, segment, write_logs

PACKAGE = Path(cleanerd.__file__).parent
EVENT_LOG = PACKAGE / "daemon" / "telemetry" / "event_log.py"
FORM = {"event", "level", "timestamp"}
LEVELS = {"debug", "info", "warning", "error", "exception"}


class Call(NamedTuple):
    """A line of code that logs."""

    where: str
    event: str
    level: str
    fields: frozenset[str]


# -- the table and the code -----------------------------------------------------------------------------------------


def logging_calls(path: Path, text: str) -> Iterator[Call]:
    """All of a module; whatever else it does with its logger is an error, except in the event log."""
    assert text.count("get_logger(") == text.count('\n_log = structlog.get_logger("cleanerd")\n') == 1, path
    nodes, calls = list(ast.walk(ast.parse(text))), 0
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="_log"), attr=level),
                args=[ast.Constant(value=str(event))],
            ) if level in LEVELS:
                calls += 1
                fields = {field for keyword in node.keywords for field in fields_of(keyword)}
                if level == "exception":
                    fields, level = fields | {"exception"}, "error"
                yield Call(f"{path.name}:{node.lineno}", event, level, frozenset(fields))
    uses = [node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == "_log"]
    assert len(uses) == 1 + calls or path == EVENT_LOG, f"{path}: lines {uses}: what is logged there?"


def fields_of(keyword: ast.keyword) -> set[str]:
    if keyword.arg is None:  # **log.fields()
        assert ast.unparse(keyword.value).endswith("log.fields()")
        return {"log_dir", "topic", "partition"}
    return {"exception" if keyword.arg == "exc_info" else keyword.arg}


SOURCES = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
CALLS = [c for path, text in SOURCES.items() if "get_logger(" in text for c in logging_calls(path, text)]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.event}-{call.where}")
def test_whatever_is_logged_is_in_the_table_with_its_level_and_fields(call: Call) -> None:
    event = EVENTS[call.event]
    assert (call.level, call.fields) == (event.level, set(event.fields))
    assert not event.outcomes, "those are the event log's"


def test_whatever_is_in_the_table_is_logged() -> None:
    assert list(EVENTS) == [event.name for event in EVENTS.values()]
    recorded = {event.name for event in EVENTS.values() if event.outcomes}
    assert recorded == set(get_args(HistoryEventKind))
    assert EVENTS.keys() - recorded == {call.event for call in CALLS}


def told_outcomes() -> Iterator[tuple[str, str]]:
    """Event and outcome of what is recorded by name."""
    for text in SOURCES.values():
        for node in ast.walk(ast.parse(text)) if ".record(" in text else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="record"),
                    args=[ast.Constant(value=str(kind)), outcome, *_],
                ):
                    constants = (part for part in ast.walk(outcome) if isinstance(part, ast.Constant))
                    yield from ((kind, str(part.value)) for part in constants if isinstance(part.value, str))


def test_outcomes_are_those_of_the_code() -> None:
    told = set(told_outcomes())
    assert ("recovery", "failed") in told
    assert [(kind, outcome) for kind, outcome in told if outcome not in EVENTS[kind].outcomes] == []
    assert set(EVENTS["cleaning"].outcomes) == {one.word for one in get_args(Outcome)} - {
        "planned",
        "held",
    } | {"uncleanable"}
    assert set(EVENTS["reload"].outcomes) == {s.value for s in ReloadStatus} - {"unchanged"}
    for event in EVENTS.values():
        assert set(event.loud) <= set(event.outcomes)


def test_nothing_below_the_daemon_logs() -> None:
    """So that no record and no batch ever has a line. What libraries log may be silenced there."""
    below = {path for path in SOURCES if path.relative_to(PACKAGE).parts[0] not in ("daemon", "cli")}
    logs = re.compile(
        r"structlog|logging\.(debug|info|warning|error|exception|critical|log)\b|getLogger\((?!\"py4j\")[^)]"
    )
    assert [path for path in below if logs.search(SOURCES[path])] == []


@pytest.mark.parametrize("event", [e for e in EVENTS.values() if e.outcomes], ids=lambda event: event.name)
def test_the_account_logs_at_the_level_of_the_outcome(event: Event, tmp_path: Path) -> None:
    world = World(tmp_path)
    with capture_logs() as lines:
        for outcome in event.outcomes:
            world.parts.events.record(event.name, outcome)  # type: ignore[arg-type]
    world.close()
    found = {line["outcome"]: line["log_level"] for line in lines if line["event"] == event.name}
    assert {o: found[o] for o in event.outcomes} == {
        o: "warning" if o in event.loud else "info" for o in event.outcomes
    }


# -- form -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Logging of this process is left as it was found."""
    root = logging.getLogger()
    before, configured = (root.handlers[:], root.level), structlog.get_config()
    yield
    root.handlers[:], root.level = before
    structlog.configure(**configured)


@pytest.mark.usefixtures("as_it_was")
def test_json_where_nobody_watches() -> None:
    stream = io.StringIO()
    logs.configure("auto", "info", stream)
    with bound_contextvars(worker="w"):
        structlog.get_logger("test").info("cleaning", outcome="committed")
    structlog.get_logger("test").debug("too low")
    logging.getLogger("library").warning("said %s", "something")
    ours, foreign = map(json.loads, stream.getvalue().splitlines())
    assert ours.pop("timestamp") < foreign.pop("timestamp")
    assert ours == {"event": "cleaning", "level": "info", "outcome": "committed", "worker": "w"}
    assert foreign == {"event": "said something", "level": "warning"}


@pytest.mark.usefixtures("as_it_was")
def test_text_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    ours, terminal = pty.openpty()
    with open(terminal, "w") as stream:
        logs.configure("auto", "info", stream)
        structlog.get_logger("test").info("cleaning", path="/t-0/\x1b[2J", outcome="committed")
        text = ""
        while "outcome=committed" not in text:
            text += os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    assert "cleaning" in text
    assert "\x1b[2J" not in text


@pytest.mark.usefixtures("as_it_was")
def test_priorities_under_journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sd-daemon(3); a traceback is in its line, so that it has a priority too."""
    with (tmp_path / "journal").open("w") as stream:
        stat = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino}")
        logs.configure("auto", "debug", stream)
        log = structlog.get_logger("test")
        for say in (log.debug, log.info, log.warning, log.error):
            say("something")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            log.exception("something")
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<3>"]
    assert "ZeroDivisionError" in json.loads(lines[-1][3:])["exception"]


# -- a daemon at work -----------------------------------------------------------------------------------------------


class Worked(NamedTuple):
    bases: list[int]  # of the segments of a log before its cleaning
    lines: list[dict[str, Any]]
    history: list[dict[str, Any]]
    scrape: Scrape

    def of(self, event: str, **fields: object) -> list[dict[str, Any]]:
        return [
            line
            for line in self.lines
            if line["event"] == event and all(line.get(name) == value for name, value in fields.items())
        ]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Worked:
    """Two logs were cleaned in one job, one was given up, the configuration was read again; it was told to stop."""
    place = tmp_path_factory.mktemp("logs")
    log_dir = write_logs(place / "logs", "first", "second", "bad")
    bases = sorted(int(path.stem) for path in (log_dir / "first-0").glob("*.log"))
    damaged = segment(log_dir / "bad-0", 1)
    damaged.write_bytes(damaged.read_bytes()[:-5] + b"\xff" + damaged.read_bytes()[-4:])
    settings = {
        "cleanerd_retry_max": 2,
        "cleanerd_log_level": "debug",
        "cleanerd_metrics_listen": "127.0.0.1:0",
    }
    with running(place / "d", log_dir, **settings) as daemon:
        wait_until(lambda: daemon.outcomes("bad-0")[-1:] == ["uncleanable"], 90, daemon.output)
        wait_until(lambda: all("committed" in daemon.outcomes(f"{t}-0") for t in ("first", "second")), 60)
        (address,) = (e["address"] for e in daemon.events() if e["event"] == "metrics_listening")
        scrape = parse(get(address)[2])
        history = daemon.history("*")
        daemon.configure(cleanerd_retry_max=-1)
        wait_until(lambda: _has(daemon, "reload"), 20, daemon.output)
        assert daemon.stop() == 0
        return Worked(bases, daemon.events(), history, scrape)


def _has(daemon: DaemonProcess, event: str) -> bool:
    return event in {line["event"] for line in daemon.events()}


@pytest.mark.soak
def test_every_line_is_as_the_table_says(worked: Worked) -> None:
    """Name, level and fields; those of the context come from the thread."""
    for line in worked.lines:
        event = EVENTS[line["event"]]
        assert line["level"] == (event.level_of(line["outcome"]) if event.outcomes else event.level), line
        assert line.keys() <= FORM | set(event.fields) | BOUND.keys(), line
    assert {"ready", "daemon", "cleaning", "reload", "stopping", "stopped"} <= {
        line["event"] for line in worked.lines
    }


@pytest.mark.soak
def test_every_line_about_a_job_has_its_context(worked: Worked) -> None:
    """Also those that are not told what they are about: a log that is given up."""
    lines = worked.of("cleaning")
    assert len(lines) >= 3 + 1 + 1
    jobs = {(job["job_id"], job["worker"]) for job in worked.of("cleaning")}
    for line in lines:
        assert BOUND.keys() <= line.keys(), line
        assert (line["job_id"], line["worker"]) in jobs
        assert line["worker"] in ("cleanerd-worker-0", "cleanerd-worker-express")
        assert line["partition"] == 0
    assert {line["topic"] for line in worked.of("cleaning", outcome="uncleanable")} == {"bad"}
    assert len(worked.of("cleaning", topic="first")) == 1


@pytest.mark.soak
def test_lines_that_are_not_about_a_job_have_nothing_of_one(worked: Worked) -> None:
    for line in worked.of("reload") + worked.of("daemon") + worked.of("stopped"):
        assert not line.keys() & (BOUND.keys() - {"worker"}), line


@pytest.mark.soak
def test_the_line_of_a_cleaning_has_everything_that_matters(worked: Worked) -> None:
    for topic in ("first", "second"):
        (line,) = worked.of("cleaning", topic=topic)
        start, end = line["first_dirty_offset"], line["end_offset"]
        assert (start, line["trigger"], line["outcome"]) == (0, "schedule", "committed")
        assert 0 < line["records_kept"] == line["records_read"] - sum(line["removed"].values()) < end
        assert 0 < line["bytes_after"] < line["bytes_before"] > line["bytes_read"] > 0
        assert line["segments_before"] > line["segments_after"]
        assert {"mb_per_s", "records_per_s", "seconds", "removed"} <= line.keys()
        phases = {
            name: s for name, s in line["phase_seconds"].items() if name != "start"
        }  # no part of the seconds
        assert set(phases) == {"examine", "plan", "index", "rewrite", "stage", "commit"}
        assert 0 < sum(phases.values()) - phases["examine"] <= line["seconds"] + 0.01


@pytest.mark.soak
def test_each_step_of_a_cleaning_is_logged_with_its_numbers(worked: Worked) -> None:
    """All of them, in order."""
    lines = worked.of("cleaning_step", topic="first")
    assert {(line["level"], line["partition"]) for line in lines} == {("debug", 0)}
    steps = {line["step"]: line["numbers"] for line in lines}
    assert [line["step"] for line in lines] == ["plan", "map", "rewrite", "stage", "swap", "end"]
    sources, end = worked.bases[:-1], worked.bases[-1]
    assert (steps["plan"]["first_dirty_offset"], steps["plan"]["round_end"]) == (0, end)
    assert (steps["plan"]["segments"], steps["plan"]["groups"]) == (len(sources), 1)
    assert steps["map"] == {"records": end, "changed_groups": 1}
    assert (steps["rewrite"]["segments"], steps["rewrite"]["into"]) == (sources, 0)
    assert steps["rewrite"]["records_read"] == end > steps["rewrite"]["records_kept"] > 0
    assert steps["rewrite"]["bytes_before"] == steps["plan"]["bytes"] > steps["rewrite"]["bytes_after"]
    assert steps["stage"] == {"groups": 1, "bytes": steps["rewrite"]["bytes_after"]}
    assert steps["swap"] == {
        name: steps["rewrite"][name] for name in ("segments", "into", "bytes_before", "bytes_after")
    }
    assert steps["end"] == {"first_dirty_offset": end}
    assert end < RECORDS


@pytest.mark.soak
def test_phases_are_the_same_in_history_and_metrics(worked: Worked) -> None:
    """Those of a job count once, though each of its logs is told them."""
    lines = [line for line in worked.of("cleaning") if "phase_seconds" in line]
    told = {
        (event["topic"], event["time_ms"]): event for event in worked.history if event["kind"] == "cleaning"
    }
    assert [event["phase_seconds"] for event in told.values() if event["outcome"] == "committed"] == [
        line["phase_seconds"] for line in reversed(lines) if line["outcome"] == "committed"
    ]
    of_jobs = {line["job_id"]: line["phase_seconds"] for line in lines}
    for line in lines:  # the most that any log of the job went through
        of_jobs[line["job_id"]] = of_jobs[line["job_id"]] | line["phase_seconds"]
    for phase in (*JOB_PHASES, *LOG_PHASES):
        rows = of_jobs.values() if phase in JOB_PHASES else [line["phase_seconds"] for line in lines]
        found = [row[phase] for row in rows if phase in row]
        assert worked.scrape.total("cleanerd_phase_duration_seconds_count", phase=phase) == len(found)
        total = worked.scrape.total("cleanerd_phase_duration_seconds_sum", phase=phase)
        assert total == pytest.approx(sum(found), abs=0.001 * len(found) + 1e-9), phase


def test_a_thread_that_dies_tells_of_which_job_and_its_next_life_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = world.daemon

    def broken(_: Cleanings, __: Job) -> None:
        raise ZeroDivisionError("as in a bug")

    monkeypatch.setattr(Cleanings, "run", broken)
    with capture_logs([merge_contextvars]) as lines:
        daemon.start()
        wait_until(lambda: "worker_died" in {line["event"] for line in lines}, 10)
        daemon.stop()
    died = next(line for line in lines if line["event"] == "worker_died")
    assert died["worker"] == "cleanerd-worker-0"
    assert (died["log_dir"], died["job_id"]) == (str(world.a), world.parts.jobs.views()[0].id)
