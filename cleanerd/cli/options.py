"""Command line options and their syntax. Imports nothing heavy: every start runs it."""

from argparse import ArgumentParser, ArgumentTypeError, _ActionsContainer
from collections.abc import Callable

from cleanerd.units import parse_number

FORMATS = ("table", "wide", "json", "jsonl", "yaml")
"""`wide` is a table that is not cut to the terminal, `jsonl` a line for each result."""
OUTPUT_HELP = f"{', '.join(FORMATS)}; default: table"


def add_configuration_options(parser: ArgumentParser) -> None:
    """What every command that needs a configuration takes."""
    group = parser.add_argument_group("configuration")
    add_log_dir_options(group)
    _add_repeated(group, "--set", "KEY=VALUE", assignment, "override a broker key")
    _add_repeated(group, "--topic-set", "TOPIC:KEY=VALUE", topic_assignment, "override a key of one topic")


def add_log_dir_options(parser: _ActionsContainer) -> None:
    """Where the log directories are."""
    parser.add_argument("--config", metavar="FILE", help="the broker's server.properties")
    _add_repeated(parser, "--log-dir", "DIR", str, "a log directory; default: those of log.dirs")


def add_clean_options(parser: ArgumentParser) -> None:
    """What `clean` takes as well."""
    add_selection_options(parser)
    parser.add_argument(
        "--force", action="store_true", help="ignore the dirty ratio (never the safety bounds)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--roll", action="store_true", help="first close the active segments, which are never cleaned"
    )
    how.add_argument("--dry-run", action="store_true", help="only show what would be removed, and why")
    add_now_option(parser)
    add_output_option(parser)


def add_selection_options(parser: ArgumentParser) -> None:
    """Which logs."""
    _add_repeated(parser, "--topic", "T", str, "only this topic")
    _add_repeated(parser, "--partition", "N", number, "only this partition of each topic")


def add_show_options(parser: ArgumentParser) -> None:
    """What `config show` takes as well."""
    _add_repeated(parser, "--topic", "T", str, "all values of this topic; default: overrides of all")
    parser.add_argument("--origin", action="store_true", help="also show where each value comes from")
    add_output_option(parser)


def add_now_option(parser: ArgumentParser) -> None:
    """The clock."""
    parser.add_argument("--now-ms", metavar="MS", type=number, help="use this as the current time")


def add_output_option(parser: ArgumentParser, *more: str) -> None:
    """Form of what goes to stdout; `more`: what this command has beside `FORMATS`."""
    parser.add_argument(
        "-o", "--output", metavar="FORMAT", choices=(*FORMATS, *more), default="table",
        help=f"{', '.join((*FORMATS, *more))}; default: table",
    )  # fmt: skip


def _add_repeated(
    parser: _ActionsContainer, option: str, metavar: str, parse: Callable[[str], object], meaning: str
) -> None:
    parser.add_argument(
        option, metavar=metavar, type=parse, action="append", default=[], help=f"{meaning}; may be repeated"
    )


def assignment(text: str) -> tuple[str, str]:
    """Parse `key=value`; the value may be empty."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key.strip(), value


def topic_assignment(text: str) -> tuple[str, str, str]:
    """Parse `topic:key=value`; no topic name has a colon in it."""
    topic, colon, rest = text.partition(":")
    if not topic or not colon:
        raise ArgumentTypeError(f"expected TOPIC:KEY=VALUE, found {text!r}")
    return topic, *assignment(rest)


def number(text: str) -> int:
    """Parse a number of 0 or more."""
    try:
        return parse_number(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
