"""Which logs are left alone because nothing says that they may be touched."""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cleanerd.cleaning.foreign import left_alone
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.config.load import resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.names import TopicPartition
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.log_dir import LogDir
from tests.harness.logs.troubled import (
    META_PROPERTIES,
    assert_cleaned,
    clean,
    contents,
    leave_to_nobody,
    write_logs,
)

ZOOKEEPER = "version=0\ncluster.id=c\nbroker.id=1\n"
TOPICS = ("orders", "plain")
FOUND = [TopicPartition(topic, 0) for topic in TOPICS]
COMPACT = ("log.cleanup.policy", "compact")
OURS, OTHERS = uuid.UUID(int=1), uuid.UUID(int=2)


def directory(
    path: Path, meta: str | None = ZOOKEEPER, ids: Mapping[str, uuid.UUID] | None = None, compacted: str = ""
) -> str:
    """Of two topics; `ids`: those that have one, `compacted`: one that Kafka's cleaner has an entry for."""
    for tp in FOUND:
        (path / str(tp)).mkdir(parents=True)
    for topic, topic_id in (ids or {}).items():
        (path / f"{topic}-0" / names.PARTITION_METADATA).write_bytes(render_partition_metadata(topic_id))
    if meta is not None:
        (path / names.META_PROPERTIES).write_text(meta)
    if compacted:
        (path / names.CLEANER_OFFSET_CHECKPOINT).write_text(f"0\n1\n{compacted} 0 20\n")
    return str(path)


def alone(  # what is left alone by a run that names these; None: by a daemon
    log_dir: str,
    *,
    file: str = "",
    assignments: Sequence[tuple[str, str]] = (),
    topics: Sequence[tuple[str, str, str]] = (),
    named: Sequence[str] | None = (),
    metadata: ClusterMetadata | None = None,
) -> set[str]:
    config = Path(log_dir).parent / "server.properties"
    config.write_text(file)
    configuration = resolve(read_sources(str(config), assignments, topics), metadata)
    place = LogDir.at(RealFiles(), log_dir, SystemClock())
    if named is None:
        return {tp.topic for tp in FOUND if Knowledge(place, configuration).why_untouched(tp)}
    return {tp.topic for tp in left_alone(place, FOUND, configuration, frozenset(named))}


def test_a_topic_whose_value_in_the_cluster_is_not_valid_is_left_alone(tmp_path: Path) -> None:
    """Whoever names it, until a value that is valid wins."""
    log_dir = directory(tmp_path / "logs", META_PROPERTIES, dict.fromkeys(TOPICS, OURS))
    bad = {"orders": {"segment.index.bytes": "0"}}
    metadata = ClusterMetadata(dict.fromkeys(TOPICS, OURS), bad, {}, "/m", 1)
    compact = [("orders", "cleanup.policy", "compact")]
    assert alone(log_dir, topics=compact, named=["orders"], metadata=metadata) == {"orders"}
    mended = [*compact, ("orders", "segment.index.bytes", "4096")]
    assert alone(log_dir, topics=mended, named=["orders"], metadata=metadata) == set()


@pytest.mark.parametrize(
    "kraft", [False, True], ids=["of a ZooKeeper broker", "a restored volume of a KRaft broker"]
)
def test_unknown_topics_of_a_broker_are_taken_only_by_name(tmp_path: Path, kraft: bool) -> None:
    """A policy for all would compact what is meant to be deleted, and delete what is meant to be compacted."""
    ids = dict.fromkeys(TOPICS, OURS) if kraft else None
    log_dir = directory(tmp_path / "logs", META_PROPERTIES if kraft else ZOOKEEPER, ids)
    assert alone(log_dir) == {*TOPICS}
    assert alone(log_dir, assignments=[COMPACT]) == {*TOPICS}
    assert alone(log_dir, file="log.cleanup.policy=compact\n") == {*TOPICS}
    assert alone(log_dir, topics=[("orders", "cleanup.policy", "compact")]) == {"plain"}
    assert alone(log_dir, assignments=[COMPACT], named=["orders"]) == {"plain"}
    assert alone(log_dir, file="log.cleanup.policy=compact\n", named=["orders"]) == {"plain"}


def test_a_name_alone_is_no_policy(tmp_path: Path) -> None:
    """Kafka's default is what nobody said; a setting of the topic that is not its policy says as little."""
    log_dir = directory(tmp_path / "logs")
    assert alone(log_dir, named=["orders"]) == {*TOPICS}
    assert alone(log_dir, topics=[("orders", "retention.ms", "1000")], named=None) == {*TOPICS}


def test_a_daemon_takes_no_word_for_all(tmp_path: Path) -> None:
    log_dir = directory(tmp_path / "logs", META_PROPERTIES, compacted="orders")
    assert alone(log_dir, assignments=[COMPACT], named=None) == {*TOPICS}
    assert alone(log_dir, topics=[("plain", "cleanup.policy", "delete")], named=None) == {"orders"}


@pytest.mark.parametrize(
    ("policy", "left"), [("compact", {"plain"}), ("compact,delete", {*TOPICS}), ("delete", {*TOPICS})]
)
def test_what_was_compacted_before_is_compacted_by_a_word_for_all(
    tmp_path: Path, policy: str, left: set[str]
) -> None:
    """A broker's cleaner has entries for such topics only; that they are deleted from as well, they do not say."""
    log_dir = directory(tmp_path / "logs", compacted="orders")
    assert alone(log_dir, assignments=[("log.cleanup.policy", policy)]) == left
    assert alone(log_dir, file=f"log.cleanup.policy={policy}\n") == {*TOPICS}


def test_a_log_without_a_topic_id_is_of_no_topic_of_a_kraft_broker(tmp_path: Path) -> None:
    """It was put there by hand: no settings elsewhere contradict the command line."""
    log_dir = directory(tmp_path / "logs", META_PROPERTIES, {"plain": OURS})
    assert alone(log_dir, assignments=[COMPACT]) == {"plain"}
    assert alone(log_dir, assignments=[("log.cleanup.policy", "compact,delete")]) == {"plain"}
    assert alone(log_dir, file="log.cleanup.policy=compact\n") == {*TOPICS}


def test_what_the_broker_answers_is_known(tmp_path: Path) -> None:
    """Of that topic, by its id; of another of its name, and of topics that it does not know, it says nothing."""
    ids = {"orders": OURS, "plain": OTHERS}
    log_dir = directory(tmp_path / "logs", ids=ids)
    (tmp_path / "logs" / names.REPLICATION_CHECKPOINT).touch()  # it has just stopped
    compact = {"cleanup.policy": "compact"}

    def answer(*topics: str) -> ClusterMetadata:
        own = dict.fromkeys(topics, compact)
        return ClusterMetadata(dict.fromkeys(topics, OURS), own, {"": compact}, is_whole=False)

    assert alone(log_dir, named=None, metadata=answer("orders")) == {"plain"}
    assert alone(log_dir, named=["plain"], metadata=answer("orders")) == {"plain"}
    assert alone(log_dir, named=None, metadata=answer("orders", "plain")) == {"plain"}
    own = [("plain", "cleanup.policy", "compact")]
    assert alone(log_dir, named=None, topics=own, metadata=answer("orders")) == set()
    log_dir = directory(tmp_path / "old", ids={"plain": OURS})  # as of a release that writes no topic ids
    (tmp_path / "old" / names.REPLICATION_CHECKPOINT).touch()
    assert alone(log_dir, named=None, metadata=answer("orders", "plain")) == set()
    nameless = ClusterMetadata({"plain": None}, {"plain": compact}, {}, is_whole=False)
    assert alone(log_dir, named=None, metadata=nameless) == {"orders"}


def test_in_a_directory_of_no_broker_everything_is_known(tmp_path: Path) -> None:
    """What holds for its logs is what the user configured, or Kafka's defaults."""
    log_dir = directory(tmp_path / "logs", None)
    assert alone(log_dir, file="log.cleanup.policy=compact\n") == set()
    assert alone(log_dir, named=None) == set()


def test_a_topic_id_in_a_directory_of_no_broker_says_that_it_is_a_brokers(tmp_path: Path) -> None:
    """Whatever is configured: a copy of a part of a log directory is not told from what is being restored."""
    log_dir = directory(tmp_path / "logs", None, {"orders": OURS})
    assert alone(log_dir, assignments=[COMPACT]) == {"orders"}
    own = [("orders", "cleanup.policy", "compact")]
    assert alone(log_dir, topics=own, named=["orders"]) == {"orders"}
    assert alone(log_dir, topics=own, named=None) == {"orders"}


def test_what_the_cluster_does_not_have_is_taken_only_by_name_and_policy(tmp_path: Path) -> None:
    """It is left of a topic that was deleted: what the cluster says of the topic of that name is not about it."""
    metadata = ClusterMetadata({"orders": OURS, "plain": OURS}, {"plain": {"cleanup.policy": "compact"}}, {})
    log_dir = directory(tmp_path / "logs", META_PROPERTIES, {"orders": OURS, "plain": OTHERS})
    assert alone(log_dir, metadata=metadata) == {"plain"}
    assert alone(log_dir, assignments=[COMPACT], metadata=metadata) == {"plain"}
    assert alone(log_dir, named=["plain"], metadata=metadata) == {"plain"}
    own = [("plain", "cleanup.policy", "compact")]
    assert alone(log_dir, topics=own, metadata=metadata) == set()


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup.policy": "compact", "remote.storage.enable": "true"},
        {"cleanup.policy": "compact", "confluent.tier.enable": "true"},
        {"cleanup.policy": "delete", "diskless.enable": "true"},
        {"inkless.enable": "true"},
    ],
    ids=str,
)
def test_what_lies_elsewhere_in_part_is_left_alone(tmp_path: Path, settings: dict[str, str]) -> None:
    """A tombstone that goes here brings back the value that is there; what was copied only the broker knows."""
    log_dir = directory(tmp_path / "logs", META_PROPERTIES, dict.fromkeys(TOPICS, OURS))
    ids = dict.fromkeys(TOPICS, OURS)
    plain = {"cleanup.policy": "compact", "remote.storage.enable": "false", "diskless.enable": "false"}
    metadata = ClusterMetadata(ids, {"orders": settings, "plain": plain}, {})
    assert alone(log_dir, metadata=metadata, named=None) == {"orders"}
    tiered = settings | {"cleanup.policy": "delete"}
    is_kafkas = "remote.storage.enable" in settings
    metadata = ClusterMetadata(ids, {"orders": tiered, "plain": plain}, {})
    assert alone(log_dir, metadata=metadata, named=None) == (set() if is_kafkas else {"orders"})


def test_a_tiered_log_is_left_alone_without_a_metadata_log_too(tmp_path: Path) -> None:
    log_dir = directory(tmp_path / "logs")
    said = [(topic, "cleanup.policy", "compact") for topic in TOPICS]
    tiered = [("orders", "remote.storage.enable", "true")]
    assert alone(log_dir, topics=said + tiered) == {"orders"}
    assert alone(log_dir, topics=said + tiered, named=["orders"]) == {"orders"}, "whoever names it"


@pytest.mark.parametrize("release", ["4.0", "4.1", "4.2"])
def test_a8_what_the_broker_may_be_unable_to_load_is_left_alone_until_somebody_says_otherwise(
    tmp_path: Path, release: str
) -> None:
    ids, policies = {"__consumer_offsets": OURS}, {"__consumer_offsets": {"cleanup.policy": "compact"}}
    tp = TopicPartition("__consumer_offsets", 0)
    place = directory(tmp_path / "logs", META_PROPERTIES)
    (tmp_path / "logs" / str(tp)).mkdir()
    (tmp_path / "logs" / str(tp) / names.PARTITION_METADATA).write_bytes(render_partition_metadata(OURS))
    log_dir = LogDir.at(RealFiles(), place, SystemClock())

    def why(release: str | None, *said: tuple[str, str, str]) -> str | None:
        metadata = ClusterMetadata(ids, policies, {}, release=release)
        return Knowledge(log_dir, resolve(read_sources(None, (), said), metadata)).why_untouched(tp)

    assert f"last started as Kafka {release}, whose group coordinator" in str(why(release))
    assert why(release, (tp.topic, "cleanup.policy", "compact")) is None
    assert why(release, (tp.topic, "delete.retention.ms", "1")) is not None
    assert why(None) is why("4.3") is why("4.4") is None


def test_one_shot_leaves_unknown_topics_as_they_are_and_names_them(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", *TOPICS)
    (log_dir / names.META_PROPERTIES).write_text(ZOOKEEPER)
    before = contents(log_dir / "plain-0")
    ran = clean(spark, log_dir, options=["--topic-set=orders:cleanup.policy=compact"])
    assert_cleaned(ran, log_dir / "orders-0")
    assert ran.results["logs", "plain"]["outcome"] == "skipped"
    assert ran.results["logs", "plain"]["reason"] == (
        f"{log_dir} is a broker's and has no metadata log: how plain is configured is not known; set its cleanup.policy in "
        "topics.d, or with --topic-set plain:cleanup.policy=..., or name it with --topic plain"
    )
    assert "these are left alone: plain\n" in ran.told
    assert contents(log_dir / "plain-0") == before
    assert_cleaned(clean(spark, log_dir, options=["--topic=plain"]), log_dir / "plain-0")


@pytest.mark.parametrize("sign", [names.REPLICATION_CHECKPOINT, f"plain-0/{names.PARTITION_METADATA}"])
@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--topic=orders", "--set=node.id=1")])
def test_nothing_is_done_to_a_damaged_directory(
    spark: LazySpark, tmp_path: Path, sign: str, options: Sequence[str]
) -> None:
    """Its high watermark binds nobody who takes it for nobody's: nothing is cleaned, committed or recovered."""
    log_dir = write_logs(tmp_path / "logs", *TOPICS)
    leave_to_nobody(log_dir)
    (log_dir / sign).write_text("0\n0\n")
    (log_dir / "orders-0" / f"{0:020d}.log.swap").touch()  # what a recovery would settle
    before = {path: contents(path) for path in (log_dir, *(log_dir / str(tp) for tp in FOUND))}
    ran = clean(spark, log_dir, options=options)
    assert ran.code == 1
    assert [result["outcome"] for result in ran.results.values()] == ["failed"]
    assert f"{log_dir}/meta.properties: expected the file, found none beside {sign}" in ran.told
    assert {path: contents(path) for path in before} == before
