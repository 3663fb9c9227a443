"""Verbs about logs: `logs`, `log`, `explain`, `forecast`."""

from collections.abc import Sequence

from cleanerd.cli.arguments import ANY_PATTERN, LOG, option
from cleanerd.cli.ctl.tables import (
    Columns,
    Row,
    field,
    first_three,
    lines,
    log_name,
    rate,
    table,
    wrapped,
)
from cleanerd.cli.ctl.verb import Verb, View
from cleanerd.daemon.api import endpoints
from cleanerd.daemon.values.severity import STATES
from cleanerd.units import duration, instant, printable, reasons, size


def _ratio(row: Row) -> str:
    if row["dirty_ratio"] is None:
        return ""
    return f"{'' if row['dirty_ratio_exact'] else '<='}{row['dirty_ratio']:.2f}"


def _due(row: Row) -> str:
    if row["next_due_ms"] is None:
        return ""
    return instant(row["next_due_ms"]) + (f" ({row['next_due_why']})" if row["next_due_why"] else "")


_LOGS: Columns = {
    "LOG": log_name,
    "STATE": field("state"),
    "POLICY": field("policy"),
    "SIZE": field("size_bytes", size),
    "SEGMENTS": field("segments"),
    "DIRTY": _ratio,
    "CLEANABLE": field("cleanable_bytes", size),
    "NEXT": _due,
    "FAILURES": lambda row: str(row["failures"] or ""),
    "LOG DIR": field("log_dir"),
    "REASON": field("reason"),
}
_NO_LOG = "no log matches"
LOGS = View(lambda rows: table(rows, _LOGS), _NO_LOG)
_LOG_DETAILS: Columns = {
    **_LOGS,
    "CLEAN": field("clean_bytes", size),
    "UNCLEANABLE YET": lambda row: size(row["uncleanable_bytes"]) if row["uncleanable_bytes"] else "",
    "ACTIVE SEGMENT": field("active_bytes", size),
    "LOG START": field("log_start_offset"),
    "FIRST DIRTY": field("first_dirty_offset"),
    "FIRST UNCLEANABLE": field("first_uncleanable_offset"),
    "HOLDS": field("holds", first_three),
    "LAST RUN": field("last", lambda last: f"{instant(last['time_ms'])} {last['kind']} {last['outcome']}"),
    "REMOVED": field("last", lambda last: reasons(last["removed"])),
}


def _log_details(row: Row) -> str:
    named = ((name.capitalize(), printable(cell(row))) for name, cell in _LOG_DETAILS.items())
    return lines([(name, value) for name, value in named if value])


_ADVICE = "what to do"


def _explanation(row: Row) -> str:
    """The decision, then the facts: `!` marks those that prevent a cleaning; long ones continue below themselves."""
    facts = [fact for fact in row["facts"] if fact["name"] != _ADVICE]
    advice = [fact["value"] for fact in row["facts"] if fact["name"] == _ADVICE]
    shown = wrapped(f"{log_name(row)} in {row['log_dir']}: ", row["decision"], 4)
    shown += [line for value in advice for line in wrapped(f"{_ADVICE}: ", value, 4)]
    width = max((len(fact["name"]) for fact in facts), default=0)
    for fact in facts:
        shown += wrapped(f"{'!' if fact['blocks'] else ' '} {fact['name']:<{width}}  ", fact["value"])
    return "".join(f"{line}\n" for line in shown)


EXPLANATIONS = View(lambda rows: "\n".join(map(_explanation, rows)), _NO_LOG)
_FORECASTS: Columns = {
    "LOG": log_name,
    "DUE": field("due_ms", instant),
    "TAKES": field("takes_ms", lambda takes_ms: duration(takes_ms / 1000)),
    "DEADLINE": field("deadline_ms", instant),
    "IN TIME": lambda row: "" if row["deadline_ms"] is None else "NO" if row["is_late"] else "yes",
    "WHY": field("due_why"),
    "LOG DIR": field("log_dir"),
}


def _forecast(found: Row) -> str:
    """Logs that will be late, then the others by the time they become due, and a line with the verdict."""
    rows: Sequence[Row] = sorted(
        found["logs"], key=lambda row: (not row["is_late"], row["due_ms"] is None, row["due_ms"] or 0)
    )
    origin = "measured" if found["rate_is_measured"] else "assumed: nothing has been cleaned yet"
    workers = f"{found['workers']} worker{'s' * (found['workers'] > 1)} with {rate(found['bytes_per_s'])} each ({origin})"
    verdict = "no log will miss max.compaction.lag.ms"
    if found["misses"]:
        many = f"{found['misses']} log{'s' * (found['misses'] > 1)}"
        first = instant(found["first_miss_ms"])
        verdict = f"will miss max.compaction.lag.ms: {many}, the first by {first}"
    return (table(rows, _FORECASTS) if rows else "") + f"{verdict}; {workers}\n"


VERBS = (
    Verb(
        "logs",
        "List logs and their state.",
        (endpoints.LOGS,),
        LOGS,
        (ANY_PATTERN, option("--state", f"only these: {', '.join(STATES)}", choices=STATES, metavar="STATE")),
        ("logs", "logs 'orders-*' --state uncleanable", "logs -o json"),
        is_look=True,
    ),
    Verb(
        "log",
        "Show everything about one log.",
        (endpoints.LOG,),
        View(lambda rows: "\n".join(map(_log_details, rows)), _NO_LOG),
        (LOG,),
        ("log orders-3",),
        is_look=True,
    ),
    Verb(
        "explain",
        "Show why a log is or is not cleaned now, and what retention does to it.",
        (endpoints.EXPLAIN,),
        EXPLANATIONS,
        (LOG,),
        ("explain orders-3",),
        is_look=True,
    ),
    Verb(
        "forecast",
        """Show when logs become due, how long they take, and which will be cleaned too late.

Show when logs become due, how long they take, and which will miss `max.compaction.lag.ms`.
""",
        (endpoints.FORECAST,),
        View(_forecast),
        (ANY_PATTERN,),
        ("forecast", "forecast orders"),
        is_look=True,
    ),
)
