"""List what happened to logs, newest first.

List what happened to logs, newest first; with `--all` also control requests, reloads, starts and stops of the daemon.
"""

from __future__ import annotations

import time
from argparse import Namespace

from cleanerd.daemon.api.arguments import ANY_PATTERN, duration, option
from cleanerd.daemon.api.asking import call
from cleanerd.daemon.api.client import KINDS_OF_LOGS, Client
from cleanerd.daemon.api.verb import Endpoint, Reply, Verb, daemon


def history(
    control: daemon.Control,
    pattern: daemon.Pattern | None = None,
    limit: daemon.Limit = 100,
    since_ms: daemon.TimeMs | None = None,
    kinds: daemon.Kinds | None = None,
) -> tuple[daemon.HistoryEvent, ...]:
    """The newest `limit` events since `since_ms`, newest first; `kinds`: only these, like `cleaning,commit`."""
    return control.parts.store.events(pattern, limit, since_ms, kinds)


_HISTORY = Endpoint("GET", "/v1/history", "events", history)


def _ask(client: Client, options: Namespace) -> Reply:
    asked = {
        "pattern": options.pattern,
        "limit": options.limit,
        "since_ms": options.since
        and time.time_ns() // 1_000_000 - round(1000 * options.since),  # again for each look of --watch
        "kinds": None if options.all else KINDS_OF_LOGS,
    }
    return Reply(call(client, _HISTORY, asked))


VERB = Verb(
    "history",
    __doc__,
    (_HISTORY,),
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
