"""Layers to one frozen configuration: precedence, validation, synonyms. Pure: what was read is handed in.

Precedence of a broker key, highest first (rule 7.22 with cleanerd's own layers around it):

1. command line (`--set`)
2. metadata log, BROKER record of this node; 3. metadata log, BROKER record "" (dynamic keys only)
4. environment, but for `KAFKA_LOG_DIR` where the config file names log directories: many images keep the directory of the
   application logs in that variable
5. config file
6. default

Precedence of a topic key (spec disk F4):

1. command line (`--topic-set`)
2. topic file
3. metadata log, TOPIC record
4. the first broker synonym that any of the layers above sets
5. default

Validation is whole: every problem of every layer and topic is collected, and any makes a `BadConfiguration`.
As in Kafka, a value that a higher layer replaces is not looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cleanerd.config.keys import (
    BROKER_KEYS,
    MS_PER_UNIT,
    POLICY,
    SPARK_CONF_PREFIX,
    TOPIC_KEYS,
    BrokerKey,
    Scope,
    TopicKey,
    broker_key,
)
from cleanerd.config.model import CleanerdConfig, KraftMetadata, Layer, Origin, Setting, TopicConfig
from cleanerd.config.sources import Sources, Text, Texts
from cleanerd.config.values import Check, ParseError, Value
from cleanerd.errors import BadConfiguration

MIN_DEDUPE_BYTES_PER_THREAD = 1_048_576
DEFAULT = Origin(Layer.DEFAULT)
DEDUPE = "dedupe"
"""What `compact` was called at first."""
_LOG_DIRS = ("log.dirs", "log.dir")
Settings = Mapping[str, Setting]
_BROKER_RETENTION = Check(
    "-1 or a number ≥ 1", lambda value: value == -1 or (isinstance(value, int) and value >= 1)
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that is configured, resolved and valid."""

    broker: CleanerdConfig
    broker_settings: Settings = field(repr=False)
    metadata: KraftMetadata | None = field(repr=False)  # None: no cluster says anything about topics
    _sources: Sources = field(repr=False)
    _broker_texts: Texts = field(repr=False)  # that `broker_settings` are parsed from
    _topic_defaults: Settings = field(repr=False)
    _topics: Mapping[str, Texts] = field(repr=False)
    _resolved: dict[str, TopicConfig] = field(default_factory=dict, repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is valid, but perhaps not what its writer wants."""
        found = [*self._sources.warnings, *self._conflicts(), *self._old_names()]
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
            if holds in (variable, written) and not _is_same(name, variable, written):
                yield (
                    f"{variable.origin.detail} in the environment is {variable.text}, but {key} is {written.text} "
                    f"({written.origin}): the {holds.origin.layer.value} holds"
                )

    def _old_names(self) -> Iterator[str]:
        policies = [self._broker_texts.get("log.cleanup.policy")]
        policies += [texts.get("cleanup.policy") for texts in self._topics.values()]
        for text in policies:
            if text is not None and DEDUPE in text.text.replace(",", " ").split():
                yield f"cleanup.policy: {DEDUPE} is an old name of compact ({text.origin})"

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have values of their own."""
        return frozenset(topic for topic, texts in self._topics.items() if texts)

    def own_texts(self, topic: str) -> dict[str, str]:
        """Values that were written for just this topic, by key."""
        return {key: text.text for key, text in self._topics.get(topic, {}).items()}

    def with_metadata(self, metadata: KraftMetadata | None) -> "Configuration":
        """What the same other layers say beside this metadata log. Raises `BadConfiguration`."""
        return resolve(self._sources, metadata)

    def with_mutes(self, muted: Mapping[str, float | None]) -> "Configuration":
        """The same with these topics muted (`Sources.muted`)."""
        return resolve(replace(self._sources, muted=muted), self.metadata)

    def topic(self, topic: str) -> TopicConfig:
        """Values of one topic, also of one that no layer mentions."""
        known = self._resolved.get(topic)
        if known is None:
            known = self._resolved[topic] = self._resolve(topic)
        return known

    def _resolve(self, topic: str) -> TopicConfig:
        settings = self.topic_settings(topic)
        values: dict[str, Any] = {
            key.field: settings[name].value
            for name, key in TOPIC_KEYS.items()
            if key.field and name in settings
        }
        if "internal.segment.bytes" in settings:
            values["segment_bytes"] = settings["internal.segment.bytes"].value
        brokers = settings["min.cleanable.dirty.ratio"].value
        if topic in self._sources.muted and "cleanerd.min.cleanable.dirty.ratio" not in settings:
            default = self._topic_defaults["min.cleanable.dirty.ratio"].value
            prior = self._sources.muted[topic]
            values["min_cleanable_dirty_ratio"] = default if prior is None else prior
        return TopicConfig(broker_min_cleanable_dirty_ratio=brokers, **values)

    def topic_settings(self, topic: str) -> Settings:
        """Values of one topic by key, with their origins."""
        problems: list[str] = []
        settings = _topic_settings(topic, self._topics.get(topic, {}), self._topic_defaults, problems)
        assert not problems, "resolve() validated every topic that is mentioned"
        return settings


def resolve(sources: Sources, metadata: KraftMetadata | None = None) -> Configuration:
    """Resolve all layers. Raises `BadConfiguration` with every problem found."""
    configuration, problems = examine(sources, metadata)
    if problems:
        raise BadConfiguration(problems)
    return configuration


def examine(sources: Sources, metadata: KraftMetadata | None = None) -> tuple[Configuration, list[str]]:
    """Resolve all layers as far as they go: every problem, and what holds if bad values were not there.

    With a problem, the configuration is good for nothing but looking for more of them.
    """
    problems = list(sources.problems)
    broker_texts = _broker_texts(sources, metadata)
    broker = _broker_settings(broker_texts, problems)
    defaults = _topic_defaults(broker, problems)
    topics = _topic_texts(sources, metadata)
    for topic, texts in topics.items():
        _topic_settings(topic, texts, defaults, problems)
    values = _cleanerd_config(broker)
    return Configuration(values, broker, metadata, sources, broker_texts, defaults, topics), problems


def _merged(*layers: Texts) -> dict[str, Text]:
    """Layers, highest precedence first, as one."""
    merged: dict[str, Text] = {}
    for layer in reversed(layers):
        merged |= layer
    return merged


def _broker_texts(sources: Sources, metadata: KraftMetadata | None) -> Texts:
    """The texts that hold."""
    environment = dict(sources.environment)
    if not sources.config_file.keys().isdisjoint(_LOG_DIRS):
        environment.pop("log.dir", None)
    static = _merged(environment, sources.config_file)
    dynamic = _dynamic_texts(metadata, _merged(sources.command_line, static)) if metadata else {}
    return _merged(sources.command_line, dynamic, static)


def _broker_settings(texts: Texts, problems: list[str]) -> Settings:
    settings = {
        name: Setting(key.default, DEFAULT) for name, key in BROKER_KEYS.items() if key.default is not None
    }
    for name, text in texts.items():
        key = broker_key(name)
        assert key is not None, "sources name known keys only"
        setting = _parse(key, text, "", problems)
        if setting is not None:
            settings[name] = setting
    _check_dedupe_buffer(settings, problems)
    return settings


def _dynamic_texts(metadata: KraftMetadata, static: Texts) -> dict[str, Text]:
    """BROKER records that concern this node; keys outside the dynamic set have no effect (rule 7.21)."""
    own = [_dynamic_layer(metadata, node_id) for node_id in _node_ids(metadata, static)]
    return _merged(*own, _dynamic_layer(metadata, ""))


def _node_ids(metadata: KraftMetadata, static: Texts) -> list[str]:
    """Id of this node, if known: node.id, else broker.id, else whose directory the metadata log lies in."""
    named = [static[name].text.strip() for name in ("node.id", "broker.id") if name in static]
    found = [str(metadata.node_id)] if metadata.node_id is not None else []
    return (named + found)[:1]


def _dynamic_layer(metadata: KraftMetadata, resource: str) -> dict[str, Text]:
    origin = Origin(Layer.METADATA, f'BROKER "{resource}" in {metadata.directory}')
    records = metadata.broker_configs.get(resource, {})
    dynamic = {name for name, key in BROKER_KEYS.items() if key.scope is Scope.CLUSTER}
    return {name: Text(text, origin) for name, text in records.items() if name in dynamic}


def _check_dedupe_buffer(settings: Settings, problems: list[str]) -> None:
    """Rule 8.N1, also when the cleaner is disabled."""
    size, threads = settings["log.cleaner.dedupe.buffer.size"], settings["log.cleaner.threads"]
    if size.value // threads.value <= MIN_DEDUPE_BYTES_PER_THREAD:
        each = f"each of {threads.value} log.cleaner.threads ({threads.origin})"
        expected = f"more than {MIN_DEDUPE_BYTES_PER_THREAD} for {each}"
        problems.append(_problem("log.cleaner.dedupe.buffer.size", expected, size.value, size.origin))


def _topic_defaults(broker: Settings, problems: list[str]) -> dict[str, Setting]:
    """What a topic without values of its own gets (8B), with the conflict check of broker values (8.N3)."""
    found = {name: _topic_default(key, broker, problems) for name, key in TOPIC_KEYS.items()}
    defaults = {name: setting for name, setting in found.items() if setting.value is not None}
    _check_lags(defaults, "", problems)
    return defaults


def _topic_default(key: TopicKey, broker: Settings, problems: list[str]) -> Setting:
    for name in key.synonyms:
        if name in broker and broker[name].origin != DEFAULT:
            return broker[name] if len(key.synonyms) == 1 else _converted(key, name, broker[name], problems)
    return Setting(key.default, DEFAULT)


def _converted(key: TopicKey, synonym: str, setting: Setting, problems: list[str]) -> Setting:
    """A synonym that may be in another unit, in that of the topic key (8.N4)."""
    value, check = setting.value * MS_PER_UNIT[BROKER_KEYS[synonym].unit], key.check
    if key.name == "retention.ms":
        value, check = max(value, -1), _BROKER_RETENTION
    if not check.accepts(value):
        problems.append(_problem(synonym, check.expected, setting.value, setting.origin))
    return Setting(value, setting.origin)


def _topic_texts(sources: Sources, metadata: KraftMetadata | None) -> dict[str, Texts]:
    """Texts of every topic that is mentioned."""
    records = _topic_records(metadata) if metadata else {}
    layers = (sources.command_line_topics, sources.topic_files, records)
    topics = sorted({topic for layer in layers for topic in layer})
    return {topic: _merged(*(layer.get(topic, {}) for layer in layers)) for topic in topics}


def _topic_records(metadata: KraftMetadata) -> dict[str, Texts]:
    """TOPIC records; keys that only a newer Kafka knows have no effect."""
    records: dict[str, Texts] = {}
    for topic, values in metadata.topic_configs.items():
        origin = Origin(Layer.METADATA, f'TOPIC "{topic}" in {metadata.directory}')
        records[topic] = {name: Text(text, origin) for name, text in values.items() if name in TOPIC_KEYS}
    return records


def _topic_settings(topic: str, texts: Texts, defaults: Settings, problems: list[str]) -> Settings:
    where = f"topic {topic}: "
    own = {name: _parse(TOPIC_KEYS[name], text, where, problems) for name, text in texts.items()}
    settings = dict(defaults) | {name: setting for name, setting in own.items() if setting is not None}
    if not {"min.compaction.lag.ms", "max.compaction.lag.ms"}.isdisjoint(own):
        _check_lags(settings, where, problems)
    return settings


def _check_lags(settings: Settings, where: str, problems: list[str]) -> None:
    """Rule 8.N3, C152."""
    _check_order(settings, "min.compaction.lag.ms", "max.compaction.lag.ms", where, problems)


def _check_order(settings: Settings, lower: str, upper: str, where: str, problems: list[str]) -> None:
    low, high = settings[lower], settings[upper]
    if low.value > high.value:
        expected = f"at most {upper}, which is {high.value} ({high.origin})"
        problems.append(where + _problem(lower, expected, low.value, low.origin))


def _parse(key: BrokerKey | TopicKey, text: Text, where: str, problems: list[str]) -> Setting | None:
    """Value of a text; None, and one problem more, where it is not valid."""
    try:
        value = _value(key, text)
        expected = None if key.check.accepts(value) else key.check.expected
    except ParseError as error:
        expected = str(error)
    if expected is None:
        return Setting(value, text.origin)
    problems.append(where + _problem(key.name, expected, text.text, text.origin))
    return None


def _value(key: BrokerKey | TopicKey, text: Text) -> Value:
    """Raises ParseError."""
    value = key.type.parse(text.text)
    if key.check is POLICY and isinstance(value, tuple):
        return tuple("compact" if word == DEDUPE else word for word in value)
    return value


def _is_same(name: str, one: Text, other: Text) -> bool:
    """Whether two texts of a key are one value."""
    try:
        return _value(BROKER_KEYS[name], one) == _value(BROKER_KEYS[name], other)
    except ParseError:
        return one.text == other.text


def _problem(name: str, expected: str, found: object, origin: Origin) -> str:
    return f"{name}: expected {expected}, found {found!r} ({origin})"


def _is_open_cluster(broker: CleanerdConfig) -> bool:
    """Whether Spark's ports answer everyone: of a local session they never do."""
    conf = dict(broker.spark_conf)
    is_cluster = bool(broker.spark_master) and not broker.spark_master.startswith("local")
    is_asked_for = "spark.authenticate.secret" in conf or conf.get("spark.authenticate") == "true"
    return is_cluster and not is_asked_for


def _cleanerd_config(broker: Settings) -> CleanerdConfig:
    log_dirs: tuple[str, ...] = broker.get("log.dirs", broker["log.dir"]).value
    values: dict[str, Any] = {
        key.field: broker[name].value for name, key in BROKER_KEYS.items() if key.field and name in broker
    }
    return CleanerdConfig(
        log_dirs=log_dirs,
        metadata_log_dir=broker["metadata.log.dir"].value if "metadata.log.dir" in broker else log_dirs[0],
        spark_conf=tuple(
            (name.removeprefix(SPARK_CONF_PREFIX), setting.value)
            for name, setting in sorted(broker.items())
            if name.startswith(SPARK_CONF_PREFIX)
        ),
        log_cleaner_threads_is_set=broker["log.cleaner.threads"].origin != DEFAULT,
        **values,
    )
