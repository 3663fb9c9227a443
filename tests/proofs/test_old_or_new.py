"""A commit that ends anywhere leaves the old log or the new one, to whoever looks at it next.

Killed before each operation, or switched off with any subset of what was not synced lost, on a disk in memory; looked at by
cleanerd's recovery and by the start of a broker, as the specification has it. And whole runs that end at random moments.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.storage.commit import revalidate
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import discard_staged, read_manifests
from tests.harness.command_line import clean, results
from tests.harness.disks.by_hand import write_log
from tests.harness.disks.committing import commit_all, commit_group
from tests.harness.disks.crashes import (
    Action,
    at,
    cleanerd_recovers,
    commits_found,
    distinct,
    exchange,
    kafka_starts,
    killed,
    names,
    switched_off,
    with_survivors,
)
from tests.harness.disks.repairs import Truth, broker_starts, recovers
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import (
    ACTIVE,
    BY_NAME,
    DIRECTORY,
    SCENARIOS,
    Scenario,
    Segment,
    lay_out,
    live_segments,
    stage,
    staged_disk,
)
from tests.harness.logs.troubled import assert_settled

scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)

SHORT = BY_NAME["short output: last batch below later sources"]
EMPTY = BY_NAME["empty output, stale txnindex"]
TWO = BY_NAME["two groups"]
DEPENDENT = BY_NAME["two groups, tombstone in the second deletes in the first"]


@scenarios
def test_commit_leaves_the_new_log_and_nothing_else(scenario: Scenario) -> None:
    """Rules 5.3, 5.6 (C118): of the sources only the producer snapshot at the group's base is left."""
    disk, _ = staged_disk(scenario)
    commit_all(disk)
    new = scenario.after(len(scenario.rewrites))
    assert live_segments(disk) == new
    assert names(disk, ".cleaned", ".swap", ".deleted", ".cleanerd") == []
    assert names(disk, ".snapshot") == [f"{segment.base:020d}.snapshot" for segment in new]
    assert {"leader-epoch-checkpoint", "partition.metadata"} <= set(disk.list_names(DIRECTORY))


def test_commit_does_the_numbered_steps_in_order() -> None:
    """The protocol in the docstring of `storage.commit`, operation by operation."""
    disk, (group,) = staged_disk(BY_NAME["old txnindex only, in the first source"])
    commit_group(disk, DIRECTORY, group)
    found = [" ".join(os.path.basename(word).lstrip("0") or word for word in op) for op in disk.operations]
    assert found == [
        "rename .log.cleanerd .log.cleaned",
        "fsync_dir topic-0",
        "rename .index.cleanerd .index.swap",
        "rename .timeindex.cleanerd .timeindex.swap",
        "fsync_dir topic-0",
        "rename .log.cleaned .log.swap",
        "fsync_dir topic-0",
        "rename .log .log.deleted",
        "rename 10.log 10.log.deleted",
        "rename .index .index.deleted",
        "rename .timeindex .timeindex.deleted",
        "rename .txnindex .txnindex.deleted",
        "rename 10.index 10.index.deleted",
        "rename 10.timeindex 10.timeindex.deleted",
        "rename 10.snapshot 10.snapshot.deleted",
        "fsync_dir topic-0",
        "rename .log.swap .log",
        "fsync_dir topic-0",
        "rename .index.swap .index",
        "rename .timeindex.swap .timeindex",
        "unlink .index.deleted",
        "unlink .log.deleted",
        "unlink .timeindex.deleted",
        "unlink .txnindex.deleted",
        "unlink 10.index.deleted",
        "unlink 10.log.deleted",
        "unlink 10.snapshot.deleted",
        "unlink 10.timeindex.deleted",
        "fsync_dir topic-0",
        "unlink .manifest.cleanerd",
    ]


def all_staged_first(scenario: Scenario) -> tuple[SimDisk, Action]:
    """The disk, and the commits that follow."""
    return staged_disk(scenario)[0], commit_all


def group_by_group(scenario: Scenario) -> tuple[SimDisk, Action]:
    """Each group is staged when the one before it is committed, as where there is no room for both."""

    def act(disk: SimDisk) -> None:
        for rewrite in scenario.rewrites:
            commit_group(disk, DIRECTORY, stage(disk, rewrite))

    return lay_out(scenario), act


Way = Callable[[Scenario], tuple[SimDisk, Action]]


@scenarios
@pytest.mark.parametrize("way", [all_staged_first, group_by_group])
@pytest.mark.parametrize("recoverer", [cleanerd_recovers, kafka_starts])
def test_killed_anywhere_the_log_is_old_or_new(scenario: Scenario, way: Way, recoverer: Action) -> None:
    """Once new it stays new: the number of committed groups never falls from one operation to the next."""
    last = 0
    for copy in killed(*way(scenario)):
        recoverer(copy)
        commits = commits_found(scenario, copy, by_kafka=recoverer is kafka_starts)
        assert commits >= last
        last = commits
    assert last == len(scenario.rewrites)


@scenarios
@pytest.mark.parametrize(
    ("way", "seeds"),
    [
        (all_staged_first, 4),
        (group_by_group, 4),
        pytest.param(all_staged_first, 1024, marks=pytest.mark.soak),
    ],
)
def test_switched_off_anywhere_the_log_is_old_or_new(scenario: Scenario, way: Way, seeds: int) -> None:
    """Of the operations since the last sync any subset may be lost (spec disk D4, A to F in `storage.commit`)."""
    cuts = (cut for copy in killed(*way(scenario)) for cut in switched_off(copy, seeds))
    for cut in distinct(cuts):
        twin = cut.copy()
        cleanerd_recovers(cut)
        commits_found(scenario, cut, by_kafka=False)
        kafka_starts(twin)
        commits_found(scenario, twin, by_kafka=True)


# -- X6: sources that a broker's range does not cover ---------------------------------------------------------


@pytest.mark.parametrize("scenario", [SHORT, EMPTY], ids=str)
def test_kafka_leaves_uncovered_sources_beside_the_new_segment(scenario: Scenario) -> None:
    """X6, of an empty one X5e (rule 5.16): after step 3 all of them stay, each kill in step 4 takes the oldest."""
    disk, _ = staged_disk(scenario)
    seen = []
    for copy in killed(disk, commit_all):
        kafka_starts(copy)
        found = live_segments(copy)
        if found not in seen:
            seen.append(found)
    assert seen == [scenario.after(0), *with_survivors(scenario, 1), scenario.after(1)]


def test_blank_transaction_index_belongs_to_the_broker() -> None:
    """A swap file that the broker cannot open for writing takes its directory offline (spec disk D4.6)."""
    disk, _ = staged_disk(EMPTY)
    commit_all(disk)
    blank, stale = at("00000000000000000000.txnindex.swap"), at("00000000000000000000.txnindex")
    assert ("write", blank, stale) in disk.operations


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ([], [DEPENDENT.after(0)]),  # it was rolled back, or never begun
        ([kafka_starts], [DEPENDENT.after(0), *with_survivors(DEPENDENT, 1)]),
    ],
    ids=["recovered", "after a start of the broker"],
)
def test_later_group_is_refused_unless_the_group_before_is_wholly_committed(
    before: list[Action], refused: list[tuple[Segment, ...]]
) -> None:
    """(E): the tombstone in the second group still has a value of the first to delete, so it must stay."""
    disk, _ = staged_disk(DEPENDENT)
    first, second = read_manifests(PartitionDir(disk, DIRECTORY))
    seen = []
    for copy in killed(disk, lambda d: commit_group(d, DIRECTORY, first)):
        for recoverer in (*before, cleanerd_recovers):
            recoverer(copy)
        found = live_segments(copy)
        seen += [found] if found not in seen else []
        assert second in read_manifests(PartitionDir(copy, DIRECTORY))
        if found in refused:
            with pytest.raises(SourceChanged, match="relies"):
                commit_group(copy, DIRECTORY, second)
            assert live_segments(copy) == found
        else:
            commit_group(copy, DIRECTORY, second)
            assert live_segments(copy) == DEPENDENT.after(2)
    assert seen == [*refused, DEPENDENT.after(1)]


def test_later_group_is_committed_when_retention_took_the_group_before() -> None:
    """C066: retention between copying and swapping. What is gone holds no value that the tombstone deletes."""
    disk, _ = staged_disk(TWO)
    first, second = read_manifests(PartitionDir(disk, DIRECTORY))
    for name in [n for n in disk.list_names(DIRECTORY) if n.partition(".")[0].isdigit() and int(n[:20]) < 50]:
        disk.unlink(at(name))
    commit_group(disk, DIRECTORY, second)
    assert live_segments(disk) == TWO.after(2)[1:]
    with pytest.raises(SourceChanged):
        revalidate(PartitionDir(disk, DIRECTORY), first)


def test_all_groups_can_be_revalidated_before_the_first_is_committed() -> None:
    """Revalidation of a group does not ask for the commit of the one before it."""
    disk, groups = staged_disk(TWO)
    for group in [*groups, *read_manifests(PartitionDir(disk, DIRECTORY))]:
        revalidate(PartitionDir(disk, DIRECTORY), group)


@scenarios
def test_commit_on_a_real_file_system(scenario: Scenario, tmp_path: Path) -> None:
    """The same with the operating system's files, and a group that waits through a recovery."""
    files, directory = RealFiles(), str(tmp_path)
    for name, content in lay_out(scenario).listing(DIRECTORY).items():
        files.write(os.path.join(directory, name), content)
    for rewrite in scenario.rewrites:
        stage(files, rewrite, directory)
    assert recover(PartitionDir(files, directory), is_kafka=True) is None
    for group in read_manifests(PartitionDir(files, directory)):
        commit_group(files, directory, group)
    assert live_segments(files, directory) == scenario.after(len(scenario.rewrites))
    before = files.list_names(directory)
    assert recover(PartitionDir(files, directory), is_kafka=True) is None
    assert files.list_names(directory) == before


# -- step 0: revalidation -------------------------------------------------------------------------------------

THREE = BY_NAME["three sources"]


def _append_to_source(disk: SimDisk) -> None:
    path = at("00000000000000000010.log")
    mtime_ns = disk.stat(path).mtime_ns
    disk.put(path, disk.read(path) + b"12 q 1 - d\n")
    disk.set_mtime_ns(path, mtime_ns)


def _put(name: str, content: bytes = b"") -> Callable[[SimDisk], None]:
    return lambda disk: disk.put(at(name), content)


def _remove(name: str) -> Callable[[SimDisk], None]:
    return lambda disk: disk.unlink(at(name))


def _epochs(text: str) -> Callable[[SimDisk], None]:
    return _put("leader-epoch-checkpoint", text.encode())


CHANGES = {
    "source has another inode": (lambda d: exchange(d, at("00000000000000000010.log")), "the .log of 10 was"),
    "source has another size": (_append_to_source, "the .log of 10 was"),
    "source has another time": (
        lambda d: d.set_mtime_ns(at("00000000000000000030.log"), 7),
        "the .log of 30 was",
    ),
    "source is gone": (_remove("00000000000000000000.log"), r"were \[0, 10, 30\], are \[10, 30\]"),
    "source in the middle is gone": (
        _remove("00000000000000000010.log"),
        r"were \[0, 10, 30\], are \[0, 30\]",
    ),
    "segment was split": (_put("00000000000000000020.log"), r"were \[0, 10, 30\], are \[0, 10, 20, 30\]"),
    "segment behind is gone": (
        _remove(f"{ACTIVE:020d}.log"),
        "segment 100, which follows the group, is gone",
    ),
    "broker began a cleaning": (_put("00000000000000000100.log.cleaned"), "another cleaning"),
    "broker stopped in a swap": (_put("00000000000000000050.timeindex.swap"), "another cleaning"),
    "epoch removed": (
        _epochs("0\n1\n0 0\n"),
        "leader epochs below 100 were 0 from 0, 3 from 20, are 0 from 0",
    ),
    "epoch starts lower": (
        _epochs("0\n2\n0 0\n3 15\n"),
        "leader epochs below 100 .* are 0 from 0, 3 from 15",
    ),
    "epoch added below": (_epochs("0\n3\n0 0\n3 20\n4 99\n"), "leader epochs below 100"),
    "epochs replaced": (_epochs("0\n1\n7 0\n"), "leader epochs below 100"),
    "epoch file is gone": (_remove("leader-epoch-checkpoint"), "leader epochs below 100 .* are none"),
    "staged log is gone": (_remove("00000000000000000000.log.cleanerd"), r"\.log\.cleanerd is gone"),
    "staged index is gone": (_remove("00000000000000000000.index.cleanerd"), r"\.index\.cleanerd is gone"),
    "staged index is cut": (
        _put("00000000000000000000.timeindex.cleanerd", b"t"),
        "is not the staged file of",
    ),
    "staged log was touched": (
        lambda d: d.set_mtime_ns(at("00000000000000000000.log.cleanerd"), 7),
        "other inode or time",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_log_refuses_the_commit_with_the_reason(change: str) -> None:
    """KAFKA-631's generation check, spec disk D4 and G; nothing is touched, and the group can be discarded."""
    disk, _ = staged_disk(THREE)
    (group,) = read_manifests(PartitionDir(disk, DIRECTORY))
    act, reason = CHANGES[change]
    act(disk)
    before = disk.listing(DIRECTORY)
    with pytest.raises(SourceChanged, match=reason):
        commit_group(disk, DIRECTORY, group)
    assert disk.listing(DIRECTORY) == before
    discard_staged(PartitionDir(disk, DIRECTORY))
    assert names(disk, ".cleanerd") == []


HARMLESS = {
    "epoch added behind": _epochs("0\n3\n0 0\n3 20\n4 100\n"),
    "log start moved inside an epoch": _epochs("0\n2\n0 5\n3 20\n"),
    "log start moved past an epoch": _epochs("0\n1\n3 30\n"),
    "active segment grew": _put(f"{ACTIVE:020d}.log", b"100 z 1 - d\n101 z 2 - d\n"),
    "a segment was rolled": _put("00000000000000000200.log"),
    "garbage of retention": _put("00000000000000000010.log.deleted"),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_what_does_not_concern_the_group_is_no_contradiction(change: str) -> None:
    """Front folds of the epochs (LogLoader), appends, rolls and deleted files pass."""
    disk, _ = staged_disk(THREE)
    (group,) = read_manifests(PartitionDir(disk, DIRECTORY))
    HARMLESS[change](disk)
    commit_group(disk, DIRECTORY, group)
    assert recover(PartitionDir(disk, DIRECTORY), is_kafka=True) is None
    assert disk.read(at("00000000000000000000.log")) == THREE.rewrites[0].new.log


def test_vanished_directory_is_a_changed_source() -> None:
    """The topic was deleted meanwhile."""
    disk, (group,) = staged_disk(THREE)
    with pytest.raises(SourceChanged):
        commit_group(disk, "/logs/other-0", group)


# -- whole runs -----------------------------------------------------------------------------------------------


@pytest.mark.fault("the daemon is killed", "SIGTERM and SIGINT at any moment")
@pytest.mark.soak
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name
)
def test_a_run_that_ends_at_any_moment_loses_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """`cleanerd clean`, killed with Spark and all, or asked to end: no traceback, and whoever comes next finds the log."""
    chance, logs, aside = random.Random(int(number)), tmp_path / "logs", tmp_path / "aside"
    logs.mkdir()
    write_log(logs, seed=3)
    truth = Truth(logs)
    shutil.copytree(logs, aside)
    began = time.monotonic()
    assert results(clean(aside))["t"]["outcome"] == "committed"
    took_s = time.monotonic() - began
    for _ in range(4):
        process = clean(logs)
        try:
            process.wait((0.3 + 0.7 * chance.random()) * took_s)
        except subprocess.TimeoutExpired:
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)  # the session that this test started, and nobody else
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        for repair in (recovers, broker_starts):  # it may have been in the middle of a commit
            shutil.copytree(logs, tmp_path / "next")
            repair(tmp_path / "next")
            truth.check(tmp_path / "next")
            shutil.rmtree(tmp_path / "next")
    assert results(clean(logs))["t"]["outcome"] in ("committed", "unchanged", "skipped")
    truth.check(logs)
    assert_settled(logs / "t-0")
