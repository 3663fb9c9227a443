"""Recovery: interrupted anywhere and run again it ends the same; what is not ours is treated as a broker's."""

import pytest

from cleanerd.errors import LogUncleanable
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.staged import read_manifests
from tests.harness.disks.committing import check_refused, commit_all, recover_beside_broker, recover_here
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
)
from tests.harness.disks.kafka_startup import start
from tests.harness.disks.simulated import SimDisk
from tests.harness.logs.model import (
    BY_NAME,
    DIRECTORY,
    SCENARIOS,
    Rewrite,
    Scenario,
    Segment,
    lay_out,
    live_segments,
    next_offset,
    staged_disk,
)

scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
THREE = BY_NAME["three sources"]
REASON = "start the broker once"


# -- interrupted commits of ours ------------------------------------------------------------------------------


@scenarios
def test_second_recovery_changes_nothing(scenario: Scenario) -> None:
    """Idempotent; a log in order is not even synced."""
    disk, _ = staged_disk(scenario)
    for copy in killed(disk, commit_all):
        cleanerd_recovers(copy)
        after = copy.listing(DIRECTORY)
        cleanerd_recovers(copy)
        assert copy.listing(DIRECTORY) == after
        copy.restart()
        recover_beside_broker(copy)
        assert {op[0] for op in copy.operations} <= {"fsync_dir"}
        assert bool(copy.operations) == bool(names(copy, ".cleanerd"))


@scenarios
def test_recovery_killed_anywhere_and_run_again_ends_the_same(scenario: Scenario) -> None:
    """The same log and the same waiting groups as without the second accident; a broker agrees in between."""
    outcomes: dict[object, tuple[dict[str, bytes], int]] = {}

    def outcome(disk: SimDisk) -> tuple[dict[str, bytes], int]:
        state = disk.fingerprint(DIRECTORY)
        if state not in outcomes:
            ours, broker = disk.copy(), disk.copy()
            cleanerd_recovers(ours)
            kafka_starts(broker)
            outcomes[state] = ours.listing(DIRECTORY), commits_found(scenario, broker, by_kafka=True)
            assert commits_found(scenario, ours, by_kafka=False) == outcomes[state][1]
            started = live_segments(broker)
            cleanerd_recovers(broker)
            assert live_segments(broker) == started
        return outcomes[state]

    for copy in distinct(killed(staged_disk(scenario)[0], commit_all)):
        for again in killed(copy, cleanerd_recovers):
            assert outcome(again) == outcome(copy)


@pytest.mark.parametrize(
    "scenario",
    [
        BY_NAME["old txnindex only, in the first source"],
        BY_NAME["short output: last batch below later sources"],
        BY_NAME["empty output, stale txnindex"],
    ],
    ids=str,
)
def test_recovery_switched_off_anywhere_leaves_the_log_old_or_new(scenario: Scenario) -> None:
    """Killed, recovered, switched off: what the first process renamed may be lost with the power, and no source may
    have gone on top of it (B)."""
    disk, _ = staged_disk(scenario)
    recoveries = (again for copy in killed(disk, commit_all) for again in killed(copy, cleanerd_recovers))
    for cut in distinct(cut for again in recoveries for cut in switched_off(again)):
        twin = cut.copy()
        cleanerd_recovers(cut)
        commits_found(scenario, cut, by_kafka=False)
        kafka_starts(twin)
        commits_found(scenario, twin, by_kafka=True)


@scenarios
def test_what_waits_can_be_committed_after_recovery(scenario: Scenario) -> None:
    """A group not begun stays whole beside one that was finished; of one that was taken back nothing is left."""
    disk, _ = staged_disk(scenario)
    for copy in killed(disk, commit_all):
        cleanerd_recovers(copy)
        done = commits_found(scenario, copy, by_kafka=False)
        waiting = read_manifests(PartitionDir(copy, DIRECTORY))
        assert len(names(copy, ".cleanerd")) == sum(1 + len(group.sizes) for group in waiting)
        if done + len(waiting) == len(scenario.rewrites):
            commit_all(copy)
            assert live_segments(copy) == scenario.after(len(scenario.rewrites))
        else:
            assert len(waiting) == len(scenario.rewrites) - done - 1, "only the one rolled back is gone"


def test_staged_files_without_manifest_are_leftovers() -> None:
    """So are parts, an unfinished manifest and one that cannot be read; a waiting group and foreign files stay."""
    disk, _ = staged_disk(BY_NAME["two groups"])
    disk.put(at("00000000000000000010.part.cleanerd"), b"part")
    disk.put(at("00000000000000000000.0123456789abcdef.part.cleanerd"), b"of one attempt")
    disk.put(at("00000000000000000000.manifest-part.cleanerd"), b"{")
    disk.put(at("00000000000000000060.log.cleanerd"), b"")
    disk.put(at("00000000000000000050.manifest.cleanerd"), b"{")
    disk.put(at("notes.cleanerd"), b"an operator's")
    cleanerd_recovers(disk)
    assert names(disk, ".cleanerd") == [
        "00000000000000000000.index.cleanerd",
        "00000000000000000000.log.cleanerd",
        "00000000000000000000.manifest.cleanerd",
        "00000000000000000000.timeindex.cleanerd",
        "notes.cleanerd",
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk: disk.unlink(at("00000000000000000000.timeindex.cleanerd")),
        lambda disk: exchange(disk, at("00000000000000000000.log.cleanerd")),  # of a later cleaning
    ],
    ids=["index gone", "log of another inode"],
)
def test_waiting_group_that_is_not_what_its_manifest_says_is_discarded(damage: Action) -> None:
    """A group is whole or worth nothing."""
    disk, _ = staged_disk(THREE)
    damage(disk)
    cleanerd_recovers(disk)
    assert names(disk, ".cleanerd") == []
    assert live_segments(disk) == THREE.after(0)


def past_the_commit_point() -> SimDisk:
    disk, _ = staged_disk(THREE)
    return next(copy for copy in killed(disk, commit_all) if names(copy, ".log.swap"))


def test_source_changed_under_a_commit_stops_recovery_before_it_moves_anything() -> None:
    """Nobody may write under the lock; if somebody did, a human has to look."""
    disk = past_the_commit_point()
    disk.set_mtime_ns(at("00000000000000000030.log"), 7)
    before = disk.listing(DIRECTORY)
    with pytest.raises(LogUncleanable, match=r"30\.log: is not the segment"):
        recover_beside_broker(disk)
    assert disk.listing(DIRECTORY) == before


def restored() -> SimDisk:
    """A copy of a commit past its commit point: the same files with other inodes."""
    disk = past_the_commit_point()
    for name in disk.list_names(DIRECTORY):
        exchange(disk, at(name))
    disk.restart()
    return disk


def test_restored_copy_without_broker_is_finished() -> None:
    """Inodes do not survive a copy; size and time do."""
    disk = restored()
    assert recover(PartitionDir(disk, DIRECTORY), is_kafka=False) is None
    assert live_segments(disk) == THREE.after(1)


def test_restored_copy_of_a_broker_waits_for_the_broker() -> None:
    """There the swap may as well be the broker's own; the broker comes to the new log."""
    disk = restored()
    assert REASON in str(recover_beside_broker(disk))
    kafka_starts(disk)
    assert live_segments(disk) == THREE.after(1)


# -- what a broker's own cleaner left (C107, rules 5.11 to 5.19b) ---------------------------------------------


def _path(base: int, kind: FileKind, suffix: Suffix) -> str:
    return at(str(SegmentFileName(base, kind, suffix)))


def broker_left(rewrite: Rewrite, new: dict[FileKind, Suffix], sources: Suffix | None) -> SimDisk:
    """Kafka's cleaner killed: its new files in these transitions, the sources live, `.deleted` or (None) gone."""
    disk = lay_out(THREE)
    for source in rewrite.sources:
        for kind in source.contents:
            live = _path(source.base, kind, Suffix.LIVE)
            if sources is Suffix.DELETED:
                disk.rename(live, _path(source.base, kind, Suffix.DELETED))
            elif sources is None:
                disk.unlink(live)
    for kind, content in rewrite.new.contents.items():
        disk.put(_path(rewrite.new.base, kind, new[kind]), content)
    disk.fsync_dir(DIRECTORY)
    disk.restart()
    return disk


def kinds_in(*suffixes: Suffix) -> dict[FileKind, Suffix]:
    """Of `.log`, `.index` and `.timeindex`."""
    return dict(zip(SEGMENT_KINDS, suffixes, strict=False))


C107 = {
    "1 all .cleaned": (kinds_in(Suffix.CLEANED, Suffix.CLEANED, Suffix.CLEANED), Suffix.LIVE, 0),
    "2 log .swap, indexes .cleaned": (kinds_in(Suffix.SWAP, Suffix.CLEANED, Suffix.CLEANED), Suffix.LIVE, 0),
    "3 all .swap, sources there": (kinds_in(Suffix.SWAP, Suffix.SWAP, Suffix.SWAP), Suffix.LIVE, 1),
    "4 all .swap, sources .deleted": (kinds_in(Suffix.SWAP, Suffix.SWAP, Suffix.SWAP), Suffix.DELETED, 1),
    "5 only .timeindex.swap left": (kinds_in(Suffix.LIVE, Suffix.LIVE, Suffix.SWAP), None, 1),
    "6 done, .deleted left": (kinds_in(Suffix.LIVE, Suffix.LIVE, Suffix.LIVE), Suffix.DELETED, 1),
}


@pytest.mark.parametrize("case", C107)
def test_c107_recovery_after_crash_where_no_broker_will_start(case: str) -> None:
    """C107: the six states of a broker's swap end as the broker would end them; killed or switched off anywhere too."""
    suffixes, sources, commits = C107[case]
    disk = broker_left(THREE.rewrites[0], suffixes, sources)
    if sources is Suffix.DELETED and suffixes[FileKind.LOG] is Suffix.LIVE:
        disk = _done_with_deleted()
    by_kafka = disk.copy()
    start(by_kafka, DIRECTORY, next_offset)
    for copy in killed(disk, recover_here):
        for cut in [copy, *switched_off(copy)]:
            assert recover_here(cut) is None
            assert live_segments(cut) == THREE.after(commits) == live_segments(by_kafka)
            assert names(cut, ".cleaned", ".swap", ".deleted") == []
            assert "00000000000000000000.snapshot" in cut.list_names(DIRECTORY), "rule 5.6"


def _done_with_deleted() -> SimDisk:
    disk = broker_left(THREE.rewrites[0], kinds_in(Suffix.LIVE, Suffix.LIVE, Suffix.LIVE), None)
    for source in THREE.rewrites[0].sources:
        disk.put(_path(source.base, FileKind.LOG, Suffix.DELETED), source.log)
    return disk


@pytest.mark.parametrize("case", [case for case in C107 if not case.startswith("6")])
def test_leftovers_of_a_broker_are_left_to_it(case: str) -> None:
    """Nothing is touched; the reason says what to do; afterwards the partition is in order."""
    suffixes, sources, commits = C107[case]
    disk = broker_left(THREE.rewrites[0], suffixes, sources)
    check_refused(disk, REASON, recover_beside_broker)
    start(disk, DIRECTORY, next_offset)
    assert recover_beside_broker(disk) is None
    assert live_segments(disk) == THREE.after(commits)


def test_deleted_files_of_a_broker_are_no_reason_to_skip_a_log() -> None:
    """Every kill -9 leaves some; the broker removes them."""
    disk = _done_with_deleted()
    before = disk.listing(DIRECTORY)
    assert recover_beside_broker(disk) is None
    assert disk.listing(DIRECTORY) == before


@pytest.mark.trap("a stale .cleaned file (rule 5.19b)")
def test_stale_cleaned_file_does_not_cost_an_interrupted_swap() -> None:
    """Rule 5.19b: Kafka's rules would remove swap and `.deleted`, both copies. Not here: nothing is touched."""
    disk = broker_left(THREE.rewrites[0], *C107["4 all .swap, sources .deleted"][:2])
    disk.put(_path(0, FileKind.TIME_INDEX, Suffix.CLEANED), b"stale")
    check_refused(disk, "by hand")


def test_staged_group_is_discarded_when_a_foreign_swap_replaced_its_sources() -> None:
    """It was made for another log."""
    disk, _ = staged_disk(THREE)
    for kind, content in THREE.rewrites[0].new.contents.items():
        disk.put(_path(0, kind, Suffix.SWAP), content)
    assert recover_here(disk) is None
    assert names(disk, ".cleanerd") == []
    assert live_segments(disk) == THREE.after(1)


@pytest.mark.parametrize("suffix", [Suffix.CLEANED, Suffix.SWAP])
def test_foreign_file_under_the_name_of_ours_is_not_taken_for_ours(suffix: Suffix) -> None:
    """A broker undid our commit and began its own: our manifest is stale, its files stay, no source goes."""
    disk, _ = staged_disk(THREE)
    begun = next(copy for copy in killed(disk, commit_all) if names(copy, ".log.cleaned"))
    kafka_starts(begun)
    assert names(begun, ".manifest.cleanerd"), "the manifest outlives a broker's rollback"
    theirs = Segment(0, THREE.rewrites[0].sources[0].records[:1])
    begun.put(_path(0, FileKind.LOG, suffix), theirs.log)
    assert REASON in str(recover_beside_broker(begun))
    assert live_segments(begun) == THREE.after(0)
    assert begun.read(_path(0, FileKind.LOG, suffix)) == theirs.log
    assert names(begun, ".cleanerd") == []
