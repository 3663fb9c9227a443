"""Logs that their broker is creating: they are looked at again until it has said which topic they are of."""

import errno
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cleanerd.config.model import KraftMetadata
from cleanerd.daemon.loops.scanner import Scanner
from cleanerd.env.files import Files, RealFiles
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.format.partition_metadata import render_partition_metadata
from tests.operate.world import World

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
    """Its logs have no topic ids yet."""
    world = World(tmp_path)
    for path in world.a.glob(f"*/{PARTITION_METADATA}"):
        path.unlink()
    yield world
    world.close()


def scanner_of(world: World, files: Files) -> Scanner:
    """Of a cluster that has the topics of `world`."""
    metadata = KraftMetadata(dict.fromkeys(TOPICS, TOPIC_ID), {}, {})
    configuration = replace(world.reloader.current, metadata=metadata)
    return Scanner(replace(world.parts, files=files, configuration=lambda: configuration))


def test_a_topic_id_that_is_written_while_it_is_looked_for_is_found_by_the_next_look(world: World) -> None:
    scanner, ignored = scanner_of(world, WrittenBehindUs()), world.parts.obstacles.ignored
    with capture_logs() as events:
        scanner.judge(map(world.log, TOPICS))
        assert set(ignored) == set(map(world.log, TOPICS))
        scanner.refresh()
    assert not ignored
    assert [event for event in events if event["event"] == "ignored"] == []


def test_a_topic_id_that_comes_late_is_found_by_the_next_full_scan(world: World) -> None:
    """Although nothing else changes: the log has been told of, and grows no segment."""
    scanner, ignored = scanner_of(world, RealFiles()), world.parts.obstacles.ignored
    with capture_logs() as events:
        scanner.judge(map(world.log, TOPICS))
        world.clock.advance(60_000)
        scanner.refresh()
    assert {event["topic"] for event in events if event["event"] == "ignored"} == TOPICS
    (world.a / "one-0" / PARTITION_METADATA).write_bytes(render_partition_metadata(TOPIC_ID))
    scanner.scan()
    assert set(ignored) == {world.log("two"), world.log("three")}
