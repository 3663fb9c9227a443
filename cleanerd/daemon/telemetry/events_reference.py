"""The reference of all log events as Markdown, made from their table: what is not in the table is not logged."""

from cleanerd.daemon.telemetry.event_table import BOUND, EVENTS, Event

_HEAD = """# Log reference

Made from `cleanerd/daemon/telemetry/event_table.py`; a test compares the two, and the table with the code. The daemon
writes one line for each event to standard error: JSON, or text for people on a terminal (`cleanerd.log.format`), from the
level of `cleanerd.log.level` on. Under journald each line has its priority: debug 7, info 6, warning 4, error 3. No
record and no batch has a line.

Every line has `event`, `level` and `timestamp` (UTC). Of events with an `outcome`, fields that are not known or do not apply
are left out. `reason` is for people and says what was expected, found, and where. An `event` that is not in this table is a
library's own text.

## Context

Lines that are logged while a worker is at work on a job have these too:
"""
_HEAD_OF_EVENTS = ("| event | level | fields | meaning | what to do |", "|---|---|---|---|---|")


def render_logs_reference() -> str:
    """The whole document."""
    lines = [_HEAD, "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in BOUND.items()]
    lines += ["", "## Events", "", *_HEAD_OF_EVENTS]
    lines += [_line(event) for event in EVENTS.values()]
    return "\n".join([*lines, ""])


def _line(event: Event) -> str:
    fields = ", ".join(f"`{field}`" for field in event.fields) or "none"
    return f"| `{event.name}` | {_level(event)} | {fields} | {event.doc}{_outcomes(event)} | {event.to_do} |"


def _level(event: Event) -> str:
    if set(event.outcomes) == set(event.loud) != set():
        return "warning"
    return f"{event.level}; warning: {', '.join(event.loud)}" if event.loud else event.level


def _outcomes(event: Event) -> str:
    found = ", ".join(f"`{outcome}`" for outcome in event.outcomes)
    return f" Outcomes: {found}." if found else ""
