"""The status page: what it shows, for whom it works, and that no name or error can make more of it."""

import base64
import hashlib
import html.parser
import re
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from cleanerd.daemon.page import pages
from cleanerd.daemon.page.html import age, headers
from cleanerd.daemon.values import models
from tests.harness.daemon.views import HOUR_MS, NOW_MS, event, job_view, log_view, status_view

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{7*7}}`\x1b[2J\x00\u202egpj\udcff\n"
VOID = {"meta", "link", "input", "br", "img"}
STYLE = (Path(pages.__file__).parent / "templates/style.css").read_text()


class Document(html.parser.HTMLParser):
    """Elements, attributes and text of a page; fails where tags do not match."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def all_pages(text: str) -> dict[str, bytes]:
    """Every page with a text wherever there can be one."""
    status = status_view(
        warnings=(text,),
        log_dirs=(models.LogDirView(path=f"/logs{text}", online=False, reason=text, free_bytes=10**9),),
        configuration=models.ReloadView(applied=False, time_ms=1, problems=(text,)),
    )
    views = [
        log_view(f"t{text}", n, state=state, reason=text, log_dir=f"/{text}")
        for n, state in enumerate(("uncleanable", "staged", "dirty", "offline", "paused"))
    ]
    events = [event(topic=text, reason=text, outcome="failed", removed={text: 3}), event(outcome="staged")]
    job = job_view(f"{text}-0", phase=text, eta_s=5.0)
    hold = models.HoldView(
        id="h", pattern=text, owner=text, reason=text, created_ms=NOW_MS - HOUR_MS, expires_ms=NOW_MS
    )
    late = models.LogForecast(
        topic=f"t{text}",
        partition=2,
        log_dir=f"/{text}",
        due_ms=NOW_MS,
        due_why=text,
        takes_ms=5000,
        is_late=True,
    )
    fact = models.Fact(name=text, value=text, rule=text, blocks=True)
    told = models.Explanation(topic=text, partition=0, log_dir=text, decision=text, facts=(fact,))
    return {
        "overview": pages.overview(status, views, [job], [hold], events, NOW_MS),
        "logs": pages.logs(views, [late], pages.Query(sort=text), NOW_MS),
        "none": pages.logs(views, [late], pages.Query(q=text, state=text), NOW_MS),
        "log": pages.log(text, [(views[0], told)], events, NOW_MS),
        "history": pages.history(events, "24h", text, NOW_MS, is_all=False),
        "problem": pages.problem(text, text),
    }


HARMLESS = all_pages("x")


@pytest.mark.parametrize("name", HARMLESS)
def test_hostile_text_stays_text(name: str) -> None:
    """Markup, quotes, templates, control characters, changes of direction, what is not Unicode."""
    page = all_pages(HOSTILE)[name]
    document, harmless = Document(page), Document(HARMLESS[name])
    extra = Counter(tag for tag, _ in document.elements) - Counter(tag for tag, _ in harmless.elements)
    assert not extra - Counter({"code": 9})
    assert "<script>alert(1)</script>" in document.text + str(document.elements)
    assert "{{7*7}}" in page.decode()
    assert not {"\x1b", "\x00", "\u202e"} & set(page.decode())
    for _, attributes in document.elements:
        assert not [key for key in attributes if key.startswith("on") or key == "style"]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_page_works_for_a_keyboard_and_a_screen_reader(name: str) -> None:
    """Landmarks, one heading, heads of columns, words for every picture, labels for every field."""
    document = Document(HARMLESS[name])
    tags = Counter(tag for tag, _ in document.elements)
    assert [tags[tag] for tag in ("header", "main", "footer", "h1", "script")] == [1, 1, 1, 1, 0]
    assert document.all("html") == [{"lang": "en"}]
    assert document.all("a")[0]["href"] == "#main"
    assert all(nav["aria-label"] for nav in document.all("nav"))
    assert all("scope" in head for head in document.all("th"))
    for svg in document.all("svg"):
        assert svg.get("aria-hidden") or (svg["role"] == "img" and svg["aria-label"])
    labelled = {label["for"] for label in document.all("label")}
    for field in document.all("input", "select"):
        assert field.get("type") == "hidden" or field["id"] in labelled
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    sections = document.all("section")
    assert all("aria-label" in section or section["aria-labelledby"] in ids for section in sections)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_page_loads_nothing_and_its_policy_allows_nothing_else(name: str) -> None:
    page = HARMLESS[name].decode()
    addresses = [
        a.get("href") or a.get("src") or a.get("action") or "" for _, a in Document(page.encode()).elements
    ]
    assert all(address.startswith(("/", "#", "data:")) or not address for address in addresses)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in headers()["Content-Security-Policy"]
    assert headers()["Content-Security-Policy"].startswith("default-src 'none';")


def colours(block: str) -> dict[str, tuple[float, ...]]:
    found = re.findall(r"--([a-z-]+): #([0-9a-f]{6});", block)
    return {name: tuple(int(value[at : at + 2], 16) / 255 for at in (0, 2, 4)) for name, value in found}


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(scheme: str) -> None:
    """WCAG AA: 4.5 for text, 3 for what a picture is made of."""
    light, _, dark = STYLE.partition("@media (prefers-color-scheme: dark)")
    found = colours(light if scheme == "light" else dark)
    for ground in ("paper", "sheet", "hover", "bad-tint"):
        for ink in ("ink", "soft", "link", "bad"):
            assert contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
    for part in ("clean", "dirty", "not-yet", "active", "busy", "held"):
        assert contrast(found[part], found["paper"]) >= 3, part


# -- what is shown --------------------------------------------------------------------------------------------------


def names(page: bytes) -> list[str]:
    links = [urlsplit(a["href"]) for a in Document(page).all("a")]
    return [dict(parse_qsl(link.query))["name"] for link in links if link.path == "/log"]


def test_reasons_come_first_and_logs_with_the_same_one_are_told_together() -> None:
    views = [log_view("a", n, state="staged", reason="waits for 7") for n in range(30)]
    views += [log_view("b", 0, state="uncleanable", reason="at byte 9"), log_view("c", 0, state="clean")]
    text = Document(pages.overview(status_view(), views, [], [], [], NOW_MS)).text
    at = [text.index(shown) for shown in ("uncleanable · 1 log", "at byte 9", "b-0", "staged · 30 logs")]
    assert at == sorted(at)
    assert text.count("waits for 7") == 1
    assert "and 20 more" in text
    views = [log_view("d", n, reason=f"r{n}", state="staged") for n in range(300)]
    page = pages.overview(status_view(), views, [], [], [event()] * 300, NOW_MS)
    assert names(page) == [*(f"d-{n}" for n in range(10)), *["orders-0"] * 10]
    assert "All 300 with their reasons" in Document(page).text


def test_a_job_shows_phase_rate_and_time_left() -> None:
    job = job_view("orders-1", phase="rewrite", eta_s=3.3, bytes_done=30_000_000, bytes_total=40_000_000)
    text = Document(pages.overview(status_view(), [], [job], [], [], NOW_MS)).text
    for expected in ("rewrite", "75 % of", "40.0 MB", "3.0 MB/s", "3.3s"):
        assert expected in text


def test_logs_are_found_sorted_and_paged() -> None:
    views = [log_view("orders", n, size_bytes=n, clean_bytes=n) for n in range(450)] + [
        log_view("users", 0, state="clean", size_bytes=0)
    ]

    def shown(**query: object) -> list[str]:
        return names(pages.logs(views, [], pages.Query(**query), NOW_MS))  # type: ignore[arg-type]

    assert shown(sort="size")[:2] == ["orders-449", "orders-448"]
    assert shown(sort="-size")[0] == "users-0"
    assert shown(sort="nonsense")[0] == "orders-0"
    assert shown(q="users") == shown(q="users-*") == shown(state="clean") == ["users-0"]
    assert [len(shown(page=page)) for page in (1, 2, 3, 99)] == [200, 200, 51, 51]
    page = pages.logs(views, [], pages.Query(q="orders", sort="-size", page=2), NOW_MS)
    links = [dict(parse_qsl(urlsplit(a["href"]).query)) for a in Document(page).all("a") if "rel" in a]
    assert links == [{"q": "orders", "sort": "-size"}, {"q": "orders", "sort": "-size", "page": "3"}]


def test_a_bar_is_as_long_as_its_parts() -> None:
    bar = pages.bar_of([log_view(), log_view(clean_bytes=0)])
    assert bar is not None
    assert [(part.kind, part.bytes) for part in bar.parts] == [
        ("clean", 300), ("dirty", 400), ("not-yet", 200), ("active", 800),
    ]  # fmt: skip
    assert bar.parts[-1].x + bar.parts[-1].width == pytest.approx(1000, abs=0.1)
    assert bar.label == "clean 300 B, dirty 400 B, not yet 200 B, active 800 B"
    assert pages.bar_of([log_view(clean_bytes=None)]) is None


def test_an_age_is_one_number() -> None:
    minute = 60_000
    assert [age(NOW_MS - ms, NOW_MS) for ms in (400, 5000, 90 * minute, 50 * 60 * minute, -3 * minute)] == [
        "0s", "5s", "1h", "2d", "in 3m",
    ]  # fmt: skip
