"""What is known of a log, and what is removed without it: nothing (the table of architecture 2)."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.cleaning.knowledge import Knowledge
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.model import ClusterMetadata, TopicConfig
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.storage.log_dir import LogDir
from tests.config.test_load import HOUR_MS, configured


class Beside:
    """A log directory and what holds there."""

    def __init__(self, path: Path) -> None:
        self._log_dir = LogDir.at(RealFiles(), str(path), SystemClock())

    def limits(self, configuration: Configuration, topic: str) -> TopicConfig:
        return Knowledge(self._log_dir, configuration).limits(topic)

    def retention_ms(self, configuration: Configuration, *topics: str) -> list[int]:
        return [self.limits(configuration, topic).retention_ms for topic in topics]


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def test_nothing_expires_by_what_other_nodes_may_be_changing(beside: Beside) -> None:
    """They may give a topic more time while this node is down; who wants it says so in a layer above."""
    ids = {"own": UUID(int=1), "none": UUID(int=2), "named": UUID(int=3)}
    records = {"own": {"retention.ms": "5", "cleanup.policy": "compact,delete"}}
    metadata = ClusterMetadata(ids, records, {"": {"log.retention.ms": "7"}}, "/m", 1, has_other_voters=True)
    found = configured(topics={"named": {"retention.ms": "9"}}, metadata=metadata)
    assert beside.retention_ms(found, *ids, "of_no_cluster") == [-1, -1, 9, 7]
    assert beside.limits(found, "own") == found.topic("own").but(retention_ms=-1, retention_bytes=-1)
    by_hand = configured({"log.retention.ms": "8"}, metadata=metadata)
    assert beside.retention_ms(by_hand, "own", "none") == [-1, 8]
    alone = configured(metadata=replace(metadata, has_other_voters=False))
    assert beside.retention_ms(alone, "own", "none") == [5, 7]
    for voters, expected in (("1@a:9093", [5, 7]), ("1@a:9093,2@b:9093", [-1, -1]), ("2@b:9093", [-1, -1])):
        written = configured({"controller.quorum.voters": voters}, metadata=alone.metadata)
        assert beside.retention_ms(written, "own", "none") == expected, (
            "the node has not been started with them yet, and they may be at work"
        )


def test_nothing_expires_by_a_default_that_its_broker_may_have_changed(
    tmp_path: Path, beside: Beside
) -> None:
    """In its server.properties, which is not in the metadata log."""
    ids, records = {"own": UUID(int=1), "none": UUID(int=2)}, {"own": {"retention.ms": "5"}}
    metadata = ClusterMetadata(ids, records, {}, "/m", 1)
    found = configured({"cleanerd.retry.max": "5"}, metadata=metadata)
    assert beside.retention_ms(found, *ids) == [5, -1]
    assert found.topic("none").retention_ms == 168 * HOUR_MS
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/d\n")
    found = resolve(read_sources(str(config)), metadata)
    assert beside.retention_ms(found, "none") == [168 * HOUR_MS]
