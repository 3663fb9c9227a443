"""From one configuration to the next while the daemon runs: what changes, and whether it may. Pure.

A reload is all or nothing (7.19, 7.21): one key that may not change refuses the whole update, every such key
by name. `resolve` checks each value for itself; here are the checks that need two configurations:

* keys of scope `STATIC` keep their value until a restart (7.21);
* a number of cleaner threads that was set at most doubles, and at least halves (7.19, D20). Values out
  of the metadata log are not asked: the cluster accepted each of them, and several may come at once;
* a metadata log that was there must be there. Without it every topic would fall back to the policy delete;
* so must the topic files: a directory that is not mounted for a moment is not the wish to have its topics deleted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cleanerd.config.keys import broker_key, is_secret
from cleanerd.config.load import Configuration, SettingsByKey
from cleanerd.config.settings import Layer, Scope, Setting
from cleanerd.errors import BadConfiguration
from cleanerd.units import first_of

THREADS = "log.cleaner.threads"
CLEANER_KEYS = (
    THREADS,
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
)
"""Those of the seven of rule 7.18 that have an effect."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed key with its setting before and after; None if unset."""

    key: str
    old: Setting | None
    new: Setting | None

    def __str__(self) -> str:
        if is_secret(self.key):
            return f"{self.key}: changed"
        return f"{self.key}: {_text(self.old)} -> {_text(self.new)}"


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The effects of an accepted update.

    `topics` holds the topics with values of their own, before or after, whose effective values
    change. `compact_removed` are topics that lose compaction through an update of
    their own: cleaning of their logs is aborted (2.8); a changed default aborts nothing. `topic_ids` are
    the names whose id appeared, vanished or became another.
    """

    old: Configuration = field(repr=False)
    new: Configuration = field(repr=False)
    changes: tuple[Change, ...]
    topics: Mapping[str, tuple[Change, ...]]
    compact_removed: frozenset[str]
    topic_ids: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether all effective values stay."""
        return not (self.changes or self.topics or self.topic_ids)

    @property
    def needs_workers(self) -> bool:
        """Whether all workers stop and start again, which revives dead ones too (7.18, C150)."""
        return self.touches(*CLEANER_KEYS)

    def touches(self, *keys: str) -> bool:
        """Whether one of these broker keys changes."""
        return any(change.key in keys for change in self.changes)


def plan_reload(old: Configuration, new: Configuration) -> ReloadPlan:
    """Compare `new` with the configuration in force. Raises `BadConfiguration` with every reason against it."""
    changes = tuple(_changes(old.broker_settings, new.broker_settings))
    problems = [*_static(changes), *_threads(changes), *_vanished(old, new)]
    if problems:
        raise BadConfiguration(problems)
    topics = _topics(old, new, defaults_changed=bool(changes))
    removed = frozenset(topic for topic in topics if _loses_compaction(topic, old, new))
    return ReloadPlan(old, new, changes, topics, removed, _topic_ids(old, new))


def _changes(old: SettingsByKey, new: SettingsByKey) -> Iterator[Change]:
    for key in sorted(old.keys() | new.keys()):
        change = Change(key, old.get(key), new.get(key))
        # a default number may become a chosen one that is the same, or the other way round
        is_chosen_anew = key == THREADS and _is_set(change.old) != _is_set(change.new)
        if is_chosen_anew or _value(change.old) != _value(change.new):
            yield change


def _is_set(setting: Setting | None) -> bool:
    return setting is not None and setting.origin.layer is not Layer.DEFAULT


def _value(setting: Setting | None) -> object:
    return setting.value if setting else None


def _text(setting: Setting | None) -> str:
    return f"{setting.value!r} ({setting.origin})" if setting else "not set"


def _static(changes: Iterable[Change]) -> Iterator[str]:
    for change in changes:
        key = broker_key(change.key)
        if key is None or key.scope is Scope.STATIC:
            found = f"expected {_text(change.old)} until a restart, found {_text(change.new)}"
            yield f"{change.key}: cannot be updated dynamically: {found}"


def _threads(changes: Iterable[Change]) -> Iterator[str]:
    """Rule 7.19."""
    for key, old, new in ((change.key, change.old, change.new) for change in changes):
        if key != THREADS or not old or not new or not (_is_set(old) and _is_set(new)):
            continue
        low, high = max(1, old.value // 2), 2 * old.value
        if new.origin.layer is not Layer.METADATA and not low <= new.value <= high:
            yield f"{key}: expected {low} to {high} while it is {old.value}, found {_text(new)}"


def _vanished(old: Configuration, new: Configuration) -> Iterator[str]:
    if old.metadata and old.has_metadata_log and not new.has_metadata_log:
        yield f"{old.metadata.directory}: expected the cluster's metadata log, found none"
    gone = sorted(old.topic_files - new.topic_files)
    if gone:
        yield (
            f"{first_of(gone, 1)}: expected the topic file, which was there before, found none: its settings stay in force; "
            "to end that, leave an empty file there, or restart cleanerd"
        )


def _topics(
    old: Configuration, new: Configuration, *, defaults_changed: bool
) -> dict[str, tuple[Change, ...]]:
    candidates = sorted(old.topics | new.topics)
    found = {
        topic: tuple(_changes(old.topic_settings(topic), new.topic_settings(topic)))
        for topic in candidates
        if defaults_changed or old.own_texts(topic) != new.own_texts(topic)
    }
    return {
        topic: changes
        for topic, changes in found.items()
        if changes or old.unusable.get(topic) != new.unusable.get(topic)
    }


def _loses_compaction(topic: str, old: Configuration, new: Configuration) -> bool:
    own = "cleanup.policy" in old.own_texts(topic) | new.own_texts(topic)
    return own and old.topic(topic).compact and not new.topic(topic).compact


def _topic_ids(old: Configuration, new: Configuration) -> frozenset[str]:
    before = old.metadata.topic_ids if old.metadata else {}
    after = new.metadata.topic_ids if new.metadata else {}
    return frozenset(topic for topic, _ in before.items() ^ after.items())
