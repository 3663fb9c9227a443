"""The pages: overview, logs, one log, history. Each turns values into HTML."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cleanerd.daemon.page import plots
from cleanerd.daemon.page.html import render
from cleanerd.daemon.page.plots import Span
from cleanerd.daemon.values.models import (
    Explanation,
    HistoryEvent,
    HoldView,
    JobView,
    LogForecast,
    LogView,
    StatusView,
)
from cleanerd.daemon.values.severity import STATES
from cleanerd.units import size

PAGE_ROWS = 200
_SOME = 10
DAY_MS = 86_400_000
RANGES = {"24h": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS}
"""The ranges of a plot; the first is the default."""

_PARTS = (
    ("clean_bytes", "clean"),
    ("cleanable_bytes", "dirty"),
    ("uncleanable_bytes", "not-yet"),
    ("active_bytes", "active"),
)
_TROUBLED = ("uncleanable", "offline", "staged", "aborted")
_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class BarPart:
    """A piece of a bar, in thousandths of its length."""

    kind: str
    x: float
    width: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Bar:
    """Bytes of a log, or of all logs, by what the cleaner makes of them. `label` is the text."""

    parts: tuple[BarPart, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Query:
    """A selection of logs: a part of a name or a glob, a state, an order (`-` reverses it), a page from 1 on."""

    q: str = ""
    state: str = ""
    sort: str = "state"
    page: int = 1

    def fields(self, **changed: str | int) -> dict[str, str | int]:
        """The fields of the query string: those that differ from their defaults."""
        usual = Query()
        now = {"q": self.q, "state": self.state, "sort": self.sort, "page": self.page, **changed}
        return {name: value for name, value in now.items() if value != getattr(usual, name)}


def bar_of(views: Iterable[LogView]) -> Bar | None:
    """The bar of a log, or of several; None where nothing is known, or nothing is there."""
    known = [view for view in views if view.clean_bytes is not None]
    amounts = {kind: sum(getattr(view, field) for view in known) for field, kind in _PARTS}
    total = sum(amounts.values())
    if not total:
        return None
    parts, x = [], 0.0
    for kind, amount in amounts.items():
        if amount:
            width = 1000 * amount / total
            parts.append(BarPart(kind, round(x, 2), round(width, 2), amount))
            x += width
    return Bar(tuple(parts), ", ".join(f"{part.kind.replace('-', ' ')} {size(part.bytes)}" for part in parts))


_ORDERS: Mapping[str, Callable[[LogView], tuple[object, ...]]] = {
    "state": lambda view: (STATES.index(view.state), -(view.cleanable_bytes or 0)),
    "name": lambda _: (),
    "size": lambda view: (-view.size_bytes,),
    "dirty": lambda view: (-(view.dirty_ratio if view.dirty_ratio is not None else -1),),
    "since": lambda view: (view.dirty_since_ms if view.dirty_since_ms is not None else _NEVER,),
    "event": lambda view: (-view.last.time_ms if view.last else _NEVER,),
}
"""Sort orders of logs: the largest, worst or oldest first. Names decide between equals."""


def _sorted(views: Iterable[LogView], sort: str) -> list[LogView]:
    order = _ORDERS.get(sort.removeprefix("-"), _ORDERS["state"])
    key: Callable[[LogView], tuple[object, ...]] = lambda v: (*order(v), v.topic, v.partition, v.log_dir)  # noqa: E731
    return sorted(views, key=key, reverse=sort.startswith("-"))


def _matches(view: LogView, query: Query) -> bool:
    if query.state and view.state != query.state:
        return False
    name = f"{view.topic}-{view.partition}"
    return query.q in name or fnmatchcase(name, query.q)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Logs of a state for the same reason, the first of them by name."""

    reason: str
    views: tuple[LogView, ...]
    logs: int
    size_bytes: int


def _troubles(views: Iterable[LogView]) -> dict[str, list[Trouble]]:
    """Logs that need attention, grouped by state and reason, the largest group first."""
    found: dict[tuple[str, str], list[LogView]] = {}
    for view in views:
        if view.state in _TROUBLED:
            found.setdefault((view.state, view.reason or "reason unknown"), []).append(view)
    troubles: dict[str, list[Trouble]] = {state: [] for state in _TROUBLED}
    for (state, reason), of in sorted(found.items(), key=lambda item: -len(item[1])):
        troubles[state].append(Trouble(reason, tuple(of[:_SOME]), len(of), sum(v.size_bytes for v in of)))
    return {state: of_state for state, of_state in troubles.items() if of_state}


def overview(
    status: StatusView,
    views: Sequence[LogView],
    jobs: Sequence[JobView],
    holds: Sequence[HoldView],
    events: Sequence[HistoryEvent],
    now_ms: int,
) -> bytes:
    """The daemon as a whole; what needs a look first. `events` of a day."""
    dirtiest = sorted(
        (view for view in views if view.state in ("dirty", "cleaning")),
        key=lambda view: -(view.cleanable_bytes or 0),
    )
    return render(
        "overview.html",
        here="overview",
        status=status,
        counts=_counts(views),
        total_bytes=sum(view.size_bytes for view in views),
        whole=bar_of(views),
        troubles=_troubles(views),
        holds=holds,
        running=[job for job in jobs if job.state == "running"],
        queued=[job for job in jobs if job.state == "queued"],
        dirtiest=dirtiest[:_SOME],
        plots=_plots(events, Span(now_ms - DAY_MS, now_ms)),
        events=events[:_SOME],
        bar_of=bar_of,
        now_ms=now_ms,
    )


def _plots(events: Sequence[HistoryEvent], span: Span) -> list[plots.Plot]:
    drawn = (plots.reclaimed(events, span), plots.durations(events, span))
    return [plot for plot in drawn if plot is not None]


def _counts(views: Iterable[LogView]) -> dict[str, int]:
    found = Counter(view.state for view in views)
    return {state: found[state] for state in STATES if found[state]}  # type: ignore[index]


def logs(views: Sequence[LogView], forecasts: Iterable[LogForecast], query: Query, now_ms: int) -> bytes:
    """A table of logs, `PAGE_ROWS` at a time; `forecasts`: of those that wait to be cleaned."""
    to_come = {(one.log_dir, one.topic, one.partition): one for one in forecasts}
    found = _sorted((view for view in views if _matches(view, query)), query.sort)
    last_page = max(-(-len(found) // PAGE_ROWS), 1)
    page = min(max(query.page, 1), last_page)
    query = replace(query, page=page)
    return render(
        "logs.html",
        here="logs",
        query=query,
        counts=_counts(views),
        found=len(found),
        all=len(views),
        first=(page - 1) * PAGE_ROWS,
        rows=found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
        last_page=last_page,
        columns=(
            ("name", "Log"), ("state", "State"), ("", "Bytes"), ("size", "Size"), ("dirty", "Dirty ratio"),
            ("since", "Dirty since"), ("", "Due"), ("", "Takes"), ("event", "Last event"),
        ),
        bar_of=bar_of,
        forecast_of=lambda view: to_come.get((view.log_dir, view.topic, view.partition)),
        now_ms=now_ms,
    )  # fmt: skip


LogReport = tuple[LogView, Explanation]


def log(name: str, reports: Sequence[LogReport], events: Sequence[HistoryEvent], now_ms: int) -> bytes:
    """One partition, in each log directory that has it."""
    return render(
        "log.html",
        here="logs",
        name=name,
        reports=[(view, explanation, bar_of([view])) for view, explanation in reports],
        events=events,
        now_ms=now_ms,
    )


def history(
    events: Sequence[HistoryEvent],
    chosen: str,
    q: str,
    now_ms: int,
    *,
    is_all: bool,
) -> bytes:
    """The events of a range of time, as plots and as a list; `is_all`: the list is complete."""
    return render(
        "history.html",
        here="history",
        ranges=list(RANGES),
        chosen=chosen,
        q=q,
        plots=_plots(events, Span(now_ms - RANGES[chosen], now_ms)),
        events=events[:PAGE_ROWS],
        found=len(events),
        is_all=is_all,
        now_ms=now_ms,
    )


def problem(title: str, text: str) -> bytes:
    """A page that reports an error."""
    return render("problem.html", here="", title=title, text=text)
