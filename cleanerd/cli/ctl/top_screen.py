"""What `cleanerctl top` shows, as lines that fit: the daemon, its log directories, logs, jobs, holds, latest events.

Each list begins with what needs attention; what does not fit is counted. A bar shows what the bytes of a log are
to the cleaner: clean, dirty (cleanable now), not yet cleanable, active segment.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from cleanerd.cli.ctl.tables import Row, io_limit, log_name, rate, shortened
from cleanerd.cli.tables import colour, printable
from cleanerd.daemon.values.severity import STATES
from cleanerd.units import clock_time, duration, reasons, size

_PARTS = (
    ("clean_bytes", "clean", "green", "█", "#"),
    ("cleanable_bytes", "dirty", "yellow", "▓", "x"),
    ("uncleanable_bytes", "not yet", "blue", "░", "-"),
    ("active_bytes", "active", "bright_black", "·", "."),
)
_TITLE, _FAINT, _ALARM = "reverse", "bright_black", "bold red"
_MAX_BAR = 60


@dataclass(frozen=True, slots=True)
class Look:
    """How much room there is, and what the terminal can show. `trouble`: why what is shown is not up to date.

    `name_width`: of the first column; `screen` finds it.
    """

    width: int
    height: int
    is_unicode: bool = True
    is_live: bool = True
    trouble: str | None = None
    name_width: int = 0


def screen(document: Mapping[str, Any], look: Look, now_ms: int) -> list[Text]:
    """At most `look.height` lines of at most `look.width` cells. `document` as `ctl_top.ask` gives it."""
    look = replace(look, name_width=_name_width(document["logs"], look))
    head = _head(document, look, now_ms)
    jobs = _jobs(document["jobs"], look, now_ms)
    holds = _holds(document["holds"], look, now_ms)
    history = _history(document["events"], look, now_ms)
    foot = [_foot(look)]
    kept = 1 + min(len(history) - 1, 3) if history else 0
    room = look.height - sum(map(len, (head, jobs, holds, foot))) - kept
    logs = _logs(document["logs"], look, max(room, 4))
    room = look.height - sum(map(len, (head, logs, jobs, holds, foot)))
    lines = [*head, *logs, *jobs, *holds, *history[: max(room, 0)]]
    lines = [*lines[: look.height - 1], *foot]
    for line in lines:
        line.truncate(look.width, overflow="ellipsis")
    return lines


def _name_width(logs: Sequence[Row], look: Look) -> int:
    longest = max((len(log_name(row)) for row in logs), default=0)
    return max(min(longest, look.width * 3 // 10), 12)


def _title(text: str, look: Look) -> Text:
    return Text(text.ljust(look.width) if look.is_live else text, _TITLE)


def _cut(rows: Sequence[Row], room: int) -> tuple[Sequence[Row], int]:
    """What fits, with a line for the rest, and how many that are."""
    shown = rows if len(rows) <= room else rows[: max(room - 1, 1)]
    return shown, len(rows) - len(shown)


def _columns(*cells: tuple[str, int, str]) -> Text:
    """Cells with their width and style; a width below 0 puts the text to the right, 0 is as long as it is."""
    line = Text()
    for number, (text, width, style) in enumerate(cells):
        cell = Text(printable(text), style)
        if width:
            cell.truncate(abs(width), overflow="ellipsis")
            cell.align("right" if width < 0 else "left", abs(width))
        line.append("  " if number else "").append_text(cell)
    return line


# -- head and foot ----------------------------------------------------------------------------------------------


def _head(document: Mapping[str, Any], look: Look, now_ms: int) -> list[Text]:
    status = document["status"]
    throttle, configuration = status["throttle"], status["configuration"]
    first = (
        Text()
        .append(f"cleanerd {status['version']}", "bold")
        .append(f"  up {duration(status['uptime_s'])}  ")
    )
    first.append("ready", "green") if status["ready"] else first.append("STARTING", "bold yellow")
    first.append(clock_time(now_ms).rjust(max(look.width - len(first), 10)))
    spark = "Spark up" if status["spark_session_up"] else "Spark not started"
    limit = io_limit(throttle)
    read, written = rate(throttle["read_bytes_per_s"]), rate(throttle["write_bytes_per_s"])
    workers = f"{status['workers_busy']} of {status['workers_total']} workers busy"
    lines = [first, Text("  ".join((workers, spark, f"throttle {limit}: {read} read, {written} written")))]
    if not configuration["applied"]:
        lines.append(
            Text("the last load of the configuration was refused: `cleanerctl status` shows why", _ALARM)
        )
    if look.trouble is not None:
        lines.append(Text(f"not up to date, trying again: {printable(look.trouble)}", _ALARM))
    return lines + _log_dirs(status["log_dirs"], look) + [_counts(document["logs"])]


def _log_dirs(log_dirs: Sequence[Row], look: Look) -> list[Text]:
    """Those that are offline first."""
    shown, rest = _cut(sorted(log_dirs, key=lambda row: bool(row["online"])), max(look.height // 8, 2))
    width = min(max((len(row["path"]) for row in shown), default=0), look.width * 4 // 10)
    lines = [_log_dir(row, width) for row in shown]
    return [*lines, Text(f"and {rest} log directories more", _FAINT)] if rest else lines


def _log_dir(row: Row, width: int) -> Text:
    line = _columns((shortened(row["path"], width), width, ""))
    if not row["online"]:
        return line.append(f"  OFFLINE: {printable(row['reason'] or '')}", _ALARM)
    facts = ["online" if row["free_bytes"] is None else f"{size(row['free_bytes'])} free"]
    if row["staged_bytes"]:
        facts.append(f"{size(row['staged_bytes'])} staged")
    pid = f" (pid {row['lock_owner_pid']})" if row["lock_owner_pid"] else ""
    if row["broker_is_live"]:
        facts.append(f"broker live{pid}")
    elif pid:
        facts.append(f"locked{pid}")
    return line.append(f"  {', '.join(facts)}")


def _counts(logs: Sequence[Row]) -> Text:
    counts = Counter(row["state"] for row in logs)
    line = Text(f"{len(logs):,} logs")
    for number, state in enumerate(state for state in STATES if counts[state]):
        line.append(", " if number else ": ").append(f"{counts[state]:,} {state}", colour(state))
    return line


def _foot(look: Look) -> Text:
    line = Text()
    for _, name, style, glyph, plain in _PARTS:
        line.append((glyph if look.is_unicode else plain) * 2, style).append(f" {name}  ")
    return line.append("q quits" if look.is_live else "", _FAINT)


# -- lists ------------------------------------------------------------------------------------------------------


def _logs(logs: Sequence[Row], look: Look, room: int) -> list[Text]:
    if not logs:
        return [_title("LOG", look), Text("no logs yet", _FAINT)]
    bar = min(look.width - look.name_width - 11 - 8 - 5 - 8, _MAX_BAR)
    lines = [_columns(("LOG", look.name_width, ""), ("STATE", 11, ""), ("SIZE", -8, ""), ("DIRTY", -5, ""))]
    lines = [_title(lines[0].plain, look)]
    waiting = sorted(logs, key=_attention)
    while waiting:
        rows = list(_log(waiting[0], look, bar))
        if len(lines) + len(rows) + (len(waiting) > 1) > room:
            break
        lines += rows
        del waiting[0]
    if waiting:
        counts = Counter(row["state"] for row in waiting)
        named = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        lines.append(Text(f"and {len(waiting):,} more: {named}", _FAINT))
    return lines


def _attention(row: Row) -> tuple[int, int, float, int, str, int]:
    """Sort key: by state, then those that failed, then the dirtiest."""
    return (
        STATES.index(row["state"]),
        -row["failures"],
        -(row["dirty_ratio"] or 0.0),
        -(row["cleanable_bytes"] or 0),
        row["topic"],
        row["partition"],
    )


def _log(row: Row, look: Look, bar: int) -> Iterator[Text]:
    state, ratio = row["state"], row["dirty_ratio"]
    line = _columns(
        (shortened(log_name(row), look.name_width), look.name_width, ""),
        (state, 11, colour(state) or _FAINT),
        (size(row["size_bytes"]), -8, ""),
        ("" if ratio is None else f"{ratio:.2f}", -5, ""),
    )
    yield line.append("  ").append_text(_bar([row[part[0]] or 0 for part in _PARTS], bar, look))
    if row["reason"] and (state == "uncleanable" or row["failures"]):
        yield Text(f"  {printable(row['reason'])}", "red")


def _bar(parts: Sequence[int], width: int, look: Look) -> Text:
    """Parts of a whole; whatever is there at all gets a cell if there are enough."""
    line, whole = Text(), sum(parts)
    for cells, (_, _, style, glyph, plain) in zip(_cells(parts, whole, width), _PARTS, strict=True):
        line.append((glyph if look.is_unicode else plain) * cells, style)
    return line


def _cells(parts: Sequence[int], whole: int, width: int) -> list[int]:
    if whole == 0 or width < len(parts):
        return [0] * len(parts)
    cells = [max(part * width // whole, 1) if part else 0 for part in parts]
    largest = max(range(len(parts)), key=cells.__getitem__)
    cells[largest] += width - sum(cells)
    return cells


def _jobs(jobs: Sequence[Row], look: Look, now_ms: int) -> list[Text]:
    """Those that run, then those that wait."""
    active = sorted((row for row in jobs if row["state"] != "done"), key=lambda row: row["state"] == "queued")
    if not active:
        return []
    shown, rest = _cut(active, max(look.height // 6, 2))
    head = _columns(
        ("JOB", look.name_width, ""), ("PHASE", 11, ""), ("RATE", -10, ""), ("ETA", -7, ""), ("DONE", -4, "")
    )  # fmt: skip
    lines = [_title(head.plain, look), *(_job(row, look, now_ms) for row in shown)]
    return [*lines, Text(f"and {rest:,} more", _FAINT)] if rest else lines


def _job(row: Row, look: Look, now_ms: int) -> Text:
    more = f" and {len(row['logs']) - 1} more" if len(row["logs"]) > 1 else ""
    name = shortened(row["logs"][0], look.name_width - len(more)) + more
    total, state = row["bytes_total"], row["state"]
    ratio = row["bytes_done"] / total if total else 0.0
    seconds = (now_ms - row["started_ms"]) / 1000 if row["started_ms"] else 0.0
    speed = rate(row["bytes_done"] / seconds) if seconds > 0 and row["bytes_done"] else ""
    line = _columns(
        (name, look.name_width, ""),
        (state if state == "queued" else row["phase"] or "starting", 11, colour(state)),
        (speed, -10, ""),
        ("" if row["eta_s"] is None else duration(row["eta_s"]), -7, ""),
        ("" if state == "queued" else f"{100 * ratio:.0f}%", -4, ""),
    )
    width = min(look.width - look.name_width - 11 - 10 - 7 - 4 - 10, _MAX_BAR)
    if state == "queued" or width < 4:
        return line
    full, empty = ("━", "─") if look.is_unicode else ("=", "-")
    done = int(width * ratio)
    return line.append("  ").append(full * done, "cyan").append(empty * (width - done), _FAINT)


def _holds(holds: Sequence[Row], look: Look, now_ms: int) -> list[Text]:
    if not holds:
        return []
    shown, rest = _cut(holds, max(look.height // 12, 1))
    lines = [_title(_columns(("PAUSED", look.name_width, ""), ("BY", 0, "")).plain, look)]
    for row in shown:
        left = max((row["expires_ms"] or 0) - now_ms, 0) / 1000
        until = "until resumed" if row["expires_ms"] is None else f"{duration(left)} left"
        who = ", ".join(part for part in (row["owner"], until, row["reason"]) if part)
        lines.append(
            _columns((shortened(row["pattern"], look.name_width), look.name_width, ""), (who, 0, ""))
        )
    return [*lines, Text(f"and {rest:,} more", _FAINT)] if rest else lines


def _history(events: Sequence[Row], look: Look, now_ms: int) -> list[Text]:
    if not events:
        return []
    head = _columns(("HISTORY", look.name_width, ""), ("AGO", -5, ""), ("OUTCOME", 0, ""))
    return [_title(head.plain, look), *(_event(row, look, now_ms) for row in events)]


def _event(row: Row, look: Look, now_ms: int) -> Text:
    ago = duration(max(round((now_ms - row["time_ms"]) / 1000), 0)).split()[0].removesuffix(".0s")
    kind = "" if row["kind"] == "cleaning" else f"{row['kind']} "
    line = _columns(
        (shortened(log_name(row), look.name_width), look.name_width, ""),
        (ago if ago[-1].isalpha() else f"{ago}s", -5, ""),
        (f"{kind}{row['outcome']}", 0, colour(row["outcome"])),
    )
    return line.append("  " + ", ".join(_details(row, look)), _FAINT)


def _details(row: Row, look: Look) -> Iterator[str]:
    if row["bytes_after"] is not None and row["outcome"] in ("committed", "staged"):
        yield f"{size(row['bytes_before'])} {'→' if look.is_unicode else '->'} {size(row['bytes_after'])}"
    if row["seconds"]:
        yield duration(row["seconds"])
    if row["reason"]:
        yield printable(row["reason"])
    elif row["removed"]:
        yield reasons(row["removed"])
