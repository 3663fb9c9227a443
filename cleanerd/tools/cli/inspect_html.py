"""What `inspect` found as one HTML file: plots as inline SVG, light and dark, no scripts, nothing from anywhere else."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from cleanerd.tools.cli.inspect_tables import answers, date
from cleanerd.units import key_text, size

if TYPE_CHECKING:
    from cleanerd.tools.insight.inspect import Day, Inspection

_WIDTH, _BAR, _PLOT = 720, 18, 120
_DAYS_MAX = 90
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #6b7280; --rule: #d8dee4;
  --live: #2f6f4f; --superseded: #c2410c; --other: #8b8f98; --written: #3b6ea5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14171b; --faint: #9aa3ad; --rule: #30363d;
  --live: #57a97f; --superseded: #f0803c; --other: #6d7480; --written: #6ea3d8; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } caption { text-align: left; font-weight: 600; }
th, td { text-align: right; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; word-break: break-all; }
svg { display: block; max-width: 100%; margin: .5rem 0; } text { fill: var(--faint); font-size: 12px; }
.live { fill: var(--live); } .superseded { fill: var(--superseded); } .other { fill: var(--other); }
.written { fill: var(--written); } p.legend { color: var(--faint); } .legend svg { display: inline; }
"""
_SQUARE = '<svg width="12" height="12" role="presentation"><rect width="12" height="12" class="{}"/></svg>'


def page(logs: "Sequence[Inspection]") -> str:
    """The whole file."""
    body = [_overview(logs), *map(_log, logs)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width">\n<title>cleanerd inspect</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>What is in the logs</h1>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _overview(logs: "Sequence[Inspection]") -> str:
    """A bar for each log, as long as it is large: newest records, superseded ones, all else."""
    most = max((log.bytes for log in logs), default=0) or 1
    rows, room = [], _WIDTH - 220
    for i, log in enumerate(logs):
        y, name = i * (_BAR + 8), f"{log.topic}-{log.partition}"
        superseded = min(log.superseded_bytes.value, log.bytes)
        live = min(log.live_bytes.value, log.bytes - superseded)
        parts = (("live", live), ("superseded", superseded), ("other", log.bytes - live - superseded))
        x = 0.0
        rows.append(
            f"<g><title>{escape(name)}: {', '.join(f'{kind} {size(n)}' for kind, n in parts)}</title>"
        )
        for kind, amount in parts:
            width = amount * room / most
            rows.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" class="{kind}"/>')
            x += width
        rows.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{escape(name)} {size(log.bytes)}</text></g>')
    height = max(len(logs) * (_BAR + 8), 1)
    legend = (
        ("live", "newest record of a key"),
        ("superseded", "superseded"),
        ("other", "aborted, without key, overhead"),
    )
    return _svg(height, "Size of each log by what is in it", rows) + _legend(*legend)


def _svg(height: int, label: str, content: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(content)}</svg>'
    )


def _legend(*entries: tuple[str, str]) -> str:
    """Classes and what they stand for."""
    return (
        f'<p class="legend">{" ".join(f"{_SQUARE.format(kind)} {meaning}" for kind, meaning in entries)}</p>'
    )


def _log(log: "Inspection") -> str:
    name = f"{log.topic}-{log.partition}"
    hot = [
        (key_text(one.key, one.key_length), one.records, one.bytes, one.superseded_bytes)
        for one in log.hot_keys
    ]
    prefixes = [
        (key_text(one.prefix) + "...", one.records, one.bytes, one.superseded_bytes) for one in log.prefixes
    ]
    ages = [
        (
            f"below {band.below_days} days" if band.below_days else "older",
            band.records,
            band.bytes,
            dead.bytes,
        )
        for band, dead in zip(log.superseded_ages, log.tombstone_ages, strict=True)
        if band.records or dead.records
    ]
    recoded = [
        (
            f"{one.codec}{' (of the topic)' * one.is_of_topic}, batches of {size(one.batch_bytes)}",
            one.size_bytes,
            one.saved_bytes,
        )
        for one in log.alternatives
    ]
    return "\n".join(
        [
            f"<h2>{escape(name)}</h2>",
            *(f"<p>{escape(line.strip())}</p>" for line in answers(log)),
            _days(log.days[-_DAYS_MAX:]),
            _table("Hot keys", ("key", "records", "size", "superseded"), hot),
            _table("Keys that begin alike", ("prefix", "records", "size", "superseded"), prefixes),
            _table("Superseded since, and tombstones by age", ("age", "records", "superseded", "tombstones"), ages),
            _table("In other batches", ("codec", "size", "saved"), recoded),
        ]
    )  # fmt: skip


def _days(days: "Sequence[Day]") -> str:
    """What was written each day, and what that superseded."""
    most = max((max(day.bytes, day.superseded_bytes) for day in days), default=0) or 1
    width, bars = _WIDTH / max(len(days), 1), []
    for i, day in enumerate(days):
        for kind, amount, part in (("written", day.bytes, 0.0), ("superseded", day.superseded_bytes, 0.45)):
            height = amount * _PLOT / most
            bars.append(
                f'<rect x="{(i + part) * width:.1f}" y="{_PLOT - height:.1f}" width="{width * 0.4:.1f}" '
                f'height="{height:.1f}" class="{kind}"><title>{date(day.day)}: {kind} {size(amount)}, '
                f"{day.records} records of {day.keys} keys</title></rect>"
            )
    if days:
        bars.append(f'<text x="0" y="{_PLOT + 16}">{date(days[0].day)}</text>')
        bars.append(f'<text x="{_WIDTH}" y="{_PLOT + 16}" text-anchor="end">{date(days[-1].day)}</text>')
    legend = (("written", "written that day"), ("superseded", "superseded by that"))
    plot = _svg(_PLOT + 20, "Bytes written and superseded by day", bars)
    return plot + _legend(*legend)


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers under `records` as they are, all others as sizes."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_cell(name, value)}</td>" for name, value in zip(heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}" if name == "records" else size(value) if value >= 0 else f"-{size(-value)}"
    return escape(str(value))
