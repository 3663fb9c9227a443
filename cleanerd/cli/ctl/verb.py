"""The client half of a verb: a command of cleanerctl.

===================  ============================================================================================
made from it         by
===================  ============================================================================================
command, its help    `cli.ctl.parser`
request              `asking`: arguments of the command become the parameters with their names
output               `Reply.text`
cleanerctl(1)        `tests.references`
===================  ============================================================================================
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cleanerd.cli.arguments import Argument
from cleanerd.cli.ctl.client import Client
from cleanerd.daemon.api.endpoints import Endpoint


class View(NamedTuple):
    """How people see an answer: `show` takes the value under the answer's key; `empty` replaces an empty list."""

    show: Callable[[Any], str]
    empty: str = ""


class Reply(NamedTuple):
    """The document for programs, its view for people, and the exit code; `hint` is one more line for people."""

    document: dict[str, Any]
    view: View
    exit_code: int = 0
    hint: str = ""

    def text(self) -> str:
        """The output for people, ending in a newline unless the view decides otherwise."""
        answer = next(value for name, value in self.document.items() if name != "apiVersion")
        shown = f"{self.view.empty}\n" if answer == [] else self.view.show(answer)
        return shown + (f"{self.hint}\n" if self.hint else "")


class Verb(NamedTuple):
    """A command of cleanerctl and the requests that it may make.

    `doc`: a sentence for the help, then perhaps a longer text for cleanerctl(1), with `code` in back quotes. `is_look`: the
    verb changes nothing and takes --watch. `is_bounded`: --timeout goes to the daemon as `timeout_ms`. `wait_s`: how much
    longer than usual the daemon may take to answer. `has_failed`: whether an answer means exit code 1. `ask`: replaces the
    usual behaviour, which is to send the first of `endpoints` whose path the arguments fill.
    """

    name: str
    doc: str
    endpoints: tuple[Endpoint, ...]
    view: View
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    is_look: bool = False
    is_bounded: bool = False
    wait_s: float = 0.0
    has_failed: Callable[[Mapping[str, Any]], bool] | None = None
    ask: Callable[[Client, Namespace], Reply] | None = None

    @property
    def sentence(self) -> str:
        """The description in the help of the verb."""
        return self.doc.partition("\n")[0]

    @property
    def help(self) -> str:
        """The description in the list of verbs: no capital, no full stop."""
        return self.sentence[:1].lower() + self.sentence[1:].rstrip(".")
