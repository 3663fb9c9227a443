"""Arguments that several verbs take, and the types of their values. Every start of cleanerctl imports it."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any, TypeVar

from cleanerd import units
from cleanerd.daemon.api.verb import Argument

_T = TypeVar("_T")


def argument(*names: str, **settings: Any) -> Argument:
    """As `ArgumentParser.add_argument` takes it."""
    return Argument(names, settings)


def option(name: str, help_text: str, **settings: Any) -> Argument:
    """An option with a value, or, without anything else, one that is given or not."""
    return argument(name, help=help_text, **(settings or {"action": "store_true"}))


def _typed(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """As the type of an argument: argparse shows the message of this error only."""

    def parsed(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


def rate(text: str) -> float | str:
    """Bytes per second, or `unlimited`."""
    parsed = text if text == "unlimited" else _size(text)
    if not parsed:
        raise ArgumentTypeError("expected more than 0, or unlimited; `cleanerctl pause '*'` stops everything")
    return parsed


number = _typed(units.parse_number)
duration = _typed(units.parse_duration)
_size = _typed(units.parse_size)
duration_ms = _typed(lambda text: max(round(1000 * units.parse_duration(text)), 1))

_PATTERN = "a log (orders-3), a topic (orders) or a glob ('orders-*')"
LOG = argument(
    "topic_partition", metavar="LOG", help="a partition, like orders-3; or a topic that has only one"
)
PATTERN = argument("pattern", metavar="PATTERN", help=_PATTERN)
ANY_PATTERN = argument("pattern", metavar="PATTERN", nargs="?", help=f"{_PATTERN}; default: all")
TOPICS = argument("pattern", metavar="TOPICS", help="a topic (orders) or a glob ('orders*')")
OFFSET = argument("offset", metavar="OFFSET", type=number, help="the offset")
