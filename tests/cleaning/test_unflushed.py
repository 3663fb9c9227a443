"""What a broker that died had not flushed counts as flushed once it is synced (`storage.unflushed`)."""

import os
import subprocess
from pathlib import Path

import pytest

from cleanerd.cleaning.result import LogResult
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.test_rescue import fill, image_of
from tests.harness.disks.mounts import mounted
from tests.harness.logs.member import NODE, OTHER, T0_MS, TP, Broker, others, values
from tests.harness.logs.troubled import contents

CHECKPOINTS = (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT)


def died(log_dir: Path, spark: LazySpark, *replicas: int, without: tuple[str, ...]) -> Broker:
    """A broker that has written every key twice, and some of its checkpoints never."""
    broker = Broker(log_dir, spark, *replicas)
    broker.write(values, values, others)
    for name in without:
        (log_dir / name).unlink()
    return broker


def cleaned(broker: Broker) -> LogResult:
    return broker.clean(T0_MS, force=True)


def test_a_broker_that_died_before_its_first_checkpoint_is_cleaned_once_its_segments_are_synced(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is declared staged: what superseded a record has to be there for good before that goes."""
    calls, fsync, rename = list[str](), RealFiles.fsync, RealFiles.rename

    def syncing(files: RealFiles, path: str) -> None:
        calls.append(os.path.basename(path))
        fsync(files, path)

    def renaming(files: RealFiles, source: str, target: str) -> None:
        calls.append(os.path.basename(target))
        rename(files, source, target)

    broker = died(tmp_path, spark, NODE, without=CHECKPOINTS)
    logs = sorted(path.name for path in (tmp_path / str(TP)).glob("*.log"))
    monkeypatch.setattr(RealFiles, "fsync", syncing)
    monkeypatch.setattr(RealFiles, "rename", renaming)
    result = cleaned(broker)
    assert (result.outcome.word, result.statistics.removed) == ("committed", {"superseded": 5})
    declared = next(at for at, name in enumerate(calls) if name.endswith(".manifest.cleanerd"))
    assert set(logs) <= set(calls[:declared]), "the active one, too: the ends of transactions may lie in it"
    assert len(broker.keys()) == 11


def test_what_a_failed_sync_has_left_in_memory_alone_supersedes_nothing(
    tmp_path: Path, spark: LazySpark
) -> None:
    """The pool of a thin volume was full: the broker was told, and died. Now there is room; a sync succeeds, in vain."""
    pool, volume = tmp_path / "pool", tmp_path / "volume"
    pool.mkdir()
    volume.mkdir()
    with mounted(pool, "-t", "tmpfs", "-o", "size=20m", "none"):
        options = ("-m0", "-b4096", "-O^has_journal", "-Enodiscard,lazy_itable_init=0")
        image = image_of(pool / "image", 32 << 20, "mkfs.ext4", *options)
        with mounted(volume, "-o", "loop", str(image)):
            broker = died(volume / "logs", spark, NODE, without=CHECKPOINTS)
            log = sorted((volume / "logs" / str(TP)).glob("*.log"))[1]
            subprocess.run(["sync", "-f", str(volume)], check=True)
            fill(pool)
            (volume / "again").write_bytes(log.read_bytes())
            (volume / "again").rename(log)
            with pytest.raises(OSError, match=r"No space|Input/output"):
                RealFiles().fsync(str(log))
            (pool / "filler").unlink()
            RealFiles().fsync(str(log))
            before = contents(volume / "logs" / str(TP))
            result = cleaned(broker)
            assert result.outcome.word == "failed", result
            assert contents(volume / "logs" / str(TP)).keys() == before.keys()


def test_what_was_written_before_the_machine_booted_stays_unflushed(tmp_path: Path, spark: LazySpark) -> None:
    """A power failure may have taken what superseded it."""
    broker = died(tmp_path, spark, NODE, without=CHECKPOINTS)
    for path in (tmp_path / str(TP)).glob("*.log"):
        os.utime(path, ns=(0, 1_000_000_000))
    result = cleaned(broker)
    assert result.outcome.word == "skipped"
    assert "so its recovery point counts as 0" in str(result.reason)


@pytest.mark.parametrize(("without", "outcome"), [(CHECKPOINTS, "skipped"), (CHECKPOINTS[1:], "committed")])
def test_the_high_watermark_holds_as_ever(
    tmp_path: Path, spark: LazySpark, without: tuple[str, ...], outcome: str
) -> None:
    """Where there are other replicas, only what the broker wrote down is known to have reached them."""
    broker = died(tmp_path, spark, NODE, OTHER, without=without)
    result = cleaned(broker)
    assert result.outcome.word == outcome
    assert outcome == "committed" or "so its high watermark counts as 0" in str(result.reason)
