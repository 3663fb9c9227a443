"""Clean now; a staged result is replaced by a new one."""

from __future__ import annotations

from argparse import Namespace

from cleanerd.daemon.api.arguments import PATTERN, option
from cleanerd.daemon.api.asking import Deadline, call
from cleanerd.daemon.api.client import FAILED, Client
from cleanerd.daemon.api.refusals import Conflict
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon
from cleanerd.daemon.api.verbs import jobs


def clean(
    control: daemon.Control, pattern: daemon.Pattern, force: bool = False, roll: bool = False
) -> tuple[daemon.JobView, ...]:
    """Clean now. `force` ignores the dirty ratio, never a safety bound. `roll` closes the active segments first.

    A log that is being cleaned already answers its job. Raises `Conflict` when every log that matches is held or may not be
    cleaned at all.
    """
    parts, found, refusals = control.parts, [], []
    for log in control.some(pattern):
        running, condition = parts.jobs.of(log), parts.conditions.of(log)
        if running is not None and not roll:
            found.append(running.id)
        elif condition.obstacle is not None and not condition.yields_to_requests:
            refusals.append(f"{log}: {condition.obstacle}")
        else:
            parts.failures.forget(log)  # to ask for a log again is to try it again
            found.append(parts.jobs.request([log], force=force, roll=roll).id)
    if not found:
        raise Conflict("; ".join(refusals[:5]))
    parts.work_bell.ring()
    return tuple(map(parts.jobs.view, dict.fromkeys(found)))


def would_clean(control: daemon.Control, pattern: daemon.Pattern) -> tuple[daemon.Explanation, ...]:
    """What a cleaning would find in each log that matches, looked at as before one. Starts nothing."""
    return tuple(control.explainer.of(log, exact=True) for log in control.some(pattern))


_CLEAN = Endpoint("POST", "/v1/clean", "jobs", clean)
_WOULD_CLEAN = Endpoint("GET", "/v1/clean", "explanations", would_clean)


def _ask(client: Client, options: Namespace) -> Reply:
    """With --wait, the jobs when they are done, and failure when one has failed; with --dry-run, explanations."""
    if options.dry_run:
        return Reply(call(client, _WOULD_CLEAN, {"pattern": options.pattern}))
    asked = {"pattern": options.pattern, "force": options.force, "roll": options.roll}
    started = call(client, _CLEAN, asked)
    if not options.wait:
        ids = " ".join(job["id"] for job in started["jobs"][:1])
        return Reply(started, hint=f"`cleanerctl jobs {ids}` follows it; --wait waits for the end")
    deadline = Deadline(options.timeout)
    ended = (deadline.call(client, jobs.DONE, {"job_id": job["id"]})["job"] for job in started["jobs"])
    done = {job["id"]: job for job in ended}.values()  # requests for small logs may have been joined
    has_failed = any(job["outcome"] in {"failed", "aborted"} for job in done)
    return Reply(started | {"jobs": list(done)}, FAILED if has_failed else 0)


VERB = Verb(
    "clean",
    __doc__,
    (_CLEAN, _WOULD_CLEAN),
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
    ask=_ask,
)
