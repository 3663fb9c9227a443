"""Logs that their broker is creating: they are looked at again until it has said which topic they are of."""

import errno
import math
import os
import uuid
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.config.model import ClusterMetadata
from cleanerd.daemon.inventory.inventory import ScanReport
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.env.files import Files, RealFiles
from cleanerd.format.names import CLEANERD_LOCK, META_PROPERTIES, PARTITION_METADATA
from cleanerd.format.partition_metadata import render_partition_metadata
from tests.harness.daemon.processes import running
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import META_PROPERTIES as BROKER
from tests.harness.logs.troubled import leave_to_nobody, write_logs

TOPIC_ID = uuid.UUID(int=1)
TOPICS = {"one", "two", "three"}


class WrittenBehindUs(RealFiles):
    """The broker writes the topic id right behind the first look for it."""

    def read(self, path: str) -> bytes:
        if os.path.basename(path) == PARTITION_METADATA and not os.path.exists(path):
            Path(path).write_bytes(render_partition_metadata(TOPIC_ID))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return super().read(path)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Its logs, a broker's, have no topic ids yet."""
    world = World(tmp_path)
    (world.a / META_PROPERTIES).write_text(BROKER)
    for path in world.a.glob(f"*/{PARTITION_METADATA}"):
        path.unlink()
    yield world
    world.close()


def scanner_of(world: World, files: Files) -> Scanner:
    """Of a cluster that has the topics of `world`."""
    metadata = ClusterMetadata(dict.fromkeys(TOPICS, TOPIC_ID), {}, {})
    configuration = replace(world.reloader.current, metadata=metadata)
    parts = copy(world.parts)
    ownership = copy(world.parts.ownership)
    ownership.files = files
    parts.conditions = replace(parts.conditions, ownership=ownership, configuration=lambda: configuration)
    return parts.supervisor().scanner


def test_a_topic_id_that_is_written_while_it_is_looked_for_is_found_by_the_next_look(world: World) -> None:
    scanner, ignored = scanner_of(world, WrittenBehindUs()), world.parts.obstacles.ignored
    with capture_logs() as events:
        scanner.judge.rule_on(map(world.log, TOPICS))
        assert set(ignored) == set(map(world.log, TOPICS))
        scanner.refresh()
    assert not ignored
    assert [event for event in events if event["event"] == "ignored"] == []


def test_a_topic_id_that_comes_late_is_found_by_the_next_full_scan(world: World) -> None:
    """Although nothing else changes: the log has been told of, and grows no segment."""
    scanner, ignored = scanner_of(world, RealFiles()), world.parts.obstacles.ignored
    with capture_logs() as events:
        scanner.judge.rule_on(map(world.log, TOPICS))
        world.clock.advance(60_000)
        scanner.refresh()
    assert {event["topic"] for event in events if event["event"] == "ignored"} == TOPICS
    (world.a / "one-0" / PARTITION_METADATA).write_bytes(render_partition_metadata(TOPIC_ID))
    scanner.scan()
    assert set(ignored) == {world.log("two"), world.log("three")}


def test_a_look_at_many_logs_is_followed_by_a_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes meanwhile is looked at together: with 10,000 logs each commit of one would be a reason for a look."""
    scanner, inventory, looks = scanner_of(world, RealFiles()), world.parts.inventory, list[float]()
    look = inventory.scan_touched

    def counted(log_dirs: Sequence[str]) -> ScanReport:
        looks.append(world.clock.monotonic_s())
        return look(log_dirs)

    monkeypatch.setattr(inventory, "scan_touched", counted)
    scanner.scan()
    many = inventory.entries() * 2_000
    monkeypatch.setattr(inventory, "entries", lambda: many)
    interval_s = scanner.step()
    rest_s = scanner.step()
    assert 0.1 < rest_s < interval_s
    world.clock.advance(math.floor(rest_s * 1000) - 1)
    assert 0 < scanner.step() < 0.01
    world.clock.advance(2)
    assert scanner.step() == interval_s
    assert len(looks) == 2


def test_nothing_is_written_to_a_directory_until_it_is_a_log_directory(world: World) -> None:
    """It is reported once, with what lies there; from its first segment on it is the daemon's as any other."""
    world.close()
    for path in world.b.iterdir():
        path.unlink()
    with capture_logs() as events:
        world._start()
        world.scan()
        assert list(world.b.iterdir()) == []
        write_logs(world.b, "new")
        world.scan()
    told = [(event["event"], event.get("reason")) for event in events if event.get("log_dir") == str(world.b)]
    expected = (
        f"{world.b}: expected a log directory (meta.properties, or a partition with a segment), found nothing"
    )
    assert told[0] == ("log_dir_offline", expected)
    assert [event for event, _ in told].count("log_dir_offline") == 1
    assert ("log_dir_online", None) in told
    assert (world.b / CLEANERD_LOCK).exists()
    assert any(log.log_dir == str(world.b) for log in world.parts.inventory.logs())


def test_nothing_is_written_to_a_directory_of_another_node(world: World) -> None:
    """No broker starts with it: a volume came back to the wrong machine (spec disk A2)."""
    world.close()
    for path, node in ((world.a, 1), (world.b, 7)):
        (path / META_PROPERTIES).write_text(f"version=1\ncluster.id=c\nnode.id={node}\n")
    (world.b / CLEANERD_LOCK).unlink()
    world._set({"node.id": 1})
    with capture_logs() as events:
        world._start()
        world.scan()
    told = [event["reason"] for event in events if event["event"] == "log_dir_offline"]
    assert len(told) == 1
    assert told[0].startswith(
        f"{world.b}: expected a directory of node 1 (node.id, broker.id), found one of node 7 (meta.properties)"
    )
    assert not (world.b / CLEANERD_LOCK).exists()


def test_the_first_segment_of_a_log_directory_is_seen_at_once(tmp_path: Path) -> None:
    """Not by the next full scan, which may be far away."""
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    with running(tmp_path / "d", log_dir, cleanerd_scan_interval_ms=600_000) as daemon:
        assert os.listdir(log_dir) == []
        assert daemon.ask("status")["status"]["log_dirs"][0]["online"] is False
        write_logs(log_dir, "new")
        leave_to_nobody(log_dir)
        daemon.wait(lambda: daemon.ask("logs")["logs"], 30)
