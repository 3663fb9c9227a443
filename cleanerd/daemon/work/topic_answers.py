"""A broker's answers about its topics, kept for when it does not answer (architecture 2).

Kept is also when each topic was last in an answer. An answer holds until the broker has lived on for `_UNSEEN_MS` without
repeating it, which its `.lock` and its checkpoint files show: what it has learned since is not known. So it holds as well
while the broker is down, and over a restart of the daemon; but not if the broker was at work while the daemon was not.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.config.load import Configuration
from cleanerd.config.model import ClusterMetadata
from cleanerd.daemon.configuration.answers import ask_brokers
from cleanerd.daemon.store import ANSWER, ANSWERED, Store
from cleanerd.env.clock import Clock
from cleanerd.env.files import Files
from cleanerd.errors import DirOffline, each_log
from cleanerd.format.uuid_text import parse_uuid, render_uuid
from cleanerd.storage.checkpoints import last_written_ms
from cleanerd.storage.lock import other_holder
from cleanerd.storage.metadata_tail import MetadataTail

_UNSEEN_MS = 60_000
_ASKED_AGAIN_MS = 120_000
"""A broker that refused while it started is asked again after a minute. Beside one that lives nothing changes but by itself,
and its agent looks at the policy once more: so its answer may wait for that, and results that are staged as well."""
_JUST_S = 1.0
"""Each log of a job is committed by itself. A policy without compact refuses a live broker's agent, whatever we know."""
_SAVE_TIMES_S = 15.0
_KEY = "topics"
_CONFIGS, _TIMES = TypeAdapter(dict[str, dict[str, str]]), TypeAdapter(dict[str, int])


class TopicAnswers:
    """Kept answers of the broker of log directories without a metadata log; thread-safe."""

    def __init__(self, store: Store, files: Files, clock: Clock, log_dirs: Sequence[str]) -> None:
        self._store = store
        self._files = files
        self._clock = clock
        self.log_dirs = log_dirs
        self._mutex = threading.Lock()
        self._answer = self._saved = store.all(ANSWER, _parsed).get(_KEY)
        self._answered_ms = store.all(ANSWERED, _TIMES.validate_python).get(_KEY, {})  # by topic
        self._times_saved_s = self._asked_s = -math.inf
        self.held = self._holds()
        """The answers in force, as of the last `ask`; None before the first answer."""

    def ask(self, brokers: LiveBrokers, *, quickly: bool = False) -> None:
        """Ask again; `quickly`: not if that was just done. Never raises: an unreadable answer vouches for nothing."""
        with each_log(", ".join(self.log_dirs)), self._mutex:
            asked_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
            if quickly and now_s - self._asked_s < _JUST_S:
                return
            self._asked_s = now_s
            found = None
            try:
                found = ask_brokers(brokers, self._files, self.log_dirs)
                if found is not None:
                    self._take(found, asked_ms)
            finally:
                self.held = self._holds()
            if found is not None:
                self._save()

    def _take(self, found: ClusterMetadata, asked_ms: int) -> None:
        """A topic that is not in it may be one whose log its broker has not opened yet."""
        self._answered_ms |= dict.fromkeys(found.topic_ids, asked_ms)
        before = self._answer
        if before is not None:
            ids = {**before.topic_ids, **found.topic_ids}
            found = replace(
                found, topic_ids=ids, topic_configs={**before.topic_configs, **found.topic_configs}
            )
        self._answer = found

    def _holds(self) -> ClusterMetadata | None:
        if self._answer is None:
            return None
        lived_ms = self._lived_ms()
        ids, configs = self._answer.topic_ids, self._answer.topic_configs
        holds = {topic for topic in ids if lived_ms - self._answered_ms.get(topic, 0) <= _UNSEEN_MS}
        return replace(
            self._answer,
            topic_ids={topic: found for topic, found in ids.items() if topic in holds},
            topic_configs={topic: found for topic, found in configs.items() if topic in holds},
        )

    def _lived_ms(self) -> int:
        """When the broker showed the last sign of life; of one that lives, when it should have answered."""
        if any(map(self._is_owned, self.log_dirs)):
            return self._clock.now_ms() - _ASKED_AGAIN_MS
        return last_written_ms(self._files, self.log_dirs)

    def _is_owned(self, log_dir: str) -> bool:
        try:
            return other_holder(log_dir) is not None
        except DirOffline:
            return False

    def _save(self) -> None:
        """The times behind the answers: a power failure between the two leaves what is taken for older than it is."""
        assert self.held is not None
        self._answer, topics = self.held, self.held.topic_ids
        self._answered_ms = {topic: ms for topic, ms in self._answered_ms.items() if topic in topics}
        now_s = self._clock.monotonic_s()
        if self._answer != self._saved:
            self._store.put(ANSWER, _KEY, _rendered(self._answer))
        if self._answer != self._saved or now_s - self._times_saved_s >= _SAVE_TIMES_S:
            self._store.put(ANSWERED, _KEY, self._answered_ms)
            self._times_saved_s = now_s
        self._saved = self._answer


class ClusterChanges:
    """Changes of the cluster: those in its metadata log or, where there is none, those that the broker reports. Thread-safe.

    `adopt` takes in all that there is; whether it could.
    """

    def __init__(
        self,
        tail: MetadataTail,
        answers: TopicAnswers,
        brokers: LiveBrokers,
        configuration: Callable[[], Configuration],
        adopt: Callable[[], bool],
    ) -> None:
        self._tail = tail
        self._answers = answers
        self._brokers = brokers
        self._configuration = configuration
        self._adopt = adopt
        self._taking_in = threading.Lock()
        self._is_adopted = True

    def take_in(self, *, quickly: bool = False) -> bool:
        """Adopt newer answers; False while they cannot be read, or were rejected. Never raises.

        `quickly`: as `TopicAnswers.ask`.
        """
        with self._taking_in:
            if self._may_have_come(quickly=quickly) or not self._is_adopted:
                self._is_adopted = self._adopt()
            return self._is_adopted

    def _may_have_come(self, *, quickly: bool) -> bool:
        current, answers = self._configuration(), self._answers
        if not current.has_metadata_log:
            answers.ask(self._brokers, quickly=quickly)
            if answers.held != current.metadata:
                return True
        return self._tail.has_changed()


def _rendered(answer: ClusterMetadata) -> dict[str, Any]:
    ids = {topic: None if found is None else render_uuid(found) for topic, found in answer.topic_ids.items()}
    return {"ids": ids, "own": answer.topic_configs, "broker": answer.broker_configs}


def _parsed(state: Mapping[str, Any]) -> ClusterMetadata:
    """Parse an answer. Raises ValueError, TypeError, KeyError if it is none."""
    ids = {topic: None if text is None else parse_uuid(text) for topic, text in dict(state["ids"]).items()}
    own, broker = _CONFIGS.validate_python(state["own"]), _CONFIGS.validate_python(state["broker"])
    return ClusterMetadata(ids, {topic: own[topic] for topic in ids}, broker, is_whole=False)
