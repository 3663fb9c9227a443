"""Entry point of `cleanerctl`: what an operator says to a running daemon.

=====  =============================================================================
exit   meaning
=====  =============================================================================
0      done
1      failed: the daemon could not, or a job, commit or reload failed
2      usage: the command line makes no sense
3      no daemon answers
4      no such partition, job or hold
75     busy, or the time limit is over: try again (EX_TEMPFAIL)
77     no permission (EX_NOPERM)
130    interrupted (SIGINT); what was begun goes on
=====  =============================================================================

Imports nothing but light modules of the standard library, so that it starts in well under 100 ms.
"""

import argparse
import json
import os
import select
import sys
from collections.abc import Callable, Sequence

from cleanerd import __version__
from cleanerd.cli import ctl_verbs, units
from cleanerd.cli.ctl_client import (
    BUSY,
    FAILED,
    NO_PERMISSION,
    NO_SUCH_LOG,
    NOT_RUNNING,
    Client,
    ControlError,
)
from cleanerd.cli.output import write

DEFAULT_SOCKET = "/run/cleanerd/control.sock"
INTERRUPTED = 130
_LEAST_PAUSE_S = 0.1
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
_HINTS = {
    NOT_RUNNING: "start it with `systemctl start cleanerd`, or name its socket with --socket or CLEANERD_SOCKET",
    NO_SUCH_LOG: "`cleanerctl logs`, `jobs` and `holds` show what there is",
    BUSY: "try again later; verbs that wait do so longer with --timeout",
    NO_PERMISSION: "run it as root, as the user of the daemon, or as a member of the group of the socket",
}
_STATES = ("clean", "dirty", "cleaning", "aborted", "paused", "staged", "uncleanable", "offline", "ignored")
_EXAMPLES = """examples:
  cleanerctl status --watch 2
  cleanerctl logs 'orders-*' --state uncleanable
  cleanerctl clean orders-3 --wait
  cleanerctl pause orders --reason "restore" --ttl 2h
  cleanerctl commit --wait --timeout 120
  cleanerctl history orders-3 --since 7d -o json
A pattern is the name of a log (orders-3), a topic (orders) or a shell glob ('orders-*').
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    try:
        options = _parser().parse_args(argv)
        return _watch(options) if options.watch is not None else _run_once(options)
    except SystemExit as stop:  # argparse: 0 after --help and --version, 2 for usage
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ControlError as error:
        hint = _HINTS.get(error.exit_code)
        print(f"cleanerctl: {error}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
        return error.exit_code


def _run_once(options: argparse.Namespace) -> int:
    if options.verb == "delete-records" and not _is_confirmed(options):
        print("cleanerctl: nothing was deleted", file=sys.stderr)
        return FAILED
    reply = options.run(Client(options.socket), options)
    write(_shown(reply, options, indent=2))
    return int(reply.exit_code)


def _watch(options: argparse.Namespace) -> int:
    """The answer again and again until it is interrupted, which is no failure; as JSON one document a line."""
    is_screen = options.output == "table" and sys.stdout.isatty()
    try:
        while True:
            shown = _shown(options.run(Client(options.socket), options), options, indent=None)
            write(_CLEAR_SCREEN + shown if is_screen else shown)
            select.select([], [], [], max(options.watch, _LEAST_PAUSE_S))
    except KeyboardInterrupt:
        return 0


def _shown(reply: ctl_verbs.Reply, options: argparse.Namespace, indent: int | None) -> str:
    return (
        json.dumps(reply.document, indent=indent) + "\n"
        if options.output == "json"
        else reply.text(reply.document)
    )


def _is_confirmed(options: argparse.Namespace) -> bool:
    if options.yes or not sys.stdin.isatty():
        return True
    print(
        f"Delete the records of {options.log} below offset {options.offset} for good? [y/N] ",
        end="",
        file=sys.stderr,
    )
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cleanerctl",
        description="Asks and tells a running cleanerd.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cleanerctl {__version__}")
    _add_common(parser, is_top=True)
    verbs = _Verbs(parser)
    _add_looking(verbs)
    _add_waiting(verbs)
    _add_changing(verbs)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, is_top: bool) -> None:
    """Options of every verb; they may stand before or after it."""

    def default(value: object) -> object:
        return value if is_top else argparse.SUPPRESS

    socket = os.environ.get("CLEANERD_SOCKET") or DEFAULT_SOCKET
    parser.add_argument(
        "--socket",
        metavar="PATH",
        default=default(socket),
        help=f"control socket of the daemon (CLEANERD_SOCKET; {DEFAULT_SOCKET})",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default=default("table"))
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=_duration,
        default=default(None),
        help="how long to wait, like 30s or 5m",
    )
    if is_top:
        parser.set_defaults(watch=None)


class _Verbs:
    """Adds verbs to the parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(self, name: str, run: ctl_verbs.Verb, text: str, *positional: str) -> argparse.ArgumentParser:
        """A verb with its positional arguments: `log`, `pattern`, or `[pattern]` for one that may be left out."""
        verb = self._subparsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        for argument in positional:
            is_optional = argument.startswith("[")
            stripped = argument.strip("[]")
            verb.add_argument(stripped, metavar=stripped.upper(), nargs="?" if is_optional else None)
        _add_common(verb, is_top=False)
        verb.set_defaults(run=run)
        return verb

    def look(self, name: str, run: ctl_verbs.Verb, text: str, *positional: str) -> argparse.ArgumentParser:
        """A verb that changes nothing, and so can be watched."""
        verb = self.add(name, run, text, *positional)
        verb.add_argument("--watch", metavar="TIME", type=_duration, help="ask again and again, every TIME")
        return verb


def _add_looking(verbs: _Verbs) -> None:
    verbs.look("status", ctl_verbs.status, "the daemon as a whole")
    logs = verbs.look("logs", ctl_verbs.logs, "every log that matches", "[pattern]")
    logs.add_argument("--state", choices=_STATES)
    verbs.look("log", ctl_verbs.log, "everything about one partition", "log")
    verbs.look("explain", ctl_verbs.explain, "why a log is or is not cleaned now", "log")
    verbs.look("jobs", ctl_verbs.jobs, "cleaning jobs, or one of them", "[job]")
    verbs.look("holds", ctl_verbs.holds, "pauses in force")
    history = verbs.look("history", ctl_verbs.history, "what happened, the youngest first", "[pattern]")
    history.add_argument("--limit", metavar="N", type=int, default=50)
    history.add_argument("--since", metavar="TIME", type=_duration, help="how far back, like 12h or 7d")


def _add_waiting(verbs: _Verbs) -> None:
    clean = verbs.add("clean", ctl_verbs.clean, "clean now", "pattern")
    clean.add_argument(
        "--force", action="store_true", help="whatever the dirty ratio; never past a safety bound"
    )
    clean.add_argument("--wait", action="store_true", help="until the jobs are done, or --timeout")
    commit = verbs.add("commit", ctl_verbs.commit, "put staged results in place", "[pattern]")
    commit.add_argument("--wait", action="store_true", help="until no lock is in the way, or --timeout")
    wait = verbs.add("await", ctl_verbs.await_cleaned, "wait until a log is cleaned up to an offset", "log")
    wait.add_argument("offset", metavar="OFFSET", type=int)


def _add_changing(verbs: _Verbs) -> None:
    pause = verbs.add("pause", ctl_verbs.pause, "stop cleaning what matches, and keep it stopped", "pattern")
    pause.add_argument("--reason", metavar="TEXT", default="")
    pause.add_argument("--owner", metavar="NAME", help="default: your user name")
    pause.add_argument("--ttl", metavar="TIME", type=_duration, help="resume by itself after this time")
    verbs.add("resume", ctl_verbs.resume, "end a pause, by its id or pattern", "hold")
    verbs.add("abort", ctl_verbs.abort, "stop cleanings that run now", "pattern")
    verbs.add("retry", ctl_verbs.retry, "forget the failures of uncleanable logs", "pattern")
    throttle = verbs.add("throttle", ctl_verbs.throttle, "show or change the I/O limits")
    for name, what in (("io", "reads plus writes"), ("read", "reads"), ("write", "writes")):
        throttle.add_argument(
            f"--{name}", metavar="RATE", type=_rate, help=f"{what} per second: 50MB, or unlimited"
        )
    verbs.add("reload", ctl_verbs.reload, "read the configuration again, all or nothing")
    delete = verbs.add(
        "delete-records", ctl_verbs.delete_records, "delete the records below an offset", "log"
    )
    delete.add_argument("offset", metavar="OFFSET", type=int)
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _argument(parse: Callable[[str], float]) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


_duration = _argument(units.parse_duration)
_size = _argument(units.parse_size)


def _rate(text: str) -> float | str:
    return text if text == "unlimited" else _size(text)


if __name__ == "__main__":
    sys.exit(main())
