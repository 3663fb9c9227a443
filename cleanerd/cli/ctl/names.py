"""Names for shell completion: logs, topics, jobs and holds of the daemon."""

from argparse import Namespace
from collections.abc import Callable

from cleanerd.daemon.api.client import Client, ControlError

_DAEMON_S = 1.0  # who presses TAB does not wait longer


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
    try:
        return list(Client(options.socket, _DAEMON_S).get(f"/v1/{what}", pattern=pattern)[what])
    except (ControlError, KeyError):
        return []


COMPLETERS = {"LOG": _logs, "PATTERN": _patterns, "JOB": _ids_of("jobs"), "HOLD": _ids_of("holds")}
