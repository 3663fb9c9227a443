"""The verb `commit`."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cleanerd.cli.arguments import ANY_PATTERN, option
from cleanerd.cli.ctl.asking import Deadline, call
from cleanerd.cli.ctl.client import BUSY, FAILED, NO_SUCH_LOG, Client, ControlError
from cleanerd.cli.ctl.tables import WHERE, Columns, field, process, table
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.daemon.api import endpoints

_COMMITS: Columns = {
    **WHERE,
    "OUTCOME": field("outcome"),
    "LOCK OWNER": field("lock_owner_pid", process),
    "REASON": field("reason"),
}


def _ask(client: Client, options: Namespace) -> Reply:
    """With --wait, repeat the request until no result waits for a lock; a result that is held counts as done."""
    deadline = Deadline(options.timeout if options.wait else 0.0)
    commits: dict[tuple[str, str, int], dict[str, Any]] = {}
    while True:  # a daemon that has just been started may not be ready
        answer = deadline.call(client, endpoints.COMMIT, {"pattern": options.pattern}, "wait_ms")
        no_longer_staged = {key for key, row in commits.items() if row["outcome"] in ("waiting", "held")}
        for row in answer["commits"]:
            key = (row["log_dir"], row["topic"], row["partition"])
            no_longer_staged.discard(key)
            if row["outcome"] != "nothing" or key not in commits:  # it was committed in an earlier round
                commits[key] = row
        for key in no_longer_staged:  # the daemon committed or dropped it by itself, between two requests
            commits[key] = commits[key] | _last_outcome(client, commits[key])
        outcomes = {row["outcome"] for row in commits.values()}
        if "waiting" not in outcomes or deadline.is_over():
            break
    exit_code = FAILED if "failed" in outcomes else BUSY if outcomes & {"waiting", "held"} else 0
    return Reply(answer | {"commits": [commits[key] for key in sorted(commits)]}, VERB.view, exit_code)


def _last_outcome(client: Client, waited: Mapping[str, Any]) -> dict[str, Any]:
    """How the daemon itself ended the commit of a log: from the log's last event."""
    name = f"{waited['topic']}-{waited['partition']}"
    try:
        logs = call(client, endpoints.LOG, {"topic_partition": name})["logs"]
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
    """Put staged results in place, where no broker holds the lock.

Put staged results in place, where no broker holds the log directory; with `--wait` wait until the daemon is ready and no
lock is in the way. `commit --wait` without a pattern also announces a broker that is about to start: no job, commit,
retention or deletion begins in its log directories until it has started, for a minute at most.
""",
    (endpoints.COMMIT,),
    View(lambda rows: table(rows, _COMMITS), "nothing is staged"),
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
