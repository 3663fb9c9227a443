"""The status page of a daemon: over HTTP, and as a browser shows it."""

import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from cleanerd.cleaning.outcomes import Committed, Failed
from cleanerd.cleaning.result import LogResult, Size, Statistics
from cleanerd.daemon.api.status_page import StatusPage, landing_page
from cleanerd.daemon.page.html import headers
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.log_id import LogId
from tests.harness.daemon.scrape import get, serving
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import segment
from tests.harness.programs import need

CHROMIUM = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--enable-logging=stderr", "--window-size=1200,1400",
)  # fmt: skip
SCHEMES = {"dark": 0, "light": 1}
PAPER = {"dark": (0x14, 0x18, 0x1A), "light": (0xFB, 0xFB, 0xF9)}


@contextmanager
def served(world: World) -> Iterator[str]:
    world.parts.life.is_ready = True
    with serving(StatusPage(world.control).by_path()) as address:
        yield address
    world.parts.life.is_ready = False  # no thread of it runs


def empty(world: World) -> None:
    """No log at all."""
    for name in ("one", "two", "three"):
        shutil.rmtree(world.a / f"{name}-0")
    world.scan()


def cleaned(world: World, log: LogId, result: LogResult) -> None:
    job = world.parts.jobs.start("schedule", [log])
    world.parts.events.cleaned(job, log, result)
    world.parts.jobs.end(job, [result.outcome.word], result.reason)


def busy(world: World) -> None:
    """A job that runs, results that wait, things that happened."""
    parts, rows = world.parts, list[str]()
    world.add(*(f"topic-{number}" for number in range(12)))
    world.scan()
    for number in range(12):
        log = world.log(f"topic-{number}")
        result = LogResult(
            log.topic_partition, log.log_dir, Committed("lock"), before=Size(9 << 20), after=Size(2 << 20),
            statistics=Statistics(seconds=0.3 * 1.9**number, removed={"superseded": 1000 * number}),
        )  # fmt: skip
        cleaned(world, log, result)
        end = int(segment(Path(log.directory), -1).stem)
        rows.append(f"topic-{number} 0 {end}")
        (world.a / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(rows)), *rows, ""]))
        world.scan()
        world.clock.advance(2_000_000)
    job = parts.jobs.start("schedule", [world.log("one"), world.log("two")])
    parts.jobs.plan(job, world.log("one"), 4_000_000)
    parts.jobs.advance(job, "rewrite", 3_000_000, 1_000_000, 30_000)
    world.clock.advance(5000)
    parts.states.hold(Hold("h1", "topic-1*", "anna", "restore from backup", parts.clock.now_ms(), None), 1)


def broken(world: World) -> None:
    """A log that was given up, a directory that has gone, a configuration that was refused."""
    parts, log = world.parts, world.log("one")
    reason = f"{log.directory}/0.log: at byte 61: <b>bad CRC</b>"
    result = LogResult(log.topic_partition, log.log_dir, Failed(reason))
    for _ in range(3):
        stamp, now_ms = parts.conditions.stamp(log), parts.clock.now_ms()
        parts.failures.failed(log, Failed(reason), stamp, parts.configuration().broker, now_ms)
        cleaned(world, log, result)
    shutil.rmtree(world.b)
    world.configure(cleanerd_retry_max=-1)
    world.scan()


def test_every_page_is_served_with_its_policy_and_starts_no_engine(world: World) -> None:
    paths = ("/", "/logs", "/logs?q=o&sort=-size&page=7", "/log?name=one-0", "/history?range=30d&q=one")
    with served(world) as address:
        for path in paths:
            with urlopen(f"http://{address}{path}", timeout=20) as answer:
                assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
                assert headers().items() <= dict(answer.headers).items()
    assert world.parts.engine.starts == 0


def test_a_history_that_cannot_be_read_is_named(world: World) -> None:
    path = world.root / "history.sqlite"
    with served(world) as address:
        path.rename(path.with_suffix(".away"))
        for page in ("/", "/history"):
            status, _, text = get(address, page)
            assert (status, f"{path}: the history cannot be read" in text) == (503, True)
        assert get(address, "/logs")[0] == 200


def test_the_page_of_a_log_explains_it(world: World) -> None:
    with served(world) as address:
        text = get(address, "/log?name=one-0")[2]
        assert "Will be cleaned as soon as a worker is free" in text
        assert "min.cleanable.dirty.ratio is 0.5" in text
        world.clock.advance(10**9)
        (world.a / "cleaner-offset-checkpoint").write_text(f"0\n1\none 0 {10**6}\n")
        broken(world)
        assert "at byte 61: &lt;b&gt;bad CRC&lt;/b&gt;" in get(address, "/log?name=one-0")[2]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/log?name=on-0", 404, "did you mean one-0?"),
        ("/log?name=..%2F..%2Fetc-0", 404, "like orders-3"),
        ("/log", 404, "like orders-3"),
        ("/?" + "&".join(f"a{n}=1" for n in range(99)), 400, "too much in the query"),
        ("/logs?page=-1", 200, "1 to 3 of 3"),
        ("/logs?page=9e9&state=%00&sort=%ff", 200, "None of the 3 logs matches"),
    ],
)
def test_what_cannot_be_answered_is_told(world: World, path: str, status: int, said: str) -> None:
    with served(world) as address:
        found = get(address, path)
        assert found[0] == status
        assert said in found[2]


def test_without_the_page_there_is_a_way_on() -> None:
    with serving({"/": landing_page}) as address:
        status, _, text = get(address, "/")
        assert status == 200
        assert 'href="/metrics"' in text
        assert get(address, "/logs")[0] == 404


@pytest.mark.soak
@pytest.mark.parametrize(
    ("happens", "said"), [(empty, "No logs yet"), (busy, "restore from backup"), (broken, "bad CRC")]
)
def test_a_browser_shows_it_in_light_and_dark(
    world: World, tmp_path: Path, happens: Callable[[World], None], said: str
) -> None:
    """Without a complaint of its policy; the style applies, which shows in the colour of the paper."""
    chromium = need("chromium", "chromium")
    happens(world)
    with served(world) as address:
        assert said in get(address, "/")[2]
        for scheme, number in SCHEMES.items():
            picture = tmp_path / f"{happens.__name__}-{scheme}.png"
            done = subprocess.run(
                [
                    chromium, *CHROMIUM, f"--user-data-dir={tmp_path / scheme}", f"--screenshot={picture}",
                    f"--blink-settings=preferredColorScheme={number}", f"http://{address}/",
                ],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert picture.exists(), done.stderr[-2000:]
            assert "Content Security Policy" not in done.stderr
            assert first_pixel(picture.read_bytes()) == PAPER[scheme]


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Of an image with 8 bits a channel; no filter changes the first pixel of a row that has no row above."""
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(data)[1:4])
