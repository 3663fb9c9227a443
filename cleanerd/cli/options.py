"""Options that several commands of `cleanerd` share, and their syntax. Imports nothing heavy: every start runs it."""

from argparse import ArgumentTypeError
from collections.abc import Callable

from cleanerd.cleaning.assumed import ASSUMPTIONS
from cleanerd.cli.arguments import Argument, argument, number, option

FORMATS = ("table", "wide", "json", "jsonl", "yaml")
"""`wide` is a table that is not cut to the terminal, `jsonl` a line for each result."""
OUTPUT_HELP = f"{', '.join(FORMATS)}; default: table"


def output(*more: str) -> Argument:
    """The option for the format of stdout; `more`: formats of this command beside `FORMATS`."""
    forms = (*FORMATS, *more)
    text = f"{', '.join(forms)}; default: table"
    return argument("-o", "--output", metavar="FORMAT", choices=forms, default="table", help=text)


def repeated(name: str, metavar: str, meaning: str, parse: Callable[[str], object] = str) -> Argument:
    """An option that may be given several times; a list."""
    text = f"{meaning}; may be repeated"
    return option(name, text, metavar=metavar, type=parse, action="append", default=[])


def _assignment(text: str) -> tuple[str, str]:
    """Parse `key=value`; the value may be empty."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key.strip(), value


def _topic_assignment(text: str) -> tuple[str, str, str]:
    """Parse `topic:key=value`; no topic name has a colon in it."""
    topic, colon, rest = text.partition(":")
    if not topic or not colon:
        raise ArgumentTypeError(f"expected TOPIC:KEY=VALUE, found {text!r}")
    return topic, *_assignment(rest)


def share(text: str) -> float:
    """Parse `20%`, or `0.2`."""
    number = text.removesuffix("%")
    try:
        found = float(number) / (100 if number != text else 1)
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise ArgumentTypeError(f"expected a share such as 20%, found {text!r}")
    return found


def _time_ms(text: str) -> int:
    """Parse a time as Kafka's files can have it."""
    found = int(number(text))
    if found >= 1 << 63:
        raise ArgumentTypeError(f"expected less than 2^63, found {text!r}")
    return found


def _assumptions(text: str) -> frozenset[str]:
    """Parse `what,what`."""
    found = frozenset(one.strip() for one in text.split(","))
    unknown = sorted(found - set(ASSUMPTIONS))
    if unknown:
        raise ArgumentTypeError(f"expected {', '.join(ASSUMPTIONS)}, found {', '.join(map(repr, unknown))}")
    return found


ASSUME = option(
    "--assume",
    "take your word for facts that nothing here shows: settings (the cluster has changed none since the last sign of life "
    "of its broker), replicas (all of them are in sync), now (--now-ms is meant)",
    metavar="WHAT[,WHAT]",
    type=_assumptions,
    default=frozenset(),
)
LOG_DIRS = (
    option("--config", "the broker's server.properties", metavar="FILE"),
    repeated("--log-dir", "DIR", "a log directory; default: those of log.dirs"),
)
CONFIGURATION = (
    *LOG_DIRS,
    repeated("--set", "KEY=VALUE", "override a broker key", _assignment),
    repeated("--topic-set", "TOPIC:KEY=VALUE", "override a key of one topic", _topic_assignment),
)
"""Of every command that needs a configuration."""
SELECTION = (
    repeated("--topic", "T", "only this topic"),
    repeated("--partition", "N", "only this partition of each topic", number),
)
"""Which logs."""
NOW = option("--now-ms", "use this as the current time", metavar="MS", type=_time_ms)
