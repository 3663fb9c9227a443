"""Put staged results in place, where no broker holds the lock.

Put staged results in place, where no broker holds the log directory; with `--wait` wait until the daemon is ready and no
lock is in the way. `commit --wait` without a pattern also announces a broker that is about to start: no job, commit,
retention or deletion begins in its log directories until it has started, for a minute at most.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cleanerd.daemon.api.arguments import ANY_PATTERN, option
from cleanerd.daemon.api.asking import Deadline, call
from cleanerd.daemon.api.client import BUSY, FAILED, NO_SUCH_LOG, Client, ControlError
from cleanerd.daemon.api.refusals import Timeout, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon
from cleanerd.daemon.api.verbs import log as log_verb

_POLL_S = 0.1


def commit(
    control: daemon.Control, pattern: daemon.Pattern | None = None, wait_ms: daemon.WaitMs = 0
) -> tuple[daemon.CommitView, ...]:
    """Commit staged results; wait up to `wait_ms` for locks. What is still locked then is `waiting`, which is no error.

    Waiting for all results announces a broker start: after that no lock is taken in free log directories
    for a minute, or until a broker holds it.
    """
    parts, now = control.parts, control.parts.clock.monotonic_s
    deadline_s, is_start = now() + wait_ms / 1000, wait_ms > 0 and pattern is None
    _wait_until_ready(control, deadline_s)
    control.supervisor.scanner.scan()
    logs = control.matching(pattern) if pattern is None else control.some(pattern)
    staged = set(parts.inventory.staged())
    views: dict[tuple[str, int, str], daemon.CommitView] = {}
    waiting = [log for log in logs if log in staged]
    while waiting:
        if is_start:
            _make_way(control)
        for view in parts.commits.try_all(waiting, lambda _: not wait_ms or now() < deadline_s):
            views[view.topic, view.partition, view.log_dir] = view
        waiting = [log for log in waiting if views[_key(log)].outcome == "waiting"]
        if not waiting or now() >= deadline_s or parts.life.stopping.wait(_POLL_S):
            break
    if is_start:
        _make_way(control)
    control.supervisor.scanner.scan()
    return tuple(views.values())


def _key(log: daemon.LogId) -> tuple[str, int, str]:
    return log.topic_partition.topic, log.topic_partition.partition, log.log_dir


def _wait_until_ready(control: daemon.Control, deadline_s: float) -> None:
    """Before that, staged results are not known, and there would be nothing to commit."""
    life = control.parts.life
    while not life.is_ready:
        if life.stopping.is_set():
            raise Unavailable("the daemon is stopping")
        if control.parts.clock.monotonic_s() >= deadline_s:
            raise Timeout("the daemon is not ready yet: it recovers what was interrupted and looks for logs")
        life.stopping.wait(_POLL_S)


def _make_way(control: daemon.Control) -> None:
    """A broker is about to start: until it has come, nothing of ours begins."""
    ownership = control.parts.ownership
    for log_dir in control.parts.log_dirs:
        if ownership.owner(log_dir) in (daemon.Owner.STOPPED_BROKER, daemon.Owner.BROKER_COMING):
            ownership.yield_to_broker(log_dir)


_COMMIT = Endpoint("POST", "/v1/commit", "commits", commit)


def _ask(client: Client, options: Namespace) -> Reply:
    """With --wait, until no result waits for a lock any more; one that is held is not waited for."""
    deadline = Deadline(options.timeout if options.wait else 0.0)
    commits: dict[tuple[str, str, int], dict[str, Any]] = {}
    while True:  # a daemon that has just been started may not be ready
        answer = deadline.call(client, _COMMIT, {"pattern": options.pattern}, "wait_ms")
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
    name = f"{waited['topic']}-{waited['partition']}"
    try:
        logs = call(client, log_verb.VERB.endpoints[0], {"topic_partition": name})["logs"]
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


VERB = Verb(
    "commit",
    __doc__,
    (_COMMIT,),
    (
        ANY_PATTERN,
        option(
            "--wait",
            "wait until no lock is in the way. Without PATTERN this announces a broker: nothing else begins in its free "
            "log directories until it has started, for a minute at most",
        ),
    ),
    ("commit", "commit orders-3 --wait --timeout 2m"),
    ask=_ask,
)
