"""A result that waits is worth nothing once the log was cut below the end of what was cleaned (spec disk G).

A broker that is told so by an unclean leader election leaves no token of its truncation, as a cooperating writer does: all
there is to see are the segments that are gone and the leader epochs.
"""

import json
import os
import shutil
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.live_logs import LiveLog
from cleanerd.broker_agent.swap import Swap, Swapped
from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.commit.host import CommitHost
from cleanerd.cleaning.outcomes import Staged, Unchanged
from cleanerd.cleaning.result import LogResult, Size, Statistics
from cleanerd.config.model import CleanerdConfig
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import SourceChanged
from cleanerd.format import names
from cleanerd.format.checkpoint import render_leader_epochs, render_offset_checkpoint
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.segments import live_bases
from cleanerd.storage.staged import manifest_names, read_manifests, staged_names
from cleanerd.storage.topic_id import LiveIdentity
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.daemon.processes import wait_until
from tests.harness.logs.troubled import META_PROPERTIES, lock_of_another
from tests.harness.spark.in_process import TP, Cleaning, committed
from tests.storage.test_lock import starting_broker

FILES = RealFiles()


@pytest.fixture
def staged(tmp_path: Path) -> Cleaning:
    """The first segments are to be replaced, because of records further up; between them nothing changes."""
    with LogWriter(str(tmp_path), TP.topic, TP.partition, segment_bytes=500) as writer:
        producer = Producer(writer)
        for number in [*range(8), *range(100, 130), *range(8), *range(200, 230)]:
            producer.put(b"%d" % number, b"v" * 50, 1)
        (Path(writer.directory) / names.LEADER_EPOCH_CHECKPOINT).write_bytes(render_leader_epochs([(0, 0)]))
    cleaning = Cleaning(FILES, str(tmp_path), 1000)
    assert cleaning.choose()
    cleaning.index()
    cleaning.stage()
    (*_, last) = read_manifests(PartitionDir(FILES, cleaning.directory))
    assert last.next_base_offset < 20 < last.round_end
    return cleaning


def at(cleaning: Cleaning, log_dirs: tuple[str, ...]) -> LogDir:
    """Its log directory: of a broker, where there are others."""
    return LogDir(FILES, cleaning.log_dir, SystemClock(), is_kafka=bool(log_dirs), log_dirs=log_dirs)


def files_of(cleaning: Cleaning) -> dict[str, bytes]:
    """Everything that is not staged."""
    found = sorted(Path(cleaning.directory).iterdir())
    return {path.name: path.read_bytes() for path in found if path.name not in staged_names([path.name])}


def test_it_is_committed_when_nothing_has_happened(staged: Cleaning) -> None:
    """A later epoch begins at the log end or beyond."""
    epochs = render_leader_epochs([(0, 0), (4, 76)])
    (Path(staged.directory) / names.LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    assert staged.commit() == live_bases(staged.directory)[-1]


def test_a_writer_that_wants_the_lock_gets_its_turn_and_the_commit_goes_on(staged: Cleaning) -> None:
    """Spec disk A3: it opens the file in the middle of the commit, and waits for the moment of a roll."""
    turns: list[str] = []

    def roll(writer: "subprocess.Popen[str]") -> None:
        turns.append(writer.stdout.readline().split()[0])
        print(file=writer.stdin, flush=True)

    path, writers = Path(staged.directory).parent / names.LOCK, list[subprocess.Popen[str]]()
    with ExitStack() as stack:

        class Host(CommitHost):
            def check(self, *_: object) -> None:
                if not writers:
                    writers.append(stack.enter_context(starting_broker(path)))
                    wait_until(lambda: "BREAKING" in Path("/proc/locks").read_text(), 30)
                    threading.Thread(target=roll, args=(writers[0],)).start()

        done = committed(LogDir(FILES, str(path.parent), SystemClock(), is_kafka=False), Host())
    assert turns == ["locked"]
    assert done == live_bases(staged.directory)[-1]


def test_it_is_dropped_when_the_first_dirty_offset_has_moved(staged: Cleaning) -> None:
    """Somebody else has cleaned, or taken the checkpoint back: it moves only from where the cleaning found it."""
    entry = render_offset_checkpoint({TP: 4})
    (Path(staged.log_dir) / names.CLEANER_OFFSET_CHECKPOINT).write_bytes(entry)
    check_dropped(staged, "the first dirty offset was None, is 4")


@pytest.mark.parametrize("epochs", [[(0, 0), (4, 20)], [(4, 0)]], ids=["one more", "another"])
def test_it_is_dropped_when_an_epoch_below_its_end_is_another(
    staged: Cleaning, epochs: list[tuple[int, int]]
) -> None:
    (Path(staged.directory) / names.LEADER_EPOCH_CHECKPOINT).write_bytes(render_leader_epochs(epochs))
    check_dropped(staged, "leader epochs")


def test_it_is_dropped_when_the_log_no_longer_reaches_its_end(staged: Cleaning) -> None:
    """The new leader has written nothing yet, so there is no new epoch."""
    for base in live_bases(staged.directory)[-2:]:
        for path in Path(staged.directory).glob(f"{base:020}.*"):
            path.unlink()
    check_dropped(staged, "which follows the cleaned range, is gone")


@pytest.mark.parametrize("is_cut", [False, True])
def test_without_leader_epochs_it_is_dropped_when_the_log_was_written_below_its_end(
    staged: Cleaning, is_cut: bool
) -> None:
    """A follower that was cut, and has filled up to the same offsets: a record may be gone that superseded one below
    (rule B.11). Times in the future are those of a wrong clock.
    """
    directory = PartitionDir(FILES, staged.directory)
    (Path(staged.directory) / names.LEADER_EPOCH_CHECKPOINT).unlink()
    for path in Path(staged.directory).glob("*.manifest.cleanerd"):
        path.write_text(path.read_text().replace("[[0, 0]]", "[]").replace("[[0,0]]", "[]"))
    (*_, last) = read_manifests(directory)
    assert last.leader_epochs == ()
    cut = max(base for base in live_bases(staged.directory) if base < last.round_end)
    later_ns = (SystemClock().now_ms() + (-1 if is_cut else 60_000)) * 1_000_000
    staged_ns = later_ns - 1_000_000_000
    for path in Path(staged.directory).glob("*.manifest.cleanerd"):
        os.utime(path, ns=(staged_ns, staged_ns))
    os.utime(Path(staged.directory) / f"{cut:020}.log", ns=(later_ns, later_ns))
    if is_cut:
        check_dropped(staged, "was written after the result was staged")
    else:
        assert staged.commit() == last.round_end


@pytest.mark.parametrize("written", ["at the end", "above", "no entry", "below", "none"])
def test_it_is_dropped_when_it_ends_above_the_high_watermark(staged: Cleaning, written: str) -> None:
    """It was planned with that of a topic that has been created again, or of before a truncation: what is above may be cut
    off, after what it superseded has gone. A broker that has just started may have written no entry yet.
    """
    (*_, last) = read_manifests(PartitionDir(FILES, staged.directory))
    offset = {"at the end": last.round_end, "above": last.round_end + 100, "below": last.round_end - 1}
    log_dir = Path(staged.log_dir)
    (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    if written != "none":
        marks = {TP: offset[written]} if written in offset else {}
        (log_dir / names.REPLICATION_CHECKPOINT).write_bytes(render_offset_checkpoint(marks))
    if written == "below":  # nor is a log recorded as clean above it
        for check in (check_not_recorded, check_dropped):
            check(staged, f"but the high watermark is {last.round_end - 1}", (staged.log_dir,))
    else:
        assert committed(at(staged, (staged.log_dir,))) == last.round_end


def test_no_log_is_recorded_as_clean_that_was_created_again_with_a_segment_at_the_same_offset(
    staged: Cleaning,
) -> None:
    """No cleaning has seen its records."""
    (Path(staged.directory) / names.PARTITION_METADATA).write_text("version: 0\ntopic_id: " + "A" * 22)
    check_not_recorded(staged, "the topic was created again")


def test_no_log_is_recorded_as_clean_whose_directory_was_exchanged(staged: Cleaning) -> None:
    """By a restore that keeps names, sizes and times: nobody has looked at these files."""
    os.rename(staged.directory, f"{staged.directory}.old")
    shutil.copytree(f"{staged.directory}.old", staged.directory)
    shutil.rmtree(f"{staged.directory}.old")
    check_not_recorded(staged, "or its directory exchanged")


def test_it_is_dropped_when_it_has_waited_for_too_long(staged: Cleaning) -> None:
    """Its delete horizons count from the cleaning (`policy.staging`)."""
    (*_, last) = manifest_names(PartitionDir(FILES, staged.directory))
    manifest = Path(staged.directory) / str(last)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "commit_by_ms": 1_700_000_000_000}))
    check_dropped(staged, "waited too long: after 2023-11-14 22:13:20 UTC")


@pytest.fixture
def moved(staged: Cleaning, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The log directories of a broker that moves the log from the first to the second."""
    there = tmp_path_factory.mktemp("there")
    (there / f"{TP}.{'0' * 32}-future").mkdir()
    for log_dir in (Path(staged.log_dir), there):
        (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    return staged.log_dir, str(there)


def test_2_10_it_is_dropped_while_its_broker_moves_the_log(staged: Cleaning, moved: tuple[str, str]) -> None:
    """What has been copied already would be read on with what is left afterwards: values whose tombstones are gone. And the
    first dirty offset would go along with the move, to a log that has not been cleaned.
    """
    for check in (check_not_recorded, check_dropped):
        check(staged, f"moves it to {moved[1]}", moved)


def test_a_log_that_another_broker_moves_is_not_meant(staged: Cleaning, moved: tuple[str, str]) -> None:
    (Path(moved[1]) / names.META_PROPERTIES).write_text(META_PROPERTIES.replace("node.id=", "node.id=9"))
    assert committed(at(staged, moved))


def test_the_account_of_one_that_is_dropped_is_that_of_a_log_as_it_was(staged: Cleaning) -> None:
    (Path(staged.directory) / names.LEADER_EPOCH_CHECKPOINT).write_bytes(render_leader_epochs([(4, 0)]))
    statistics = Statistics(records_read=90, removed={"superseded": 80})
    result = LogResult(
        TP, staged.log_dir, Staged(), before=Size(9_000, 9), after=Size(1_000, 1), statistics=statistics
    )
    (settled,) = Committer(at(staged, ())).settle([result])
    assert (settled.outcome.word, settled.after) == ("failed", result.before)
    assert (settled.fields()["records_kept"], settled.statistics.removed) == (90, {})


def check_dropped(staged: Cleaning, reason: str, log_dirs: tuple[str, ...] = ()) -> None:
    """With the reason, and nothing of the log is touched."""
    before = files_of(staged)
    with pytest.raises(SourceChanged, match=reason):
        committed(at(staged, log_dirs))
    assert files_of(staged) == before
    assert manifest_names(PartitionDir(FILES, staged.directory)) == []


def check_not_recorded(staged: Cleaning, reason: str, log_dirs: tuple[str, ...] = ()) -> None:
    """As a log in whose cleaned range nothing had to go."""
    unchanged = staged.plan.candidate.basis
    with pytest.raises(SourceChanged, match=reason):
        committed(at(staged, log_dirs), unchanged=unchanged)
    assert not read_checkpoints(FILES, staged.log_dir).cleaner


@pytest.mark.parametrize("lag_ms", [0, 2**62])
def test_a_live_broker_swaps_nothing_that_is_younger_than_the_lag_that_it_applies(
    staged: Cleaning, lag_ms: int
) -> None:
    """The end of the metadata log, by which the cleaning was planned, may have a change that no quorum has accepted (rule
    A.5).
    """

    class Broker(LiveBrokers):
        def describe_if_live(self, *_: object) -> tuple[LiveLog, ...]:
            config = {"min.compaction.lag.ms": str(lag_ms)}
            live = LiveLog(
                TP, str(TP), LiveIdentity(0, None), False, (), 0, 0, 0, 0, 0, None, None, config, frozenset()
            )
            return (live,)

        def swap(self, log_dir: str, _: Swap) -> Swapped:
            return Swapped("later", "other", "asked", (), log_dir, True)

        def check(self, *_: object) -> None:
            """It can be asked."""

    brokers, log_dir = Broker(FILES, SystemClock(), CleanerdConfig), at(staged, (staged.log_dir,))
    with lock_of_another(Path(staged.log_dir) / names.LOCK):
        (settled,) = Committer(log_dir, brokers=brokers).settle([LogResult(TP, staged.log_dir, Staged())])
        basis = staged.plan.candidate.basis
        unchanged = LogResult(TP, staged.log_dir, Unchanged(basis), end_offset=basis.round_end)
        (recorded,) = Committer(log_dir, brokers=brokers).settle([unchanged])
    assert "asked" in str(recorded.reason), "where nothing goes, only the first dirty offset moves"
    assert ("by what its broker applies" if lag_ms else "asked") in str(settled.reason)
    assert isinstance(settled.outcome, Staged), (
        "else it would be cleaned again at once, for as long as that lasts"
    )
    assert read_manifests(PartitionDir(FILES, staged.directory)), "it waits"
