"""The status page: its data and its query strings; `daemon.page` renders them as HTML.

=========  ===================================================================================================
path       page, and the query it takes
=========  ===================================================================================================
/          overview: first the logs that need attention
/logs      a table of logs: `q` (part of a name, or a glob), `state`, `sort` (`-` reverses it), `page`
/log       one log: `name`, like `orders-3`
/history   past events: `range` (24h, 7d, 30d), `q` (a pattern, as everywhere)
=========  ===================================================================================================

It reads memory, the history, and the directory of one log; it changes nothing and never starts an engine.
"""

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.http import Answer, Page, Request
from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.api.verbs.holds import holds
from cleanerd.daemon.api.verbs.jobs import jobs
from cleanerd.daemon.api.verbs.logs import logs
from cleanerd.daemon.api.verbs.status import status
from cleanerd.daemon.page import pages
from cleanerd.daemon.page.html import headers
from cleanerd.daemon.store import HistoryUnreadable
from cleanerd.daemon.values.models import HistoryEvent, HistoryEventKind, LogForecast
from cleanerd.format.names import TopicPartition, parse_partition_dir

_HTML = "text/html; charset=utf-8"
_KINDS: tuple[HistoryEventKind, ...] = ("cleaning", "commit", "retention", "recovery")
_MAX_EVENTS = 2000
_LOG_EVENTS = 50
_MAX_FIELDS = 16
_MAX_PAGE = 10**6
Fields = Mapping[str, str]
_Make = Callable[[Fields], bytes]


def landing_page(_: Request) -> Answer:
    """The page at `/` if the status page is switched off: it points to the other paths."""
    links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in ("/metrics", "/healthz", "/readyz"))
    text = f'<!doctype html><html lang="en"><title>cleanerd</title><h1>cleanerd</h1><ul>{links}</ul></html>\n'
    return Answer(
        text.encode(), content_type=_HTML, headers={"Content-Security-Policy": "default-src 'none'"}
    )


class StatusPage:
    """Answers with pages."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._parts = control.parts

    def by_path(self) -> Mapping[str, Page]:
        """The pages by path, for the metrics server."""
        made: dict[str, _Make] = {
            "/": self._overview,
            "/logs": self._logs,
            "/log": self._log,
            "/history": self._history,
        }
        return {path: _page(make) for path, make in made.items()}

    def _overview(self, _: Fields) -> bytes:
        control, now_ms = self._control, self._parts.clock.now_ms()
        since_ms = now_ms - pages.DAY_MS
        return pages.overview(
            status(control), logs(control), jobs(control), holds(control),
            self._events(None, since_ms), now_ms,
        )  # fmt: skip

    def _logs(self, fields: Fields) -> bytes:
        usual, number = pages.Query(), fields.get("page", "")
        query = pages.Query(
            q=fields.get("q", usual.q).strip(),
            state=fields.get("state", usual.state),
            sort=fields.get("sort", usual.sort),
            page=min(int(number), _MAX_PAGE)
            if number.isascii() and number.isdigit() and len(number) < 9
            else 1,
        )
        return pages.logs(logs(self._control), self._forecasts(), query, self._parts.clock.now_ms())

    def _forecasts(self) -> tuple[LogForecast, ...]:
        """Forecasts of all logs; none if the history, from which the rate comes, cannot be read."""
        try:
            return self._control.forecasts.of(self._parts.inventory.logs()).logs
        except HistoryUnreadable:
            return ()

    def _log(self, fields: Fields) -> bytes:
        parsed = parse_partition_dir(fields.get("name", ""))
        if parsed is None:
            raise NotFound("the name of a log is that of its topic and its number, like orders-3")
        self._control.of(parsed[0])  # raises NotFound, with names that may have been meant
        now_ms = self._parts.clock.now_ms()
        events = self._events(str(parsed[0]), 0, _LOG_EVENTS)
        return pages.log(str(parsed[0]), self._reports(parsed[0]), events, now_ms)

    def _reports(self, topic_partition: TopicPartition) -> list[pages.LogReport]:
        logs = [log for log in self._parts.inventory.logs() if log.topic_partition == topic_partition]
        views, explain = self._control.views.logs(logs), self._control.explainer.of
        return [(view, explain(log, exact=False)) for log, view in zip(logs, views, strict=True)]

    def _history(self, fields: Fields) -> bytes:
        chosen = fields.get("range", "")
        chosen = chosen if chosen in pages.RANGES else next(iter(pages.RANGES))
        q, now_ms = fields.get("q", "").strip(), self._parts.clock.now_ms()
        since_ms = now_ms - pages.RANGES[chosen]
        events = self._events(q or None, since_ms)
        return pages.history(events, chosen, q, now_ms, is_all=len(events) < _MAX_EVENTS)

    def _events(
        self, pattern: str | None, since_ms: int, limit: int = _MAX_EVENTS
    ) -> tuple[HistoryEvent, ...]:
        return self._parts.store.events(pattern, limit, since_ms, _KINDS)


def _page(make: _Make) -> Page:
    """Wrap a page body in the HTML layout."""

    def answer(request: Request) -> Answer:
        try:
            fields = dict(parse_qsl(request.query, max_num_fields=_MAX_FIELDS))
        except ValueError:
            return Answer(pages.problem("Bad request", "too much in the query"), 400, _HTML, headers())
        try:
            return Answer(make(fields), content_type=_HTML, headers=headers())
        except NotFound as error:
            return Answer(pages.problem("Not found", str(error)), 404, _HTML, headers())
        except HistoryUnreadable as error:
            return Answer(pages.problem("Unavailable", str(error)), 503, _HTML, headers())

    return answer
