"""A merged report as one file of HTML without scripts, in the style of the status page."""

from collections.abc import Mapping, Sequence
from typing import Any

from cleanerd.daemon.page.html import render
from cleanerd.daemon.page.pages import Bar, BarPart
from cleanerd.units import size

_SHOWN = 200
_LARGEST = 20


def page(fleet: Mapping[str, Any], now_ms: int) -> bytes:
    """What needs attention first, then the largest logs by what can go, then all."""
    logs = sorted(fleet["logs"], key=lambda log: -log["size_bytes"])
    wasteful = [log for log in logs if (log["superseded_bytes"] or 0) + (log["after_roll_bytes"] or 0)]
    wasteful.sort(key=lambda log: -((log["superseded_bytes"] or 0) + (log["after_roll_bytes"] or 0)))
    return render(
        "doctor.html",
        fleet=fleet,
        total_bytes=sum(broker["size_bytes"] for broker in fleet["brokers"]),
        groups=_groups(fleet["findings"]),
        wasteful=wasteful[:_LARGEST],
        due=sorted(
            (log for log in logs if log["due_since_ms"] is not None), key=lambda log: log["due_since_ms"]
        )[:_LARGEST],
        logs=logs[:_SHOWN],
        bar_of=_bar_of,
        now_ms=now_ms,
    )


def _groups(findings: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Findings by code, in the order of the first of each."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in findings:
        found.setdefault(one["code"], []).append(one)
    return found


def _bar_of(logs: Sequence[Mapping[str, Any]], of_bytes: int) -> Bar:
    """What of these logs can go now, after a roll, and what stays, in thousandths of `of_bytes`."""
    whole = sum(log["size_bytes"] for log in logs)
    now, roll = (sum(log[name] or 0 for log in logs) for name in ("superseded_bytes", "after_roll_bytes"))
    parts, x = [], 0.0
    for kind, amount in (("dirty", now), ("active", roll), ("clean", max(whole - now - roll, 0))):
        width = 1000 * amount / max(of_bytes, 1)
        parts.append(BarPart(kind, round(x, 2), round(width, 2), amount))
        x += width
    return Bar(tuple(parts), f"superseded {size(now)}, after a roll {size(roll)}, of {size(whole)}")
