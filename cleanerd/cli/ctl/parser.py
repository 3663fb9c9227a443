"""The command line of cleanerctl, made from the verbs: arguments, options, help.

`completion` makes no request of the control API.
"""

import argparse
import os

from cleanerd import __version__
from cleanerd.cli.arguments import argument, duration
from cleanerd.cli.completion import script
from cleanerd.cli.ctl.client import Client
from cleanerd.cli.ctl.verb import Reply, Verb, View
from cleanerd.cli.ctl.verbs import VERBS
from cleanerd.cli.options import FORMATS, OUTPUT_HELP
from cleanerd.cli.parser import SHELLS, Parser, add_arguments

DEFAULT_SOCKET = "/run/cleanerd/control.sock"


_SCRIPT = View(str)


def _completion(_: Client, options: argparse.Namespace) -> Reply:
    made = script("cleanerctl", options.shell)
    return Reply({"completion": made}, _SCRIPT)


_COMPLETION = Verb(
    "completion",
    "Print a script that completes verbs, options and names of logs in a shell.",
    (),
    _SCRIPT,
    (argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS)),),
    (
        "completion bash > /etc/bash_completion.d/cleanerctl",
        "completion fish > ~/.config/fish/completions/cleanerctl.fish",
        "completion zsh > ~/.cleanerctl.zsh  # and in ~/.zshrc: source ~/.cleanerctl.zsh",
    ),
    ask=_completion,
)
PUBLIC = (*VERBS, _COMPLETION)
"""In the order in which help and manual list them."""
_EXAMPLES = (
    "cleanerctl status",
    "cleanerctl status --watch 2s",
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


def make_parser(first: str = "") -> Parser:
    """The parser of the command line; it stores the chosen `Verb` as `run`.

    If `first`, the first word of the command line, is a verb, only its parser is made: that halves the time of a start.
    """
    parser = Parser(
        prog="cleanerctl",
        description="Query and control a running cleanerd.",
        examples=_EXAMPLES,
        more=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"cleanerctl {__version__}")
    _add_common(parser, is_top=True)
    parser.set_defaults(watch=None)
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in [verb for verb in PUBLIC if verb.name == first] or PUBLIC:
        examples = [f"cleanerctl {line}" for line in verb.examples]
        made = subparsers.add_parser(verb.name, help=verb.help, description=verb.sentence, examples=examples)
        _add_common(made, is_top=False)
        if verb.is_look:
            made.add_argument("--watch", metavar="TIME", type=duration, help="repeat every TIME, like 2s")
        add_arguments(made, verb.arguments)
        made.set_defaults(run=verb)
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
        type=duration,
        default=default(None),
        help="how long to wait, like 30s or 5m",
    )
