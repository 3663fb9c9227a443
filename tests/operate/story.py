"""What a daemon goes through from its start on, so that everything which cleaning counts has something to count.

Log directory `a` is that of cooperating writers, with two dirty logs and one that is damaged. `b` is a broker's that lives,
to begin with.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanerd.daemon.telemetry import metric_table as table
from tests.harness.daemon.processes import DaemonProcess, running, wait_until
from tests.harness.daemon.scrape import Scrape, get, parse
from tests.harness.logs.troubled import lock_of_another, segment, write_logs

SLOW = 40_000
"""Bytes a second: the first job takes some seconds, and its worker waits for most of them."""

TOPICS = ("first", "second", "bad", "held")

MOVED_BY_STORY = (
    table.WORKERS, table.CLEANINGS, table.CLEANING_ERRORS, table.CLEANING_SECONDS, table.COMMITS, table.LAST_CLEAN,
    table.PHASE_SECONDS, table.READ_BYTES, table.WRITTEN_BYTES, table.RECORDS_READ, table.RECORDS_REMOVED,
    table.SEGMENTS_REPLACED, table.RECLAIMED_BYTES, table.THROTTLE_SECONDS, table.IO_LIMIT, table.UNCLEANABLE_BYTES,
    table.STAGED_BYTES, table.DEDUPE_RATIO, table.SESSION_UP, table.ENGINE_STARTS, table.CONTROL_REQUESTS,
    table.CONTROL_SECONDS, table.PARTITION_CLEANED, table.PARTITION_RATIO, table.CONFIG_RELOADS,
)  # fmt: skip


@dataclass
class Story:
    """A daemon and what it said of itself along the way."""

    daemon: DaemonProcess
    address: str
    a: Path
    b: Path
    stop_broker: Callable[[], None]
    scrapes: dict[str, Scrape] = field(default_factory=dict)
    states_of_workers: set[str] = field(default_factory=set)

    def scrape(self) -> Scrape:
        status, _, text = get(self.address)
        assert status == 200, text
        return parse(text)

    def keep(self, name: str) -> Scrape:
        self.scrapes[name] = self.scrape()
        return self.scrapes[name]

    def wait_for(self, at_least: float, name: str, **labels: str) -> None:
        """Until the sum of some series has come so far."""
        wait_until(lambda: self._look().total(name, **labels) >= at_least, 90, self.daemon.output)

    def _look(self) -> Scrape:
        scrape = self.scrape()
        for (_, labels), count in scrape.of("cleanerd_workers"):
            self.states_of_workers |= {dict(labels)["state"]} if count else set()
        return scrape


@contextmanager
def begun(place: Path) -> Iterator[Story]:
    """A daemon that has nothing to do yet; it ends with the context."""
    a, b = place / "a", place / "b"
    a.mkdir()
    write_logs(b, "held").joinpath("held-0").rename(place / "held-0")
    settings: dict[str, Any] = {
        "log_cleaner_threads": 1,
        "cleanerd_metrics_listen": "127.0.0.1:0",
        "cleanerd_metrics_per_partition_topics": "first",
        "log_cleaner_io_max_bytes_per_second": SLOW,
        "cleanerd_throttle_request_queue_max_ms": 60_000,  # never too much, but shown
    }
    with ExitStack() as broker:
        broker.enter_context(lock_of_another(b / ".lock"))
        with running(place / "d", a, b, topics=dict.fromkeys(TOPICS, "compact"), **settings) as daemon:
            (address,) = (e["address"] for e in daemon.events() if e["event"] == "metrics_listening")
            yield Story(daemon, address, a, b, broker.close)


def tell(story: Story) -> None:
    """Cleanings, errors, a result that waits for the broker to stop, reloads of all kinds, requests."""
    daemon, a, b = story.daemon, str(story.a), str(story.b)
    story.keep("begun")
    _write_logs(story)
    story.wait_for(2, "cleanerd_cleanings_total", log_dir=a, outcome="committed")
    story.wait_for(1, "cleanerd_partitions", log_dir=a, state="uncleanable")
    story.wait_for(1, "cleanerd_cleanings_total", log_dir=b, outcome="staged")
    story.wait_for(1, "cleanerd_partitions", log_dir=b, state="staged")
    story.keep("cleaned")
    daemon.configure(log_cleaner_threads=2, log_cleaner_io_max_bytes_per_second=1e6)
    story.wait_for(1, "cleanerd_config_reloads_total", outcome="accepted")
    story.wait_for(3, "cleanerd_workers")
    daemon.configure(cleanerd_retry_max=-1)
    story.wait_for(1, "cleanerd_config_reloads_total", outcome="rejected")
    daemon.configure(cleanerd_retry_max=3)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: story.scrape().total("cleanerd_config_last_reload_successful") == 1, 20, daemon.output)
    daemon.ctl("log", "nothing-0", check=False)
    daemon.ask("clean", "first-0", "--force", "--wait")
    daemon.ask("pause", "second", "--owner", "test", "--reason", "to be seen")
    for _ in range(4):
        daemon.ask("status")
    story.stop_broker()
    story.wait_for(1, "cleanerd_staged_commits_total", log_dir=str(story.b), outcome="committed")
    story.wait_for(1, "cleanerd_partitions", log_dir=str(story.b), state="clean")
    story.keep("ended")


def _write_logs(story: Story) -> None:
    """They appear whole: the damaged one must not be cleaned before it is damaged."""
    place = story.a.parent
    made = write_logs(place / "made", "first", "second", "bad")
    file = segment(made / "bad-0", 1)
    content = file.read_bytes()
    file.write_bytes(content[:-5] + b"\xff" + content[-4:])
    for topic in ("first", "second", "bad"):
        (made / f"{topic}-0").rename(story.a / f"{topic}-0")
    (place / "held-0").rename(story.b / "held-0")
