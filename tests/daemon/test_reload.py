"""Reloads of the daemon: serialised, all or nothing, with real files; C154."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.reload import ReloadPlan
from cleanerd.config.sources import read_sources
from cleanerd.daemon.configuration.reload import Reloader, ReloadOutcome, ReloadStatus, ReloadTrigger
from cleanerd.env.clock import FixedNow
from cleanerd.errors import DirOffline

COMPACT, DELETE = ({"t": {"cleanup.policy": policy}} for policy in ("compact", "delete"))
TOPIC_ID = UUID(int=7)


def kraft(topics: dict[str, dict[str, str]]) -> ClusterMetadata:
    return ClusterMetadata({"t": TOPIC_ID}, topics, {}, "/m", 1)


@dataclass
class Daemon:
    """A config file, a metadata log that is whatever the test says, and a record of what was applied."""

    path: Path
    metadata: Callable[[], ClusterMetadata | None] = lambda: None
    applied: list[ReloadPlan] = field(default_factory=list)
    refuse: bool = False
    reloader: Reloader = field(init=False)

    def __post_init__(self) -> None:
        clock = FixedNow(1000)
        self.reloader = Reloader(self.load(), self.load, lambda: self.metadata(), self.apply, clock)

    def load(self) -> Configuration:
        return resolve(read_sources(str(self.path)), self.metadata())

    def apply(self, plan: ReloadPlan) -> None:
        assert self.reloader.current is plan.new
        if self.refuse:
            raise OSError(28, "No space left on device")
        self.applied.append(plan)

    def reload(
        self, text: str | None = None, trigger: ReloadTrigger = ReloadTrigger.REQUEST
    ) -> ReloadOutcome:
        if text is not None:
            self.path.write_text(text)
        return self.reloader.reload(trigger)


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.backoff.ms=5\n")
    return Daemon(path)


def test_changes_are_applied_once_and_remembered(daemon: Daemon) -> None:
    """Accepted, then unchanged."""
    assert daemon.reloader.last is None
    outcome = daemon.reload("log.cleaner.backoff.ms=6\n", ReloadTrigger.SIGNAL)
    (plan,) = daemon.applied
    assert outcome == ReloadOutcome(ReloadTrigger.SIGNAL, 1000, ReloadStatus.ACCEPTED, plan)
    assert [str(change) for change in plan.changes] == [
        f"log.cleaner.backoff.ms: 5 (config file: {daemon.path}:1) -> 6 (config file: {daemon.path}:1)"
    ]
    assert daemon.reloader.current.broker.backoff_ms == 6
    outcome = daemon.reload()
    assert outcome == daemon.reloader.last
    assert outcome.status is ReloadStatus.UNCHANGED
    assert len(daemon.applied) == 1


def test_a_comment_or_another_line_is_no_change_but_origins_follow(daemon: Daemon) -> None:
    """`config show --origin` and later messages name the line that is there now."""
    assert daemon.reload("# why\nlog.cleaner.backoff.ms=5\n").status is ReloadStatus.UNCHANGED
    origin = daemon.reloader.current.broker_settings["log.cleaner.backoff.ms"].origin
    assert str(origin) == f"config file: {daemon.path}:2"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("log.cleaner.backoff.ms=6\nlog.cleaner.threads=x\n", 1),  # C154: non-numeric
        ("log.cleaner.backoff.ms=6\nlog.dirs=/b\ncleanerd.state.dir=/s\n", 2),  # C154: not dynamic
        ("log.cleaner.backoff.ms=6\nlog.retention.ms=0\nlog.cleaner.threads=0\ncleanerd.nonsense=1\n", 3),
    ],
)
def test_c154_one_bad_key_refuses_the_whole_update(daemon: Daemon, text: str, count: int) -> None:
    """Nothing of it holds, every problem is named, and the next good file is adopted."""
    before = daemon.reloader.current
    outcome = daemon.reload(text)
    assert outcome.status is ReloadStatus.REJECTED
    assert len(outcome.problems) == count
    assert outcome.plan is None
    assert daemon.reloader.current.broker == before.broker
    assert daemon.applied == []
    assert daemon.reload("log.cleaner.backoff.ms=6\n").status is ReloadStatus.ACCEPTED


def test_c154_a_refused_thread_count_refuses_the_whole_update(daemon: Daemon) -> None:
    """…ReconfigurableValidationFailure."""
    assert daemon.reload("log.cleaner.threads=2\n").status is ReloadStatus.ACCEPTED
    outcome = daemon.reload("log.cleaner.threads=5\nlog.cleaner.backoff.ms=9\n")
    assert outcome.status is ReloadStatus.REJECTED
    assert daemon.reloader.current.broker.log_cleaner_threads == 2
    assert daemon.reloader.current.broker.backoff_ms == 15_000


def test_a_vanished_or_unreadable_file_keeps_the_old(daemon: Daemon) -> None:
    """So does whatever else goes wrong while reading."""
    daemon.path.unlink()
    assert "No such file" in daemon.reload().problems[0]
    daemon.path.write_text("log.cleaner.backoff.ms=5\n")

    def offline() -> ClusterMetadata:
        raise DirOffline("/m: cannot be read: Input/output error")

    daemon.metadata = offline
    outcome = daemon.reload()
    assert outcome.status is ReloadStatus.REJECTED
    assert outcome.problems == ("/m: cannot be read: Input/output error",)
    assert daemon.reloader.current.broker.backoff_ms == 5


@pytest.mark.parametrize("trigger", [ReloadTrigger.FILES, ReloadTrigger.SIGNAL, ReloadTrigger.REQUEST])
def test_topic_files_that_vanish_keep_the_old(daemon: Daemon, trigger: ReloadTrigger) -> None:
    """A directory that is away for a moment says nothing about its topics: all of it holds on, and the reason is told (rule
    A.2). An empty file does say that its topic has no settings of its own."""
    topics = daemon.path.parent / "topics.d"
    topics.mkdir()
    for topic in ("a", "b"):
        (topics / f"{topic}.properties").write_text("cleanup.policy=compact\n")
    assert daemon.reload(trigger=trigger).status is ReloadStatus.ACCEPTED
    aside = topics.rename(topics.with_name("aside"))
    outcome = daemon.reload("log.cleaner.backoff.ms=6\n", trigger)
    told = f"{topics}/a.properties and 1 more: expected the topic file, which was there before, found none: "
    assert outcome.status is ReloadStatus.REJECTED
    assert outcome.problems[0].startswith(told)
    assert daemon.reloader.is_rejected
    current = daemon.reloader.current
    assert (current.topic("a").compact, current.broker.backoff_ms) == (True, 5)
    aside.rename(topics)
    (topics / "b.properties").unlink()
    (problem,) = daemon.reload(trigger=trigger).problems
    assert problem.startswith(f"{topics}/b.properties: expected the topic file, which was there before")
    (topics / "b.properties").touch()
    assert daemon.reload(trigger=trigger).status is ReloadStatus.ACCEPTED
    current = daemon.reloader.current
    assert (current.topic("a").compact, current.topic("b").compact) == (True, False)
    assert daemon.reload(trigger=trigger).status is ReloadStatus.UNCHANGED
    (topics / "b.properties").unlink()
    assert daemon.reload(trigger=trigger).status is ReloadStatus.REJECTED, "who knows what it would say"


def test_what_cannot_be_applied_is_taken_back(daemon: Daemon) -> None:
    """The old configuration is the current one again."""
    daemon.refuse = True
    outcome = daemon.reload("log.cleaner.backoff.ms=6\n")
    assert outcome.status is ReloadStatus.REJECTED
    assert "No space left on device" in outcome.problems[0]
    assert daemon.reloader.current.broker.backoff_ms == 5
    daemon.refuse = False
    assert daemon.reload().status is ReloadStatus.ACCEPTED


@pytest.mark.parametrize("mistake", ["log.cleaner.threads=x\n", "log.dirs=/b\n"])
def test_a_mistake_in_a_file_does_not_hold_up_the_cluster(daemon: Daemon, mistake: str) -> None:
    """A topic that became compacted is compacted, or retention by time would go on eating it."""
    daemon.metadata = lambda: kraft(DELETE)
    daemon.reload()
    daemon.metadata = lambda: kraft(COMPACT)
    outcome = daemon.reload("log.cleaner.backoff.ms=6\n" + mistake)
    assert (outcome.status, len(outcome.problems)) == (ReloadStatus.REJECTED, 1)
    assert outcome.plan is not None
    assert outcome.plan.topics.keys() == {"t"}
    current = daemon.reloader.current
    assert (current.topic("t").compact, current.broker.backoff_ms) == (True, 5)


def test_a_changed_metadata_log_does_not_read_the_files(daemon: Daemon) -> None:
    """They may be half-written at that moment."""
    daemon.path.write_text("log.cleaner.backoff.ms=x\n")
    daemon.metadata = lambda: kraft(COMPACT)
    assert daemon.reload(trigger=ReloadTrigger.METADATA).status is ReloadStatus.ACCEPTED
    assert daemon.reloader.current.topic("t").compact
    assert daemon.applied[0].topic_ids == {"t"}


@pytest.mark.parametrize("trigger", [ReloadTrigger.METADATA, ReloadTrigger.FILES])
def test_a_vanished_metadata_log_keeps_the_topics(daemon: Daemon, trigger: ReloadTrigger) -> None:
    """An unmounted disk must not turn compacted topics into ones that are retained by time."""
    daemon.metadata = lambda: kraft(COMPACT)
    daemon.reload()
    daemon.metadata = lambda: None
    outcome = daemon.reload(trigger=trigger)
    assert outcome.problems == ("/m: expected the cluster's metadata log, found none",)
    assert daemon.reloader.current.topic("t").compact


def test_reloads_are_serialised(daemon: Daemon) -> None:
    """Of many at once each sees a whole world: no two overlap, and the last one leaves what the file says."""
    daemon.path.write_text("log.cleaner.backoff.ms=6\n")
    with ThreadPoolExecutor(8) as pool:
        wait([pool.submit(daemon.reload) for _ in range(8)])
    assert len(daemon.applied) == 1
    assert daemon.reloader.current.broker.backoff_ms == 6


def test_news_of_the_cluster_do_not_hide_a_mistake_in_a_file(daemon: Daemon) -> None:
    """The next start would not come up with it."""
    assert daemon.reload("log.cleaner.threads=x\n", ReloadTrigger.FILES).status is ReloadStatus.REJECTED
    daemon.metadata = lambda: kraft(COMPACT)
    assert daemon.reload(trigger=ReloadTrigger.METADATA).status is ReloadStatus.ACCEPTED
    last = daemon.reloader.last
    assert last is not None
    assert (last.status, last.trigger) == (ReloadStatus.REJECTED, ReloadTrigger.FILES)
    accepted = daemon.reload("log.cleaner.threads=2\n")
    assert accepted.status is ReloadStatus.ACCEPTED
    assert daemon.reloader.last == accepted
