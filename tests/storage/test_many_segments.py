"""What the number of segments costs: passes over a directory are linear, and as many for many groups as for few."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.daemon.inventory.listed_log import read_contents
from cleanerd.env.files import RealFiles
from cleanerd.format.names import FileKind, SegmentFileName
from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.recovery_plan import Leftovers, objection
from cleanerd.policy.retention import RetentionConfig, plan_retention
from cleanerd.storage.delete import retire_segments
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, scan_partition
from cleanerd.storage.segments import live_bases
from cleanerd.storage.staged import read_manifests
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.spark.in_process import TP, Cleaning

SMALL, LARGE = 200, 3_200
LINEAR_MAX = 5 * LARGE // SMALL
"""What is linear takes 16 times as long for LARGE as for SMALL, what is quadratic 256 times."""


class Bases(list[int]):
    """A list that does not like to be searched."""

    def __contains__(self, base: object) -> bool:
        raise AssertionError(f"all bases are compared with {base}")


class Listings(RealFiles):
    """Counts the passes over a directory, and spares the disk the syncs."""

    def __init__(self) -> None:
        self.passes = 0

    def list_names(self, directory: str) -> list[str]:
        self.passes += 1
        return super().list_names(directory)

    def fsync_dir(self, directory: str) -> None:
        """Not what is measured here."""


def segments(directory: Path, count: int) -> Path:
    """Empty segments of an offset each, and indexes, in `<count>/t-0`."""
    partition = directory / str(count) / str(TP)
    partition.mkdir(parents=True, exist_ok=True)
    for base in range(count):
        for kind in (FileKind.LOG, FileKind.TXN_INDEX):
            (partition / str(SegmentFileName(base, kind))).touch()
    return partition


def seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def ratio(step: Callable[[int], object], scale: int = 1) -> float:
    """How many times as long as SMALL the number LARGE takes, both `scale` times; the best of three each."""
    counts = SMALL * scale, LARGE * scale
    small, large = (min(seconds(lambda: step(count)) for _ in range(3)) for count in counts)  # noqa: B023
    return large / small


def test_looking_at_a_log_is_linear_in_its_segments(tmp_path: Path) -> None:
    for count in (SMALL, LARGE):
        segments(tmp_path, count)
    nothing = Checkpoints({}, {}, {}, {})

    def scan(count: int) -> None:
        partition = PartitionDir.of(RealFiles(), str(tmp_path / str(count)), TP)
        found = scan_partition(partition, TP, nothing, is_kafka=False)
        assert found is not None
        assert len(found.segments) == count

    assert ratio(scan) < LINEAR_MAX
    assert (
        ratio(
            lambda count: read_contents(PartitionDir(RealFiles(), str(tmp_path / str(count) / str(TP))), None)
        )
        < LINEAR_MAX
    )


def test_deleting_the_oldest_segments_does_not_compare_each_with_each(tmp_path: Path) -> None:
    partition = segments(tmp_path, 10)
    assert len(retire_segments(PartitionDir(RealFiles(), str(partition)), Bases(range(9)))) == 18


def test_deciding_what_retention_takes_is_linear_in_the_segments() -> None:
    config = RetentionConfig(delete=True, retention_ms=1, retention_bytes=-1)

    def plan(count: int) -> None:
        facts = [SegmentFacts(base, 10, 0, 0, 0, None) for base in range(count)]
        found = plan_retention(
            facts, config, now_ms=9, log_start_offset=0, log_end_offset=count, high_watermark=count
        )
        assert len(found.deletions) == count

    assert ratio(plan, scale=16) < LINEAR_MAX


def test_deciding_what_a_broker_left_is_linear_in_it() -> None:
    def decide(count: int) -> None:
        bases = range(count)
        assert objection(Leftovers(cleaned=[*bases], swaps=[*bases], deleted_logs=[]), is_kafka=False) is None

    assert ratio(decide) < LINEAR_MAX


@pytest.mark.parametrize("step", ["stage", "commit"])
def test_the_passes_over_a_directory_do_not_follow_the_number_of_groups(tmp_path: Path, step: str) -> None:
    passes = []
    for count in (4, 24):
        log_dir = tmp_path / str(count)
        log_dir.mkdir()
        with LogWriter(str(log_dir), TP.topic, TP.partition, segment_bytes=500) as writer:
            producer = Producer(writer)
            for number in range(8 * count):
                producer.put(b"same" if number % 2 else b"%d" % number, b"v" * 50, 1)
        files = Listings()
        cleaning = Cleaning(files, str(log_dir), 1000)
        assert cleaning.choose()
        cleaning.index()
        files.passes = 0
        cleaning.stage()
        assert len(read_manifests(PartitionDir(RealFiles(), cleaning.directory))) >= count / 2
        if step == "commit":
            files.passes = 0
            assert cleaning.commit() == live_bases(cleaning.directory)[-1]
        passes.append(files.passes)
    assert passes[0] == passes[1]
