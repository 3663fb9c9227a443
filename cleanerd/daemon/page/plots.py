"""The geometry of plots, which the template draws as SVG. Times run from left to right, in UTC."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from cleanerd.daemon.page.html import age
from cleanerd.daemon.values.models import HistoryEvent
from cleanerd.units import duration, size

_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 392, 10, 138  # of 400 by 160, as the template draws it
_COLUMNS = 48
_HOUR_MS = 3_600_000
_SECONDS = (0.1, 1, 10, 60, 600, 3600, 36_000, 360_000)


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a plot shows."""

    from_ms: int
    to_ms: int

    def x(self, time_ms: int) -> float:
        """The x coordinate of an instant."""
        share = (time_ms - self.from_ms) / max(self.to_ms - self.from_ms, 1)
        return round(_LEFT + min(max(share, 0.0), 1.0) * (_RIGHT - _LEFT), 1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A column or a dot: its kind, position, and tooltip. A dot has no size."""

    kind: str
    x: float
    y: float
    title: str
    width: float = 0
    height: float = 0


@dataclass(frozen=True, slots=True)
class Plot:
    """`summary` describes the plot in words."""

    title: str
    summary: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """The kinds of marks, for the legend."""
        return sorted({mark.kind for mark in self.marks})


def reclaimed(events: Iterable[HistoryEvent], span: Span) -> Plot | None:
    """Bytes by which cleanings made logs smaller, as columns; what was staged becomes free at its commit."""
    width_ms = max((span.to_ms - span.from_ms) / _COLUMNS, 1)
    columns, heights = Counter[tuple[int, str]](), Counter[int]()
    for event in events:
        if event.kind == "cleaning" and event.outcome in ("committed", "staged"):
            freed = max((event.bytes_before or 0) - (event.bytes_after or 0), 0)
            number = min(int((event.time_ms - span.from_ms) / width_ms), _COLUMNS - 1)
            if number >= 0 and freed:
                columns[number, event.outcome] += freed
                heights[number] += freed
    if not columns:
        return None
    ticks = _size_ticks(max(heights.values()))
    scale = (_BOTTOM - _TOP) / ticks[-1]
    marks = []
    for (number, kind), freed in sorted(columns.items()):
        below = columns[number, "committed"] if kind == "staged" else 0
        at_ms = round(span.from_ms + number * width_ms)
        marks.append(
            Mark(
                kind=kind,
                x=span.x(at_ms) + 1,
                y=round(_BOTTOM - (below + freed) * scale, 1),
                width=round((_RIGHT - _LEFT) / _COLUMNS - 2, 1),
                height=max(round(freed * scale, 1), 0.8),
                title=f"{_label(at_ms, span)}: {size(freed)} {kind}",
            )
        )
    return Plot(
        title="Reclaimed by cleanings",
        summary=f"{size(heights.total())} in all",
        x_ticks=_time_ticks(span),
        y_ticks=tuple((_BOTTOM - tick * scale, size(tick).replace(".0 ", " ")) for tick in ticks),
        marks=tuple(marks),
    )


def durations(events: Iterable[HistoryEvent], span: Span) -> Plot | None:
    """A dot for each cleaning, higher the longer it took, on a logarithmic scale."""
    found = [
        event for event in events
        if event.kind == "cleaning" and event.seconds and span.from_ms <= event.time_ms <= span.to_ms
    ]  # fmt: skip
    if not found:
        return None
    seconds = [event.seconds or 0 for event in found]
    below = [tick for tick in _SECONDS if tick <= min(seconds)] or _SECONDS[:1]
    above = [tick for tick in _SECONDS if tick >= max(seconds)] or _SECONDS[-1:]
    ticks = [tick for tick in _SECONDS if below[-1] <= tick <= above[0]]
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def y(value: float) -> float:
        share = (math.log(min(max(value, ticks[0]), ticks[-1])) - low) / max(high - low, 1e-9)
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)

    return Plot(
        title="How long cleanings took",
        summary=f"{len(found)} cleanings, {duration(sorted(seconds)[len(seconds) // 2])} in the middle, "
        f"{duration(max(seconds))} at most",
        x_ticks=_time_ticks(span),
        y_ticks=tuple((y(tick), f"{tick:g}s" if tick < 10 else duration(tick)) for tick in ticks),
        marks=tuple(
            Mark(
                kind=event.outcome,
                x=span.x(event.time_ms),
                y=y(event.seconds or 0),
                title=f"{event.topic}-{event.partition}: {duration(event.seconds or 0)}, {event.outcome}, "
                f"{age(event.time_ms, span.to_ms)} ago",
            )
            for event in found
        ),
    )


def _size_ticks(largest: int) -> list[int]:
    """0 to the first round number that is not below."""
    step = 10 ** math.floor(math.log10(max(largest, 1)))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2, 5) if step * factor * 5 >= largest)
    return [round(step * number) for number in range(math.ceil(largest / step) + 1)]


def _time_ticks(span: Span) -> tuple[tuple[float, str], ...]:
    hours = (span.to_ms - span.from_ms) / _HOUR_MS
    step_ms = next((h for h in (1, 4, 24, 120) if hours / h <= 7), 240) * _HOUR_MS
    first = -(-span.from_ms // step_ms) * step_ms
    ticks = [(span.x(at), _label(at, span)) for at in range(first, span.to_ms, step_ms)]
    return tuple((x, text) for x, text in ticks if x < _RIGHT - 12)


def _label(time_ms: int, span: Span) -> str:
    form = "%H:%M" if span.to_ms - span.from_ms <= 2 * 24 * _HOUR_MS else "%-d %b"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)
