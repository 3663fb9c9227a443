"""A disk that is really full, its broker dead or about to be: `cleanerd rescue` frees it, the broker starts by itself, and a
consumer finds what was written.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition

from cleanerd.cleaning.clean import Cleaner, CleaningJob
from cleanerd.cleaning.result import LogResult
from cleanerd.env.files import RealFiles
from cleanerd.env.space import space_of
from cleanerd.format.names import RESCUE
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.test_rescue import image_of, rescued
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import (
    COMPACT,
    PATIENCE_S,
    Journal,
    check_nothing_is_lost,
    home,
    leader_and_isr,
    records,
)
from tests.harness.broker.releases import SWITCH, newest_release
from tests.harness.broker.replicas import Replicas
from tests.harness.broker.swapping import build_agent
from tests.harness.broker.tools import READ_UNCOMMITTED, read_all, run_cleanerd
from tests.harness.broker.workload import create_topics
from tests.harness.daemon.processes import wait_until
from tests.harness.disks.mounts import mounted
from tests.harness.programs import missing

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

TOPIC = "t"
OLDER = "3.9.2"
FULL = NODES[-1]
"""Of three brokers, the one whose disk is."""
RECORDS = 50_000
NEVER = {
    f"{name}.checkpoint.interval.ms": "3600000"
    for name in ("log.flush.offset", "log.flush.start.offset", "replica.high.watermark")
} | {"log.initial.task.delay.ms": "3600000"}
"""The broker writes no checkpoint before it dies."""
MAKE = {
    "tmpfs": [],
    "ext4": ["mkfs.ext4", "-m0"],
    "xfs": ["mkfs.xfs"],
}


@contextmanager
def volume(root: Path, kind: str) -> Iterator[Path]:
    """A directory on a small file system of its own."""
    place = root / "volume"
    place.mkdir()
    make = MAKE[kind]
    options = ["-t", "tmpfs", "-o", "size=64m,nr_inodes=400", "none"]
    if make:
        if os.geteuid() != 0:
            missing("a file system of its own needs root")
        image = image_of(root / "image", (310 if kind == "xfs" else 96) << 20, *make)
        options = ["-o", "loop", str(image)]
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"mount is not permitted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def fill(place: Path, *, left_bytes: int = 0) -> None:
    """To the last byte, as another process would; or up to so many."""
    free_bytes = space_of(str(place)).free_bytes
    with (place / "filler").open("wb") as filler, suppress(OSError):
        os.posix_fallocate(filler.fileno(), 0, max(free_bytes - (left_bytes or 1 << 20), 1))
    while not left_bytes:
        try:
            with (place / f"filler-{len(os.listdir(place))}").open("wb") as filler:
                while True:
                    os.write(filler.fileno(), bytes(4096))
                    os.fsync(filler.fileno())
        except OSError:
            break


def written(broker: KafkaBroker, keys: Iterable[int], segment_bytes: int = 1_000_000) -> Journal:
    """What was acknowledged, of one topic."""
    journal = Journal(broker.bootstrap)
    create_topics(broker.admin(), {TOPIC: {**COMPACT, "internal.segment.bytes": str(segment_bytes)}})
    wait_until(partial(home, TOPIC, broker.log_dirs), PATIENCE_S)
    for entry in records(TOPIC, keys):
        journal.send(TOPIC, entry)
    journal.flush()
    return journal


def assert_starts_with_all(broker: KafkaBroker, journal: Journal) -> None:
    """By itself, and for a consumer."""
    broker.start()
    seen = read_all(broker, [TOPIC], READ_UNCOMMITTED)[TOPIC]
    check_nothing_is_lost(journal.written[TOPIC], seen)
    assert len(seen) < len(journal.written[TOPIC])
    broker.stop()


@pytest.fixture(params=[newest_release(), OLDER])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the brokers."""
    monkeypatch.setenv(SWITCH, request.param)


@pytest.mark.parametrize(
    ("kind", "properties", "version"),
    [("ext4", NEVER, newest_release()), ("tmpfs", {}, OLDER), ("xfs", NEVER, newest_release())],
    ids=["ext4 early", "tmpfs", "xfs early"],
)
def test_a_dead_broker_on_a_full_disk_starts_by_itself_after_a_rescue(
    tmp_path: Path,
    spark: LazySpark,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    properties: Mapping[str, str],
    version: str,
) -> None:
    """Dead before its first checkpoint, or after; 0 bytes, and on the tmpfs 0 names; the active segment is torn."""
    monkeypatch.setenv(SWITCH, version)
    with volume(tmp_path, kind) as place:
        log_dir = place / "logs"
        broker = KafkaBroker(tmp_path / "broker", [log_dir], properties)
        broker.start()
        # XFS makes no file without some 200 kB free: so much have the offset indexes of many segments
        segment_bytes = 50_000 if kind == "xfs" else 1_000_000
        journal = written(broker, (number % 500 for number in range(RECORDS)), segment_bytes)
        broker.kill()
        active = max((log_dir / f"{TOPIC}-0").glob("*.log"))
        with active.open(
            "r+b"
        ) as file:  # half a batch, where the disk was full: the broker cuts it off at its start
            half = file.read(200)
            file.seek(0, os.SEEK_END)
            file.write(half)
        fill(place)
        with suppress(OSError):
            for number in range(500):
                (place / f"name-{number}").touch()
        assert space_of(str(place)).free_bytes < 64 << 10
        code, done, told = rescued(spark, log_dir, "--yes", "--until=4%")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert_starts_with_all(broker, journal)


@pytest.mark.usefixtures("release")
def test_no_broker_starts_while_newest_values_lie_on_the_spare_alone(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spare fails in the middle, and comes back: the next rescue ends what the first one has begun."""
    spare = tmp_path / "spare"
    spare.mkdir()
    with volume(tmp_path, "ext4") as place:
        log_dir = place / "logs"
        broker = KafkaBroker(tmp_path / "broker", [log_dir])
        broker.start()
        keys = (number % 500 if number % 3 == 0 else number + 500 for number in range(RECORDS))
        journal = written(broker, keys)
        broker.kill()
        fill(place)
        with monkeypatch.context() as patched:
            patched.setattr(RealFiles, "copy_in", _fail)
            code, done, _ = rescued(spark, log_dir, "--yes", f"--spare={spare}")
        assert code == 1, done
        assert (log_dir / f"{TOPIC}-0" / RESCUE).exists()
        with pytest.raises(RuntimeError, match=RESCUE.removesuffix(".log")):  # the last lines of its log
            broker.start()
        code, done, told = rescued(spark, log_dir, "--yes", f"--spare={spare}")
        assert {step["name"]: step["outcome"] for step in done["steps"]}["resumed"] == "done", (done, told)
        assert code == 0, (done, told)
        assert_starts_with_all(broker, journal)


def _fail(_files: RealFiles, source: str, _target: str, _like: str) -> None:
    raise OSError(5, "injected", source)


@pytest.mark.parametrize(
    ("share", "version"), [(0.08, newest_release()), (0.01, newest_release()), (0.01, OLDER)]
)
def test_a_live_broker_swaps_although_there_is_hardly_any_room(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch, share: float, version: str
) -> None:
    monkeypatch.setenv(SWITCH, version)
    build_agent()
    with volume(tmp_path, "ext4") as place:
        log_dir = place / "logs"
        with KafkaBroker(tmp_path / "broker", [log_dir], {"log.segment.delete.delay.ms": "1000"}) as broker:
            journal = written(broker, (number % 500 for number in range(RECORDS)))
            left_bytes = int(space_of(str(place)).total_bytes * share)
            fill(place, left_bytes=left_bytes)
            code, done, told = rescued(spark, log_dir, "--yes", "--set=cleanerd.commit.live=auto")
            assert code == 0, (done, told)
            assert {step["outcome"] for step in done["steps"]} == {"done"}, done
            wait_until(lambda: space_of(str(place)).free_bytes > left_bytes + 10e6, PATIENCE_S)
        assert_starts_with_all(broker, journal)


@pytest.mark.usefixtures("release")
def test_one_of_three_replicas_is_rescued_and_is_like_the_others(tmp_path: Path, spark: LazySpark) -> None:
    """Its disk is full and it is dead; the others go on. It starts by itself, catches up, leads, and has what they have."""
    build_agent()
    place, first = tmp_path / "cluster" / str(FULL) / "logs", 20_000
    place.mkdir(parents=True)
    with (
        mounted(place, "-t", "tmpfs", "-o", "size=64m", "none"),
        KafkaCluster(tmp_path / "cluster") as cluster,
    ):
        world, journal = Replicas(cluster), Journal(cluster.bootstrap)
        world.create(TOPIC, {**COMPACT, "internal.segment.bytes": "1000000"}, (FULL, 1, 2))
        world.written[TOPIC] = lambda: journal.written[TOPIC]
        for number, entry in enumerate(records(TOPIC, (number % 500 for number in range(RECORDS)))):
            if number == first:
                journal.flush()
                cluster.brokers[FULL].kill()
                fill(place)
                assert space_of(str(place)).free_bytes == 0
            journal.send(TOPIC, entry)
        journal.flush()
        code, done, told = rescued(spark, place, "--yes", "--until=5%")
        assert (code, done["is_enough"]) == (0, True), (done, told)
        assert {step["outcome"] for step in done["steps"]} == {"done"}, (
            "a file that is named like a log is none"
        )
        assert done["settings_as_of_ms"], "other controllers may have changed some since"
        for filler in place.glob("filler*"):
            filler.unlink()  # what it has missed takes more room than a start
        cluster.brokers[FULL].start()
        world.check(TOPIC)
        elected = world.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)])
        elected.result(PATIENCE_S)
        wait_until(lambda: leader_and_isr(cluster.brokers[1], TOPIC)[0] == FULL, PATIENCE_S)
        check_nothing_is_lost(
            journal.written[TOPIC], read_all(cluster.brokers[FULL], [TOPIC], READ_UNCOMMITTED)[TOPIC]
        )
        dirs = [f"--log-dir={cluster.log_dir(node)}" for node in NODES]

        def are_equal() -> bool:
            ran = run_cleanerd("digest", *dirs, f"--topic={TOPIC}", "-o", "json")
            logs = json.loads(ran.stdout)["logs"]
            return (
                ran.returncode == 0 and len(logs) == len(NODES) and len({log["digest"] for log in logs}) == 1
            )

        wait_until(are_equal, PATIENCE_S)
        counts = {node: len(world.dump(node, TOPIC).records) for node in NODES}
        assert counts[FULL] < counts[1] == counts[2], "it alone was cleaned"


def test_a_broker_that_starts_in_the_middle_has_its_log_as_it_was(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the writing of the new segments and their commit."""
    end = Cleaner.end
    with volume(tmp_path, "ext4") as place:
        broker = KafkaBroker(tmp_path / "broker", [place / "logs"])
        broker.start()
        journal = written(broker, (number % 500 for number in range(RECORDS)))
        broker.kill()
        fill(place, left_bytes=4 << 20)

        def starting(cleaner: Cleaner, job: CleaningJob) -> list[LogResult]:
            if broker.pid is None:
                broker.start()
            return end(cleaner, job)

        monkeypatch.setattr(Cleaner, "end", starting)
        code, done, _ = rescued(spark, place / "logs", "--yes", "--until=50%")
        assert (code, broker.pid is not None) == (1, True), done
        (step,) = (one for one in done["steps"] if one["name"] == "compaction")
        assert (step["outcome"], step["frees_bytes"]) == ("failed", 0), done
        seen = read_all(broker, [TOPIC], READ_UNCOMMITTED)[TOPIC]
        check_nothing_is_lost(journal.written[TOPIC], seen)
        assert len(seen) == len(journal.written[TOPIC])
        broker.stop()
