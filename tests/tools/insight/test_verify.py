"""`verify`: nothing to say about a healthy directory, and one finding for each kind of damage."""

import errno
import importlib
import os
import shutil
from pathlib import Path

import pytest

from cleanerd.env.page_cache import cold_ranges, drop
from cleanerd.format import names
from cleanerd.format.names import SEGMENT_KINDS, FileKind
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.insight import segment_check
from cleanerd.tools.insight.findings import KINDS
from cleanerd.tools.insight.segment_check import SegmentReport
from cleanerd.tools.insight.verify import verify
from cleanerd.tools.insight.walk import Bounds, walk_log
from tests.harness.damage import directories as damage
from tests.harness.damage.directories import Damage
from tests.harness.logs.logdirs import GOLDEN, broker_log_dir, codes, findings, random_partition, segment
from tests.harness.logs.troubled import clean, lock_of_another, write_logs

ALSO = {
    damage.zeros: {"bad_batch"},
    damage.segment_too_large: {"preallocated"},
    damage.many_findings: {"bad_crc"},
    damage.segment_overflow: {"time_index_end", "epoch_order", "snapshot", "checkpoint_beyond_end"},
    damage.txn_index_without_an_abort: {"txn_index_gap"},
    damage.waiting_swap: {"index_missing", "time_index_missing"},
    damage.torn_tail: {"epoch_beyond_end"},  # of the broker's last start
    damage.torn_after_a_clean_stop: {"epoch_beyond_end", "checkpoint_beyond_end", "snapshot"},
}
"""What else a damage entails."""


def test_nothing_is_wrong_with_what_a_broker_left(log_dir: Path) -> None:
    """All codecs, transactions, compacted segments, the metadata log; every record was walked."""
    report = verify([str(log_dir)])
    assert report.findings == []
    assert report.is_sound
    assert report.partitions == sum(path.is_dir() for path in GOLDEN.iterdir())
    assert report.segments == len(list(GOLDEN.glob("*-*/*.log")))
    assert report.bytes_read == sum(path.stat().st_size for path in GOLDEN.glob("*-*/*.log"))
    assert report.records > 300


@pytest.mark.parametrize("harm", damage.DAMAGES, ids=lambda harm: harm.__name__)
def test_a_damage_is_found_where_it_is(harm: Damage, log_dir: Path) -> None:
    """Code, file and byte; and hardly anything else, least of all about another log."""
    path, position = harm(log_dir)
    found = findings(log_dir)
    mine = [finding for finding in found if finding.code == damage.DAMAGES[harm]]
    assert (str(path), position) in [(finding.path, finding.position) for finding in mine], found
    assert {finding.code for finding in found} - {damage.DAMAGES[harm]} <= ALSO.get(harm, set()), found
    assert len({finding.topic for finding in found} - {""}) <= 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_small_file_that_cannot_be_read_may_be_sound(
    number: int, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another user than the broker's: no remedy tells to delete a checkpoint that nobody has looked into."""

    def refused(path: str, max_bytes: int) -> bytes:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("cleanerd.tools.insight.findings.read_small", refused)
    found = findings(log_dir)
    assert str(log_dir / "replication-offset-checkpoint") in {one.path for one in found}
    assert {one.code for one in found if one.found == os.strerror(number)} == {"unreadable"}


def test_every_code_has_a_damage() -> None:
    """But those that need two directories, a staged cleaning or a race."""
    elsewhere = {"link", "meta_mismatch", "partition_twice", "staged", "changed", "not_judged", "no_log_dir"}
    elsewhere.add("meta_properties_missing")
    assert KINDS.keys() - set(damage.DAMAGES.values()) == elsewhere


def test_partitions_of_a_zookeeper_broker_need_no_topic_id(log_dir: Path) -> None:
    """Brokers before 2.8 wrote none; only a KRaft broker takes a partition without one for a stray."""
    shutil.rmtree(log_dir / "__cluster_metadata-0")
    (log_dir / "plain-0" / names.PARTITION_METADATA).unlink()
    assert codes(log_dir) == {"partition_metadata_missing": 1}
    (log_dir / names.META_PROPERTIES).write_text("version=0\nbroker.id=1\ncluster.id=c\n")
    assert codes(log_dir) == {}


@pytest.mark.parametrize("name", ["plain-0", f"plain-0/{0:020d}.log"])
def test_a_link_is_followed_and_named(log_dir: Path, tmp_path: Path, name: str) -> None:
    """As a broker follows it; a cleaning refuses the log (`tests/cleaning/test_odd_files.py`)."""
    shutil.move(log_dir / name, tmp_path / "elsewhere")
    (log_dir / name).symlink_to(tmp_path / "elsewhere")
    (finding,) = findings(log_dir)
    assert (finding.code, finding.path) == ("link", str(log_dir / name))
    assert finding.found == f"a symbolic link to {tmp_path / 'elsewhere'}"


def test_a_directory_of_another_program_is_named_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "kafka" / "orders" / "0_12").mkdir(parents=True)
    (finding,) = findings(tmp_path)
    assert (finding.code, finding.path, finding.found) == ("no_log_dir", str(tmp_path), "kafka")


def test_a_brokers_directory_without_meta_properties_is_named(log_dir: Path) -> None:
    """As everything else leaves it alone; one in which no broker ever was needs none."""
    (log_dir / names.META_PROPERTIES).unlink()
    assert codes(log_dir)["meta_properties_missing"] == 1
    for path in log_dir.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path) if path.name.startswith("__") else None
    for path in log_dir.rglob(names.PARTITION_METADATA):
        path.unlink()
    assert "meta_properties_missing" not in codes(log_dir)


def test_two_directories_of_one_broker(tmp_path: Path) -> None:
    """A directory that was copied: its id and its partitions are there twice."""
    first, second = broker_log_dir(tmp_path / "a"), broker_log_dir(tmp_path / "b")
    partitions = sum(path.is_dir() for path in GOLDEN.iterdir())
    assert codes(first, second) == {"meta_mismatch": 1, "partition_twice": partitions}
    assert {finding.path.startswith(str(second)) for finding in findings(first, second)} == {True}


def test_directories_of_two_brokers(tmp_path: Path) -> None:
    """Their replicas of a partition are no copies of each other."""
    first, second = broker_log_dir(tmp_path / "a"), broker_log_dir(tmp_path / "b")
    (second / names.META_PROPERTIES).write_text(
        (second / names.META_PROPERTIES).read_text().replace("node.id=", "node.id=7")
    )
    assert codes(first, second) == {"meta_mismatch": 2}


def test_the_end_of_a_live_log_is_no_finding(log_dir: Path) -> None:
    """While a broker holds the lock its active segments grow, and its indexes are allocated in advance."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    partition = log_dir / "plain-0"
    log = segment(partition, 0)
    with log.open("ab") as file:
        file.write(log.read_bytes()[:50])
    os.truncate(segment(partition, 0, FileKind.OFFSET_INDEX), 10485760)
    os.truncate(segment(partition, 0, FileKind.TIME_INDEX), 10485756)
    assert codes(log_dir) == {"torn_tail": 1}
    with lock_of_another(log_dir / names.LOCK):
        assert findings(log_dir) == []


def test_the_end_of_a_metadata_log_is_no_finding(log_dir: Path) -> None:
    """Its broker opens it as after a crash, whatever it has written of the other logs; 4.4 does not close it."""
    os.truncate(segment(log_dir / "__cluster_metadata-0", 0, FileKind.OFFSET_INDEX), 10485760)
    os.truncate(segment(log_dir / "__cluster_metadata-0", 0, FileKind.TIME_INDEX), 10485756)
    assert findings(log_dir) == []


def test_a_live_log_is_read_up_to_the_high_watermark(log_dir: Path) -> None:
    """What lies above may be truncated under the reader; below it damage is damage."""
    log = segment(log_dir / "plain-0", 0)
    start = damage.starts(log)[-1]
    damage.overwrite(log, start + 70, b"\xff")
    first_offset = int.from_bytes(log.read_bytes()[start : start + 8])
    checkpoint = log_dir / names.REPLICATION_CHECKPOINT
    with lock_of_another(log_dir / names.LOCK):
        checkpoint.write_text(f"0\n1\nplain 0 {first_offset}\n")
        assert findings(log_dir) == []
        checkpoint.write_text("0\n1\nplain 0 16\n")
        damage.overwrite(log, damage.starts(log)[0] + 70, b"\xff")
        assert codes(log_dir) == {"bad_crc": 2}


def test_a_segment_that_a_live_broker_is_swapping_in_is_no_finding(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files get their names one after the other, the `.log` first; what has none a moment later is missing."""
    indexes = [
        segment(log_dir / "transactions-0", 0, kind)
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
    ]

    def swapping() -> None:
        for path in indexes:
            path.rename(f"{path}.swap")

    def named(report: SegmentReport) -> None:
        check(report)
        for path in indexes:
            if os.path.exists(f"{path}.swap"):
                os.rename(f"{path}.swap", path)

    check = segment_check._check
    with lock_of_another(log_dir / names.LOCK):
        swapping()
        assert codes(log_dir) == {"changed": 1}
        monkeypatch.setattr(segment_check, "_check", named)
        assert findings(log_dir) == []
        monkeypatch.undo()
        for path in indexes:
            path.unlink()
        assert codes(log_dir) == {"index_missing": 1, "time_index_missing": 1, "txn_index_gap": 1}


def test_segments_that_a_live_broker_merges_are_read_as_they_are_then(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that takes their place has more bytes and offsets than the one of its name that was listed."""
    with lock_of_another(log_dir / names.LOCK):
        expected = verify([str(log_dir)]).records
    merged = segment(log_dir / "idempotent-0", 0)
    content, start = merged.read_bytes(), damage.starts(merged)[1]
    second = segment(log_dir / "idempotent-0", int.from_bytes(content[start : start + 8]))
    second.write_bytes(content[start:])
    os.truncate(merged, start)

    def merges(report: SegmentReport) -> None:
        if second.exists():
            (tmp_path / "swap").write_bytes(content)
            (tmp_path / "swap").rename(merged)
            second.unlink()
        check(report)

    check = segment_check._check
    monkeypatch.setattr(segment_check, "_check", merges)
    with lock_of_another(log_dir / names.LOCK):
        report = verify([str(log_dir)])
    assert (report.findings, report.records) == ([], expected)


def test_a_staged_cleaning_is_no_trouble(tmp_path: Path, spark: LazySpark) -> None:
    """Until its source is gone."""
    log_dir = write_logs(tmp_path / "logs", "t")
    with lock_of_another(log_dir / names.LOCK):
        assert clean(spark, log_dir).outcome("t") == "staged"
    found = codes(log_dir)
    assert found["staged"] == 1
    assert found["staged_useless"] == 0
    next((log_dir / "t-0").glob("*.log.cleanerd")).unlink()
    assert codes(log_dir)["staged_useless"] == 1


@pytest.mark.parametrize("topic", ["cleaned", "idempotent", "transactions"])
@pytest.mark.parametrize("sources", ["gone", "there"])
def test_a_segment_that_waits_to_be_swapped_in_is_part_of_the_log(
    topic: str, sources: str, log_dir: Path
) -> None:
    """The next start takes it for its segment, whose transactions and epochs go on in the segments above it."""
    expected = verify([str(log_dir)], topics={topic}).records
    swaps = []
    for kind in SEGMENT_KINDS:
        path = segment(log_dir / f"{topic}-0", 0, kind)
        if path.exists():
            swaps.append(path.with_name(f"{path.name}.swap"))
            swaps[-1].write_bytes(path.read_bytes())
            if sources == "gone":
                path.unlink()
    waiting = {"waiting_swap": 1, "interrupted_cleaning": len(swaps) - 1}
    assert codes(log_dir) == waiting
    log = next(path for path in swaps if path.name.endswith(".log.swap"))
    if sources == "gone":
        assert verify([str(log_dir)], topics={topic}).records == expected
    damage.overwrite(log, damage.starts(log)[1] + 70, b"\xff")
    found = [finding for finding in findings(log_dir) if finding.code not in waiting]
    assert [(one.code, one.path, one.position) for one in found] == [
        ("bad_crc", str(log), damage.starts(log)[1])
    ]


def test_logs_of_magic_0_and_1(tmp_path: Path) -> None:
    """Single messages and wrappers of every codec, beside transactions and batches of magic 2."""
    logs = [random_partition(tmp_path / f"t-{seed}", seed) for seed in range(30)]
    report = verify([str(tmp_path)])
    assert {finding.code for finding in report.findings} <= {
        "index_missing", "time_index_missing", "txn_index_gap", "epoch_order",
    }  # fmt: skip
    assert report.batches == sum(len(damage.starts(segment(log, 0))) for log in logs)


def test_sparse_terabytes_cost_nothing(log_dir: Path, tmp_path: Path) -> None:
    """A batch beyond a hole of a terabyte is found; a head that claims the largest size is not believed."""
    log = segment(log_dir / "idempotent-0", 0)
    last = damage.starts(log)[-1]
    batch = log.read_bytes()[last:]
    os.truncate(log, last)
    damage.overwrite(log, 1 << 40, batch)
    damage.overwrite(log, last, (19).to_bytes(8) + (2**31 - 20).to_bytes(4) + bytes(4) + b"\x02")
    batches = verify([str(broker_log_dir(tmp_path / "healthy"))]).batches
    report = verify([str(log_dir)])
    assert {"segment_too_large", "bad_batch"} <= {finding.code for finding in report.findings}
    assert report.batches == batches
    assert report.seconds < 60


def test_several_processes_find_what_one_does(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings and sums, also what only the end of a log shows."""
    ends = {"log_start_beyond_end", "checkpoint_beyond_end", "epoch_beyond_end"}
    for harm in (damage.bad_crc, *damage.BESIDE):
        if harm.name in {"bad_crc", *ends}:
            harm(log_dir)
    alone = verify([str(log_dir)])
    assert {finding.code for finding in alone.findings} >= {"bad_crc", *ends}
    monkeypatch.setattr("cleanerd.tools.insight.processes.INLINE_BYTES", 0)
    seen: list[tuple[int, int]] = []
    together = verify([str(log_dir)], processes=2, read=lambda done, total: seen.append((done, total)))
    assert together.findings == alone.findings
    assert (together.records, together.bytes_read) == (alone.records, alone.bytes_read)
    assert seen[-1][0] == seen[-1][1] == alone.bytes_read


def test_a_partition_without_segments(log_dir: Path) -> None:
    """A live broker makes the directory first."""
    (log_dir / "new-0").mkdir()
    assert findings(log_dir) == []


@pytest.mark.parametrize("part", ["segment_check._check", "verify.list_partition", "verify.check_partition"])
def test_a_defect_concerns_one_log(part: str, log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are checked to the end."""
    damage.bad_crc(log_dir)
    module, _, name = part.partition(".")
    real = getattr(importlib.import_module(f"cleanerd.tools.insight.{module}"), name)

    def fails(*arguments):
        if "zstd-0" in str(arguments[1] if name == "list_partition" else arguments[0]):
            raise ZeroDivisionError
        return real(*arguments)

    monkeypatch.setattr(f"cleanerd.tools.insight.{part}", fails)
    found = {(finding.code, finding.topic or "zstd") for finding in findings(log_dir)}
    assert {("not_judged", "zstd"), ("bad_crc", "plain")} <= found


def test_selection(log_dir: Path) -> None:
    log_dir = str(log_dir)
    assert verify([log_dir], topics={"plain"}).partitions == 1
    assert verify([log_dir], topics={"plain"}, partitions={1}).partitions == 0


def test_verify_changes_nothing(log_dir: Path) -> None:
    for harm in (
        damage.bad_crc,
        damage.index_missing,
        damage.staged_useless,
        damage.interrupted_cleaning,
    ):
        harm(log_dir)

    def state() -> list[tuple[Path, int, int, bytes]]:
        found = [(path, path.stat()) for path in sorted(log_dir.rglob("*"))]
        return [(p, s.st_ino, s.st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p, s in found]

    before = state()
    assert not verify([str(log_dir)]).is_sound
    assert state() == before


def test_verify_leaves_the_page_cache_to_the_broker(tmp_path: Path) -> None:
    """Also of a whole directory that nobody has read for a year."""
    path = tmp_path / "log"
    path.write_bytes(os.urandom(5 << 20))  # one long damage: every byte is read
    with path.open("rb") as file:
        os.fsync(file.fileno())
        drop(file.fileno(), ((0, 5 << 20),))
        before = cold_ranges(file.fileno(), 5 << 20)
        assert list(walk_log(file.fileno(), str(path), Bounds(0, 1000, 1000, 0, 5 << 20)))
        assert cold_ranges(file.fileno(), 5 << 20) == before
