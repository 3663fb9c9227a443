"""Matching of logs by a pattern: one rule for pause, clean, history and every other verb that takes one.

A pattern is a shell glob on the name of a log, `orders-3`; case matters. One that is not itself the name of a log also
matches the topic, so that `orders` means every partition of it.

===========  ===============================================================
pattern      logs
===========  ===============================================================
`orders-3`   that one, and no partition of a topic that is called `orders-3`
`orders`     `orders-0`, `orders-1`, ...
`orders-*`   these, and `orders-eu-0`
`*`          all
===========  ===============================================================
"""

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from cleanerd.format.names import TopicPartition, parse_partition_dir


def matches(pattern: str | None, topic: str, partition: int) -> bool:
    """Whether a pattern takes in a log; None takes in all."""
    if pattern is None or fnmatchcase(f"{topic}-{partition}", pattern):
        return True
    return parse_partition_dir(pattern) is None and fnmatchcase(topic, pattern)


def similar(pattern: str, known: Iterable[TopicPartition]) -> list[str]:
    """Up to three names that may have been meant by a pattern that matches nothing, the likeliest first.

    The partitions of its topic, if there are any; else names that are spelt much like it.
    """
    logs = sorted(known)
    parsed = parse_partition_dir(pattern)
    topic = pattern if parsed is None else parsed[0].topic
    siblings = [str(tp) for tp in logs if tp.topic == topic]
    names = [str(tp) for tp in logs] if parsed is not None else list(dict.fromkeys(tp.topic for tp in logs))
    return siblings[:3] or difflib.get_close_matches(pattern, names, n=3, cutoff=0.7)
