"""Completion in shells, by argcomplete: the shell starts the program itself, which answers and ends.

The values offered for an option or argument follow from its choices, else from its metavar: FILE and PATH, DIR, KEY=VALUE
(keys of the broker), and those in `Completers`.
"""

import os
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterable, Mapping

Completers = Mapping[str, Callable[..., Iterable[str]]]
"""Functions by metavar that list possible values; argcomplete calls them with `prefix`, `parsed_args` and more."""


def script(prog: str, shell: str) -> str:
    """The script to source, or to put where the shell looks for completions."""
    from argcomplete import shell_integration  # noqa: PLC0415 - 5 ms

    return str(shell_integration.shellcode([prog], use_defaults=False, shell=shell))


def autocomplete(parser: ArgumentParser, more: Completers) -> None:
    """Answer and end the process, if it was a shell that started it. `more`: completers by metavar."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    from argcomplete import completers, finders  # noqa: PLC0415 - 5 ms

    files = completers.FilesCompleter()
    by_metavar: Completers = {"FILE": files, "PATH": files, "DIR": completers.DirectoriesCompleter()}
    _teach(parser, {**by_metavar, "KEY=VALUE": _config_keys, **more})
    finders.CompletionFinder()(
        parser, always_complete_options=False, default_completer=completers.SuppressCompleter()
    )


def _teach(parser: ArgumentParser, by_metavar: Completers) -> None:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for verb in action.choices.values():
                _teach(verb, by_metavar)
        elif action.metavar in by_metavar:
            action.completer = by_metavar[str(action.metavar)]  # type: ignore[attr-defined]


def _config_keys(**_: object) -> list[str]:
    from cleanerd.config.keys import BROKER_KEYS  # noqa: PLC0415 - 0.1 s, and cleanerctl has no such argument

    return [f"{name}=" for name in sorted(BROKER_KEYS)]
