"""Everything that can interrupt a retention pass, or a deletion of records, on a simulated disk (rules 6.6-6.12).

Whatever happens: the log stays the end of what it was, no offset is handed out twice, nothing below an advertised log start
comes back, and what is there keeps its transaction index and its leader epochs.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

from cleanerd.cleaning.delete_records import delete_records
from cleanerd.cleaning.retain import carry_out
from cleanerd.env.clock import FixedNow
from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs, render_offset_checkpoint
from cleanerd.format.names import TopicPartition
from cleanerd.policy.cleanable import SegmentFacts
from cleanerd.policy.retention import Breach, RetentionPlan
from cleanerd.storage.checkpoints import read_checkpoints, read_leader_epochs
from cleanerd.storage.generation import read_generation
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.scan import Checkpoints, PartitionSnapshot, SegmentOnDisk
from tests.harness.disks import kafka_startup
from tests.harness.disks.crashes import killed
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.retained import EXPIRED, NOW_MS

TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 3)
LOG_DIR, DIRECTORY = "/logs", "/logs/t-0"
OLD_BASES, END, OLD_START = (0, 10, 20), 30, 5
EPOCHS = ((0, 0), (2, 7), (3, 14), (5, 25))


def sim_log() -> SimDisk:
    """Segments of ten offsets, each with aborted transactions; the log start is inside the first."""
    disk = SimDisk()
    disk.mkdir(LOG_DIR)
    disk.mkdir(DIRECTORY)
    for base in OLD_BASES:
        for kind in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            disk.put(f"{DIRECTORY}/{base:020d}{kind}", f"{kind} of {base}".encode())
    disk.put(f"{DIRECTORY}/{names.LEADER_EPOCH_CHECKPOINT}", render_leader_epochs(EPOCHS))
    disk.put(f"{LOG_DIR}/{names.LOCK}", b"")
    entries = {TP: OLD_START, OTHER: 9}
    disk.put(f"{LOG_DIR}/{names.LOG_START_CHECKPOINT}", render_offset_checkpoint(entries))
    disk.restart()
    return disk


def sim_segment(disk: SimDisk, base: int) -> SegmentOnDisk:
    path = f"{DIRECTORY}/{base:020d}.log"
    stat = disk.stat(path)
    facts = SegmentFacts(base, stat.size_bytes, 8, 12, 0, None)
    return SegmentOnDisk(path, stat, frozenset(), facts)


def sim_pass(disk: SimDisk, going: int) -> None:
    """Let this many more segments go than are gone already: what the pass after an accident does."""
    live = [base for base in sim_bases(disk) if base != END]
    segments = tuple(sim_segment(disk, base) for base in sim_bases(disk))
    taken = tuple((sim_segment(disk, b).facts, Breach.TIME) for b in live if b in OLD_BASES[:going])
    if not taken:
        return
    snapshot = PartitionSnapshot(TP, LOG_DIR, DIRECTORY, True, segments, (), OLD_START, END, END, END, None)
    roll = len(taken) == len(segments)
    carry_out(disk, snapshot, RetentionPlan(taken, END, roll), ())


def sim_bases(disk: SimDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list_names(DIRECTORY) if name.endswith(".log")]


def sim_next_offset(content: bytes, base: int) -> int:
    return base + 10 if content else base


def power_cuts(disk: SimDisk) -> Iterator[SimDisk]:
    """In the partition every interesting subset; in both directories a few seeds."""
    for number, kept in enumerate(disk.power_cuts(DIRECTORY)):
        cut = disk.copy()
        cut.power_cut(DIRECTORY, kept, seed=number)
        yield cut
    for seed in range(4):
        cut = disk.copy()
        cut.crash(seed)
        yield cut


def check_sim(disk: SimDisk, going: int) -> int:
    """Whatever happened, this is the end of that log; returns its log start."""
    live = sim_bases(disk)
    old = [base for base in live if base != END]
    assert old == list(OLD_BASES[len(OLD_BASES) - len(old) :]), "a hole brings old values back"
    assert len(old) >= len(OLD_BASES) - going
    assert live, "a log without a segment starts over"
    last = disk.read(f"{DIRECTORY}/{live[-1]:020d}.log")
    assert sim_next_offset(last, live[-1]) == END
    for base in old:
        assert disk.exists(f"{DIRECTORY}/{base:020d}.txnindex"), "aborted records would count"
    epochs = read_leader_epochs(PartitionDir(disk, DIRECTORY))
    for offset in range(live[0], END):
        assert epoch_of(epochs, offset) == epoch_of(EPOCHS, offset), "data that is there lost its epoch"
    checkpoints = read_checkpoints(disk, LOG_DIR)
    assert checkpoints.log_start[OTHER] == 9
    log_start = max(checkpoints.log_start.get(TP, 0), live[0])
    assert log_start >= OLD_START, "deleted records came back"
    return log_start


def epoch_of(epochs: tuple[tuple[int, int], ...], offset: int) -> int | None:
    return max((epoch for epoch, start in epochs if start <= offset), default=None)


@pytest.mark.parametrize("going", [1, 2, 3])
@pytest.mark.parametrize("broker", [False, True])
def test_after_any_accident_the_log_is_whole_and_starts_no_earlier(going: int, broker: bool) -> None:
    """Killed or without power anywhere, then perhaps a broker that starts; and the next pass brings it to its end."""
    final = (*OLD_BASES, END)[going]
    for state in killed(sim_log(), lambda disk: sim_pass(disk, going)):
        seen = check_sim(state, going)
        for disk in (state, *power_cuts(state)):
            disk.restart()
            if broker:
                report = kafka_startup.start(disk, DIRECTORY, sim_next_offset)
                assert (report.zero_indexes, report.rebuilt) == ([], [])
            start = check_sim(disk, going)
            assert OLD_START <= start <= final
            if disk is state:
                assert start == seen
            sim_pass(disk, going)
            assert check_sim(disk, going) == final
            assert sim_bases(disk) == [
                b for b in (*OLD_BASES, END) if b >= final and (b != END or going == 3)
            ]


@pytest.mark.parametrize("going", [1, 2, 3])
def test_what_a_finished_pass_told_survives_a_power_cut(going: int) -> None:
    disk = sim_log()
    sim_pass(disk, going)
    for cut in power_cuts(disk):
        assert check_sim(cut, going) == (*OLD_BASES, END)[going]
        assert TP not in read_checkpoints(cut, LOG_DIR).log_start


class SimLogDir(LogDir):
    """What there is to see of the simulated log, whose lock nobody else wants."""

    def lock(self) -> Any:
        return contextlib.nullcontext(
            types.SimpleNamespace(check=lambda: None, is_wanted=False, is_leased=True)
        )

    def scan(self, tp: TopicPartition, checkpoints: Checkpoints, **_: Any) -> PartitionSnapshot:
        assert isinstance(self.files, SimDisk)
        segments = tuple(sim_segment(self.files, base) for base in sim_bases(self.files))
        start, generation = (
            max(checkpoints.log_start[tp], segments[0].base_offset),
            read_generation(self.partition(tp)),
        )
        return PartitionSnapshot(
            tp, LOG_DIR, DIRECTORY, True, segments, (), start, END, END, END, None, generation=generation
        )  # fmt: skip


def sim_deletion(disk: SimDisk, start: int) -> None:
    log_dir, expired = (
        SimLogDir(disk, LOG_DIR, FixedNow(NOW_MS), is_kafka=True),
        EXPIRED.but(retention_bytes=0),
    )
    assert delete_records(log_dir, TP, start, expired).log_start_offset == start


@pytest.mark.parametrize(("start", "going"), [(7, 0), (15, 1), (25, 2), (END, 2)])
@pytest.mark.parametrize("broker", [False, True])
def test_after_any_accident_nothing_above_the_new_log_start_is_gone(
    start: int, going: int, broker: bool
) -> None:
    """It is the old one or the new one, then what lies below goes; to ask again brings it to its end."""
    for state in killed(sim_log(), lambda disk: sim_deletion(disk, start)):
        seen = check_sim(state, going)
        for disk in (state, *power_cuts(state)):
            disk.restart()
            if broker:
                kafka_startup.start(disk, DIRECTORY, sim_next_offset)
            found = check_sim(disk, going)
            assert found in (OLD_START, start)
            assert sim_bases(disk) == list(OLD_BASES) or found == start, (
                "segments go when the log start is durable"
            )
            assert disk is not state or found == seen
            sim_deletion(disk, start)
            assert check_sim(disk, going) == start
            assert sim_bases(disk) == list(OLD_BASES[going:])


@pytest.mark.parametrize(("start", "going"), [(7, 0), (15, 1), (END, 2)])
def test_a_finished_deletion_survives_a_power_cut(start: int, going: int) -> None:
    disk = sim_log()
    sim_deletion(disk, start)
    for cut in power_cuts(disk):
        assert check_sim(cut, going) == start
        assert sim_bases(cut) == list(OLD_BASES[going:])
