"""Verbs about the broker's own cleaner: `mute`, `unmute`."""

from collections.abc import Sequence

from cleanerd.cli.arguments import TOPICS
from cleanerd.cli.ctl.tables import Columns, Row, field, table
from cleanerd.cli.ctl.verb import Verb, View
from cleanerd.daemon.api import endpoints
from cleanerd.units import instant, printable

_BROKER_S = 40.0  # the daemon asks the broker
_MUTES: Columns = {"TOPIC": field("topic"), "SINCE": field("since_ms", instant)}
_NONE = "nothing is muted"


def _unmuted(mutes: Sequence[Row]) -> str:
    given_back = (f"{mute['topic']}, muted since {instant(mute['since_ms'])}" for mute in mutes)
    return "".join(f"given back to the broker's cleaner: {printable(mute)}\n" for mute in given_back)


MUTE = Verb(
    "mute",
    """Keep the broker's own cleaner away from topics, so that cleanerd alone cleans them.

Keep the cleaner of the broker beside cleanerd away from topics, as long as the daemon runs. That needs
`cleanerd.commit.live=auto`.
""",
    (endpoints.MUTE,),
    View(lambda rows: table(rows, _MUTES), _NONE),
    (TOPICS,),
    ("mute orders", "mute 'orders-*'"),
    wait_s=_BROKER_S,
)
UNMUTE = Verb(
    "unmute",
    "Give topics back to the broker's own cleaner.",
    (endpoints.UNMUTE,),
    View(_unmuted, _NONE),
    (TOPICS,),
    ("unmute orders", "unmute '*'"),
    wait_s=_BROKER_S,
)
