"""A verb is a file in `verbs/`: what the daemon does, how cleanerctl asks for it, and how it shows the answer.

===================  ============================================================================================
made from it         by
===================  ============================================================================================
route, OpenAPI       `routes.Route`: parameters and answer are those of the function, its first paragraph the summary
command, its help    `cli.ctl.parser`
request              `asking`: arguments of the command go to the parameters of their names
cleanerctl(1)        `tests.references`
===================  ============================================================================================

cleanerctl imports every verb and has to start in well under 100 ms. So a verb takes what it needs of the daemon from
`daemon`, which loads it at the first look, and its annotations stay strings until the daemon makes its routes.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cleanerd.daemon.api.client import Client

if TYPE_CHECKING:
    from cleanerd.daemon.api import daemon as daemon
else:

    class _Lazy:
        def __getattr__(self, name: str) -> object:
            from cleanerd.daemon.api import daemon as real  # noqa: PLC0415 - cleanerctl does not need it

            return getattr(real, name)

    daemon = _Lazy()


class Endpoint(NamedTuple):
    """One request of the control API: `run` is what the daemon does with it, `key` is that of the answer in the document.

    `run` takes `Control` and the parameters by name. It may be called from any thread, and raises HistoryUnreadable and
    `OperationError`s only: `NotFound` when it names logs and there are none; where it waits, `Timeout` at its limit and
    `Unavailable` as soon as the daemon stops.
    """

    method: str
    path: str
    key: str
    run: Callable[..., Any]

    @property
    def changes(self) -> bool:
        """Whether it does more than look."""
        return self.method != "GET"

    @property
    def in_path(self) -> set[str]:
        """Names of the parameters in the path."""
        return {part[1:-1] for part in self.path.split("/") if part.startswith("{")}


class Argument(NamedTuple):
    """An argument or option of a command, as `ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """Name of the parsed value, which is that of the parameter."""
        return str(self.settings.get("dest", self.names[0].lstrip("-").replace("-", "_")))


class Reply(NamedTuple):
    """The document to print, the exit code, and how people see it.

    `view`: how it is shown; default: by its key. `empty`: what an empty list is called. `hint`: one more line. `text`:
    all of it, from a verb that shows its answer itself.
    """

    document: dict[str, Any]
    exit_code: int = 0
    view: str = ""
    empty: str = ""
    hint: str = ""
    text: str | None = None


class Verb(NamedTuple):
    """A command of cleanerctl and the requests that it may make.

    `doc` is the docstring of the file: a sentence for the help, then perhaps another one for cleanerctl(1), `code` in back
    quotes. `is_look`: it changes nothing, and can be watched. `is_bounded`: --timeout goes to the daemon as
    `timeout_ms`. `wait_s`: how much longer than usual the answer may take. `view`, `empty`: as in `Reply`. `has_failed`:
    whether it exits with 1. `ask`: for a verb that does more than make the first request whose path its arguments fill.
    """

    name: str
    doc: str | None
    endpoints: tuple[Endpoint, ...]
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    is_look: bool = False
    is_bounded: bool = False
    wait_s: float = 0.0
    view: str = ""
    empty: str = ""
    has_failed: Callable[[Mapping[str, Any]], bool] | None = None
    ask: Callable[[Client, Namespace], Reply] | None = None

    @property
    def sentence(self) -> str:
        """What it does, for its help."""
        return (self.doc or "").partition("\n")[0]

    @property
    def help(self) -> str:
        """What it does, for a list of verbs."""
        return self.sentence[:1].lower() + self.sentence[1:].rstrip(".")
