"""Layers to one frozen configuration: precedence, validation, synonyms. Pure: what was read is handed in.

Precedence of a broker key, highest first (rule 7.22 with cleanerd's own layers around it):

1. command line (`--set`)
2. metadata log, BROKER record of this node; 3. metadata log, BROKER record "" (dynamic keys only), or, where there is no
   metadata log, what the broker answers that holds for topics without values of their own
4. environment, but for `KAFKA_LOG_DIR` where the config file names log directories: many images keep the directory of the
   application logs in that variable
5. config file
6. default

Precedence of a topic key (spec disk F4):

1. command line (`--topic-set`)
2. topic file
3. metadata log, TOPIC record; where there is no metadata log, what the broker answers
4. the first broker synonym that any of the layers above sets
5. default

Validation is whole: every problem of every layer and topic is collected, and any makes a `BadConfiguration`.
As in Kafka, a value that a higher layer replaces is not looked at. What the cluster has of one topic is that topic's trouble
alone: a value that is not valid (an earlier Kafka took it, or a later one does) has the topic left alone, or, where nothing
depends on its key, no effect.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from cleanerd.config.keys import BROKER_KEYS, MS_PER_UNIT, TOPIC_KEYS
from cleanerd.config.model import DEDUPE, CleanerdConfig, ClusterMetadata, TopicConfig, TopicDefaults
from cleanerd.config.settings import (
    DEFAULT,
    Key,
    Layer,
    Origin,
    Scope,
    Setting,
    Settings,
    Text,
    Texts,
    declared_keys,
)
from cleanerd.config.sources import Sources, environment_variable, identities, topic_path
from cleanerd.config.values import Check, ParseError
from cleanerd.errors import BadConfiguration

MIN_DEDUPE_BYTES_PER_THREAD = 1_048_576
_LOG_DIRS = ("log.dirs", "log.dir")
_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_RETENTION = ("retention.ms", "retention.bytes")
_CLUSTER = (Layer.METADATA, Layer.BROKER)
_PRODUCERS_EXPIRE_ALONE = (3, 4)
"""From this release on by a key of their own, `producer.id.expiration.ms` (KIP-854)."""
SettingsByKey = Mapping[str, Setting]
Layers = ChainMap[str, Text]
"""Texts by key; `maps` are the layers, highest precedence first."""
_Declared = TypeVar("_Declared", bound=Settings)
_BROKER_RETENTION = Check(
    "-1 or a number ≥ 1", lambda value: value == -1 or (isinstance(value, int) and value >= 1)
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that is configured, resolved and valid."""

    broker: CleanerdConfig
    broker_settings: SettingsByKey = field(repr=False)
    metadata: ClusterMetadata | None = field(repr=False)  # None: no cluster to know topics from
    _sources: Sources = field(repr=False)
    _broker_texts: Texts = field(repr=False)  # that `broker_settings` are parsed from
    _topic_defaults: SettingsByKey = field(repr=False)
    _topics: Mapping[str, Layers] = field(repr=False)
    _resolved: dict[object, TopicConfig] = field(default_factory=dict, repr=False, compare=False)
    unusable: dict[str, str] = field(default_factory=dict, repr=False)
    """Topics of which the cluster has a value that is not valid, with the problem: they have no policy."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about values that are valid but probably not intended."""
        found = [*self._sources.warnings, *self._conflicts(), *self.unread, *self._old_names()]
        found += self.unusable.values()
        if not self.broker.log_cleaner_enable:
            own, brokers = (
                self.broker_settings.get(key) for key in ("cleanerd.log.cleaner.enable", "log.cleaner.enable")
            )
            if own is not None:
                found.append(f"cleaning is off: cleanerd.log.cleaner.enable is false ({own.origin})")
            elif brokers is not None:
                found.append(
                    f"cleaning is off: log.cleaner.enable is false ({brokers.origin}), which holds for cleanerd, too; "
                    "cleanerd.log.cleaner.enable=true makes cleanerd clean all the same"
                )
        if _is_open_cluster(self.broker):
            found.append(
                f"Spark runs unauthenticated: cleanerd.spark.master is {self.broker.spark_master} and no secret is "
                "configured, so anyone who reaches the ports of a job can run code with the rights of cleanerd; set "
                "cleanerd.spark.conf.spark.authenticate.secret to the secret of the cluster"
            )
        return tuple(found)

    def _conflicts(self) -> Iterator[str]:
        """Variables that differ from the config file, where one of the two holds."""
        for name, variable in self._sources.environment.items():
            names = _LOG_DIRS if name in _LOG_DIRS else (name,)
            key = next((one for one in names if one in self._sources.config_file), None)
            if key is None:
                continue
            written = self._sources.config_file[key]
            holds = next(self._broker_texts[one] for one in names if one in self._broker_texts)
            if holds.origin in (variable.origin, written.origin) and not _is_same(name, variable, written):
                yield (
                    f"{variable.origin.detail} in the environment is {variable}, but {key} is {written} "
                    f"({written.origin}): the {holds.origin.layer.value} holds"
                )

    @property
    def unread(self) -> tuple[str, ...]:
        """Variables that set a key for the image of somebody else, where another value holds here."""
        return tuple(
            f"{variable.origin.detail} in the environment is not read: as in Kafka's own image, {key} is set by "
            f"{environment_variable(key)}"
            for key, variable in self._sources.unread.items()
            if key not in self._broker_texts or not _is_same(key, self._broker_texts[key], variable)
        )

    def _old_names(self) -> Iterator[str]:
        policies = [self._broker_texts.get("log.cleanup.policy")]
        policies += [texts.get("cleanup.policy") for texts in self._topics.values()]
        for text in policies:
            if text is not None and DEDUPE in text.replace(",", " ").split():
                yield f"cleanup.policy: {DEDUPE} is an old name of compact ({text.origin})"

    @property
    def has_metadata_log(self) -> bool:
        """Whether all existing topics are known; a broker's answer lists only some."""
        return self.metadata is not None and self.metadata.is_whole

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have values of their own."""
        return frozenset(topic for topic, texts in self._topics.items() if texts)

    @property
    def topic_files(self) -> frozenset[str]:
        """Paths of the topic files that were read, also of those that set nothing."""
        sources = self._sources
        return frozenset(
            topic_path(sources.config_path, topic) for topic in sources.topic_files if sources.config_path
        )

    @property
    def changed_files(self) -> frozenset[str]:
        """Paths of config and topic files that have changed, came or went since this was read."""
        then, now = self._sources.identities, identities(self._sources.config_path)
        return frozenset(path for path, *_ in set(then) ^ set(now))

    def own_texts(self, topic: str) -> dict[str, str]:
        """Values that were written for just this topic, by key."""
        return dict(self._topics.get(topic, {}))

    def with_metadata(self, metadata: ClusterMetadata | None) -> "Configuration":
        """This configuration with another metadata log. Raises `BadConfiguration`."""
        return resolve(self._sources, metadata)

    def topic(self, topic: str) -> TopicConfig:
        """Values of one topic, also of one that no layer mentions; a second look costs next to nothing."""
        known = self._resolved.get(topic)
        if known is None:
            known = self._resolved[topic] = self._topic(topic, [])
        return known

    def _topic(self, topic: str, problems: list[str]) -> TopicConfig:
        """Topics of which the same is written share their values."""
        own = self._topics.get(topic, Layers())
        shared = tuple(sorted(own.items()))
        known = self._resolved.get(shared)
        if known is None:
            defaults = {name: setting.value for name, setting in self._topic_defaults.items()}
            layers = (*own.maps, defaults)
            known = _read(TopicConfig, layers, f"topic {topic}: ", problems)
            if not problems:
                self._resolved[shared] = known
        return known.but(cleanup_policy=()) if topic in self.unusable else known

    def topic_origin(self, topic: str, key: str) -> Origin:
        """The origin of a topic's value for a key."""
        own = self._topics.get(topic, Layers())
        return own[key].origin if key in own else self._topic_defaults[key].origin

    def topic_settings(self, topic: str) -> SettingsByKey:
        """Values of one topic by key, with their origins."""
        own, config = self._topics.get(topic, Layers()), self.topic(topic)
        return dict(self._topic_defaults) | {
            name: Setting(getattr(config, TOPIC_KEYS[name].field), text.origin) for name, text in own.items()
        }

    def _check_topics(self, problems: list[str]) -> None:
        for topic, own in self._topics.items():
            found: list[str] = []
            self._topic(topic, found)
            of_cluster = [one for one in found if isinstance(one, Text) and one.origin.layer in _CLUSTER]
            if of_cluster:
                self.unusable[topic] = "; ".join(of_cluster)
            problems += (one for one in found if one not in of_cluster)
            if not found and not own.keys().isdisjoint(_LAGS):
                _check_lags(self.topic_settings(topic), f"topic {topic}: ", problems)


def resolve(sources: Sources, metadata: ClusterMetadata | None = None) -> Configuration:
    """Resolve all layers. Raises `BadConfiguration` with every problem found."""
    configuration, problems = examine(sources, metadata)
    if problems:
        raise BadConfiguration(problems)
    return configuration


def examine(sources: Sources, metadata: ClusterMetadata | None = None) -> tuple[Configuration, list[str]]:
    """Resolve all layers; returns every problem, and the configuration without the invalid values.

    If there is a problem, the configuration may only be used to look for further problems.
    """
    problems = list(sources.problems)
    layers = _broker_layers(sources, metadata)
    broker = _read(CleanerdConfig, layers.maps, "", problems)
    defaults = _read(TopicDefaults, layers.maps, "", problems)
    settings = dict(_settings(defaults, layers)) | dict(_settings(broker, layers))
    _check_dedupe_buffer(settings, problems)
    topic_defaults = _topic_defaults(settings, problems)
    topics = _topic_layers(sources, metadata)
    broker = _of_release(broker, metadata)
    found = Configuration(broker, settings, metadata, sources, layers, topic_defaults, topics)
    found._check_topics(problems)
    return found, problems


def _read(
    settings: type[_Declared], layers: Sequence[Mapping[str, Any]], where: str, problems: list[str]
) -> _Declared:
    """Values of the layers; one problem more for each that is not valid, which is left out."""
    try:
        return settings.of(*layers)
    except ValidationError as error:
        names = {key.field: name for name, key in declared_keys(settings).items()}
        bad = {names[str(found["loc"][0])]: found for found in error.errors()}
        for name, found in bad.items():
            text: Text = found["input"]
            problem = where + _problem(name, str(found["ctx"]["error"]), str(text), text.origin)
            problems.append(Text(problem, text.origin))
        return settings.of(*({name: layer[name] for name in layer.keys() - bad} for layer in layers))


def _settings(settings: Settings, layers: Layers) -> Iterator[tuple[str, Setting]]:
    """Effective settings by key, without keys that are not set and have no default."""
    for name, key in declared_keys(type(settings)).items():
        value = getattr(settings, key.field)
        if name.endswith("*"):
            prefix = name.removesuffix("*")
            yield from ((prefix + one, Setting(text, layers[prefix + one].origin)) for one, text in value)
        elif value is not None:
            is_set = key.field in settings.model_fields_set
            yield name, Setting(value, layers[name].origin if is_set else DEFAULT)


def _broker_layers(sources: Sources, metadata: ClusterMetadata | None) -> Layers:
    environment = dict(sources.environment)
    if not sources.config_file.keys().isdisjoint(_LOG_DIRS):
        environment.pop("log.dir", None)
    static = Layers(dict(sources.command_line), environment, dict(sources.config_file))
    dynamic = _dynamic_layers(metadata, static) if metadata else ()
    return Layers(static.maps[0], *dynamic, *static.maps[1:])


def _dynamic_layers(metadata: ClusterMetadata, static: Texts) -> Iterator[dict[str, Text]]:
    """BROKER records that concern this node; keys outside the dynamic set have no effect (rule 7.21)."""
    dynamic = {name for name, key in BROKER_KEYS.items() if key.scope is Scope.RELOADABLE}
    if not metadata.is_whole:
        dynamic.difference_update(*(TOPIC_KEYS[name].synonyms for name in _RETENTION))
    for resource in (*_node_ids(metadata, static), ""):
        origin, records = _origin(metadata, f'BROKER "{resource}"'), metadata.broker_configs.get(resource, {})
        yield {name: Text(text, origin) for name, text in records.items() if name in dynamic}


def _node_ids(metadata: ClusterMetadata, static: Texts) -> list[str]:
    """Id of this node, if known: whose directory the metadata log lies in, else node.id, else broker.id."""
    if metadata.node_id is not None:
        return [str(metadata.node_id)]
    return [static[name].strip() for name in ("node.id", "broker.id") if name in static][:1]


def _check_dedupe_buffer(settings: SettingsByKey, problems: list[str]) -> None:
    """Rule 8.N1, also when the cleaner is disabled."""
    size, threads = settings["log.cleaner.dedupe.buffer.size"], settings["log.cleaner.threads"]
    if size.value // threads.value <= MIN_DEDUPE_BYTES_PER_THREAD:
        each = f"each of {threads.value} log.cleaner.threads ({threads.origin})"
        expected = f"more than {MIN_DEDUPE_BYTES_PER_THREAD} for {each}"
        problems.append(_problem("log.cleaner.dedupe.buffer.size", expected, size.value, size.origin))


def _of_release(broker: CleanerdConfig, metadata: ClusterMetadata | None) -> CleanerdConfig:
    """The configuration, with the expiration of idle producers of the broker's release, if that is known (4.17)."""
    if metadata is None or metadata.release is None:
        return broker
    is_own = tuple(map(int, metadata.release.split("."))) >= _PRODUCERS_EXPIRE_ALONE
    expiration_ms = broker.producer_id_expiration_ms if is_own else broker.transactional_id_expiration_ms
    return broker.but(producer_id_expiration_ms=expiration_ms, transactional_id_expiration_ms=expiration_ms)


def _topic_defaults(broker: SettingsByKey, problems: list[str]) -> dict[str, Setting]:
    """The values of a topic without settings of its own (8B), after the conflict check of broker values (8.N3)."""
    found = {name: _topic_default(key, broker, problems) for name, key in TOPIC_KEYS.items()}
    defaults = {name: setting for name, setting in found.items() if setting.value is not None}
    _check_lags(defaults, "", problems)
    return defaults


def _topic_default(key: Key, broker: SettingsByKey, problems: list[str]) -> Setting:
    for name in key.synonyms:
        if name in broker and broker[name].origin != DEFAULT:
            return broker[name] if len(key.synonyms) == 1 else _converted(key, name, broker[name], problems)
    return Setting(key.default, DEFAULT)


def _converted(key: Key, synonym: str, setting: Setting, problems: list[str]) -> Setting:
    """A synonym that may be in another unit, in that of the topic key (8.N4)."""
    value, check = setting.value * MS_PER_UNIT[BROKER_KEYS[synonym].unit], key.check
    if key.name == "retention.ms":
        value, check = max(value, -1), _BROKER_RETENTION
    if check.accepts(value):
        return Setting(value, setting.origin)
    problems.append(_problem(synonym, check.expected, setting.value, setting.origin))
    return Setting(key.default, DEFAULT)


def _topic_layers(sources: Sources, metadata: ClusterMetadata | None) -> dict[str, Layers]:
    records = _topic_records(metadata) if metadata else {}
    layers = (sources.command_line_topics, sources.topic_files, records)
    topics = sorted({topic for layer in layers for topic in layer})
    return {topic: Layers(*(dict(layer[topic]) for layer in layers if topic in layer)) for topic in topics}


def _topic_records(metadata: ClusterMetadata) -> dict[str, Texts]:
    """TOPIC records; keys that only a newer Kafka knows have no effect."""
    records: dict[str, Texts] = {}
    for topic, values in metadata.topic_configs.items():
        origin = _origin(metadata, f'TOPIC "{topic}"')
        records[topic] = {name: Text(text, origin) for name, text in values.items() if name in TOPIC_KEYS}
    return records


def _origin(metadata: ClusterMetadata, record: str) -> Origin:
    if metadata.is_whole:
        return Origin(Layer.METADATA, f"{record} in {metadata.directory}")
    return Origin(Layer.BROKER, record)


def _check_lags(settings: SettingsByKey, where: str, problems: list[str]) -> None:
    """The conflict check of rule 8.N3 (C152). Values that the cluster has accepted are not checked again."""
    lower, upper = _LAGS
    low, high = settings[lower], settings[upper]
    is_of_cluster = not {low.origin.layer, high.origin.layer}.isdisjoint(_CLUSTER)
    if low.value > high.value and not is_of_cluster:
        expected = f"at most {upper}, which is {high.value} ({high.origin})"
        problems.append(where + _problem(lower, expected, low.value, low.origin))


def _is_same(name: str, one: Text, other: Text) -> bool:
    key = BROKER_KEYS[name]
    try:
        found, wanted = key.type.parse(one), key.type.parse(other)
    except ParseError:
        found, wanted = one, other
    return found == wanted


def _problem(name: str, expected: str, found: object, origin: Origin) -> str:
    return f"{name}: expected {expected}, found {found!r} ({origin})"


def _is_open_cluster(broker: CleanerdConfig) -> bool:
    """Whether Spark's ports answer everyone: of a local session they never do."""
    conf = dict(broker.spark_conf)
    is_cluster = bool(broker.spark_master) and not broker.spark_master.startswith("local")
    is_asked_for = "spark.authenticate.secret" in conf or conf.get("spark.authenticate") == "true"
    return is_cluster and not is_asked_for
