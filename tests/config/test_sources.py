"""Reading the layers: forms, names and origins."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from javaproperties import dumps

from cleanerd.config.keys import BROKER_KEYS
from cleanerd.config.load import resolve
from cleanerd.config.sources import environment_variable, read_sources


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    return str(path)


def test_file_is_java_properties_and_every_value_knows_its_line(tmp_path: Path) -> None:
    """Comments, continuations, all three separators, escapes, CRLF; the last duplicate wins."""
    path = write(
        tmp_path / "server.properties",
        "# comment\r\n"
        "log.dirs=/a,\\\n"
        "    /b\n"
        "\n"
        "log.retention.hours : 1\n"
        "log.cleaner.threads 2\n"
        "log.retention.hours=\\u0033\n",
    )
    texts = read_sources(path).config_file
    assert texts == {
        "log.dirs": "/a,/b",
        "log.retention.hours": "3",
        "log.cleaner.threads": "2",
    }
    assert str(texts["log.dirs"].origin) == f"config file: {path}:2"
    assert str(texts["log.retention.hours"].origin) == f"config file: {path}:7"


def test_unknown_keys_of_the_broker_are_ignored_but_not_cleanerds_own(tmp_path: Path) -> None:
    """A broker's file is full of keys that are not ours; a mistyped one of ours is a mistake."""
    path = write(
        tmp_path / "c", "listeners=PLAINTEXT://:9092\ncleanup.policy=compact\ncleanerd.chnuk.bytes=1\n"
    )
    sources = read_sources(path)
    assert sources.config_file == {}
    assert sources.problems == (
        f"cleanerd.chnuk.bytes: expected a key of cleanerd, found an unknown name (config file: {path}:3)"
        "; did you mean cleanerd.chunk.bytes?",
    )


def test_config_provider_references_are_refused_where_they_matter(tmp_path: Path) -> None:
    """A reference must not become the name of a directory; without providers it is literal, as in Kafka."""
    reference = "log.dirs=${env:DIRS}\nsasl.password=${file:/x:y}\n"
    assert read_sources(write(tmp_path / "literal", reference)).problems == ()
    problems = read_sources(write(tmp_path / "c", reference + "config.providers=env,file\n")).problems
    assert problems == (
        f"log.dirs: expected a literal value, found a config provider's '${{env:DIRS}}' (config file: {tmp_path / 'c'}:1); "
        "give cleanerd the value with --set log.dirs=... or KAFKA_LOG_DIRS in the environment",
    )


def test_what_a_reference_stands_for_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a higher layer replaces is not looked at. Images hand the environment to the broker as its file."""
    path = write(tmp_path / "c", "log.dirs=${env:DIRS}\nconfig.providers=env\n")
    assert read_sources(path, [("log.dirs", "/data")]).problems == ()
    monkeypatch.setenv("KAFKA_LOG_DIRS", "/data")
    assert read_sources(path).problems == ()
    monkeypatch.setenv("KAFKA_LOG_DIRS", "${env:DIRS}")
    (problem,) = read_sources(path).problems
    assert problem.endswith("(environment: KAFKA_LOG_DIRS); give cleanerd the value with --set log.dirs=...")
    assert read_sources().problems == ()
    monkeypatch.setenv("KAFKA_CONFIG_PROVIDERS", "env")
    assert len(read_sources().problems) == 1


@pytest.mark.parametrize("content", [None, "log.dirs=\\u12"])
def test_unreadable_file_is_a_problem(tmp_path: Path, content: str | None) -> None:
    """A missing file and one that is no properties file."""
    path = tmp_path / "c"
    if content is not None:
        write(path, content)
    (problem,) = read_sources(str(path)).problems
    assert problem.startswith(str(path))


def test_topic_files_lie_beside_the_config_file(tmp_path: Path) -> None:
    """The file name is the topic; keys of Kafka without effect are accepted, unknown ones are not."""
    path = write(tmp_path / "server.properties", "")
    write(tmp_path / "topics.d" / "a.b.properties", "cleanup.policy=compact\nmin.insync.replicas=2\n")
    write(tmp_path / "topics.d" / "notes.txt", "nonsense")
    bad = write(tmp_path / "topics.d" / "c.properties", "cleanup.polcy=compact\n")
    sources = read_sources(path)
    assert {topic: dict(texts).keys() for topic, texts in sources.topic_files.items()} == {
        "a.b": {"cleanup.policy"},
        "c": set(),
    }
    assert sources.problems == (
        f"cleanup.polcy: expected a topic key, found an unknown name (topic file: {bad}:1)"
        "; did you mean cleanup.policy?",
    )


def test_command_line_names_must_be_known() -> None:
    """A mistyped override must not be without effect; a topic key gets a hint."""
    sources = read_sources(
        None,
        [("log.cleaner.thread", "1"), ("cleanup.policy", "compact")],
        [("t", "retention", "1"), ("no/topic", "retention.ms", "1"), ("t", "min.insync.replicas", "2")],
    )
    first, second, third, fourth = sources.problems
    assert first.startswith("log.cleaner.thread: expected a broker key")
    assert first.endswith("did you mean log.cleaner.threads?")
    assert "--set log.cleanup.policy=" in second
    assert third.startswith("retention: expected a topic key")
    assert "'no/topic'" in fourth


def test_last_assignment_wins() -> None:
    """As with every option that may be repeated."""
    sources = read_sources(None, [("log.dir", "/a"), ("log.dir", "/b")])
    assert sources.command_line["log.dir"] == "/b"


@pytest.mark.parametrize(
    ("key", "variable"),
    [
        ("log.cleaner.threads", "KAFKA_LOG_CLEANER_THREADS"),
        ("with_under.and-dash", "KAFKA_WITH__UNDER_AND___DASH"),
        ("cleanerd.chunk.bytes", "CLEANERD_CHUNK_BYTES"),
    ],
)
def test_names_of_variables(key: str, variable: str) -> None:
    """Kafka's image maps `_` to `.`, `__` to `_`, `___` to `-`."""
    assert environment_variable(key) == variable


def test_environment_is_read_by_exact_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known keys only, in capitals only; an empty text is a text."""
    monkeypatch.setenv("KAFKA_LOG_DIRS", "/a")
    monkeypatch.setenv("kafka_log_dir", "/b")
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xmx1g")
    monkeypatch.setenv("CLEANERD_SPARK_MASTER", "")
    found = read_sources().environment
    assert found == {"log.dirs": "/a", "cleanerd.spark.master": ""}
    assert str(found["log.dirs"].origin) == "environment: KAFKA_LOG_DIRS"


def test_variables_of_other_images_are_not_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in such a container goes by them. Not where the same value holds here, nor what may be of any program."""
    for name, value in {
        "KAFKA_CFG_LOG_RETENTION_HOURS": "-1",
        "KAFKA_CFG_LOG_DIRS": "/data",
        "KAFKA_CFG_LISTENERS": "PLAINTEXT://:9092",
        "LOG_CLEANUP_POLICY": "compact",
        "LOG_DIR": "/var/log",
        "KAFKA_LOG_DIRS": "/data",
    }.items():
        monkeypatch.setenv(name, value)
    found = resolve(read_sources())
    assert found.broker.log_dirs == ("/data",)
    assert [text.split(" in the environment is not read: ")[0] for text in found.warnings] == [
        "KAFKA_CFG_LOG_RETENTION_HOURS",
        "LOG_CLEANUP_POLICY",
    ]
    assert found.warnings[0].endswith("log.retention.hours is set by KAFKA_LOG_RETENTION_HOURS")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CLEANERD_CHNUK_BYTES", "CLEANERD_CHUNK_BYTES"),
        ("CLEANERD_LOGLEVEL", "CLEANERD_LOG_LEVEL"),
        ("CLEANERD_IO_MAX_WRITE_BYTES_PER_SEC", "CLEANERD_IO_MAX_WRITE_BYTES_PER_SECOND"),
    ],
)
def test_mistyped_variables_of_ours_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    """As in a file, a mistyped one must not be without effect."""
    monkeypatch.setenv(variable, "1")
    assert read_sources().problems == (f"{variable}: expected {meant}, found an unknown variable",)


def test_variables_of_kubernetes_services_are_no_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a service named cleanerd, or cleanerd-metrics, puts into every container."""
    for service in ("CLEANERD", "CLEANERD_METRICS"):
        for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_11308_TCP"):
            monkeypatch.setenv(f"{service}_{name}", "tcp://10.0.0.1:11308")
        for part in ("PROTO", "PORT", "ADDR"):
            monkeypatch.setenv(f"{service}_PORT_11308_TCP_{part}", "11308")
    assert read_sources().problems == ()


@given(
    st.dictionaries(
        st.sampled_from(sorted(BROKER_KEYS)), st.text(st.characters(codec="latin-1"), max_size=20)
    )
)
def test_any_properties_that_java_can_write_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    """Escapes, blanks and line ends in values survive."""
    path = tmp_path_factory.mktemp("any") / "server.properties"
    path.write_bytes(dumps(values).encode("latin-1"))
    assert read_sources(str(path)).config_file == values
