"""Keep the broker's own cleaner away from topics."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.parameters import Pattern
from cleanerd.daemon.api.refusals import Conflict, NotFound, Refused, Unavailable
from cleanerd.daemon.reports.views import mute_view
from cleanerd.daemon.values.models import MuteView
from cleanerd.daemon.work.mutes import MuteNotKept
from cleanerd.errors import CleanerdError


def mute(control: Control, pattern: Pattern) -> tuple[MuteView, ...]:
    """Keep the cleaner of the broker beside cleanerd away from topics.

    The pattern is the name of a topic, or a glob. Raises `Refused` for what would not be done however often it is asked for,
    `Conflict` when the broker refuses or cannot be asked.
    """
    configuration, ignored = control.parts.configuration(), control.parts.obstacles.ignored
    known = control.parts.inventory.logs()
    topics = sorted({log.topic_partition.topic for log in known})
    if not (topics := [topic for topic in topics if fnmatchcase(topic, pattern)]):
        raise NotFound(f"no topic matches {pattern}; {control.instead_of(pattern)}")
    if not (compacted := [topic for topic in topics if configuration.topic(topic).compact]):
        raise Refused(f"{', '.join(topics[:5])}: not compacted, so there is no cleaner to keep away")
    ours = {log.topic_partition.topic for log in known if log not in ignored}
    if not (cleaned := [topic for topic in compacted if topic in ours]):
        raise Refused(f"{', '.join(compacted[:5])}: ignored by cleanerd, so that no cleaner would be left")
    if configuration.broker.commit_live == "off":
        raise Refused(
            "cleanerd.commit.live is off: with auto the running broker is asked to keep its cleaner away"
        )
    with refusals():
        muted = control.mutes.mute(cleaned, control.parts.leases)
    return tuple(map(mute_view, muted))


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors of mutes into `Unavailable` and `Conflict`."""
    try:
        yield
    except MuteNotKept as error:
        raise Unavailable(str(error)) from error
    except CleanerdError as error:
        raise Conflict(str(error)) from error
