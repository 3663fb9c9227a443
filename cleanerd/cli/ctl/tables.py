"""What cleanerctl prints for people: a text for each answer of the control API.

Plain columns that line up, sizes and times in human units, empty columns left out. A word that names a
state is coloured on a terminal, unless NO_COLOR is set.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cleanerd.cli.tables import coloured, printable, terminal_columns
from cleanerd.cli.tables import table as drawn
from cleanerd.daemon.api.verb import Reply
from cleanerd.daemon.values.severity import STATES
from cleanerd.units import duration, instant, reasons, size

Row = Mapping[str, Any]
"""An object of an answer of the control API, as it was parsed from JSON."""
Cell = Callable[[Row], str]

_EXPENDABLE = (
    *("SEGMENTS", "POLICY", "JOB", "TRIGGER", "LOG DIR", "STARTED"),
    *("REMOVED", "RECORDS/S", "TOOK", "BEFORE", "AFTER", "KIND"),
)
_NAMES, _PROSE = {"LOG", "LOGS"}, {"REASON"}
_LEAST = 18  # of each of these: then logs that need attention fit 80 columns


def table(rows: Sequence[Row], columns: Mapping[str, Cell]) -> str:
    """Rows, of which there are some, under their heads; without columns that are empty."""
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = {name: column for name, column in cells.items() if any(column)}
    width = terminal_columns()
    return drawn(shown if width is None else _fit(shown, width))


def _fit(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """Make columns fit a terminal as far as that goes: leave out the least important ones, then shorten names and prose.

    Pipes, `-o json` and the verbs about one thing have all of it.
    """
    first = next(iter(columns))
    for name in _EXPENDABLE:
        if name in columns and name != first and _needed(columns) > width:
            del columns[name]
    for name in _NAMES & columns.keys():
        room = max(width - _needed(columns) + _width(columns, name), _LEAST)
        columns[name] = [shortened(text, room) for text in columns[name]]
    for name in _PROSE & columns.keys():
        room = max(width - _needed(columns) + min(_width(columns, name), _LEAST), _LEAST)
        columns[name] = [text if len(text) <= room else text[: room - 1] + "…" for text in columns[name]]
    return columns


def _width(columns: Mapping[str, Sequence[str]], name: str) -> int:
    return max(map(len, (name, *columns[name])))


def _needed(columns: Mapping[str, Sequence[str]]) -> int:
    widths = [min(_width(columns, name), _LEAST if name in _PROSE else 1 << 30) for name in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def shortened(name: str, width: int) -> str:
    """A name that fits: no name has a `~` in it, and its end distinguishes partitions."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}~{name[-half:]}"


def _as(show: Callable[[Any], str], key: str) -> Cell:
    """A cell with the value under `key`, or nothing for null."""
    return lambda row: "" if row[key] is None else show(row[key])


def log_name(row: Row) -> str:
    """A topic-partition as everyone writes it, nothing for none."""
    return "" if row["topic"] is None else f"{row['topic']}-{row['partition']}"


def _ratio(row: Row) -> str:
    if row["dirty_ratio"] is None:
        return ""
    return f"{'' if row['dirty_ratio_exact'] else '<='}{row['dirty_ratio']:.2f}"


def _progress(row: Row) -> str:
    if row["state"] != "running" or not row["bytes_total"]:
        return ""
    return f"{100 * row['bytes_done'] / row['bytes_total']:.0f}%"


def _due(row: Row) -> str:
    if row["next_due_ms"] is None:
        return ""
    return instant(row["next_due_ms"]) + (f" ({row['next_due_why']})" if row["next_due_why"] else "")


def _some(names: Sequence[str]) -> str:
    return " ".join(names) if len(names) <= 3 else f"{' '.join(names[:3])} and {len(names) - 3} more"


def rate(bytes_per_s: float | None) -> str:
    """A speed, or the absence of a limit."""
    return "unlimited" if bytes_per_s is None else f"{size(round(bytes_per_s))}/s"


def io_limit(throttle: Row) -> str:
    """The limit on reads plus writes that holds."""
    limits = (throttle["limits"]["io_bytes_per_s"], (throttle["request_queue"] or {}).get("bytes_per_s"))
    return rate(min(filter(None, limits), default=None))


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "NO"


_WHERE: Mapping[str, Cell] = {"LOG": log_name, "LOG DIR": _as(str, "log_dir")}
_LOGS: Mapping[str, Cell] = {
    "LOG": log_name,
    "STATE": _as(str, "state"),
    "POLICY": _as(str, "policy"),
    "SIZE": _as(size, "size_bytes"),
    "SEGMENTS": _as(str, "segments"),
    "DIRTY": _ratio,
    "CLEANABLE": _as(size, "cleanable_bytes"),
    "NEXT": _due,
    "FAILURES": lambda row: str(row["failures"] or ""),
    "LOG DIR": _as(str, "log_dir"),
    "REASON": _as(str, "reason"),
}
_JOBS: Mapping[str, Cell] = {
    "JOB": _as(str, "id"),
    "STATE": _as(str, "state"),
    "TRIGGER": _as(str, "trigger"),
    "PHASE": _as(str, "phase"),
    "DONE": _progress,
    "RECORDS/S": _as(lambda rate: f"{rate:.0f}", "records_per_s"),
    "ETA": _as(duration, "eta_s"),
    "STARTED": _as(instant, "started_ms"),
    "OUTCOME": _as(str, "outcome"),
    "LOGS": _as(_some, "logs"),
    "REASON": _as(str, "reason"),
}
_HOLDS: Mapping[str, Cell] = {
    "HOLD": _as(str, "id"),
    "PATTERN": _as(str, "pattern"),
    "OWNER": _as(str, "owner"),
    "SINCE": _as(instant, "created_ms"),
    "UNTIL": lambda row: "resumed" if row["expires_ms"] is None else instant(row["expires_ms"]),
    "LOGS": _as(_some, "logs"),
    "REASON": _as(str, "reason"),
}
_EVENTS: Mapping[str, Cell] = {
    "TIME": _as(instant, "time_ms"),
    "LOG": log_name,
    "KIND": _as(str, "kind"),
    "OUTCOME": _as(str, "outcome"),
    "BEFORE": _as(size, "bytes_before"),
    "AFTER": _as(size, "bytes_after"),
    "TOOK": _as(duration, "seconds"),
    "REMOVED": _as(reasons, "removed"),
    "JOB": _as(str, "job_id"),
    "REASON": _as(str, "reason"),
}
_COMMITS: Mapping[str, Cell] = {
    **_WHERE,
    "OUTCOME": _as(str, "outcome"),
    "LOCK OWNER": _as(lambda pid: f"pid {pid}", "lock_owner_pid"),
    "REASON": _as(str, "reason"),
}
_MUTES: Mapping[str, Cell] = {
    "TOPIC": _as(str, "topic"),
    "SINCE": _as(instant, "since_ms"),
}
_DELETED: Mapping[str, Cell] = {
    **_WHERE,
    "LOG START": _as(str, "log_start_offset"),
    "SEGMENTS": _as(str, "segments_deleted"),
    "DELETED": _as(size, "bytes_deleted"),
}
_RETENTION: Mapping[str, Cell] = {
    "LOG": log_name,
    "OUTCOME": _as(str, "outcome"),
    "SEGMENTS": lambda row: str(row["segments"] or ""),
    "SIZE": lambda row: size(row["bytes"]) if row["bytes"] else "",
    "BREACHED": _as(", ".join, "breaches"),
    "NEXT AT": _as(instant, "next_ms"),
    "LOG DIR": _as(str, "log_dir"),
    "REASON": lambda row: row["reason"] or row["kept"] or "",
}
_FORECASTS: Mapping[str, Cell] = {
    "LOG": log_name,
    "DUE": _as(instant, "due_ms"),
    "TAKES": _as(lambda takes_ms: duration(takes_ms / 1000), "takes_ms"),
    "DEADLINE": _as(instant, "deadline_ms"),
    "IN TIME": lambda row: "" if row["deadline_ms"] is None else "NO" if row["is_late"] else "yes",
    "WHY": _as(str, "due_why"),
    "LOG DIR": _as(str, "log_dir"),
}
_BROKERS = defaultdict(lambda: "live", swap="live, swaps", restart="live, results wait")
_LOG_DIRS: Mapping[str, Cell] = {
    "LOG DIR": _as(str, "path"),
    "ONLINE": _as(_yes_or_no, "online"),
    "FREE": _as(size, "free_bytes"),
    "STAGED": lambda row: size(row["staged_bytes"]) if row["staged_bytes"] else "",
    "LOCK OWNER": _as(lambda pid: f"pid {pid}", "lock_owner_pid"),
    "BROKER": lambda row: _BROKERS[str(row.get("committed_by"))] if row["broker_is_live"] else "",
    "REASON": lambda row: str(row["reason"] or row.get("swap_reason") or ""),
}
_ADVICE = "what to do"
_LOG_DETAILS: Mapping[str, Cell] = {
    **_LOGS,
    "CLEAN": _as(size, "clean_bytes"),
    "UNCLEANABLE YET": lambda row: size(row["uncleanable_bytes"]) if row["uncleanable_bytes"] else "",
    "ACTIVE SEGMENT": _as(size, "active_bytes"),
    "LOG START": _as(str, "log_start_offset"),
    "FIRST DIRTY": _as(str, "first_dirty_offset"),
    "FIRST UNCLEANABLE": _as(str, "first_uncleanable_offset"),
    "HOLDS": _as(_some, "holds"),
    "LAST RUN": _as(lambda last: f"{instant(last['time_ms'])} {last['kind']} {last['outcome']}", "last"),
    "REMOVED": _as(lambda last: reasons(last["removed"]), "last"),
}


def text(reply: Reply) -> str:
    """What people get to see of an answer: by its one key beside apiVersion, unless it brings a table of its own."""
    if reply.text is not None:
        return reply.text
    key = next(name for name in reply.document if name != "apiVersion")
    answer = reply.document[key]
    shown = (reply.empty or _EMPTY[key]) + "\n" if answer == [] else _TEXTS[reply.view or key](answer)
    return shown + (f"{reply.hint}\n" if reply.hint else "")


def _resumed(holds: Sequence[Row]) -> str:
    return "".join(f"resumed {printable(hold['pattern'])} (hold {hold['id']})\n" for hold in holds)


def _unmuted(mutes: Sequence[Row]) -> str:
    return "".join(f"given back to the broker's cleaner: {printable(_muted(mute))}\n" for mute in mutes)


def _log_details(row: Row) -> str:
    """Everything about a partition in one log directory."""
    named = ((name.capitalize(), printable(cell(row))) for name, cell in _LOG_DETAILS.items())
    return _lines([(name, value) for name, value in named if value])


def _lines(pairs: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in pairs) + 2
    return "".join(f"{name + ':':<{width}}{coloured(value)}\n" for name, value in pairs)


def _explanation(row: Row) -> str:
    """The decision, what stands in the way (`!`), then the other facts; long ones go on below themselves."""
    facts = [fact for fact in row["facts"] if fact["name"] != _ADVICE]
    advice = [fact["value"] for fact in row["facts"] if fact["name"] == _ADVICE]
    lines = _wrapped(f"{log_name(row)} in {row['log_dir']}: ", row["decision"], 4)
    lines += [line for value in advice for line in _wrapped(f"{_ADVICE}: ", value, 4)]
    width = max((len(fact["name"]) for fact in facts), default=0)
    for fact in facts:
        lines += _wrapped(f"{'!' if fact['blocks'] else ' '} {fact['name']:<{width}}  ", fact["value"])
    return "".join(f"{line}\n" for line in lines)


def _wrapped(head: str, value: str, indent: int | None = None) -> list[str]:
    """A text behind its head, in lines that fit the terminal; a pipe gets one line. `indent`: default: below the text."""
    text, columns = head + printable(value), terminal_columns()
    if columns is None or len(text) <= columns:
        return [text]
    import textwrap  # noqa: PLC0415 - only for long texts on a terminal

    following = " " * (len(head) if indent is None else indent)
    return textwrap.wrap(
        text,
        max(columns, len(following) + 30),
        subsequent_indent=following,
        break_on_hyphens=False,
        break_long_words=False,  # a path is for copying
    )


def _throttle(throttle: Row) -> str:
    limits, queue = throttle["limits"], throttle["request_queue"]
    return _lines(
        [
            ("Reads and writes", rate(limits["io_bytes_per_s"])),
            *([("Request queue", f"{rate(queue['bytes_per_s'])}: {queue['reason']}")] if queue else ()),
            ("Reads", f"{rate(limits['read_bytes_per_s'])}, now {rate(throttle['read_bytes_per_s'])}"),
            ("Writes", f"{rate(limits['write_bytes_per_s'])}, now {rate(throttle['write_bytes_per_s'])}"),
            ("Waited", duration(throttle["waited_s"])),
        ]
    )


def _reload(reload: Row) -> str:
    if not reload["applied"]:
        return (
            "\n  ".join(["rejected; the previous configuration remains active:", *reload["problems"]]) + "\n"
        )
    if not reload["changed"]:
        return "applied; nothing changed\n"
    return "\n  ".join(["applied; changed:", *map(printable, reload["changed"])]) + "\n"


def _status(status: Row) -> str:
    configuration, queue = status["configuration"], status["throttle"]["request_queue"]
    counts = status["logs_by_state"]
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts.get(state))
    loaded = f"{'loaded' if configuration['applied'] else 'REFUSED'} {instant(configuration['time_ms'])}"
    if not configuration["applied"]:
        loaded += "; the one of before stays in force"
    head = _lines(
        [
            (
                "Daemon",
                f"cleanerd {status['version']}, pid {status['pid']}, up {duration(status['uptime_s'])}",
            ),
            ("Ready", _yes_or_no(status["ready"])),
            ("Logs", states or "none"),
            ("Workers", f"{status['workers_busy']} of {status['workers_total']} busy"),
            ("Spark", "running" if status["spark_session_up"] else "not running"),
            (
                "Throttle",
                io_limit(status["throttle"]) + (f"; {queue['reason']}" if queue else ""),
            ),
            ("Configuration", loaded),
            *(("  problem", printable(problem)) for problem in configuration["problems"]),
            *(("Warning", printable(warning)) for warning in status["warnings"]),
            ("Holds", str(status["holds"])),
            *(("Muted", f"{mute['topic']} since {instant(mute['since_ms'])}") for mute in status["muted"]),
            *(("Look at", f"`cleanerctl logs --state {state}`") for state in STATES[:2] if counts.get(state)),
        ]
    )
    jobs = "\n" + table(status["running"], _JOBS) if status["running"] else ""
    shares = [_wrapped(f"{one['path']}: ", one["share"], 4) for one in status["log_dirs"] if one.get("share")]
    shown = "".join(f"{line}\n" for lines in shares for line in lines)
    return head + "\n" + table(status["log_dirs"], _LOG_DIRS) + ("\n" + shown if shown else "") + jobs


def _forecast(found: Row) -> str:
    """The rows, and what they add up to."""
    rows = sorted(
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


def _muted(mute: Row) -> str:
    return f"{mute['topic']}, muted since {instant(mute['since_ms'])}"


_EMPTY = {
    "logs": "no log matches",
    "jobs": "no job since the daemon started",
    "holds": "nothing is paused",
    "commits": "nothing is staged",
    "explanations": "no log matches",
    "events": "nothing happened",
    "deleted": "nothing was deleted",
    "muted": "nothing is muted",
}
_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "status": _status,
    "logs": lambda rows: table(rows, _LOGS if "state" in rows[0] else _WHERE),
    "log": lambda rows: "\n".join(map(_log_details, rows)),
    "jobs": lambda rows: table(rows, _JOBS),
    "job": lambda row: table([row], _JOBS),
    "hold": lambda row: table([row], _HOLDS),
    "holds": lambda rows: table(rows, _HOLDS),
    "resumed": _resumed,
    "commits": lambda rows: table(rows, _COMMITS),
    "explanations": lambda rows: "\n".join(map(_explanation, rows)),
    "events": lambda rows: table(rows, _EVENTS),
    "forecast": _forecast,
    "throttle": _throttle,
    "reload": _reload,
    "muted": lambda rows: table(rows, _MUTES),
    "unmuted": _unmuted,
    "retention": lambda rows: table(rows, _RETENTION),
    "deleted": lambda rows: table(rows, _DELETED),
}
