"""Keep the broker's own cleaner away from topics, so that cleanerd alone cleans them.

Keep the cleaner of the broker beside cleanerd away from topics, as long as the daemon runs. That needs
`cleanerd.commit.live=auto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from cleanerd.daemon.api.arguments import TOPICS
from cleanerd.daemon.api.refusals import Conflict, NotFound, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.errors import CleanerdError

BROKER_S = 40.0
"""For what the daemon asks the broker."""


def mute(control: daemon.Control, pattern: daemon.Pattern) -> tuple[daemon.MuteView, ...]:
    """Keep the cleaner of the broker beside cleanerd away from topics.

    The pattern is the name of a topic, or a glob. Raises `Conflict` when the broker refuses or cannot be asked.
    """
    configuration, ignored = control.parts.configuration(), control.parts.obstacles.ignored
    known = control.parts.inventory.logs()
    topics = sorted({log.topic_partition.topic for log in known})
    if not (topics := [topic for topic in topics if fnmatchcase(topic, pattern)]):
        raise NotFound(f"no topic matches {pattern}; {control.instead_of(pattern)}")
    if not (compacted := [topic for topic in topics if configuration.topic(topic).compact]):
        raise Conflict(f"{', '.join(topics[:5])}: not compacted, so there is no cleaner to keep away")
    ours = {log.topic_partition.topic for log in known if log not in ignored}
    if not (cleaned := [topic for topic in compacted if topic in ours]):
        raise Conflict(f"{', '.join(compacted[:5])}: ignored by cleanerd, so that no cleaner would be left")
    with refusals():
        muted = control.mutes.mute(cleaned, control.parts.leases)
    return tuple(map(daemon.mute_view, muted))


@contextmanager
def refusals() -> Iterator[None]:
    """What the daemon raises, as the answers that the API has for it."""
    try:
        yield
    except daemon.MuteNotKept as error:
        raise Unavailable(str(error)) from error
    except CleanerdError as error:
        raise Conflict(str(error)) from error


_MUTE = Endpoint("POST", "/v1/mute", "muted", mute)
VERB = Verb("mute", __doc__, (_MUTE,), (TOPICS,), ("mute orders", "mute 'orders-*'"), wait_s=BROKER_S)
