"""Verbs about cleanings: `jobs`, `clean`, `await`, `abort`, `retry`."""

from argparse import Namespace

from cleanerd.cli.arguments import LOG, OFFSET, PATTERN, argument, option
from cleanerd.cli.ctl.asking import Deadline, call, given
from cleanerd.cli.ctl.client import FAILED, Client
from cleanerd.cli.ctl.tables import WHERE, Columns, Row, field, first_three, table
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.cli.ctl.verbs.logs import EXPLANATIONS, LOGS
from cleanerd.daemon.api import endpoints
from cleanerd.units import duration, instant


def _progress(row: Row) -> str:
    if row["state"] != "running" or not row["bytes_total"]:
        return ""
    return f"{100 * row['bytes_done'] / row['bytes_total']:.0f}%"


JOBS: Columns = {
    "JOB": field("id"),
    "STATE": field("state"),
    "TRIGGER": field("trigger"),
    "PHASE": field("phase"),
    "DONE": _progress,
    "RECORDS/S": field("records_per_s", lambda rate: f"{rate:.0f}"),
    "ETA": field("eta_s", duration),
    "STARTED": field("started_ms", instant),
    "OUTCOME": field("outcome"),
    "LOGS": field("logs", first_three),
    "REASON": field("reason"),
}


def _jobs(answer: Row | list[Row]) -> str:
    return table(answer if isinstance(answer, list) else [answer], JOBS)


_VIEW = View(_jobs, "no job since the daemon started")


def _clean(client: Client, options: Namespace) -> Reply:
    """With --wait, the finished jobs, and exit code 1 if one of them failed; with --dry-run, explanations."""
    if options.dry_run:
        return Reply(call(client, endpoints.WOULD_CLEAN, {"pattern": options.pattern}), EXPLANATIONS)
    asked = {"pattern": options.pattern, "force": options.force, "roll": options.roll}
    started = call(client, endpoints.CLEAN, asked)
    if not options.wait:
        ids = " ".join(job["id"] for job in started["jobs"][:1])
        return Reply(started, _VIEW, hint=f"`cleanerctl jobs {ids}` follows it; --wait waits for the end")
    deadline = Deadline(options.timeout)
    ended = (
        deadline.call(client, endpoints.JOB_DONE, {"job_id": job["id"]})["job"] for job in started["jobs"]
    )
    done = {job["id"]: job for job in ended}.values()  # requests for small logs may have been joined
    has_failed = any(job["outcome"] in {"failed", "aborted"} for job in done)
    return Reply(started | {"jobs": list(done)}, _VIEW, FAILED if has_failed else 0)


_AWAITED = (LOG, OFFSET)


def _await(client: Client, options: Namespace) -> Reply:
    deadline = Deadline(options.timeout)
    return Reply(deadline.call(client, endpoints.AWAIT, given(client, _AWAITED, options)), LOGS)


VERBS = (
    Verb(
        "jobs",
        "List cleaning jobs, newest last.",
        (endpoints.JOB, endpoints.JOBS),
        _VIEW,
        (argument("job_id", metavar="JOB", nargs="?", help="id of a job; default: all"),),
        ("jobs",),
        is_look=True,
    ),
    Verb(
        "clean",
        "Clean now; a staged result is replaced by a new one.",
        (endpoints.CLEAN, endpoints.WOULD_CLEAN, endpoints.JOB_DONE),
        _VIEW,
        (
            PATTERN,
            option("--force", "ignore the dirty ratio (never the safety bounds)"),
            option("--roll", "close the active segments first, which are never cleaned"),
            option("--dry-run", "only explain what a cleaning without --force would find in each log"),
            option("--wait", "wait until the jobs are done; exit 1 if one failed"),
        ),
        (
            "clean orders --dry-run",
            "clean orders-3 --wait",
            "clean orders --force",
            "clean orders-3 --roll --wait",
        ),
        ask=_clean,
    ),
    Verb(
        "await",
        "Wait until a log is cleaned up to an offset.",
        (endpoints.AWAIT,),
        LOGS,
        _AWAITED,
        ("await orders-3 150000 --timeout 10m",),
        ask=_await,
    ),
    Verb(
        "abort",
        "Stop cleanings that run or were asked for; the logs stay as they were, and may be cleaned again.",
        (endpoints.ABORT,),
        View(lambda rows: table(rows, WHERE), "no matching log was being cleaned, or was to be on request"),
        (PATTERN,),
        ("abort orders-3",),
        is_bounded=True,
    ),
    Verb(
        "retry",
        "Forget the failures of uncleanable logs.",
        (endpoints.RETRY,),
        View(lambda rows: table(rows, WHERE), "no matching log had failed"),
        (PATTERN,),
        ("retry '*'",),
    ),
)
