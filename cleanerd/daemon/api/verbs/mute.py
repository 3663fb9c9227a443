"""Keep the brokers' own cleaners away from topics, so that cleanerd alone cleans them.

Keep the brokers' own cleaners away from topics. With `cleanerd.commit.live=auto` the broker beside cleanerd does that, as
long as the daemon runs. Otherwise `min.cleanable.dirty.ratio` of the topics becomes 1.0 in the cluster, which needs
`cleanerd.kafka.bootstrap.servers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

from cleanerd.daemon.api.arguments import TOPICS
from cleanerd.daemon.api.refusals import Conflict, NotFound, Unavailable
from cleanerd.daemon.api.verb import Endpoint, Verb, daemon
from cleanerd.errors import CleanerdError

CLUSTER_S = 40.0
"""For what the daemon asks the cluster."""


def mute(control: daemon.Control, pattern: daemon.Pattern) -> tuple[daemon.MuteView, ...]:
    """Keep the brokers' own cleaners away from topics: by the agent in the broker beside cleanerd, else by a
    min.cleanable.dirty.ratio of 1.0 in the cluster.

    The pattern is the name of a topic, or a glob. Raises `Conflict` when the cluster refuses or cannot be asked.
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
    with changing(control):
        muted = control.mutes.mute(cleaned, control.parts.leases)
    return tuple(map(daemon.mute_view, muted))


@contextmanager
def changing(control: daemon.Control) -> Iterator[None]:
    """The ratios that cleanerd goes by change with the mutes."""
    try:
        yield
    except daemon.MuteNotKept as error:
        raise Unavailable(str(error)) from error
    except CleanerdError as error:
        raise Conflict(str(error)) from error
    finally:
        control.reload(daemon.ReloadTrigger.MUTES)


_MUTE = Endpoint("POST", "/v1/mute", "muted", mute)
VERB = Verb("mute", __doc__, (_MUTE,), (TOPICS,), ("mute orders", "mute 'orders-*'"), wait_s=CLUSTER_S)
