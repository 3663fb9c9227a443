"""The command line of cleanerctl: verbs, arguments, options, help."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

from cleanerd import __version__, units
from cleanerd.cli.ctl import verbs as ctl_verbs
from cleanerd.cli.options import FORMATS, OUTPUT_HELP, number
from cleanerd.cli.parser import SHELLS, Parser, sentence
from cleanerd.daemon.values.severity import STATES

DEFAULT_SOCKET = "/run/cleanerd/control.sock"
_PATTERN = "a log (orders-3), a topic (orders) or a glob ('orders-*')"
_ARGUMENTS = {
    "log": "a partition, like orders-3; or a topic that has only one",
    "pattern": _PATTERN,
    "[pattern]": f"{_PATTERN}; default: all",
    "[job]": "id of a job; default: all",
    "hold": "id of a hold, or its pattern",
    "offset": "the offset",
    "topics": "a topic (orders) or a glob ('orders*')",
}
_EXAMPLES = (
    "cleanerctl status",
    "cleanerctl top",
    "cleanerctl explain orders-3",
    "cleanerctl clean orders-3 --wait",
    "cleanerctl pause orders --reason restore --ttl 2h",
)
_EXIT_CODES = """
exit codes:
  0    done
  1    failed: the daemon could not, or a job, commit or reload failed
  2    usage: the command line is wrong
  3    no daemon answers
  4    no such log, job or hold
  75   busy or timed out: try again
  77   no permission
  130  interrupted (Ctrl-C); what was started continues

`cleanerctl VERB --help` explains a verb. As JSON (-o json), answers have a key apiVersion.
"""


def make_parser() -> Parser:
    """The parser; `run` of what it finds is the `ctl_verbs.Verb` to run."""
    parser = Parser(
        prog="cleanerctl",
        description="Query and control a running cleanerd.",
        examples=_EXAMPLES,
        more=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"cleanerctl {__version__}")
    _add_common(parser, is_top=True)
    verbs = _Verbs(parser)
    _add_overviews(verbs)
    _add_looking(verbs)
    _add_waiting(verbs)
    _add_holding(verbs)
    _add_changing(verbs)
    _add_completion(verbs, parser)
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
        help=f"control socket of the daemon; default: CLEANERD_SOCKET, else {DEFAULT_SOCKET}",
    )
    parser.add_argument(
        "-o", "--output", metavar="FORMAT", choices=FORMATS, default=default("table"), help=OUTPUT_HELP
    )
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=_duration,
        default=default(None),
        help="how long to wait, like 30s or 5m",
    )
    if is_top:
        parser.set_defaults(watch=None, is_look=False)


class _Verbs:
    """Adds verbs to the parser."""

    def __init__(self, parser: Parser) -> None:
        self._subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(
        self, name: str, run: ctl_verbs.Verb, text: str, *positional: str, examples: Sequence[str] = ()
    ) -> Parser:
        """A verb with its positional arguments; one in brackets may be left out."""
        verb = self._subparsers.add_parser(
            name, help=text, description=sentence(text), examples=[f"cleanerctl {line}" for line in examples]
        )
        for argument in positional:
            stripped = argument.strip("[]")
            verb.add_argument(
                stripped,
                metavar=stripped.upper(),
                nargs="?" if argument != stripped else None,
                type=_TYPES.get(argument, str),
                help=_ARGUMENTS[argument],
            )
        _add_common(verb, is_top=False)
        verb.set_defaults(run=run)
        return verb

    def look(
        self, name: str, run: ctl_verbs.Verb, text: str, *positional: str, examples: Sequence[str] = ()
    ) -> Parser:
        """A verb that changes nothing, and so can be watched."""
        verb = self.add(name, run, text, *positional, examples=examples)
        verb.add_argument("--watch", metavar="TIME", type=_duration, help="repeat every TIME, like 2s")
        verb.set_defaults(is_look=True)
        return verb

    def hidden(self, name: str, run: ctl_verbs.Verb) -> Parser:
        """A verb for scripts, which no list of verbs shows."""
        verb: Parser = self._subparsers.add_parser(name)
        verb.set_defaults(run=run)
        return verb


def _add_overviews(verbs: _Verbs) -> None:
    verbs.look(
        "status", ctl_verbs.status, "show the state of the daemon", examples=("status", "status --watch 2s")
    )
    top = verbs.add(
        "top",
        ctl_verbs.top,
        "watch logs, jobs and results on the whole screen; without a terminal, print them once",
        examples=("top", "top --interval 5s"),
    )
    top.add_argument("--interval", metavar="TIME", type=_duration, default=1.0, help="default: 1s")
    logs = verbs.look(
        "logs",
        ctl_verbs.logs,
        "list logs and their state",
        "[pattern]",
        examples=("logs", "logs 'orders-*' --state uncleanable", "logs -o json"),
    )
    logs.add_argument("--state", choices=STATES, metavar="STATE", help=f"only these: {', '.join(STATES)}")


def _add_looking(verbs: _Verbs) -> None:
    verbs.look("log", ctl_verbs.log, "show everything about one log", "log", examples=("log orders-3",))
    verbs.look(
        "explain",
        ctl_verbs.explain,
        "say why a log is or is not cleaned now",
        "log",
        examples=("explain orders-3",),
    )
    verbs.look("jobs", ctl_verbs.jobs, "list cleaning jobs, newest last", "[job]", examples=("jobs",))
    verbs.look("holds", ctl_verbs.holds, "list the holds in force", examples=("holds",))
    verbs.look(
        "forecast",
        ctl_verbs.forecast,
        "show when logs become due, how long they take, and which will be compacted too late",
        "[pattern]",
        examples=("forecast", "forecast orders"),
    )
    history = verbs.look(
        "history",
        ctl_verbs.history,
        "list what happened to logs, newest first",
        "[pattern]",
        examples=("history --since 1h", "history orders-3 --limit 5", "history --all"),
    )
    history.add_argument("--limit", metavar="N", type=int, default=50, help="default: 50")
    history.add_argument(
        "--all", action="store_true", help="also control requests, reloads, start and stop of the daemon"
    )
    history.add_argument("--since", metavar="TIME", type=_duration, help="how far back, like 12h or 7d")


def _add_waiting(verbs: _Verbs) -> None:
    clean = verbs.add(
        "clean",
        ctl_verbs.clean,
        "clean now; a staged result is replaced by a new one",
        "pattern",
        examples=("clean orders-3 --wait", "clean orders --force"),
    )
    clean.add_argument(
        "--force", action="store_true", help="ignore the dirty ratio (never the safety bounds)"
    )
    clean.add_argument(
        "--wait", action="store_true", help="wait until the jobs are done; exit 1 if one failed"
    )
    commit = verbs.add(
        "commit",
        ctl_verbs.commit,
        "put staged results in place, where no broker holds the lock",
        "[pattern]",
        examples=("commit", "commit orders-3 --wait --timeout 2m"),
    )
    commit.add_argument(
        "--wait",
        action="store_true",
        help="wait until no lock is in the way. Without PATTERN this announces a broker: nothing else begins in its free "
        "log directories until it has started, for a minute at most",
    )
    verbs.add(
        "await",
        ctl_verbs.await_cleaned,
        "wait until a log is cleaned up to an offset",
        "log",
        "offset",
        examples=("await orders-3 150000 --timeout 10m",),
    )


def _add_holding(verbs: _Verbs) -> None:
    pause = verbs.add(
        "pause",
        ctl_verbs.pause,
        "stop cleaning what matches, now and later",
        "pattern",
        examples=("pause orders --reason restore --ttl 2h", "pause '*'"),
    )
    pause.add_argument("--reason", metavar="TEXT", default="", help="shown with the hold")
    pause.add_argument("--owner", metavar="NAME", help="default: your user name")
    pause.add_argument("--ttl", metavar="TIME", type=_duration, help="end the pause after TIME, like 2h")
    verbs.add("resume", ctl_verbs.resume, "end a pause", "hold", examples=("resume orders",))
    verbs.add(
        "abort", ctl_verbs.abort, "stop cleanings that run now; they may start again", "pattern",
        examples=("abort orders-3",),
    )  # fmt: skip
    verbs.add(
        "retry",
        ctl_verbs.retry,
        "forget the failures of uncleanable logs",
        "pattern",
        examples=("retry '*'",),
    )
    verbs.add(
        "mute",
        ctl_verbs.mute,
        "keep the brokers' own cleaners away from topics, so that cleanerd alone cleans them",
        "topics",
        examples=("mute orders", "mute 'orders-*'"),
    )
    verbs.add(
        "unmute",
        ctl_verbs.unmute,
        "give topics back to the brokers' own cleaners, with the settings that they had before",
        "topics",
        examples=("unmute orders", "unmute '*'"),
    )


def _add_changing(verbs: _Verbs) -> None:
    _add_throttle(verbs)
    verbs.add(
        "reload", ctl_verbs.reload, "reload the configuration, all of it or nothing", examples=("reload",)
    )
    retention = verbs.add(
        "retention",
        ctl_verbs.retention,
        "delete now what breaches a retention limit, or show what would go and why the rest stays",
        "pattern",
        examples=("retention orders --dry-run", "retention 'orders-*'"),
    )
    retention.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    delete = verbs.add(
        "delete-records",
        ctl_verbs.delete_records,
        "delete the records of a log below an offset, and nothing else, for good",
        "log",
        "offset",
        examples=("delete-records orders-3 150000",),
    )
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _add_throttle(verbs: _Verbs) -> None:
    throttle = verbs.add(
        "throttle",
        ctl_verbs.throttle,
        "show the I/O limits, or change them until the next change or reload",
        examples=("throttle", "throttle 50MB", "throttle --read 20MB --write unlimited"),
    )
    throttle.add_argument("rate", metavar="RATE", nargs="?", type=_rate, help="the same as --io RATE")
    for name, what in (("io", "reads plus writes"), ("read", "reads"), ("write", "writes")):
        throttle.add_argument(
            f"--{name}", metavar="RATE", type=_rate, help=f"{what} per second, like 50MB, or unlimited"
        )


def _add_completion(verbs: _Verbs, parser: Parser) -> None:
    completion = verbs.add(
        "completion",
        ctl_verbs.completion,
        "print a script that completes verbs, options and names of logs in a shell",
        examples=(
            "completion bash > /etc/bash_completion.d/cleanerctl",
            "completion fish > ~/.config/fish/completions/cleanerctl.fish",
            "completion zsh > ~/.cleanerctl.zsh  # and in ~/.zshrc: source ~/.cleanerctl.zsh",
        ),
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    completion.set_defaults(parser=parser)
    names = verbs.hidden("_names", ctl_verbs.names)
    names.add_argument("kind")
    names.add_argument("start", nargs="?", default="")


def _argument(parse: Callable[[str], float]) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


_TYPES: Mapping[str, Callable[[str], object]] = {"offset": number}
_duration = _argument(units.parse_duration)
_size = _argument(units.parse_size)


def _rate(text: str) -> float | str:
    rate = text if text == "unlimited" else _size(text)
    if not rate:
        raise argparse.ArgumentTypeError(
            "expected more than 0, or unlimited; `cleanerctl pause '*'` stops everything"
        )
    return rate
