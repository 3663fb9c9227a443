"""Bad input and bad luck, end to end on a real Spark session: one log suffers, with a reason, and no other.

Logs with one trouble each lie side by side and are cleaned in one run, with a `good` one among them. Of each bad log the
file and the byte are named, its directory is that from before to the last byte, and nothing staged is left; the good one
is cleaned and reads as before; the exit code is 1.
"""

import errno
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cleanerd.env.space import space_of
from cleanerd.format import names
from cleanerd.format.names import FileKind, Suffix
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.storage.checkpoints import LOG_DIR_CHECKPOINTS
from cleanerd.tools.insight.verify import verify
from tests.harness.damage.logs import DAMAGES, HINTS, unreadable
from tests.harness.disks.hooked import HookedFiles
from tests.harness.disks.mounts import mounted
from tests.harness.logs.troubled import (
    GOOD,
    RECORDS,
    TRUTH,
    Contents,
    Ran,
    assert_cleaned,
    assert_settled,
    clean,
    contents,
    lock_of_another,
    newest,
    segment,
    size_of,
    write_logs,
)

MANIFEST = ".manifest.cleanerd"
LEFT_ALONE = ("lost+found", "other", "other-x", "-0x", f"t-0.{'a' * 32}-delete", f"t-0.{'b' * 32}-future")


@dataclass
class Damaged:
    """One run over all damages: what was expected of it, and what came of it."""

    ran: Ran
    log_dir: Path
    before: dict[str, Contents]
    told: dict[str, str] = field(default_factory=dict)  # file and byte, by topic


@pytest.fixture(scope="module")
def damaged(spark: LazySpark, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    harms = (*DAMAGES, *HINTS)
    topics = [harm.__name__ for harm in harms]
    log_dir = write_logs(tmp_path_factory.mktemp("damaged") / "logs", GOOD, "short_index", *topics)
    told = {harm.__name__: harm(log_dir / f"{harm.__name__}-0") for harm in harms}
    os.truncate(segment(log_dir / "short_index-0", 1, FileKind.OFFSET_INDEX), 8)
    checkpoints = {names.CLEANER_OFFSET_CHECKPOINT: "0\n1\ngood 0 999999\n"}
    hw = (log_dir / names.REPLICATION_CHECKPOINT).read_text()
    checkpoints[names.REPLICATION_CHECKPOINT] = hw.replace(f"good 0 {RECORDS}", "good 0 999999")
    for name, text in checkpoints.items():
        (log_dir / name).write_text(text)
    for name in LEFT_ALONE:
        (log_dir / name).mkdir()
        (log_dir / name / f"{0:020d}.log").write_bytes(b"no log at all")
    before = {path.name: contents(path) for path in log_dir.iterdir() if path.is_dir()}
    return Damaged(clean(spark, log_dir, files=HookedFiles(unreadable)), log_dir, before, told)


@pytest.mark.parametrize("topic", [damage.__name__ for damage in DAMAGES])
def test_damaged_log_is_named_and_left_as_it_was(damaged: Damaged, topic: str) -> None:
    assert damaged.told[topic] in damaged.ran.reason(topic)
    assert contents(damaged.log_dir / f"{topic}-0") == damaged.before[f"{topic}-0"]


@pytest.mark.parametrize("topic", [hint.__name__ for hint in HINTS])
def test_b8_a_damaged_index_is_told_and_the_log_read_instead(damaged: Damaged, topic: str) -> None:
    """A broker checks neither of them when it loads a log, and its cleaner rebuilds both."""
    assert_cleaned(damaged.ran, damaged.log_dir / f"{topic}-0")
    (line,) = [line for line in damaged.ran.told.splitlines() if f"{topic}-0 in" in line]
    assert "damaged indexes, without which the log was read" in line
    assert damaged.told[topic] in line
    left = [
        finding
        for finding in verify([str(damaged.log_dir)], topics={topic}).findings
        if "index" in finding.code
    ]
    assert left == []


def test_damaged_logs_do_not_keep_others_from_being_cleaned(damaged: Damaged) -> None:
    """Nor does an index that lost whole entries: its granularity is nobody's contract (D15)."""
    assert damaged.ran.code == 1
    for topic in (GOOD, "short_index"):
        assert_cleaned(damaged.ran, damaged.log_dir / f"{topic}-0")


def test_1_5_a_1_checkpoints_beyond_the_log_end_are_no_damage(damaged: Damaged) -> None:
    """The log is cleaned from its start up to its end, and the checkpoint is right afterwards."""
    result = damaged.ran.results["logs", GOOD]
    assert result["first_dirty_offset"] == 0
    assert result["end_offset"] <= RECORDS
    text = (damaged.log_dir / names.CLEANER_OFFSET_CHECKPOINT).read_text()
    assert f"good 0 {result['end_offset']}" in text.splitlines()


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_directories_that_are_no_logs_are_left_alone(damaged: Damaged, name: str) -> None:
    assert contents(damaged.log_dir / name) == damaged.before[name]
    assert not [topic for _, topic in damaged.ran.results if topic in {"other", "t", "lost+found", ""}]


# -- trouble of a whole directory ---------------------------------------------------------------------------------


def test_garbage_in_a_checkpoint_stops_its_directory_and_no_other(spark: LazySpark, tmp_path: Path) -> None:
    """Kafka takes the directory offline (spec disk A7). The file is not overwritten either."""
    topics = {name: (f"one.{number}", f"two.{number}") for number, name in enumerate(LOG_DIR_CHECKPOINTS)}
    log_dirs = [write_logs(tmp_path / name, *mine) for name, mine in topics.items()]
    for log_dir in log_dirs:
        (log_dir / log_dir.name).write_bytes(b"\x00garbage\n")
    before = {path: contents(path) for log_dir in log_dirs for path in log_dir.iterdir() if path.is_dir()}
    good = write_logs(tmp_path / "logs", GOOD)
    ran = clean(spark, *log_dirs, good)
    for log_dir in log_dirs:
        for topic in topics[log_dir.name]:
            assert f"{log_dir / log_dir.name}: at byte 0" in ran.reason(topic, log_dir.name)
        assert (log_dir / log_dir.name).read_bytes() == b"\x00garbage\n"
    assert {path: contents(path) for path in before} == before
    assert ran.code == 1
    assert_cleaned(ran, good / f"{GOOD}-0")


@pytest.mark.fault("no room before a write")
def test_read_only_directory_and_one_without_room(spark: LazySpark, tmp_path: Path) -> None:
    """Lack of room is noticed before anything is written."""
    read_only = write_logs(tmp_path / "read-only", "bad")
    small = tmp_path / "small"
    small.mkdir()
    good = write_logs(tmp_path / "logs", GOOD)
    with (
        mounted(read_only, "--bind", str(read_only)),
        mounted(small, "-t", "tmpfs", "-o", "size=256k", "none"),
    ):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(read_only)], check=True)
        write_logs(small, "small")
        (small / "filler").write_bytes(bytes(space_of(str(small)).free_bytes - 8192))
        before = contents(read_only / "bad-0"), contents(small / "small-0")
        ran = clean(spark, read_only, small, good)
        assert (contents(read_only / "bad-0"), contents(small / "small-0")) == before
    assert str(read_only) in ran.reason("bad", "read-only")
    assert os.strerror(errno.EROFS) in ran.reason("bad", "read-only")
    assert str(small / "small-0") in ran.reason("small", "small")
    assert "are free" in ran.reason("small", "small")
    assert_cleaned(ran, good / f"{GOOD}-0")


@pytest.mark.fault("several daemons and one-shots at once")
def test_second_cleanerd_in_the_same_directory(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", "bad")
    before = contents(log_dir / "bad-0")
    with lock_of_another(log_dir / names.CLEANERD_LOCK) as pid:
        ran = clean(spark, log_dir)
    assert f"process {pid}" in ran.reason("bad")
    assert (ran.code, contents(log_dir / "bad-0")) == (1, before)
    assert (
        ran.results["logs", "bad"]["remedy"]
        == "if that is the daemon, have it do this: `cleanerctl clean '*' --force`"
    )
    with lock_of_another(log_dir / names.CLEANERD_LOCK):
        for options, asked in ((["--topic=bad"], "bad"), (["--topic=bad", "--partition=0"], "bad-0")):
            ran = clean(spark, log_dir, options=[*options, "--force"])
            assert str(ran.results["logs", "bad"]["remedy"]).endswith(f": `cleanerctl clean {asked} --force`")
        ran = clean(spark, log_dir, options=["--topic=bad", "--partition=7"])
        assert (ran.code, "clean '*'" in ran.told) == (1, False), "none of these lies there"


# -- errors while writing -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """A call that fails on one log, on paths that end like this."""

    topic: str
    call: str
    error: int
    ending: str = ""


STAGING = (
    Trouble("full_disk", "write", errno.ENOSPC),
    Trouble("quota", "write", errno.EDQUOT),
    Trouble("sync_fails", "fsync", errno.EIO),
    Trouble("full_at_the_manifest", "fsync", errno.ENOSPC, ".manifest-part.cleanerd"),
    Trouble("log_not_named", "rename", errno.ENOSPC, ".log.cleanerd"),
    Trouble("manifest_not_named", "rename", errno.EROFS, MANIFEST),
    Trouble("guard_not_named", "rename", errno.EIO, ".log.cleaned"),
)
COMMITTING = tuple(
    Trouble(f"at{ending.replace('.', '_')}", "rename", errno.EIO, ending)
    for ending in (
        ".index.swap",
        ".timeindex.swap",
        ".log.swap",
        ".log.deleted",
        ".index.deleted",
        ".log",
        ".index",
    )
)


def failing(*troubles: Trouble) -> HookedFiles:
    """Real files with troubles."""

    def before(call: str, path: str) -> None:
        for trouble in troubles:
            if trouble.call == call and f"/{trouble.topic}-0/" in path and path.endswith(trouble.ending):
                raise OSError(trouble.error, os.strerror(trouble.error), path)

    return HookedFiles(before)


@pytest.mark.fault("ENOSPC, EIO, EACCES, EROFS from a system call")
def test_errors_while_staging_leave_the_log_as_it_was(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", GOOD, *(trouble.topic for trouble in STAGING))
    before = {trouble: contents(log_dir / f"{trouble.topic}-0") for trouble in STAGING}
    ran = clean(spark, log_dir, files=failing(*STAGING))
    for trouble in STAGING:
        reason = ran.reason(trouble.topic)
        assert os.strerror(trouble.error) in reason
        assert str(log_dir / f"{trouble.topic}-0") in reason
        assert contents(log_dir / f"{trouble.topic}-0") == before[trouble], trouble
    assert ran.code == 1
    assert_cleaned(ran, log_dir / f"{GOOD}-0")


@pytest.mark.fault("ENOSPC, EIO, EACCES, EROFS from a system call")
def test_errors_in_the_middle_of_a_commit_are_mended_by_the_next_run(
    spark: LazySpark, tmp_path: Path
) -> None:
    """Forward or backward; no record that counts is lost, and in the end the log is clean."""
    log_dir = write_logs(tmp_path / "logs", GOOD, *(trouble.topic for trouble in COMMITTING))
    ran = clean(spark, log_dir, files=failing(*COMMITTING))
    for trouble in COMMITTING:
        assert os.strerror(trouble.error) in ran.reason(trouble.topic)
    assert_cleaned(ran, log_dir / f"{GOOD}-0")
    ran = clean(spark, log_dir)
    assert ran.code == 0
    for trouble in COMMITTING:
        partition = log_dir / f"{trouble.topic}-0"
        assert newest(partition) == TRUTH, trouble
        assert size_of(partition) < RECORDS * 40
        assert_settled(partition)


# -- others at work ---------------------------------------------------------------------------------------------


def test_held_lock_leaves_the_result_staged_and_a_later_run_commits(spark: LazySpark, tmp_path: Path) -> None:
    log_dir = write_logs(tmp_path / "logs", "one", "two")
    partitions = [log_dir / "one-0", log_dir / "two-0"]
    before = {path: contents(path) for path in partitions}
    with lock_of_another(log_dir / names.LOCK) as pid:
        ran = clean(spark, log_dir)
    for path in partitions:
        topic = path.name.removesuffix("-0")
        assert (ran.code, ran.outcome(topic)) == (0, "staged")
        assert str(pid) in ran.results["logs", topic]["reason"]
        after = contents(path)
        assert {name: after[name] for name in before[path]} == before[path]
        assert {Path(name).suffix for name in after.keys() - before[path].keys()} == {Suffix.STAGED.value}
    assert not (log_dir / names.CLEANER_OFFSET_CHECKPOINT).exists()
    ran = clean(spark, log_dir)
    assert ran.code == 0
    for path in partitions:
        assert_cleaned(ran, path)


def exchange(log: Path) -> None:
    """The same bytes and times in another file."""
    stat, twin = log.stat(), log.with_name("twin")
    twin.write_bytes(log.read_bytes())
    os.utime(twin, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    twin.replace(log)


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": lambda log: os.utime(log, ns=(0, 5)),
    "shortened": lambda log: os.truncate(log, log.stat().st_size - 1),
    "exchanged": exchange,
    "gone": lambda log: log.unlink(),
    "one_more": lambda log: log.with_name(f"{3:020d}.log").touch(),
    "epoch_lowered": lambda log: (log.parent / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n5 9\n"),
    "other_cleaner": lambda log: log.with_name(f"{0:020d}.log.cleaned").touch(),
}


def test_source_that_changes_before_the_commit(spark: LazySpark, tmp_path: Path) -> None:
    """KAFKA-631's generation check: the work is thrown away, whoever changed the log is right."""
    log_dir, changed = write_logs(tmp_path / "logs", GOOD, *CHANGES), dict[str, Contents]()

    def meddle(call: str, path: str) -> None:
        """At the moment at which the new segment of a log is declared complete."""
        partition = Path(path).parent
        topic = partition.name.removesuffix("-0")
        if call == "rename" and path.endswith(MANIFEST) and topic in CHANGES.keys() - changed.keys():
            CHANGES[topic](segment(partition, 1))
            found = contents(partition)
            changed[topic] = {n: f for n, f in found.items() if not n.endswith(Suffix.STAGED.value)}

    ran = clean(spark, log_dir, files=HookedFiles(after=meddle))
    for topic in CHANGES:
        assert str(log_dir / f"{topic}-0") in ran.reason(topic)
        after = contents(log_dir / f"{topic}-0")
        staged = {name for name in after if name.endswith(Suffix.STAGED.value)}
        assert {name: after[name] for name in after.keys() - staged} == changed[topic], topic
        # beside a foreign `.cleaned` of the same base nobody can tell whether the commit has begun: recovery can
        assert bool(staged) == (topic == "other_cleaner")
    assert ran.code == 1
    assert_cleaned(ran, log_dir / f"{GOOD}-0")


def test_source_that_changes_between_plan_and_read(spark: LazySpark, tmp_path: Path) -> None:
    """The plan has seen another file than the task opens."""
    log_dir = write_logs(tmp_path / "logs", GOOD, "bad")
    log = segment(log_dir / "bad-0", 0)
    after: list[Contents] = []

    def hasten(call: str, path: str) -> None:
        if call == "read_to_hole" and not after and path == str(log.with_suffix(".index")):
            exchange(log)
            after.append(contents(log.parent))

    ran = clean(spark, log_dir, files=HookedFiles(hasten))
    assert str(log) in ran.reason("bad")
    assert contents(log.parent) == after[0]
    assert_cleaned(ran, log_dir / f"{GOOD}-0")
