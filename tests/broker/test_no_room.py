"""A log directory that fills up while cleanerd writes in it, beside the broker that it belongs to."""

import os
from functools import partial
from pathlib import Path

import pytest

from cleanerd.env.space import space_of
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import (
    COMPACT,
    DAEMON,
    PATIENCE_S,
    Journal,
    check_nothing_is_lost,
    home,
    records,
    troubles,
)
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import READ_UNCOMMITTED, read_all
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import running, wait_until
from tests.harness.disks.mounts import mounted

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TOPICS = ("one", "two")
CONFIG = {**COMPACT, "internal.segment.bytes": "1000000"}
SETTINGS = {
    **DAEMON,
    "cleanerd.chunk.bytes": 1 << 20,
    "cleanerd.staged.min.free.ratio": 0.05,  # 3.2 MB
    "log.cleaner.threads": 2,
    "log.cleaner.io.max.bytes.per.second": 400_000,
}
"""Slow enough to be met while it writes, and too slow for one task to clean all groups at once."""
TIGHT_BYTES = 1_700_000
"""Room for two groups of a log with four, above the floor of 48 MiB."""
LEFT_BYTES = 1 << 20
"""Below the floor, and enough for the broker."""


@pytest.mark.fault("a disk that fills up in the middle of a write")
def test_a_directory_that_fills_up_in_mid_write_costs_its_log_the_cleaning_and_the_broker_nothing(
    tmp_path: Path,
) -> None:
    """The broker still has what the floor (cleanerd.staged.min.free.ratio) leaves, and writes on."""
    ample, small = tmp_path / "ample", tmp_path / "small"
    small.mkdir()
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaBroker(tmp_path / "broker", [ample, small]) as broker,
    ):
        admin, journal = broker.admin(), Journal(broker.bootstrap)
        for topic in TOPICS:  # each in the directory that has fewer
            create_topics(admin, {topic: CONFIG})
            wait_until(partial(home, topic, broker.log_dirs), PATIENCE_S)
        roomy, tight = sorted(TOPICS, key=lambda topic: home(topic, broker.log_dirs) == small)
        assert home(tight, broker.log_dirs) == small != home(roomy, broker.log_dirs)
        fill(journal, tight, 20_000)
        fill(journal, roomy, 6_000)
        with running(tmp_path / "daemon", ample, small, topics={}, **SETTINGS) as daemon:
            parts = small / f"{tight}-0"
            wait_until(
                lambda: any(path.stat().st_size for path in parts.glob("*.cleanerd")),
                PATIENCE_S,
                daemon.output,
            )
            space = space_of(str(small))
            with (small / "filler").open("wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, space.free_bytes - LEFT_BYTES)

            wait_until(lambda: daemon.outcomes(f"{tight}-0"), PATIENCE_S, daemon.output)
            first = next(event for event in daemon.history(f"{tight}-0")[::-1] if event["kind"] == "cleaning")
            assert first["outcome"] == "failed", first
            assert ".part.cleanerd: " in first["reason"], "it had begun to write"
            assert "are free on its file system" in first["reason"]
            assert list(parts.glob("*.cleanerd")) == [], "what was written is gone"
            wait_until(lambda: daemon.log(f"{roomy}-0")["state"] == "staged", PATIENCE_S, daemon.output)
            fill(journal, tight, 500)
            assert daemon.stop() == 0
        seen = read_all(broker, TOPICS, READ_UNCOMMITTED)
        for topic in TOPICS:
            check_nothing_is_lost(journal.written[topic], seen[topic], why=topic)
            assert len(seen[topic]) == len(journal.written[topic]), "nothing is committed beside a broker"
        assert troubles(broker) == []


def fill(journal: Journal, topic: str, count: int) -> None:
    """Write so many records, half of which are superseded."""
    for entry in records(topic, (number if number % 2 else 0 for number in range(count))):
        journal.send(topic, entry)
    journal.flush()


def test_a_swap_needs_no_tenth_of_the_disk_and_goes_group_by_group(tmp_path: Path) -> None:
    """A log that has no room as a whole, on a disk with less than a tenth free (architecture 2). Nothing waits there."""
    build_agent()
    small = tmp_path / "small"
    small.mkdir()
    with (
        mounted(small, "-t", "tmpfs", "-o", "size=48m", "none"),
        KafkaBroker(tmp_path / "broker", [small], {"log.segment.delete.delay.ms": "1000"}) as broker,
    ):
        journal = Journal(broker.bootstrap)
        create_topics(broker.admin(), {"tight": CONFIG})
        wait_until(partial(home, "tight", broker.log_dirs), PATIENCE_S)
        fill(journal, "tight", 16_000)
        space = space_of(str(small))
        with (small / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, space.free_bytes - TIGHT_BYTES)
        assert space_of(str(small)).free_ratio < 0.1
        settings = {**SETTINGS, "cleanerd.commit.live": "auto", "log.cleaner.io.max.bytes.per.second": "1e12"}
        settings |= {"cleanerd.staged.min.free.ratio": 0.1, "cleanerd.retry.backoff.ms": 1000}
        with running(tmp_path / "daemon", small, topics={}, **settings) as daemon:
            wait_until(lambda: daemon.log("tight-0")["state"] == "clean", PATIENCE_S, daemon.output)
            done = [event for event in daemon.history("tight-0") if event["kind"] == "cleaning"]
            assert {event["committed_by"] for event in done if event["outcome"] == "committed"} == {"swap"}
            read = sum(event["bytes_read"] for event in done)
            assert read > done[-1]["bytes_before"], "once more, when what was swapped first had made room"
            assert daemon.stop() == 0
        seen = read_all(broker, ["tight"], READ_UNCOMMITTED)
        check_nothing_is_lost(journal.written["tight"], seen["tight"], why="tight")
        assert len(seen["tight"]) < len(journal.written["tight"])
        assert troubles(broker) == []
