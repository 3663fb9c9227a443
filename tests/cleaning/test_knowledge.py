"""What is known of a log, and what is removed without it: nothing (the table of architecture 2)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.cleaning.assumed import SETTINGS, UNCHANGED
from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.format.names import LOCK, PARTITION_METADATA, TopicPartition
from cleanerd.format.uuid_text import render_uuid
from cleanerd.policy.tombstones import KNOWN_FOR_MS
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import find_metadata
from cleanerd.units import utc
from tests.config.test_load import HOUR_MS, configured
from tests.harness.logs.metadata import BROKER, SAMPLE_ID, SKIPPED, TOPIC, batch, config, log, topic
from tests.harness.logs.troubled import META_PROPERTIES, lock_of_another, write_logs

DELETE = {"cleanup.policy": "delete"}
IDS = {"own": UUID(int=1), "none": UUID(int=2), "named": UUID(int=3)}
NAMED = {"named": {"retention.ms": "9"}}


class Beside:
    """A log directory and what holds there."""

    def __init__(self, path: Path, *, of_broker: bool = True) -> None:
        path.mkdir()
        if of_broker:
            (path / names.META_PROPERTIES).write_text(META_PROPERTIES)
        self._log_dir = LogDir.at(RealFiles(), str(path), SystemClock())

    def knowledge(self, configuration: Configuration) -> Knowledge:
        return Knowledge(self._log_dir, configuration)

    def retention_ms(self, configuration: Configuration, *topics: str) -> list[int]:
        return [self.knowledge(configuration).limits(topic).retention_ms for topic in topics]


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """A stopped broker."""
    return Beside(tmp_path / "logs")


@pytest.fixture
def nobodys(tmp_path: Path) -> Beside:
    """A directory that no broker ever owned."""
    return Beside(tmp_path / "nobodys", of_broker=False)


def cluster(*, others: bool, broker: Mapping[str, str] | None = None) -> ClusterMetadata:
    """Of topics with a policy; one has a limit, too."""
    records = {topic: dict(DELETE) for topic in IDS}
    records["own"]["retention.ms"] = "5"
    return ClusterMetadata(IDS, records, {"": dict(broker or {})}, "/m", 1, has_other_voters=others)


def test_beside_a_stopped_broker_only_a_limit_that_names_the_topic_holds(beside: Beside) -> None:
    """Whatever else is configured the other nodes may be changing while this one is down (rule A.3)."""
    metadata = cluster(others=True, broker={"log.retention.ms": "7"})
    found = configured(topics=NAMED, metadata=metadata)
    assert beside.retention_ms(found, *IDS, "of_no_cluster") == [-1, -1, 9, -1]
    limits = beside.knowledge(found).limits("own")
    assert limits == found.topic("own").but(retention_ms=-1, retention_bytes=-1)
    by_hand = configured({"log.retention.ms": "8", "log.cleanup.policy": "delete"}, NAMED, metadata)
    assert beside.retention_ms(by_hand, *IDS, "of_no_cluster") == [-1, -1, 9, -1]
    assert "the cluster may have changed the limits since" in beside.knowledge(by_hand).why_kept("own").text


def test_the_metadata_log_of_the_only_voter_is_final(beside: Beside) -> None:
    """With what was given of its broker's configuration; no default of Kafka's is."""
    alone = configured(topics=NAMED, metadata=cluster(others=False))
    assert beside.retention_ms(alone, *IDS) == [5, -1, 9]
    assert "which cleanerd was not given" in beside.knowledge(alone).why_kept("none").text
    for broker, values in (({"log.retention.ms": "7"}, {}), ({}, {"log.retention.ms": "7"})):
        told = configured(values, NAMED, cluster(others=False, broker=broker))
        assert beside.retention_ms(told, *IDS) == [5, 7, 9]
    assert beside.retention_ms(told, "of_no_cluster") == [-1]


@pytest.mark.parametrize(("voters", "own_ms"), [("1@a:9093", 5), ("1@a:9093,2@b:9093", -1), ("2@b:9093", -1)])
def test_voters_that_the_node_has_not_been_started_with_yet_may_be_at_work(
    beside: Beside, voters: str, own_ms: int
) -> None:
    written = configured({"controller.quorum.voters": voters}, metadata=cluster(others=False))
    assert beside.retention_ms(written, "own") == [own_ms]


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_default_policy_deletes_nothing_beside_a_stopped_broker(beside: Beside, is_alone: bool) -> None:
    """Its broker may have another one in a file that was not given to us (rule A.2)."""
    records = {"own": {"retention.ms": "5"}}
    metadata = ClusterMetadata(IDS, records, {}, "/m", 1, has_other_voters=not is_alone)
    found = configured({"log.retention.ms": "7"}, NAMED, metadata)
    assert beside.retention_ms(found, *IDS) == [-1, -1, -1]
    assert "the broker may have another one" in beside.knowledge(found).why_kept("own").text
    told = configured({"log.retention.ms": "7"}, {"named": NAMED["named"] | DELETE}, metadata)
    assert beside.retention_ms(told, "named") == [9]


def test_beside_a_broker_that_does_not_answer_only_a_limit_that_names_the_topic_holds(
    tmp_path: Path, beside: Beside
) -> None:
    """Nor does the file of a ZooKeeper broker, nor what it last answered."""
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/d\nlog.retention.ms=7\nlog.cleanup.policy=delete\n")
    topics = [("named", key, value) for key, value in (NAMED["named"] | DELETE).items()]
    sources = read_sources(str(config), (), topics)
    records = {topic: {**DELETE, "retention.ms": "5"} for topic in ("own", "none")}
    answer = ClusterMetadata(dict.fromkeys(IDS), records, {}, is_whole=False)
    for metadata in (None, answer):
        assert beside.retention_ms(resolve(sources, metadata), *IDS) == [-1, -1, 9]


def test_in_a_directory_of_no_broker_a_limit_deletes_and_a_default_does_not(nobodys: Beside) -> None:
    """Nor does the default policy by any limit: the topic's own may be in a file that is not mounted (rule A.2)."""
    for broker in ({}, {"log.retention.ms": "7"}):
        found = configured(broker, NAMED)
        assert nobodys.retention_ms(found, *IDS) == [-1, -1, -1]
        assert "Kafka's default deletes nothing here" in nobodys.knowledge(found).why_kept("own").text
    assert nobodys.retention_ms(
        configured({"log.retention.ms": "7", "log.cleanup.policy": "delete"}, NAMED), *IDS
    ) == [7, 7, 9]
    found = configured({"log.cleanup.policy": "compact,delete"}, NAMED)
    assert nobodys.retention_ms(found, *IDS) == [-1, -1, 9]
    assert "Kafka's defaults delete nothing here" in nobodys.knowledge(found).why_kept("own").text


NOW_MS = (
    SystemClock().now_ms() + 12 * HOUR_MS
)  # later than the machine's clock, however long a run of all tests takes
LOG = TopicPartition("orders", 0)


class Stopped:
    """A broker that is one of two voters, and has stopped; its topic orders is compacted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        write_logs(path, "orders")
        (path / "orders-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {render_uuid(SAMPLE_ID)}")
        self.write_metadata(NOW_MS)

    def write_metadata(
        self, last_ms: int, voters: str = '{"voterId":1},{"voterId":2}', last: bytes = SKIPPED
    ) -> None:
        """The last batch is of that time, and not certain; the one before it is."""
        compact = config(TOPIC, "orders", "cleanup.policy", "compact")
        data = batch(0, [topic("orders", SAMPLE_ID), compact]) + batch(2, [last], at_ms=last_ms)
        directory = log(self.path / "__cluster_metadata-0", log_0=data)
        self.append(last_ms)
        (directory / "quorum-state").write_text(f'{{"currentVoters":[{voters}],"data_version":0}}')

    def append(self, at_ms: int) -> None:
        """As far as the time of the file tells."""
        os.utime(self.path / "__cluster_metadata-0" / f"{0:020d}.log", ns=(at_ms * 10**6,) * 2)

    def why(
        self, now_ms: int, *assumed: str, topics: Sequence[tuple[str, str, str]] = (), has_begun: bool = False
    ) -> str | None:
        files = RealFiles()
        found = find_metadata(files, [str(self.path)], "")
        configuration = resolve(read_sources(None, (), topics), found)
        log_dir = LogDir.at(files, str(self.path), FixedNow(now_ms))
        return Knowledge(log_dir, configuration, frozenset(assumed)).why_untouched(LOG, has_begun=has_begun)


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path / "logs")


def test_what_a_stopped_broker_knew_holds_for_some_minutes(stopped: Stopped) -> None:
    """Then the log is left alone, with the time of the last sign of life and the ways out (architecture 2)."""
    assert stopped.why(NOW_MS + KNOWN_FOR_MS) is None
    reason = stopped.why(NOW_MS + KNOWN_FOR_MS + 1)
    assert reason is not None
    assert f"its last sign of life was at {utc(NOW_MS)}" in reason
    for way in ("start the broker", "topics.d", "--topic-set", "--assume settings"):
        assert way in reason


def test_an_earlier_time_makes_nothing_younger(stopped: Stopped) -> None:
    """`--now-ms`: the clock of the machine counts."""
    long_ago_ms = SystemClock().now_ms() - 10 * KNOWN_FOR_MS
    stopped.write_metadata(long_ago_ms)
    assert "last sign of life" in str(stopped.why(long_ago_ms))


def test_a_clock_that_was_set_back_makes_nothing_younger(tmp_path: Path) -> None:
    """A machine that was off for days, and knows the time no more: how long its broker has been down is not known."""
    stopped = Stopped(tmp_path / "logs")
    stopped.write_metadata(NOW_MS + HOUR_MS)
    assert "last sign of life" in str(stopped.why(NOW_MS))


def test_what_lets_work_begin_later(stopped: Stopped) -> None:
    late_ms = NOW_MS + HOUR_MS
    assert stopped.why(late_ms, SETTINGS) is None
    assert stopped.why(late_ms, topics=[("orders", "cleanup.policy", "compact")]) is None
    assert stopped.why(late_ms, topics=[("orders", "retention.ms", "5")]) is not None, "that is no policy"
    assert stopped.why(late_ms, has_begun=True) is None
    stopped.write_metadata(NOW_MS, voters='{"voterId":1}')
    assert stopped.why(late_ms) is None, "of the only voter"
    stopped.write_metadata(NOW_MS)
    (stopped.path / LOCK).touch()
    with lock_of_another(stopped.path / LOCK):
        assert stopped.why(late_ms) is not None, "it lives, and hears nothing"
        stopped.append(late_ms)
        assert stopped.why(late_ms) is None, "it lives, and hears from its controllers"
    assert stopped.why(late_ms) is not None


@pytest.mark.parametrize(
    ("record", "is_known"),
    [
        (config(TOPIC, "orders", "cleanup.policy", "delete"), False),
        (config(TOPIC, "orders", "min.compaction.lag.ms", "5"), False),
        (config(BROKER, "", "log.cleaner.min.compaction.lag.ms", "5"), False),
        (config(BROKER, "", "log.cleanup.policy", "delete"), True),  # the topic has its own
        (config(TOPIC, "others", "cleanup.policy", "delete"), True),
        (config(TOPIC, "orders", "retention.ms", "5"), True),  # it is not deleted by
        (config(BROKER, "", "log.retention.ms", "5"), True),
    ],
)
def test_what_the_cluster_may_not_have_accepted_is_not_known(
    record: bytes, is_known: bool, stopped: Stopped
) -> None:
    """Until the broker lives, or somebody sets the policy; not until some time has passed."""
    directory = stopped.path / "__cluster_metadata-0"
    compact = config(TOPIC, "orders", "cleanup.policy", "compact")
    data = batch(0, [topic("orders", SAMPLE_ID), compact]) + batch(2, [record], at_ms=NOW_MS)
    log(directory, log_0=data)
    reason = stopped.why(NOW_MS, has_begun=True)
    assert (reason is None) == is_known
    assert is_known or "may never have been accepted" in str(reason)
    assert stopped.why(NOW_MS, SETTINGS) is None
    assert (stopped.why(NOW_MS + HOUR_MS, UNCHANGED) is None) == is_known, "the word of a rescue is for later"
    assert stopped.why(NOW_MS, topics=[("orders", "cleanup.policy", "compact")]) is None
    (stopped.path / LOCK).touch()
    stopped.append(NOW_MS)
    with lock_of_another(stopped.path / LOCK):
        assert stopped.why(NOW_MS) is None


def test_a_limit_decides_only_where_it_deletes(stopped: Stopped) -> None:
    both = config(TOPIC, "orders", "cleanup.policy", "compact,delete")
    for record in (config(TOPIC, "orders", "retention.ms", "5"), config(BROKER, "", "log.retention.ms", "5")):
        data = batch(0, [topic("orders", SAMPLE_ID), both]) + batch(2, [record], at_ms=NOW_MS)
        log(stopped.path / "__cluster_metadata-0", log_0=data)
        assert "retention.ms at the end of the metadata log" in str(stopped.why(NOW_MS))
        assert stopped.why(NOW_MS, topics=[("orders", "retention.ms", "7")], has_begun=True) is None, (
            "overridden"
        )


def test_an_answer_holds_as_long_as_a_metadata_log_does(tmp_path: Path) -> None:
    """Of a broker without one (ZooKeeper): its checkpoints show when it last lived."""
    log_dir = tmp_path / "logs"
    write_logs(log_dir, "orders")
    compact = {"orders": {"cleanup.policy": "compact"}}
    answer = resolve(read_sources(None), ClusterMetadata({"orders": None}, compact, {}, is_whole=False))
    lived_ms = (log_dir / names.REPLICATION_CHECKPOINT).stat().st_mtime_ns // 1_000_000
    for late_ms, is_known in ((KNOWN_FOR_MS - 60_000, True), (KNOWN_FOR_MS + 60_000, False)):
        found = LogDir.at(RealFiles(), str(log_dir), FixedNow(lived_ms + late_ms))
        assert (Knowledge(found, answer).why_untouched(LOG) is None) == is_known
