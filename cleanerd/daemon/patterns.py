"""Which logs a pattern means: the one rule for pause, clean, history and every other verb that takes one.

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

from fnmatch import fnmatchcase

from cleanerd.format.names import parse_partition_dir


def matches(pattern: str | None, topic: str, partition: int) -> bool:
    """Whether a pattern takes in a log; None takes in all."""
    if pattern is None or fnmatchcase(f"{topic}-{partition}", pattern):
        return True
    return parse_partition_dir(pattern) is None and fnmatchcase(topic, pattern)
