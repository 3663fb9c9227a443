"""What cleanerctl does for each of its verbs: ask, perhaps more than once, and judge the answer.

Waiting is done in slices, so that the daemon keeps no thread for a client that has gone: `clean --wait`, `commit --wait`
and `await` ask again until it is done or `--timeout` is over.
"""

import argparse
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from cleanerd.cli.ctl import tables as ctl_tables
from cleanerd.cli.ctl.client import BUSY, FAILED, KINDS_OF_LOGS, NO_SUCH_LOG, USAGE, Client, ControlError
from cleanerd.cli.output import is_table

_SLICE_S = 10.0
_DEFAULT_STOP_S = 30.0  # for a cleaning to notice that it has to stop
_COMPLETION_S = 1.0  # who presses TAB does not wait longer
_CLUSTER_S = 40.0  # for what the daemon asks the cluster
_MAX_STOP_S = 60.0  # what the daemon lets one request wait


class Reply(NamedTuple):
    """The document to print, how people see it, and the exit code."""

    document: dict[str, Any]
    exit_code: int = 0
    text: Callable[[Mapping[str, Any]], str] = ctl_tables.text


Verb = Callable[[Client, argparse.Namespace], Reply]


def status(client: Client, _: argparse.Namespace) -> Reply:
    """The daemon as a whole."""
    return Reply(client.get("/v1/status"))


def top(client: Client, options: argparse.Namespace) -> Reply:
    """Everything worth watching; on a terminal, again and again until the user leaves; then nothing is left to print."""
    from cleanerd.cli.ctl import top as ctl_top  # noqa: PLC0415 - rich takes longer to import than all other verbs together

    if is_table(options.output) and ctl_top.is_possible():
        ctl_top.watch(client, options.interval)
        return Reply({}, text=lambda _: "")
    return Reply(ctl_top.ask(client), text=ctl_top.snapshot)


def completion(_: Client, options: argparse.Namespace) -> Reply:
    """The script for a shell."""
    from cleanerd.cli.completion import script  # noqa: PLC0415 - only here

    document = {"completion": script(options.parser, options.shell)}
    return Reply(document, text=lambda found: str(found["completion"]))


def names(_: Client, options: argparse.Namespace) -> Reply:
    """What a completion script asks for: names that begin so, one a line, and silence instead of any error."""
    client, pattern = Client(options.socket, _COMPLETION_S), f"{options.start}*"
    try:
        if options.kind in ("log", "pattern"):
            logs = client.get("/v1/logs", pattern=pattern)["logs"]
            found = {f"{log['topic']}-{log['partition']}" for log in logs}
            if options.kind == "pattern":
                found |= {log["topic"] for log in logs}
        else:
            found = {row["id"] for row in client.get(f"/v1/{options.kind}s")[f"{options.kind}s"]}
    except (ControlError, KeyError):
        found = set()
    return Reply({"names": sorted(found)}, text=lambda names: "".join(f"{name}\n" for name in names["names"]))


def logs(client: Client, options: argparse.Namespace) -> Reply:
    """Every log that matches."""
    return Reply(client.get("/v1/logs", pattern=options.pattern, state=options.state))


def log(client: Client, options: argparse.Namespace) -> Reply:
    """Everything about one partition."""
    return Reply(client.get(_path("logs", _partition(client, options.log))), text=ctl_tables.log_details)


def explain(client: Client, options: argparse.Namespace) -> Reply:
    """Why a log is or is not cleaned now."""
    return Reply(client.get(_path("logs", _partition(client, options.log), "explanation")))


def jobs(client: Client, options: argparse.Namespace) -> Reply:
    """All jobs, or one."""
    return Reply(client.get("/v1/jobs" if options.job is None else _path("jobs", options.job)))


def holds(client: Client, _: argparse.Namespace) -> Reply:
    """Holds in force."""
    return Reply(client.get("/v1/holds"))


def forecast(client: Client, options: argparse.Namespace) -> Reply:
    """What is to come."""
    return Reply(client.get("/v1/forecast", pattern=options.pattern))


def history(client: Client, options: argparse.Namespace) -> Reply:
    """What happened to logs, newest first; with --all, control requests, reloads and the daemon itself too."""
    since_ms = None if options.since is None else time.time_ns() // 1_000_000 - round(1000 * options.since)
    kinds = None if options.all else KINDS_OF_LOGS
    return Reply(
        client.get(
            "/v1/history", pattern=options.pattern, limit=options.limit, since_ms=since_ms, kinds=kinds
        )
    )


def throttle(client: Client, options: argparse.Namespace) -> Reply:
    """Limits in force, after changing those that are given."""
    change = {
        f"{name}_bytes_per_s": None if given == "unlimited" else given
        for name in ("io", "read", "write")
        if (given := options.rate if name == "io" and options.io is None else getattr(options, name))
        is not None
    }
    return Reply(client.send("PUT", "/v1/throttle", change) if change else client.get("/v1/throttle"))


def clean(client: Client, options: argparse.Namespace) -> Reply:
    """Clean now; with --wait, the jobs when they are done, and failure when one has failed."""
    started = client.send("POST", "/v1/clean", {"pattern": options.pattern, "force": options.force})
    if not options.wait:
        ids = " ".join(job["id"] for job in started["jobs"][:1])
        return Reply(started, text=_with(f"`cleanerctl jobs {ids}` follows it; --wait waits for the end"))
    deadline = _Deadline(options.timeout)
    done = [_job_done(client, job["id"], deadline) for job in started["jobs"]]
    has_failed = any(job["outcome"] in {"failed", "aborted"} for job in done)
    return Reply(started | {"jobs": done}, FAILED if has_failed else 0)


def _job_done(client: Client, job_id: str, deadline: "_Deadline") -> dict[str, Any]:
    path = _path("jobs", job_id, "done")
    done = _again(deadline, lambda slice_ms: client.get(path, slice_ms / 1000, timeout_ms=slice_ms))
    return dict(done["job"])


def await_cleaned(client: Client, options: argparse.Namespace) -> Reply:
    """The log, when it has been cleaned up to an offset."""
    path = _path("logs", _partition(client, options.log), "cleaned")
    return Reply(
        _again(
            _Deadline(options.timeout),
            lambda slice_ms: client.get(
                path,
                slice_ms / 1000,
                offset=options.offset,
                timeout_ms=slice_ms,
            ),
        )
    )


def commit(client: Client, options: argparse.Namespace) -> Reply:
    """Commit staged results; with --wait, until none waits for a lock any more; one that is held is not waited for."""
    deadline = _Deadline(options.timeout if options.wait else 0.0)
    commits: dict[tuple[str, str, int], dict[str, Any]] = {}
    ask = lambda ms: client.send("POST", "/v1/commit", {"pattern": options.pattern, "wait_ms": ms}, ms / 1000)  # noqa: E731
    while True:
        answer = _again(deadline, ask)  # a daemon that has just been started may not be ready
        unheard = {key for key, row in commits.items() if row["outcome"] in ("waiting", "held")}
        for row in answer["commits"]:
            key = (row["log_dir"], row["topic"], row["partition"])
            unheard.discard(key)
            if row["outcome"] != "nothing" or key not in commits:  # it was committed in an earlier round
                commits[key] = row
        for key in unheard:  # nothing waits there any more: the daemon was quicker, between two requests
            commits[key] = commits[key] | _became(client, commits[key])
        outcomes = {row["outcome"] for row in commits.values()}
        if "waiting" not in outcomes or deadline.is_over():
            break
    exit_code = FAILED if "failed" in outcomes else BUSY if outcomes & {"waiting", "held"} else 0
    return Reply(answer | {"commits": [commits[key] for key in sorted(commits)]}, exit_code)


def _became(client: Client, waited: Mapping[str, Any]) -> dict[str, Any]:
    """What the daemon itself made of a result that waited."""
    try:
        logs = client.get(_path("logs", f"{waited['topic']}-{waited['partition']}"))["logs"]
    except ControlError as error:
        if error.exit_code != NO_SUCH_LOG:
            raise
        logs = []  # the topic was deleted
    last = next((log["last"] for log in logs if log["log_dir"] == waited["log_dir"]), None) or {}
    outcome = last.get("outcome")
    known = outcome in {"committed", "dropped"}
    return {
        "outcome": outcome if known else "nothing",
        "reason": last.get("reason") if known else None,
        "lock_owner_pid": None,
    }


def pause(client: Client, options: argparse.Namespace) -> Reply:
    """Hold what matches; answers when none of it is being cleaned."""
    stop_s = _stop_s(options.timeout)
    body = {
        "pattern": options.pattern,
        "owner": options.owner or _user(),
        "reason": options.reason,
        "ttl_ms": None if options.ttl is None else max(round(1000 * options.ttl), 1),
        "timeout_ms": round(1000 * stop_s),
    }
    answer = client.send("POST", "/v1/pause", body, stop_s)
    hint = "" if answer["hold"]["logs"] else "nothing matches now; what appears later is held"
    return Reply(answer, text=_with(hint))


def resume(client: Client, options: argparse.Namespace) -> Reply:
    """Lift holds."""
    return Reply(client.send("POST", "/v1/resume", {"selector": options.hold}), text=ctl_tables.resumed)


def abort(client: Client, options: argparse.Namespace) -> Reply:
    """Stop the cleanings of what matches."""
    stop_s = _stop_s(options.timeout)
    body = {"pattern": options.pattern, "timeout_ms": round(1000 * stop_s)}
    answer = client.send("POST", "/v1/abort", body, stop_s)
    return Reply(answer, text=ctl_tables.text_or("no matching log was being cleaned"))


def mute(client: Client, options: argparse.Namespace) -> Reply:
    """Keep the brokers' own cleaners away."""
    return Reply(client.send("POST", "/v1/mute", {"pattern": options.topics}, _CLUSTER_S))


def unmute(client: Client, options: argparse.Namespace) -> Reply:
    """Let the brokers' own cleaners clean again."""
    return Reply(client.send("POST", "/v1/unmute", {"pattern": options.topics}, _CLUSTER_S))


def retry(client: Client, options: argparse.Namespace) -> Reply:
    """Forget failures."""
    answer = client.send("POST", "/v1/retry", {"pattern": options.pattern})
    return Reply(answer, text=ctl_tables.text_or("no matching log had failed"))


def reload(client: Client, _: argparse.Namespace) -> Reply:
    """Read the configuration again; a refusal is a failure."""
    answer = client.send("POST", "/v1/reload", {})
    return Reply(answer, 0 if answer["reload"]["applied"] else FAILED)


def retention(client: Client, options: argparse.Namespace) -> Reply:
    """Run or preview a retention pass; a log that failed is a failure."""
    answer = client.send("POST", "/v1/retention", {"pattern": options.pattern, "dry_run": options.dry_run})
    has_failed = any(row["outcome"] == "failed" for row in answer["retention"])
    return Reply(answer, FAILED if has_failed else 0)


def delete_records(client: Client, options: argparse.Namespace) -> Reply:
    """Delete what lies below an offset."""
    body = {"topic_partition": _partition(client, options.log), "offset": options.offset}
    return Reply(client.send("POST", "/v1/delete-records", body))


def _partition(client: Client, name: str) -> str:
    """The partition that `name` means: itself, or the only one of a topic. Raises `ControlError`."""
    if re.fullmatch(r".+-\d+", name):
        return name
    found = sorted(
        {row["partition"] for row in client.get("/v1/logs", pattern=name)["logs"] if row["topic"] == name}
    )
    if not found:
        raise ControlError(f"there is no topic {name}; `cleanerctl logs` lists what there is", NO_SUCH_LOG)
    if len(found) > 1:
        raise ControlError(
            f"{name} has {len(found)} partitions: which, {name}-{found[0]} to {name}-{found[-1]}?", USAGE
        )
    return f"{name}-{found[0]}"


def _with(hint: str) -> Callable[[Mapping[str, Any]], str]:
    """The usual text with a line more."""
    return lambda document: ctl_tables.text(document) + (f"{hint}\n" if hint else "")


def _path(*names: str) -> str:
    return "/v1/" + "/".join(quote(name, safe="") for name in names)


class _Deadline:
    """The end of `--timeout`, or never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def _left_s(self) -> float:
        return _SLICE_S if self._end_s is None else self._end_s - time.monotonic()

    def slice_ms(self) -> int:
        """How long to wait in the next request."""
        return round(1000 * min(max(self._left_s(), 0.0), _SLICE_S))

    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self._left_s() <= 0


def _again(deadline: _Deadline, ask: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """The answer, asked for in slices of the time that is left."""
    while True:
        try:
            return ask(deadline.slice_ms())
        except ControlError as error:
            if error.code != "timeout" or deadline.is_over():
                raise


def _stop_s(timeout_s: float | None) -> float:
    return _DEFAULT_STOP_S if timeout_s is None else min(timeout_s, _MAX_STOP_S)


def _user() -> str:
    import os  # noqa: PLC0415 - only here

    from cleanerd.env.host import user_name  # noqa: PLC0415

    return user_name() or f"uid {os.geteuid()}"
