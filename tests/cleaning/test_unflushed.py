"""What a broker that died had not flushed counts as flushed once it is synced (`storage.unflushed`)."""

import os
from pathlib import Path

import pytest

from cleanerd.cleaning.result import LogResult
from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.cleaning.member import NODE, OTHER, T0_MS, TP, Broker, others, values

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
