"""Entry point of `cleanerctl`: an operator's requests to a running daemon.

Imports nothing but light modules of the standard library, so that it starts in well under 100 ms.
"""

import argparse
import select
import sys
from collections.abc import Callable, Sequence

from cleanerd.cli.completion import autocomplete
from cleanerd.cli.ctl.asking import ask
from cleanerd.cli.ctl.client import (
    BUSY,
    FAILED,
    NO_PERMISSION,
    NO_SUCH_LOG,
    NOT_RUNNING,
    USAGE,
    Client,
    ControlError,
)
from cleanerd.cli.ctl.parser import make_parser
from cleanerd.cli.ctl.verb import Reply
from cleanerd.cli.output import INTERRUPTED, is_table, prepare_streams, print_message, rendered, write
from cleanerd.cli.tables import fitted
from cleanerd.cli.unexpected import line_of
from cleanerd.errors import CleanerdError

_LEAST_PAUSE_S = 0.1
_COMPLETION_S = 1.0  # a person who presses TAB waits no longer than this
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
_HINTS = {
    NOT_RUNNING: "start it: `systemctl start cleanerd`, or `cleanerd run --config FILE`;\n"
    "  or name its socket: --socket PATH, or CLEANERD_SOCKET",
    NO_SUCH_LOG: "`cleanerctl logs`, `jobs` and `holds` show what there is",
    BUSY: "try again later; verbs that wait do so longer with --timeout",
    NO_PERMISSION: "run it as root, as the user of the daemon, or as a member of the group of the socket",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    prepare_streams()
    try:
        words = sys.argv[1:] if argv is None else argv
        parser = make_parser(*words[:1])
        autocomplete(parser, COMPLETERS)
        options = parser.parse_args(words)
        return _watch(options) if options.watch is not None else _run_once(options)
    except SystemExit as stop:  # argparse: 0 after --help and --version, 2 for usage
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ControlError as error:
        hint = _hint(error)
        _print_error(f"{error}\n  {hint}" if hint else str(error))
        return error.exit_code
    except CleanerdError as error:
        _print_error(str(error))
        return FAILED
    except UnicodeEncodeError as error:
        _print_error(f"expected words in UTF-8, found {error.object!r}")
        return USAGE
    except Exception as error:  # noqa: BLE001 - the outermost boundary
        _print_error(line_of(error))
        return FAILED


def _hint(error: ControlError) -> str:
    """The next step for an error, empty if its message names one; a conflict has too many causes for a hint."""
    has_one = "cleanerctl" in str(error) or "did you mean" in str(error) or error.code == "conflict"
    return "" if has_one else _HINTS.get(error.exit_code, "")


def _run_once(options: argparse.Namespace) -> int:
    reply = _reply(options)
    write(_shown(reply, options, indent=2))
    return int(reply.exit_code)


def _watch(options: argparse.Namespace) -> int:
    """The answer again and again until it is interrupted, which is no failure; as JSON one document a line."""
    is_screen = options.output == "table" and sys.stdout.isatty()
    try:
        while True:
            shown = _shown(_reply(options), options, indent=None)
            if not write(_CLEAR_SCREEN + shown if is_screen else shown):
                return 0
            select.select([], [], [], max(options.watch, _LEAST_PAUSE_S))
    except KeyboardInterrupt:
        return 0


def _shown(reply: Reply, options: argparse.Namespace, indent: int | None) -> str:
    if not is_table(options.output):
        return rendered(reply.document, options.output, indent=indent)
    with fitted(options.output != "wide"):
        return reply.text()


def _reply(options: argparse.Namespace) -> Reply:
    """Ask the daemon. For queries, --timeout limits the time for the answer."""
    client = Client(options.socket, options.timeout if options.run.is_look else None)
    return ask(options.run, client, options)


def _print_error(text: str) -> None:
    print_message(text, "cleanerctl")


# -- names of the daemon for shell completion -------------------------------------------------------------------


def _logs(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    return sorted(
        f"{log['topic']}-{log['partition']}" for log in _rows("logs", parsed_args, pattern=f"{prefix}*")
    )


def _patterns(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    rows = _rows("logs", parsed_args, pattern=f"{prefix}*")
    return sorted({name for log in rows for name in (log["topic"], f"{log['topic']}-{log['partition']}")})


def _ids_of(what: str) -> Callable[..., list[str]]:
    return lambda parsed_args, **_: [row["id"] for row in _rows(what, parsed_args)]


def _rows(what: str, options: argparse.Namespace, pattern: str | None = None) -> list[dict[str, str]]:
    """Rows of the daemon's answer to `/v1/<what>`; empty if it does not answer within a second."""
    try:
        return list(Client(options.socket, _COMPLETION_S).get(f"/v1/{what}", pattern=pattern)[what])
    except (ControlError, KeyError):
        return []


COMPLETERS = {"LOG": _logs, "PATTERN": _patterns, "JOB": _ids_of("jobs"), "HOLD": _ids_of("holds")}


if __name__ == "__main__":
    sys.exit(main())
