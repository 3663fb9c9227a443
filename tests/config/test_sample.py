"""etc/cleanerd.properties against the key table."""

import re
from pathlib import Path

import cleanerd
from cleanerd.config.keys import BROKER_KEYS, TOPIC_KEYS
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources

PACKAGE = Path(cleanerd.__file__).parent
SAMPLE = PACKAGE.parent / "etc" / "cleanerd.properties"
TOPIC_SAMPLE = SAMPLE.parent / "topics.d" / "TOPIC.properties"
PAIR = re.compile(r"((?:# .*\n)+)#([a-z0-9.]+)=(.*)\n")
DERIVED = {"log.dirs", "log.dir", "metadata.log.dir", "node.id"}
"""These feed the log directories and the choice of the broker's dynamic values."""
OF_THE_DAEMON = {name for name in BROKER_KEYS if name.startswith("cleanerd.")} | {
    "log.cleaner.enable",
    "log.cleaner.backoff.ms",
    "log.cleaner.io.max.bytes.per.second",
    "log.retention.check.interval.ms",
    "log.segment.delete.delay.ms",
}
"""What `cleanerd run` reads."""


def pairs() -> dict[str, tuple[str, str]]:
    """Comment and value of every key of the sample."""
    return {key: (comment, value) for comment, key, value in PAIR.findall(SAMPLE.read_text())}


def read_somewhere() -> set[str]:
    """Broker keys whose field some module outside `config` reads, themselves or as defaults of topics."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "config"]
    source = "\n".join(path.read_text() for path in modules)
    fields = {key.name: key.field for key in BROKER_KEYS.values()}
    fields |= {synonym: key.field for key in TOPIC_KEYS.values() for synonym in key.synonyms if key.field}
    return {name for name, field in fields.items() if field and re.search(rf"\.{field}\b", source)}


def test_sample_has_the_keys_that_something_reads() -> None:
    """No more, so that nobody sets what has no effect, and no less."""
    assert set(pairs()) == read_somewhere() | DERIVED | OF_THE_DAEMON


def test_sample_explains_each_key_as_the_table_does() -> None:
    """In the words of the key or of the topic key that it is the default of."""
    for key, (comment, _) in pairs().items():
        assert BROKER_KEYS[key].doc in comment, key


def test_sample_shows_the_defaults() -> None:
    """Where there is one; else a value that could be."""
    for key, (_, value) in pairs().items():
        row = BROKER_KEYS[key]
        parsed = row.type.parse(value)
        assert row.check.accepts(parsed), key
        assert row.default in (None, parsed), key


def test_sample_with_every_key_set_is_valid_and_changes_nothing_for_topics(tmp_path: Path) -> None:
    """All comment signs taken away."""
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, (_, value) in pairs().items()))
    assert resolve(read_sources(str(path))).topic("t") == resolve(read_sources()).topic("t")


def test_sample_of_a_topic_has_the_keys_that_something_reads_as_the_table_has_them(tmp_path: Path) -> None:
    """All comment signs taken away it is valid, and changes nothing."""
    modules = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "config"]
    read = {
        name
        for name, key in TOPIC_KEYS.items()
        if key.field and any(re.search(rf"\.{key.field}\b", module) for module in modules)
    }
    found = {key: (comment, value) for comment, key, value in PAIR.findall(TOPIC_SAMPLE.read_text())}
    assert set(found) == read
    for key, (comment, _) in found.items():
        assert TOPIC_KEYS[key].doc in comment, key
    (tmp_path / "topics.d").mkdir()
    (tmp_path / "topics.d" / "t.properties").write_text(
        "".join(f"{key}={value}\n" for key, (_, value) in found.items())
    )
    config = tmp_path / "server.properties"
    config.write_text("")
    assert resolve(read_sources(str(config))).topic("t") == resolve(read_sources()).topic("t")
