"""What a broker has answered about its topics: how long it holds, and what of it."""

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cleanerd.broker_agent.live_logs import LiveLog
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.sources import read_sources
from cleanerd.daemon.store import Store
from cleanerd.daemon.work.topic_answers import ClusterChanges, TopicAnswers
from cleanerd.env.files import RealFiles
from cleanerd.format.names import LOCK, META_PROPERTIES, REPLICATION_CHECKPOINT, TopicPartition
from cleanerd.format.uuid_text import render_uuid
from cleanerd.storage.metadata_tail import MetadataTail
from cleanerd.storage.topic_id import LiveIdentity
from tests.harness.clock import HandClock
from tests.harness.logs.troubled import lock_of_another

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
MINUTE_MS = 60_000
Topics = dict[str, tuple[uuid.UUID | None, dict[str, str]]]


class Broker:
    """Answers in place of an agent: the topics that it has, None for no answer."""

    def __init__(self) -> None:
        self.topics: Topics | None = {"orders": (A, {"cleanup.policy": "compact"})}

    def describe_if_live(self, log_dir: str, wanted: Iterable[TopicPartition]) -> tuple[LiveLog, ...] | None:
        if self.topics is None:
            return None
        return tuple(live_log(tp, *self.topics[tp.topic]) for tp in wanted if tp.topic in self.topics)


def live_log(tp: TopicPartition, topic_id: uuid.UUID | None, own: dict[str, str]) -> LiveLog:
    values = {"cleanup.policy": "delete", "retention.ms": "1000", "delete.retention.ms": "5000", **own}
    text = None if topic_id is None else render_uuid(topic_id)
    return LiveLog(
        tp, str(tp), LiveIdentity(1, text), False, (), 0, 0, 0, 0, 0, None, None, values, frozenset(own)
    )


class Place:
    """A log directory of a broker with two logs, the history of a daemon, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.log_dir = root, root / "logs"
        for topic in ("orders", "plain"):
            (self.log_dir / f"{topic}-0").mkdir(parents=True)
        (self.log_dir / META_PROPERTIES).write_text("version=0\nbroker.id=1\n")
        self.clock, self.broker = HandClock(), Broker()
        self.restart()

    def restart(self) -> None:
        """Of the daemon."""
        store = Store(str(self.root / "history.sqlite"))
        self.answers = TopicAnswers(store, RealFiles(), self.clock, [str(self.log_dir)])

    def ask(self) -> ClusterMetadata | None:
        self.answers.ask(self.broker)  # type: ignore[arg-type]
        return self.answers.held

    def held(self) -> set[str]:
        held = self.ask()
        return set() if held is None else set(held.topic_ids)

    def broker_writes(self) -> None:
        """As it does every few seconds as long as it lives."""
        path = self.log_dir / REPLICATION_CHECKPOINT
        path.write_text("0\n0\n")
        os.utime(path, ns=(self.clock.now_ms() * 10**6,) * 2)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_answer_has_the_topics_own_values_and_the_brokers(place: Place) -> None:
    found = place.ask()
    assert found == ClusterMetadata(
        {"orders": A},
        {"orders": {"cleanup.policy": "compact"}},
        {"": {"log.retention.ms": "1000", "log.cleaner.delete.retention.ms": "5000"}},
        is_whole=False,
    )


def test_it_outlives_the_broker_and_the_daemon(place: Place) -> None:
    """However long the broker is down: nobody has told it of anything else."""
    answered = place.ask()
    place.clock.advance(MINUTE_MS - 1)
    place.broker_writes()  # its last
    place.broker.topics = None
    place.clock.advance(100 * MINUTE_MS)
    assert place.ask() == answered
    place.restart()
    assert place.answers.held == answered == place.ask()


def test_what_a_broker_may_have_learned_since_makes_it_void(place: Place) -> None:
    """It was at work, and the daemon was not, or could not ask."""
    place.ask()
    place.broker.topics = None
    place.clock.advance(MINUTE_MS + 1)
    place.broker_writes()
    assert place.held() == set()
    place.restart()
    assert place.held() == set()
    place.broker.topics = {"orders": (A, {"cleanup.policy": "delete"})}
    found = place.ask()
    assert found is not None
    assert found.topic_configs == {"orders": {"cleanup.policy": "delete"}}


def test_a_broker_that_starts_has_time_to_answer(place: Place) -> None:
    """Results that wait for it are not dropped meanwhile; but once it has ended, what it did counts."""
    place.ask()
    place.broker.topics = None
    with lock_of_another(place.log_dir / LOCK):
        place.clock.advance(2 * MINUTE_MS)
        place.broker_writes()
        assert place.held() == {"orders"}
    assert place.held() == set()
    with lock_of_another(place.log_dir / LOCK):
        place.clock.advance(2 * MINUTE_MS)
        assert place.held() == set()


def test_answers_that_repeat_themselves_are_kept_as_recent(place: Place) -> None:
    for _ in range(20):
        place.ask()
        place.clock.advance(MINUTE_MS // 4)
    place.broker_writes()
    place.broker.topics = None
    place.restart()
    assert place.held() == {"orders"}


def test_a_topic_that_is_missing_in_an_answer_holds_for_a_while(place: Place) -> None:
    """Its broker may not have opened its log yet; but it does not become recent with the others."""
    place.broker.topics = {"orders": (A, {}), "plain": (B, {})}
    assert place.held() == {"orders", "plain"}
    place.broker.topics = {"orders": (A, {})}
    for _ in range(3):
        place.clock.advance(MINUTE_MS // 4)
        place.broker_writes()
        assert place.held() == {"orders", "plain"}
    place.clock.advance(MINUTE_MS // 2)
    place.broker_writes()
    assert place.held() == {"orders"}
    place.broker.topics = None
    place.restart()
    assert place.held() == {"orders"}


@pytest.mark.parametrize("state", [{}, {"ids": []}, {"ids": {"a": "x"}, "own": {}, "broker": {}}], ids=str)
def test_what_another_version_kept_is_no_answer(place: Place, state: dict[str, Any]) -> None:
    store = Store(str(place.root / "history.sqlite"))
    store.put("answer", "topics", state)
    store.put("answered", "topics", {"a": 1})
    store.close()
    place.restart()
    assert place.answers.held is None


def test_there_is_news_until_it_is_taken_in(place: Place) -> None:
    asked, is_able, current = 0, False, [resolve(read_sources())]
    changes = changes_of(place, current, lambda: adopt())

    def adopt() -> bool:
        nonlocal asked
        asked += 1
        if is_able:
            current.append(current[-1].with_metadata(place.answers.held))
        return is_able

    for own in ({"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}):
        place.broker.topics = {"orders": (A, own)}
        asked, is_able = 0, False
        assert [changes.take_in(), changes.take_in()] == [False, False]
        is_able = True
        assert [changes.take_in(), changes.take_in()] == [True, True]
        assert asked == 3
        assert current[-1].topic("orders").cleanup_policy == (own["cleanup.policy"],)
    place.broker.topics = None
    assert changes.take_in()
    assert asked == 3


def changes_of(place: Place, current: list[Configuration], adopt: Callable[[], bool]) -> ClusterChanges:
    broker: Any = place.broker
    return ClusterChanges(MetadataTail(RealFiles(), []), place.answers, broker, lambda: current[-1], adopt)


def test_an_agent_that_answers_nonsense_ends_no_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(log_dir: str, wanted: Sequence[TopicPartition]) -> None:
        raise KeyError(log_dir)

    place.ask()
    monkeypatch.setattr(place.broker, "describe_if_live", describe)
    current = resolve(read_sources()).with_metadata(place.answers.held)
    assert changes_of(place, [current], lambda: pytest.fail("there is no news")).take_in()
