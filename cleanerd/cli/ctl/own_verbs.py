"""Verbs of cleanerctl that make no request of the control API of their own: the screen, and shell completion."""

from argparse import Namespace

from cleanerd.cli.output import is_table
from cleanerd.cli.parser import SHELLS
from cleanerd.daemon.api.arguments import argument, duration, option
from cleanerd.daemon.api.client import Client
from cleanerd.daemon.api.verb import Reply, Verb


def _top(client: Client, options: Namespace) -> Reply:
    """On a terminal, again and again until the user leaves; then nothing is left to print."""
    from cleanerd.cli.ctl import top  # noqa: PLC0415 - rich takes longer to import than all other verbs together

    if is_table(options.output) and top.is_possible():
        top.watch(client, options.interval)
        return Reply({}, text="")
    found = top.ask(client)
    return Reply(found, text=top.snapshot(found))


def _completion(_: Client, options: Namespace) -> Reply:
    from cleanerd.cli.completion import script  # noqa: PLC0415 - only here

    made = script("cleanerctl", options.shell)
    return Reply({"completion": made}, text=made)


TOP = Verb(
    "top",
    "Watch logs, jobs and results on the whole screen; without a terminal, print them once.\n\n"
    "Watch logs, jobs and results on the whole screen, every second by default; without a terminal, print them once.",
    (),
    (option("--interval", "default: 1s", metavar="TIME", type=duration, default=1.0),),
    ("top", "top --interval 5s"),
    ask=_top,
)
COMPLETION = Verb(
    "completion",
    "Print a script that completes verbs, options and names of logs in a shell.",
    (),
    (argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS)),),
    (
        "completion bash > /etc/bash_completion.d/cleanerctl",
        "completion fish > ~/.config/fish/completions/cleanerctl.fish",
        "completion zsh > ~/.cleanerctl.zsh  # and in ~/.zshrc: source ~/.cleanerctl.zsh",
    ),
    ask=_completion,
)
