"""The last question before a commit: what forbids it, and what a mute is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.cleaning.commit.host import AsRequested
from cleanerd.cleaning.result import CleanRequest
from cleanerd.cleaning.wanted import ConfiguredNow, check_wanted
from cleanerd.config.load import resolve
from cleanerd.config.model import TopicConfig
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import Aborted, CorruptFile, PolicyChanged
from cleanerd.format.names import TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import find_metadata
from tests.cleaning.test_knowledge import LOG, Stopped
from tests.harness.disks.hooked import HookedFiles
from tests.harness.logs.metadata import SAMPLE_ID, SAMPLE_TOPIC, TOPIC, batch, config, log, topic
from tests.harness.logs.troubled import RECORDS, write_logs

CONFIG = TopicConfig(cleanup_policy=("compact",))
NOW_MS = 10_000_000


def ask(log_dir: Path, config: TopicConfig) -> None:
    tp = TopicPartition("t", 0)
    place = LogDir(RealFiles(), str(log_dir), FixedNow(NOW_MS), is_kafka=True)
    check_wanted(place, tp, config, RECORDS)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_logs(tmp_path / "logs", "t")


@pytest.mark.trap("a policy that changes between plan and commit")
def test_a_policy_or_a_lag_that_forbids_the_cleaning_forbids_the_commit(log_dir: Path) -> None:
    """A mute, which is a dirty ratio of 1.0, does not: it says who cleans next."""
    ask(log_dir, CONFIG.but(broker_min_cleanable_dirty_ratio=1.0))
    with pytest.raises(PolicyChanged, match=r"cleanup\.policy no longer contains compact"):
        ask(log_dir, CONFIG.but(cleanup_policy=("delete",)))
    with pytest.raises(PolicyChanged, match=r"younger than min\.compaction\.lag\.ms"):
        ask(log_dir, CONFIG.but(min_compaction_lag_ms=NOW_MS * 2))


def test_a_run_sees_what_the_cluster_has_changed_since_it_began(tmp_path: Path) -> None:
    """What the command line says goes on to hold; what cannot be read any more is not known, and read again."""
    lag, place = "min.compaction.lag.ms", tmp_path / "__cluster_metadata-0"
    read = list[str]()
    files = HookedFiles(lambda call, path: read.append(path) if call == "read" else None)
    frames = [topic("t", SAMPLE_ID), config(TOPIC, "t", "cleanup.policy", "compact")]
    log(place, log_0=batch(0, frames))
    for said in ((), (("t", lag, "5"),)):
        sources = read_sources(None, [("metadata.log.dir", str(tmp_path))], said)
        known = resolve(sources, find_metadata(files, [str(tmp_path)], str(tmp_path)))
        place_of = (str(tmp_path),)
        request = CleanRequest(
            config=known.broker, topic_config=known.topic, log_dirs=place_of, configuration=known
        )
        before, configured = known.topic("t"), ConfiguredNow(request, files)

        def now(configured: ConfiguredNow = configured) -> TopicConfig:
            found = configured.now()
            assert found is not None
            return found.topic("t")

        assert now() == before
        changed = [
            *frames,
            config(TOPIC, "t", lag, "3600000"),
            config(TOPIC, "t", "cleanup.policy", "delete"),
        ]
        log(place, log_0=batch(0, changed))
        for _ in range(2):
            assert (now().min_compaction_lag_ms, now().compact) == (5 if said else 3_600_000, False)
        reads = len(read)
        assert not now().compact
        assert len(read) == reads, "no news"
        log(place, log_0=b"x" * 100 + batch(0, frames))
        for _ in range(2):
            with pytest.raises(CorruptFile):
                now()
            assert len(read) > reads, "it cannot be known that nothing has changed"
            reads = len(read)
        log(place, log_0=batch(0, frames))


def test_a_result_waits_where_it_is_not_known_whether_it_is_wanted(tmp_path: Path) -> None:
    """Nothing proves a change: settings that no quorum may have accepted, a metadata log that cannot be read (rule A.5)."""
    files, stopped, path = RealFiles(), Stopped(tmp_path / "logs"), str(tmp_path / "logs")
    known = resolve(read_sources(None), find_metadata(files, [path], ""))
    request = CleanRequest(
        config=known.broker, topic_config=known.topic, log_dirs=(path,), configuration=known
    )
    host = AsRequested(LogDir.at(files, path, SystemClock()), request, ConfiguredNow(request, files))
    host.check(LOG, RECORDS)
    policy = config(TOPIC, "orders", "cleanup.policy", "delete")
    stopped.write_metadata(SystemClock().now_ms(), last=policy)
    with pytest.raises(Aborted, match="may never have been accepted"):
        host.check(LOG, RECORDS)
    stopped.write_metadata(SystemClock().now_ms(), voters='{"voterId":1}', last=policy)
    with pytest.raises(PolicyChanged):
        host.check(LOG, RECORDS)
    log(tmp_path / "logs" / "__cluster_metadata-0", log_0=b"x" * 100 + batch(0, [SAMPLE_TOPIC]))
    with pytest.raises(Aborted, match=r"\.log: at byte 16"):
        host.check(LOG, RECORDS)


def test_a_result_waits_where_a_file_of_settings_has_changed_since_it_was_read(tmp_path: Path) -> None:
    """The rule that what is stale is no permission (rule A.4): what a run goes by is as old as its begin."""
    files, stopped, path = RealFiles(), Stopped(tmp_path / "logs"), str(tmp_path / "logs")
    stopped.write_metadata(SystemClock().now_ms(), voters='{"voterId":1}')
    config_file, topic_file = tmp_path / "server.properties", tmp_path / "topics.d" / "orders.properties"
    config_file.write_text("")
    topic_file.parent.mkdir()

    def check_after(change: Callable[[], object]) -> None:
        known = resolve(read_sources(str(config_file)), find_metadata(files, [path], ""))
        request = CleanRequest(
            config=known.broker, topic_config=known.topic, log_dirs=(path,), configuration=known
        )
        host = AsRequested(LogDir.at(files, path, SystemClock()), request, ConfiguredNow(request, files))
        host.check(LOG, RECORDS)
        change()
        host.check(LOG, RECORDS)

    for change in (
        lambda: config_file.write_text("log.cleaner.min.compaction.lag.ms=1"),
        lambda: topic_file.write_text("cleanup.policy=compact"),
        topic_file.unlink,
        lambda: topic_file.write_text("cleanup.policy=delete"),
    ):
        with pytest.raises(Aborted, match="has changed since this run read it"):
            check_after(change)
