"""Verbs about holds: `holds`, `pause`, `resume`."""

import os
from argparse import Namespace
from collections.abc import Sequence

from cleanerd.cli.arguments import PATTERN, argument, duration_ms, option
from cleanerd.cli.ctl.asking import call, given, stop_ms
from cleanerd.cli.ctl.client import Client
from cleanerd.cli.ctl.tables import Columns, Row, field, first_three, table
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.daemon.api import endpoints
from cleanerd.env.host import user_name
from cleanerd.units import instant, printable

_HOLDS: Columns = {
    "HOLD": field("id"),
    "PATTERN": field("pattern"),
    "OWNER": field("owner"),
    "SINCE": field("created_ms", instant),
    "UNTIL": lambda row: "resumed" if row["expires_ms"] is None else instant(row["expires_ms"]),
    "LOGS": field("logs", first_three),
    "REASON": field("reason"),
}
_ARGUMENTS = (
    PATTERN,
    option("--reason", "shown with the hold", metavar="TEXT", default=""),
    option("--owner", "default: your user name", metavar="NAME"),
    option("--ttl", "end the pause after TIME, like 2h", metavar="TIME", type=duration_ms, dest="ttl_ms"),
)
_HOLD = View(lambda row: table([row], _HOLDS))


def _pause(client: Client, options: Namespace) -> Reply:
    limit_ms, user = stop_ms(options.timeout), user_name() or f"uid {os.geteuid()}"
    asked = {"owner": user, **given(client, _ARGUMENTS, options), "timeout_ms": limit_ms}
    answer = call(client, endpoints.PAUSE, asked, limit_ms / 1000)
    hint = "" if answer["hold"]["logs"] else "nothing matches now; what appears later is held"
    return Reply(answer, _HOLD, hint=hint)


def _resumed(holds: Sequence[Row]) -> str:
    return "".join(f"resumed {printable(hold['pattern'])} (hold {hold['id']})\n" for hold in holds)


VERBS = (
    Verb(
        "holds",
        "List the holds in force.",
        (endpoints.HOLDS,),
        View(lambda rows: table(rows, _HOLDS), "nothing is paused"),
        examples=("holds",),
        is_look=True,
    ),
    Verb(
        "pause",
        "Stop cleaning what matches, now and later.",
        (endpoints.PAUSE,),
        _HOLD,
        _ARGUMENTS,
        ("pause orders --reason restore --ttl 2h", "pause '*'"),
        ask=_pause,
    ),
    Verb(
        "resume",
        "End a pause, by its id or pattern.",
        (endpoints.RESUME,),
        View(_resumed, "nothing is paused"),
        (argument("selector", metavar="HOLD", help="id of a hold, or its pattern"),),
        ("resume orders",),
    ),
)
