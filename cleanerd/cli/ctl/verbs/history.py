"""The verb `history`."""

import time
from argparse import Namespace

from cleanerd.cli.arguments import ANY_PATTERN, duration, option
from cleanerd.cli.ctl.asking import call
from cleanerd.cli.ctl.client import Client
from cleanerd.cli.ctl.tables import Columns, field, log_name, table
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.daemon.api import endpoints
from cleanerd.units import duration as in_words
from cleanerd.units import instant, reasons, size

_KINDS_OF_LOGS = "cleaning,commit,retention,recovery"
_EVENTS: Columns = {
    "TIME": field("time_ms", instant),
    "LOG": log_name,
    "KIND": field("kind"),
    "OUTCOME": field("outcome"),
    "BEFORE": field("bytes_before", size),
    "AFTER": field("bytes_after", size),
    "TOOK": field("seconds", in_words),
    "REMOVED": field("removed", reasons),
    "JOB": field("job_id"),
    "REASON": field("reason"),
}


def _ask(client: Client, options: Namespace) -> Reply:
    since_ms = options.since and time.time_ns() // 1_000_000 - round(1000 * options.since)
    asked = {
        "pattern": options.pattern,
        "limit": options.limit,
        "since_ms": since_ms,
        "kinds": None if options.all else _KINDS_OF_LOGS,
    }
    return Reply(call(client, endpoints.HISTORY, asked), VERB.view)


VERB = Verb(
    "history",
    """List what happened to logs, newest first.

List what happened to logs, newest first; with `--all` also control requests, reloads, starts and stops of the daemon.
""",
    (endpoints.HISTORY,),
    View(lambda rows: table(rows, _EVENTS), "nothing happened"),
    (
        ANY_PATTERN,
        option("--limit", "default: 50", metavar="N", type=int, default=50),
        option("--all", "also control requests, reloads, start and stop of the daemon"),
        option("--since", "how far back, like 12h or 7d", metavar="TIME", type=duration),
    ),
    ("history --since 1h", "history orders-3 --limit 5", "history --all"),
    is_look=True,
    ask=_ask,
)
