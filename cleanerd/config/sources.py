"""Read the layers that values come from: nothing is parsed or decided here, every text keeps its origin.

===============  ==========================================================================================
layer            form
===============  ==========================================================================================
command line     `--set broker.key=value`, `--topic-set TOPIC:key=value`; the last one of a key wins
environment      `KAFKA_LOG_CLEANER_THREADS` as Kafka's image reads it: `_` for `.`, `__` for `_`, `___` for
                 `-`; cleanerd's own keys as `CLEANERD_CHUNK_BYTES`
config file      Kafka's server.properties (Java properties, Latin-1; the last one of a key wins)
topic files      `topics.d/<topic>.properties` beside the config file
===============  ==========================================================================================

A name that is on no list is an error where the place is cleanerd's own (command line, topic files,
`cleanerd.*`): a mistyped policy must not silently become the default one. In the broker's file and
environment it is ignored. A key that has no effect (`keys.WITHOUT_EFFECT`) is a warning where it is given to
cleanerd itself. A `CLEANERD_` variable is a mistake only where it nearly has one of our names: Kubernetes puts
variables like CLEANERD_SERVICE_HOST into every container beside a service named cleanerd.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import javaproperties

from cleanerd.config.keys import (
    BROKER_KEYS,
    TOPIC_KEYS,
    WITHOUT_EFFECT,
    broker_key,
)
from cleanerd.config.model import TOPIC_NAME
from cleanerd.config.settings import Layer, Origin, Text, Texts

OWN_PREFIX = "cleanerd."
_CLEANER_PREFIX = "log.cleaner."
TOPIC_DIRECTORY = "topics.d"
_PROPERTIES = ".properties"
_TOPIC_NAME = re.compile(TOPIC_NAME)
_NEARLY = 0.85
_OF_OTHER_IMAGES = {
    "": 3,
    "BROKER_": 3,
    "KAFKA_BROKER_": 3,
    "KAFKA_CONF_": 2,
    "KAFKA_CONFIG_": 2,
    "KAFKA_CFG_": 2,
}
"""Prefixes of settings in images other than Kafka's own, and how many words a key must have to be known by."""
_PROVIDERS = "config.providers"
_PROVIDER_REFERENCE = re.compile(r"\$\{[^}]*:[^}]*\}")
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Sources:
    """All layers but the metadata log: texts by key, or by topic and key; unreadable files, and keys that look mistyped.

    `topic_files`: also those that set nothing. `identities`: of the files, as they were read.
    """

    command_line: Texts
    environment: Texts
    config_file: Texts
    command_line_topics: Mapping[str, Texts]
    topic_files: Mapping[str, Texts]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    config_path: str | None = None
    identities: tuple["Identity", ...] = ()
    unread: Mapping[str, Text] = field(default_factory=dict)
    """Texts by key from environment variables that are settings in other images, and are not applied here."""


def read_sources(
    config_file: str | None = None,
    assignments: Iterable[tuple[str, str]] = (),
    topic_assignments: Iterable[tuple[str, str, str]] = (),
) -> Sources:
    """Read all layers. `assignments` are (key, value), `topic_assignments` (topic, key, value)."""
    problems: list[str] = []
    warnings: list[str] = []
    before = identities(config_file)
    written = _properties(config_file, Layer.CONFIG_FILE, problems) if config_file else {}
    idle: list[str] = []
    command_line, environment = _command_line(assignments, problems, idle), _environment(problems)
    if _PROVIDERS in written or environment_variable(_PROVIDERS) in os.environ:
        problems.extend(_provider_references({**written, **environment}, command_line))
    command_line_topics = _command_line_topics(topic_assignments, problems, idle)
    topic_files = _topic_files(config_file, problems, idle) if config_file else {}
    if idle:
        warnings.append(f"without effect in cleanerd: {', '.join(idle)}")
    return Sources(
        command_line=command_line,
        environment=environment,
        config_file=_config_file(written, problems, warnings),
        command_line_topics=command_line_topics,
        topic_files=topic_files,
        problems=tuple(problems),
        warnings=tuple(warnings),
        unread=_unread(),
        config_path=config_file,
        identities=before,
    )


Identity = tuple[str, int, int, int, int]
"""Path, device, inode, size and time of change in nanoseconds of a file, through all links; -1 where there is none."""


def identities(config_file: str | None) -> tuple[Identity, ...]:
    """Of the files that `read_sources` reads for a config file: any change of one shows."""
    if config_file is None:
        return ()
    directory = topic_directory(config_file)
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(_PROPERTIES))
    except OSError:
        names = []
    return tuple(map(_identity, [config_file, *(os.path.join(directory, name) for name in names)]))


def _identity(path: str) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        return path, -1, -1, -1, -1
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def topic_path(config_file: str, topic: str) -> str:
    """Path of the file of a topic."""
    return os.path.join(topic_directory(config_file), f"{topic}{_PROPERTIES}")


def topic_directory(config_file: str) -> str:
    """Directory of the topic files that belong to a config file."""
    return os.path.join(os.path.dirname(os.path.abspath(config_file)), TOPIC_DIRECTORY)


def environment_variable(key: str) -> str:
    """Name of the variable that sets a broker key."""
    prefix, name = (
        ("CLEANERD_", key.removeprefix(OWN_PREFIX)) if key.startswith(OWN_PREFIX) else ("KAFKA_", key)
    )
    return prefix + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def _environment(problems: list[str]) -> dict[str, Text]:
    variables = {environment_variable(key): key for key in BROKER_KEYS}
    own = [name for name in variables if name.startswith("CLEANERD_")]
    for name in sorted(os.environ):
        if name.startswith("CLEANERD_") and name not in own:
            nearly = difflib.get_close_matches(name, own, 1, _NEARLY)
            problems.extend(f"{name}: expected {meant}, found an unknown variable" for meant in nearly)
    return {
        key: Text(os.environ[variable], Origin(Layer.ENVIRONMENT, variable))
        for variable, key in variables.items()
        if variable in os.environ
    }


def _unread() -> dict[str, Text]:
    """Settings as the images of others spell them: KAFKA_CFG_LOG_DIRS (Bitnami), BROKER_LOG_RETENTION_MS, LOG_RETENTION_MS.

    A short name, such as LOG_DIR, may be of any program, unless the prefix is known.
    """
    keys = [key for key in BROKER_KEYS if not key.startswith(OWN_PREFIX)]
    spelt = {environment_variable(key).removeprefix("KAFKA_"): key for key in keys}
    found = {}
    for name in sorted(os.environ):
        for prefix, least_words in _OF_OTHER_IMAGES.items():
            key = spelt.get(name.removeprefix(prefix).upper()) if name.startswith(prefix) else None
            if key is not None and len(key.split(".")) >= least_words:
                found[key] = Text(os.environ[name], Origin(Layer.ENVIRONMENT, name))
    return found


def _command_line(
    assignments: Iterable[tuple[str, str]], problems: list[str], idle: list[str]
) -> dict[str, Text]:
    """Texts of `--set` by key; keys without effect are added to `idle`, unknown ones to `problems`."""
    texts = {}
    for key, value in assignments:
        origin = Origin(Layer.COMMAND_LINE, f"--set {key}")
        if broker_key(key) is not None:
            texts[key] = Text(value, origin)
        elif key in WITHOUT_EFFECT:
            idle.append(f"{key} ({origin})")
        else:
            problems.append(_unknown_broker_key(key, origin))
    return texts


def _command_line_topics(
    assignments: Iterable[tuple[str, str, str]], problems: list[str], idle: list[str]
) -> dict[str, dict[str, Text]]:
    topics: dict[str, dict[str, Text]] = {}
    for topic, key, value in assignments:
        origin = Origin(Layer.COMMAND_LINE, f"--topic-set {topic}:{key}")
        topics.setdefault(topic, {})[key] = Text(value, origin)
    return {topic: _of_topic(topic, "--topic-set", texts, problems, idle) for topic, texts in topics.items()}


def _config_file(written: Texts, problems: list[str], warnings: list[str]) -> dict[str, Text]:
    """The settings that concern cleaning. A mistyped `log.cleaner.` key, which a broker ignores, is a warning."""
    texts = {}
    for key, text in written.items():
        if broker_key(key) is not None:
            texts[key] = text
        elif key.startswith(OWN_PREFIX):
            own = [name for name in BROKER_KEYS if name.startswith(OWN_PREFIX)]
            problems.append(_unknown(key, "a key of cleanerd", text.origin, own))
        elif key.startswith(_CLEANER_PREFIX) and key not in WITHOUT_EFFECT:
            cleaners = [name for name in BROKER_KEYS if name.startswith(_CLEANER_PREFIX)]
            warnings.append(_unknown(key, "a key of Kafka's cleaner", text.origin, cleaners))
    return texts


def _topic_files(config_file: str, problems: list[str], idle: list[str]) -> dict[str, dict[str, Text]]:
    directory = topic_directory(config_file)
    try:
        listing = sorted(os.listdir(directory))
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{directory}: expected a readable directory, found: {error.strerror}")
        return {}
    topics = {}
    for name in listing:
        path, topic = os.path.join(directory, name), name.removesuffix(_PROPERTIES)
        if topic != name:
            texts = _properties(path, Layer.TOPIC_FILE, problems)
            topics[topic] = _of_topic(topic, path, texts, problems, idle)
    return topics


def _of_topic(topic: str, where: str, texts: Texts, problems: list[str], idle: list[str]) -> dict[str, Text]:
    """The texts of topic keys that concern cleaning."""
    if not _TOPIC_NAME.fullmatch(topic):
        problems.append(f"{where}: expected the name of a topic, found {topic!r}")
    foreign = [key for key in texts if key not in TOPIC_KEYS and key not in WITHOUT_EFFECT]
    problems.extend(_unknown(key, "a topic key", texts[key].origin, TOPIC_KEYS) for key in foreign)
    idle.extend(f"{key} ({texts[key].origin})" for key in texts if key in WITHOUT_EFFECT)
    return {key: text for key, text in texts.items() if key in TOPIC_KEYS}


def _properties(path: str, layer: Layer, problems: list[str]) -> dict[str, Text]:
    """All pairs of a Java properties file, each with its line."""
    texts: dict[str, Text] = {}
    line = 1
    try:
        with open(path, encoding="latin-1", newline="") as file:
            for element in javaproperties.parse(file):
                if isinstance(element, javaproperties.KeyValue):
                    texts[element.key] = Text(element.value, Origin(layer, f"{path}:{line}"))
                line += len(_LINE_END.findall(element.source))
    except OSError as error:
        problems.append(f"{path}: expected a readable file, found: {error.strerror}")
    except javaproperties.InvalidUEscapeError as error:
        problems.append(f"{path}:{line}: expected Java properties, found {error}")
    return texts


def _provider_references(texts: Texts, command_line: Texts) -> Iterable[str]:
    """A reference taken for a literal would name a directory that was never meant; a broker alone can resolve it."""
    for key, text in texts.items():
        if broker_key(key) is None or key in command_line or not _PROVIDER_REFERENCE.search(text):
            continue
        remedy = f"--set {key}=..."
        if text.origin.layer is not Layer.ENVIRONMENT and key in BROKER_KEYS:
            remedy += f" or {environment_variable(key)} in the environment"
        found = f"found a config provider's {text!r} ({text.origin})"
        yield f"{key}: expected a literal value, {found}; give cleanerd the value with {remedy}"


def _unknown(key: str, expected: str, origin: Origin, known: Iterable[str]) -> str:
    nearly = difflib.get_close_matches(key, known, 1)
    hint = f"; did you mean {nearly[0]}?" if nearly else ""
    return f"{key}: expected {expected}, found an unknown name ({origin}){hint}"


def _unknown_broker_key(key: str, origin: Origin) -> str:
    expected = "a broker key that concerns cleaning"
    if key not in TOPIC_KEYS:
        return _unknown(key, expected, origin, BROKER_KEYS)
    synonyms = [f"--set {synonym}=..." for synonym in TOPIC_KEYS[key].synonyms[:1]]
    return (
        _unknown(key, expected, origin, ())
        + "; use "
        + " or ".join([f"--topic-set TOPIC:{key}=...", *synonyms])
    )
