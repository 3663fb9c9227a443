"""Completion in shells, by argcomplete: the shell starts the program itself, which answers and ends.

What may stand after an option or in the place of an argument follows from its choices, else from its metavar: FILE and PATH,
DIR, KEY=VALUE (keys of the broker), and LOG, PATTERN, JOB, HOLD, which the daemon is asked for.
"""

import os
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterable

_Completers = dict[str, Callable[..., Iterable[str]]]
_DAEMON_S = 1.0  # who presses TAB does not wait longer


def script(parser: ArgumentParser, shell: str) -> str:
    """The script to source, or to put where the shell looks for completions."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - only here

    return str(shellcode([parser.prog], use_defaults=False, shell=shell))


def autocomplete(parser: ArgumentParser) -> None:
    """Answer and end the process, if it was a shell that started it."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete  # noqa: PLC0415 - only here
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter  # noqa: PLC0415

    files = FilesCompleter()
    by_metavar: _Completers = {"FILE": files, "PATH": files, "DIR": DirectoriesCompleter()}
    by_metavar |= {"KEY=VALUE": _config_keys, "LOG": _logs, "PATTERN": _patterns}
    by_metavar |= {"JOB": _ids_of("jobs"), "HOLD": _ids_of("holds")}
    _teach(parser, by_metavar)
    argcomplete.autocomplete(
        parser, always_complete_options=False, default_completer=SuppressCompleter(), exclude=("_names",)
    )


def _teach(parser: ArgumentParser, by_metavar: _Completers) -> None:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for verb in action.choices.values():
                _teach(verb, by_metavar)
        elif action.metavar in by_metavar:
            action.completer = by_metavar[str(action.metavar)]  # type: ignore[attr-defined]


def _config_keys(**_: object) -> list[str]:
    from cleanerd.config.keys import BROKER_KEYS  # noqa: PLC0415 - cleanerctl does not need them

    return [f"{name}=" for name in sorted(BROKER_KEYS)]


def _logs(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
    return sorted(
        f"{log['topic']}-{log['partition']}" for log in _rows("logs", parsed_args, pattern=f"{prefix}*")
    )


def _patterns(prefix: str, parsed_args: Namespace, **_: object) -> list[str]:
    rows = _rows("logs", parsed_args, pattern=f"{prefix}*")
    return sorted({name for log in rows for name in (log["topic"], f"{log['topic']}-{log['partition']}")})


def _ids_of(what: str) -> Callable[..., list[str]]:
    return lambda parsed_args, **_: [row["id"] for row in _rows(what, parsed_args)]


def _rows(what: str, options: Namespace, pattern: str | None = None) -> list[dict[str, str]]:
    """What the daemon has; nothing if it does not answer soon."""
    from cleanerd.cli.ctl.client import Client, ControlError  # noqa: PLC0415 - only for names

    try:
        return list(Client(options.socket, _DAEMON_S).get(f"/v1/{what}", pattern=pattern)[what])
    except (ControlError, KeyError):
        return []
