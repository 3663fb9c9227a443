"""Arguments of commands as values, those that several commands take, and parsers of their values.

Every start of a program imports this module.
"""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from cleanerd import units

_T = TypeVar("_T")


class Argument(NamedTuple):
    """An argument or option: the names and settings that `ArgumentParser.add_argument` takes."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """Name of the parsed value, and of the parameter that it becomes in a request."""
        return str(self.settings.get("dest", self.names[0].lstrip("-").replace("-", "_")))


def argument(*names: str, **settings: Any) -> Argument:
    """An argument, made from the parameters of `ArgumentParser.add_argument`."""
    return Argument(names, settings)


def option(name: str, help_text: str, **settings: Any) -> Argument:
    """An option; without `settings` a switch, which has no value."""
    return argument(name, help=help_text, **(settings or {"action": "store_true"}))


def _typed(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Make `parse` the `type` of an argument: argparse shows only messages of `ArgumentTypeError`."""

    def parsed(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


def rate(text: str) -> float | str:
    """Bytes per second, or `unlimited`."""
    parsed = text if text == "unlimited" else size(text)
    if not parsed:
        raise ArgumentTypeError(
            "expected more than 0, or unlimited; what stops a daemon is `cleanerctl pause '*'`"
        )
    return parsed


def bytes_per_s(parsed: float | str) -> float:
    """A parsed `rate` as a number: `math.inf` for unlimited."""
    return math.inf if isinstance(parsed, str) else parsed


def price(text: str) -> float:
    """An amount of money of 0 or more, in any currency."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise ArgumentTypeError(f"expected an amount such as 0.08, found {text!r}")
    return found


number = _typed(units.parse_number)
duration = _typed(units.parse_duration)
size = _typed(units.parse_size)
duration_ms = _typed(lambda text: max(round(1000 * units.parse_duration(text)), 1))

_PATTERN = "a log (orders-3), a topic (orders) or a glob ('orders-*')"
LOG = argument(
    "topic_partition", metavar="LOG", help="a partition, like orders-3; or a topic that has only one"
)
PATTERN = argument("pattern", metavar="PATTERN", help=_PATTERN)
ANY_PATTERN = argument("pattern", metavar="PATTERN", nargs="?", help=f"{_PATTERN}; default: all")
TOPICS = argument("pattern", metavar="TOPICS", help="a topic (orders) or a glob ('orders*')")
OFFSET = argument("offset", metavar="OFFSET", type=number, help="the offset")
