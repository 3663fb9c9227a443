"""Whoever makes a whole log of what an interrupted cleaning left, and what must hold of it then."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from cleanerd.format.batch import iterate_batches, parse_header
from cleanerd.format.names import Suffix, parse_segment_file
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.segments import live_bases
from cleanerd.tools.client.reader import read_records
from tests.harness.disks import kafka_startup
from tests.harness.disks.by_hand import FILES, TP, batches, kept_offsets

TIMEOUT_S = 60
PROCESSES = multiprocessing.get_context("fork")  # 10 ms each: everything is imported already

Repair = Callable[[Path], None]


def next_offset(content: bytes, base: int) -> int:
    starts = [position for position, _, _ in iterate_batches(content)]
    return parse_header(content, starts[-1]).next_offset if starts else base


def recovers(log_dir: Path) -> None:
    """cleanerd, beside a broker's directory."""
    assert recover(PartitionDir(FILES, str(log_dir / str(TP))), is_kafka=True) is None


def recovers_alone(log_dir: Path) -> None:
    """cleanerd, where no broker will ever come."""
    assert recover(PartitionDir(FILES, str(log_dir / str(TP))), is_kafka=False) is None


def broker_starts(log_dir: Path) -> None:
    kafka_startup.start(FILES, str(log_dir / str(TP)), next_offset)


REPAIRS: tuple[tuple[Repair, ...], ...] = (
    (recovers,),
    (broker_starts,),
    (recovers_alone,),
    (broker_starts, recovers),
    (recovers, broker_starts),
)


class Truth:
    """What must hold for a log, however it was interrupted."""

    def __init__(self, log_dir: Path) -> None:
        self._newest = newest(log_dir)
        self._kept = kept_offsets(str(log_dir / str(TP)))

    def check(self, log_dir: Path) -> None:
        directory = str(log_dir / str(TP))
        found = [b.last_offset for base in live_bases(directory) for b in batches(directory, base)]
        assert set(found) >= self._kept, f"lost offsets {sorted(self._kept - set(found))}"
        assert found == sorted(set(found)), "overlapping segments"
        assert newest(log_dir) == self._newest
        suffixes = {n.suffix for n in map(parse_segment_file, os.listdir(directory)) if n is not None}
        assert suffixes <= {Suffix.LIVE, Suffix.STAGED}


def newest(log_dir: Path) -> dict[bytes | None, bytes]:
    """Keys that a read_committed consumer ends up with, without those that are deleted."""
    records = read_records(str(log_dir / str(TP)), isolation="read_committed")
    return {key: value for key, value in {r.key: r.value for r in records}.items() if value is not None}
