"""A supervisor in this process, with its reloader and its metrics; no thread of it runs unless a test starts it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.api.control import Control
from cleanerd.daemon.configuration.reload import Reloader, ReloadOutcome, ReloadTrigger
from cleanerd.daemon.parts import Parts
from cleanerd.daemon.store import Store
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import RealFiles
from cleanerd.format.names import META_PROPERTIES, TopicPartition
from tests.harness.clock import HandClock
from tests.harness.daemon.scrape import Scrape, parse
from tests.harness.logs.troubled import META_PROPERTIES as BROKER
from tests.harness.logs.troubled import leave_to_nobody, write_logs


class World:
    """Two log directories: `a` of cooperating writers, with three dirty logs, `b` of a broker, with none."""

    topics: tuple[str, ...] = ("one", "two", "three")

    def __init__(self, root: Path, clock: HandClock | None = None) -> None:
        self.root = root
        self.clock = clock or HandClock()
        self.others = contextlib.ExitStack()  # processes beside this one
        self.a, self.b = root / "a", root / "b"
        self.b.mkdir()
        (self.b / META_PROPERTIES).write_text(BROKER)
        self.add(*self.topics)
        self._file = root / "server.properties"
        self._settings: dict[str, object] = {}
        self._set({"log.dirs": f"{self.a},{self.b}", "log.cleanup.policy": "compact"})
        self._start()

    def restart(self, **settings: object) -> None:
        """The daemon ends, and starts again; with other settings, also such as a reload may not change."""
        self.close()
        self._set(settings)
        self._start()

    def _start(self) -> None:
        self.history = Store(str(self.root / "history.sqlite"))
        self.reloader = Reloader(
            self._load(), self._load, lambda: None, lambda p: self.daemon.apply(p), self.clock
        )
        log_dirs = (str(self.a), str(self.b))
        self.parts = Parts(lambda: self.reloader.current, log_dirs, self.history, RealFiles(), self.clock)
        self.daemon = self.parts.supervisor()
        self.control = Control(self.parts, self.daemon, self.reloader)
        self.parts.metrics.read_with(self.control.scraped.read)
        self.scan()

    def add(self, *topics: str) -> None:
        """Write more dirty logs into `a`."""
        write_logs(self.a, *topics)
        leave_to_nobody(self.a)

    def scan(self) -> None:
        self.daemon.scanner.scan()

    def scrape(self) -> Scrape:
        body, _ = self.parts.metrics.page("")
        return parse(body.decode())

    def configure(self, **settings: object) -> ReloadOutcome:
        """Change the configuration file and have it read; underscores in names stand for dots."""
        self._set(settings)
        return self.control.reload(ReloadTrigger.FILES)

    def configure_topic(self, topic: str, policy: str, **settings: object) -> ReloadOutcome:
        """The same of the file of a topic, by which that of a broker without a metadata log is known."""
        topics = self.root / "topics.d"
        topics.mkdir(exist_ok=True)
        lines = {"cleanup.policy": policy, **{name.replace("_", "."): one for name, one in settings.items()}}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (topics / f"{topic}.properties").write_text(text)
        return self.configure()

    def log(self, topic: str) -> LogId:
        return LogId(str(self.a), TopicPartition(topic, 0))

    def close(self) -> None:
        self.others.close()
        if self.parts.life.is_ready:
            self.daemon.stop()
        else:
            self.history.close()
            self.parts.ownership.release()

    def _set(self, settings: Mapping[str, object]) -> None:
        self._settings |= {name.replace("_", "."): value for name, value in settings.items()}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))

    def _load(self) -> Configuration:
        return resolve(read_sources(str(self._file)))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One as it is."""
    found = World(tmp_path)
    yield found
    found.close()
