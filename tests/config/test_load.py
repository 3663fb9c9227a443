"""Precedence, synonyms and validation: spec behaviour section 8, rule 7.22, cases C152, C153, D19."""

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.sources import read_sources
from cleanerd.errors import BadConfiguration

HOUR_MS = 3_600_000


def configured(
    broker: Mapping[str, str] | None = None,
    topics: Mapping[str, Mapping[str, str]] | None = None,
    metadata: ClusterMetadata | None = None,
) -> Configuration:
    topic_assignments = [
        (topic, key, value) for topic, texts in (topics or {}).items() for key, value in texts.items()
    ]
    return resolve(read_sources(None, (broker or {}).items(), topic_assignments), metadata)


def problems_of(
    broker: Mapping[str, str] | None = None,
    topics: Mapping[str, Mapping[str, str]] | None = None,
    metadata: ClusterMetadata | None = None,
) -> list[str]:
    with pytest.raises(BadConfiguration) as caught:
        configured(broker, topics, metadata)
    return caught.value.problems


def kraft(
    topics: Mapping[str, Mapping[str, str]] | None = None,
    brokers: Mapping[str, Mapping[str, str]] | None = None,
    node_id: int | None = None,
    ids: Mapping[str, UUID] | None = None,
) -> ClusterMetadata:
    """What the metadata log at /m says."""
    return ClusterMetadata(ids or {}, topics or {}, brokers or {}, "/m", node_id)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "log.retention.ms": st.integers(-5, 10**15).filter(bool),
            "log.retention.minutes": st.integers(-5, 2**31 - 1).filter(bool),
            "log.retention.hours": st.integers(-5, 2**31 - 1).filter(bool),
        },
    )
)
@example({})
@example({"log.retention.hours": 2**31 - 1})
def test_c153_log_retention_time(values: dict[str, int]) -> None:
    """C153, N4: the first unit that is set counts, and any negative one means unlimited."""
    units = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": HOUR_MS}
    chosen = [values[key] * factor for key, factor in units.items() if key in values]
    expected = max(chosen[0], -1) if chosen else 168 * HOUR_MS
    assert configured({key: str(value) for key, value in values.items()}).topic("t").retention_ms == expected


@pytest.mark.parametrize("key", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_c153_log_retention_of_zero_is_rejected(key: str) -> None:
    """C153, N4: testLogRetentionValid."""
    (problem,) = problems_of({key: "0"})
    assert problem == f"{key}: expected -1 or a number ≥ 1, found 0 (command line: --set {key})"


def test_retention_of_zero_is_fine_for_a_topic() -> None:
    """8B: at topic level the range is -1 and up."""
    assert configured(topics={"t": {"retention.ms": "0"}}).topic("t").retention_ms == 0
    assert len(problems_of(topics={"t": {"retention.ms": "-2"}})) == 1


def test_c152_invalid_compaction_lag() -> None:
    """C152, N3: max 100, min 200 is a conflict for topic and broker values and across them."""
    (problem,) = problems_of(topics={"t": {"max.compaction.lag.ms": "100", "min.compaction.lag.ms": "200"}})
    assert problem.startswith(
        "topic t: min.compaction.lag.ms: expected at most max.compaction.lag.ms, which is 100"
    )
    assert "found 200" in problem
    broker = {"log.cleaner.max.compaction.lag.ms": "100"}
    assert len(problems_of({**broker, "log.cleaner.min.compaction.lag.ms": "200"})) == 1
    assert len(problems_of(broker, {"t": {"min.compaction.lag.ms": "200"}})) == 1
    assert configured(broker, {"t": {"min.compaction.lag.ms": "100"}}).topic("t").min_compaction_lag_ms == 100


def test_lags_that_the_cluster_has_taken_hold() -> None:
    """A broker compares what one request sets with defaults of its own: all of the topics would be held up here."""
    brokers = {"": {"log.cleaner.max.compaction.lag.ms": "100"}}
    topic = configured(metadata=kraft({"t": {"min.compaction.lag.ms": "200"}}, brokers)).topic("t")
    assert (topic.min_compaction_lag_ms, topic.max_compaction_lag_ms) == (200, 100)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("cleanup.policy", "true"),
        ("cleanup.policy", "foobar"),
        ("cleanup.policy", "Compact"),
        ("cleanup.policy", "compact,"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "1.2"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("segment.bytes", "13"),
        ("segment.bytes", "not_a_number"),
        ("max.compaction.lag.ms", "0"),
        ("delete.retention.ms", "-1"),
        ("segment.index.bytes", "3"),
        ("retention.bytes", "1.5"),
        ("compression.type", "zip"),
    ],
)
def test_c152_from_props_invalid(key: str, text: str) -> None:
    """C152: policies, ratios and non-numeric values; the problem names key, origin, expected and found."""
    (problem,) = problems_of(topics={"t": {key: text}})
    assert problem.startswith(f"topic t: {key}: expected ")
    assert problem.endswith(f"found {text!r} (command line: --topic-set t:{key})")


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [("compact", True, False), ("delete", False, True), ("delete , compact", True, True), ("", False, False)],
)
def test_d19_policies(policy: str, compact: bool, delete: bool) -> None:
    """Rule 1.3, D19: the flags are independent, and the empty policy has neither."""
    topic = configured(topics={"t": {"cleanup.policy": policy}}).topic("t")
    assert (topic.compact, topic.delete) == (compact, delete)


@pytest.mark.parametrize("enable", ["true", "false"])
def test_n1_dedupe_buffer_per_thread(enable: str) -> None:
    """N1: strictly more than 1 MiB for each thread, also with the cleaner disabled."""
    sizes = {"log.cleaner.enable": enable, "log.cleaner.threads": "2"}
    assert configured({**sizes, "log.cleaner.dedupe.buffer.size": "2097154"}).broker.log_cleaner_threads == 2
    for size in ("2097153", "2097152", "0", "-5"):
        (problem,) = problems_of({**sizes, "log.cleaner.dedupe.buffer.size": size})
        assert problem.startswith("log.cleaner.dedupe.buffer.size: expected more than 1048576 for each of 2")


def test_every_problem_is_reported_at_once() -> None:
    """Validation is whole: layers, topics, names, ranges."""
    problems = problems_of(
        {"log.cleaner.threads": "x", "log.retention.hours": "0", "nonsense": ""},
        {"a": {"segment.bytes": "1"}, "b": {"retention.ms": ""}},
        kraft(brokers={"": {"log.cleaner.backoff.ms": "-1"}}),
    )
    starts = [
        "nonsense",
        "log.cleaner.backoff.ms",
        "log.cleaner.threads",
        "log.retention.hours",
        "topic a",
        "topic b",
    ]
    assert sorted(problem.split(":")[0] for problem in problems) == sorted(starts)


@pytest.mark.parametrize(
    ("key", "text"),
    [("cleanup.policy", "maybe"), ("segment.index.bytes", "0"), ("retention.ms", "-5"), ("retention.ms", "")],
)
def test_a_value_of_the_cluster_that_is_not_valid_is_the_trouble_of_its_topic(key: str, text: str) -> None:
    """Kafka took 0 as segment.index.bytes before 3.3, a later one may know more policies. The topic has none."""
    metadata = kraft({"bad": {key: text}, "good": {"cleanup.policy": "compact", "retention.ms": "7"}})
    found = configured({"log.cleanup.policy": "compact,delete"}, metadata=metadata)
    assert (found.topic("good").compact, found.topic("good").retention_ms) == (True, 7)
    assert (found.topic("bad").compact, found.topic("bad").delete) == (False, False)
    assert found.unusable.keys() == {"bad"}
    (warning,) = found.warnings
    assert warning.startswith(f"topic bad: {key}: expected ")
    assert warning.endswith(f'found {text!r} (metadata log: TOPIC "bad" in /m)')
    mended = configured(
        topics={"bad": {key: "compact" if key == "cleanup.policy" else "9"}}, metadata=metadata
    )
    assert (mended.unusable, mended.warnings) == ({}, ())


def test_a_value_of_the_cluster_that_nothing_depends_on_is_nobodys_trouble() -> None:
    """Kafka took 0 as flush.messages of a topic before 3.3."""
    metadata = kraft({"t": {"flush.messages": "0", "cleanup.policy": "compact"}})
    found = configured(metadata=metadata)
    assert (found.unusable, found.warnings, found.topic("t").compact) == ({}, (), True)


def test_what_has_no_effect_is_one_warning_where_it_is_given_to_cleanerd(tmp_path: Path) -> None:
    """Whatever its value. The broker's own file is not for cleanerd alone."""
    path = tmp_path / "server.properties"
    path.write_text("log.roll.ms=0\nlog.preallocate=none\n")
    (tmp_path / "topics.d").mkdir()
    (tmp_path / "topics.d" / "t.properties").write_text("cleanup.policy=compact\nmin.insync.replicas=2\n")
    assert resolve(read_sources(str(path))).warnings == (
        f"without effect in cleanerd: min.insync.replicas (topic file: {tmp_path}/topics.d/t.properties:2)",
    )
    given = [("log.roll.ms", "0")], [("t", "flush.ms", "x")]
    (warning,) = resolve(read_sources(None, *given)).warnings
    assert [word in warning for word in ("--set log.roll.ms", "--topic-set t:flush.ms")] == [True, True]


def test_precedence_of_broker_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7.22: command line > own record > cluster record > environment > file > default."""
    key = "log.cleaner.backoff.ms"
    path = tmp_path / "server.properties"
    path.write_text(f"{key}=5\nnode.id=7\n")
    monkeypatch.setenv("KAFKA_LOG_CLEANER_BACKOFF_MS", "4")
    records = {"": {key: "3"}, "7": {key: "2"}, "8": {key: "99"}}
    everything = resolve(read_sources(str(path), [(key, "1")]), kraft(brokers=records))
    assert everything.broker.backoff_ms == 1
    assert resolve(read_sources(str(path)), kraft(brokers=records)).broker.backoff_ms == 2
    assert resolve(read_sources(str(path)), kraft(brokers={"": {key: "3"}})).broker.backoff_ms == 3
    assert resolve(read_sources(str(path)), kraft()).broker.backoff_ms == 4
    monkeypatch.delenv("KAFKA_LOG_CLEANER_BACKOFF_MS")
    assert resolve(read_sources(str(path))).broker.backoff_ms == 5
    assert resolve(read_sources()).broker.backoff_ms == 15000


def test_precedence_of_topic_layers(tmp_path: Path) -> None:
    """F4: command line > topic file > TOPIC record > BROKER records > static broker value > default."""
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.delete.retention.ms=5\n")
    topic_file = tmp_path / "topics.d" / "t.properties"
    topic_file.parent.mkdir()
    topic_file.write_text("delete.retention.ms=2\n")
    records = kraft({"t": {"delete.retention.ms": "3"}}, {"": {"log.cleaner.delete.retention.ms": "4"}})

    def value(
        *overrides: tuple[str, str, str], metadata: ClusterMetadata | None = records
    ) -> tuple[int, str]:
        settings = resolve(read_sources(str(path), (), overrides), metadata).topic_settings("t")
        return settings["delete.retention.ms"].value, settings["delete.retention.ms"].origin.layer.value

    assert value(("t", "delete.retention.ms", "1")) == (1, "command line")
    assert value() == (2, "topic file")
    topic_file.unlink()
    assert value() == (3, "metadata log")
    assert value(metadata=kraft(brokers=records.broker_configs)) == (4, "metadata log")
    assert value(metadata=None) == (5, "config file")
    path.write_text("")
    assert value(metadata=None) == (86400000, "default")


def test_dynamic_retention_beats_static_minutes_and_hours() -> None:
    """N4 and 7.22 together: the dynamic .ms is the first synonym that is set."""
    metadata = kraft(brokers={"": {"log.retention.ms": "1000"}})
    assert configured({"log.retention.minutes": "1"}, metadata=metadata).topic("t").retention_ms == 1000


def test_keys_outside_the_dynamic_set_have_no_dynamic_value() -> None:
    """7.21, N5: records for static keys, other prefixes and keys of a newer Kafka are passed over."""
    records = {
        "log.retention.hours": "1",
        "log.cleaner.enable": "false",
        "listener.name.x": "y",
        "cleanerd.chunk.bytes": "1",
    }
    configuration = configured(metadata=kraft({"t": {"new.key": "x"}}, {"": records}))
    assert configuration.topic("t") == configured().topic("t")
    assert configuration.broker == configured().broker


@pytest.mark.parametrize(
    ("broker", "node_id", "backoff_ms"),
    [
        ({"node.id": "1"}, 3, 3),
        ({"broker.id": "2"}, None, 2),
        ({"node.id": "1", "broker.id": "2"}, None, 1),
        ({}, 3, 3),
        ({}, None, 15000),
    ],
)
def test_which_node_this_is(broker: dict[str, str], node_id: int | None, backoff_ms: int) -> None:
    """The owner of the log directory, else node.id, else broker.id; without any, only the cluster record."""
    records = {str(node): {"log.cleaner.backoff.ms": str(node)} for node in (1, 2, 3)}
    assert (
        configured(broker, metadata=kraft(brokers=records, node_id=node_id)).broker.backoff_ms == backoff_ms
    )


def test_log_dirs_win_over_log_dir() -> None:
    """8C; A1: the metadata log lies in the first of them unless it has a directory of its own."""
    broker = configured({"log.dir": "/a", "log.dirs": "/b, /c"}).broker
    assert broker.log_dirs == ("/b", "/c")
    assert broker.metadata_log_dir == "/b"
    assert configured({"log.dir": "/a", "metadata.log.dir": "/m"}).broker.metadata_log_dir == "/m"
    assert len(problems_of({"log.dirs": " , "})) == 1


def test_internal_segment_bytes_replaces_segment_bytes() -> None:
    """As brokers of 4.1 and later have it."""
    texts = {"segment.bytes": "1048576", "internal.segment.bytes": "8192"}
    assert configured(topics={"t": texts}).topic("t").segment_bytes == 8192
    assert configured({"log.segment.bytes": "14"}).topic("t").segment_bytes == 14


def test_explicit_threads_are_told_from_the_default() -> None:
    """Only a number that somebody chose limits the cores."""
    assert configured({"log.cleaner.threads": "1"}).broker.log_cleaner_threads_is_set
    assert not configured().broker.log_cleaner_threads_is_set


def test_variables_that_differ_from_the_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both values and the one that holds; not where they mean the same, or the command line decides."""
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.threads=2\nlog.retention.ms=-1\nlog.cleaner.backoff.ms=5\n")
    monkeypatch.setenv("KAFKA_LOG_CLEANER_THREADS", " 2")
    monkeypatch.setenv("KAFKA_LOG_RETENTION_MS", "1000")
    monkeypatch.setenv("KAFKA_LOG_CLEANER_BACKOFF_MS", "6")
    found = resolve(read_sources(str(path), [("log.cleaner.backoff.ms", "7")]))
    assert found.warnings == (
        f"KAFKA_LOG_RETENTION_MS in the environment is 1000, but log.retention.ms is -1 (config file: {path}:2): "
        "the environment holds",
    )
    assert found.topic("t").retention_ms == 1000


@pytest.mark.parametrize(
    ("written", "variable", "log_dirs", "holds"),
    [
        ("log.dir", "KAFKA_LOG_DIR", "/file", "config file"),
        ("log.dirs", "KAFKA_LOG_DIR", "/file", "config file"),
        ("log.dir", "KAFKA_LOG_DIRS", "/variable", "environment"),
        ("log.dirs", "KAFKA_LOG_DIRS", "/variable", "environment"),
    ],
)
def test_directory_of_application_logs_is_no_log_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, variable: str, log_dirs: str, holds: str
) -> None:
    """KAFKA_LOG_DIR means that in many images, so a file that names log directories wins; KAFKA_LOG_DIRS means just that."""
    path = tmp_path / "server.properties"
    path.write_text(f"{written}=/file\n")
    monkeypatch.setenv(variable, "/variable")
    found = resolve(read_sources(str(path)))
    assert found.broker.log_dirs == (log_dirs,)
    assert found.warnings == (
        f"{variable} in the environment is /variable, but {written} is /file (config file: {path}:1): the {holds} holds",
    )
    path.write_text("")
    alone = resolve(read_sources(str(path)))
    assert (alone.broker.log_dirs, alone.warnings) == (("/variable",), ())


def test_dedupe_is_an_old_name_of_compact() -> None:
    """In broker and topic keys, with a warning that names the place; the word itself is not a policy."""
    found = configured({"log.cleanup.policy": "dedupe"}, {"t": {"cleanup.policy": "delete, dedupe"}, "u": {}})
    assert found.topic("u").cleanup_policy == ("compact",)
    assert found.topic("t").cleanup_policy == ("delete", "compact")
    assert found.warnings == (
        "cleanup.policy: dedupe is an old name of compact (command line: --set log.cleanup.policy)",
        "cleanup.policy: dedupe is an old name of compact (command line: --topic-set t:cleanup.policy)",
    )
    assert problems_of(topics={"t": {"cleanup.policy": "dedup"}})


def test_a_brokers_answer_stands_where_a_metadata_log_would(tmp_path: Path) -> None:
    """Each value says where it comes from; retention by time and size is nobody's but the broker's."""
    (tmp_path / "topics.d").mkdir()
    (tmp_path / "topics.d" / "named.properties").write_text("retention.ms=7\n")
    config = tmp_path / "server.properties"
    config.write_text("log.cleaner.delete.retention.ms=1\nlog.cleaner.min.compaction.lag.ms=1\n")
    own = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "of.a.newer.kafka": "x"}
    brokers = {"log.cleaner.delete.retention.ms": "5000", "log.cleaner.min.compaction.lag.ms": "3"}
    brokers["log.retention.ms"] = "1000"
    answer = ClusterMetadata(
        {"t": None, "named": None}, {"t": own, "named": own}, {"": brokers}, is_whole=False
    )
    command_line = [("log.cleaner.min.compaction.lag.ms", "2")]
    found = resolve(read_sources(str(config), command_line), answer)
    shown = {key: (one.value, str(one.origin)) for key, one in found.topic_settings("t").items()}
    assert shown["cleanup.policy"] == (("compact", "delete"), 'broker\'s answer: TOPIC "t"')
    assert shown["retention.ms"] == (1000, 'broker\'s answer: TOPIC "t"')
    assert shown["delete.retention.ms"] == (5000, 'broker\'s answer: BROKER ""')
    assert shown["min.compaction.lag.ms"] == (2, "command line: --set log.cleaner.min.compaction.lag.ms")
    assert found.topic("unknown").retention_ms == 168 * HOUR_MS
