"""Hostile bytes: `verify` ends, with findings; and one damaged batch never costs another one."""

import os
import random
from pathlib import Path

import pytest

from cleanerd.format.names import FileKind
from cleanerd.tools.insight.findings import Severity
from cleanerd.tools.insight.verify import verify
from tests.harness.damage.batches import damage, damage_inside_crc
from tests.harness.logs.logdirs import segment
from tests.harness.logs.random_log import RandomLog

SEEDS = int(os.environ.get("CLEANERD_TEST_FUZZ_SEEDS", "2000"))
_AT_ONCE = 250
_SMALL = (
    "leader-epoch-checkpoint",
    "partition.metadata",
    "cleanerd-generation",
    f"{0:020d}.log.manifest.cleanerd",
)


def write(partition: Path, rng: random.Random, data: bytes) -> None:
    """A segment with this log, and noise for all the files beside it."""
    partition.mkdir(parents=True)
    segment(partition, 0).write_bytes(data)
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT):
        if rng.random() < 0.7:
            segment(partition, 0, kind).write_bytes(rng.randbytes(rng.choice((0, 8, 12, 34, 56, 1000))))
    for name in _SMALL:
        if rng.random() < 0.3:
            (partition / name).write_bytes(rng.randbytes(rng.randrange(60)))


def broken(rng: random.Random, log: RandomLog) -> bytes:
    batches = [placed.data for placed in log.batches]
    if rng.random() < 0.5:
        number = rng.randrange(len(batches))
        batches[number] = damage_inside_crc(rng, batches[number])
    data = b"".join(batches)
    return damage(rng, data) if rng.random() < 0.7 else data


@pytest.mark.soak
def test_thousands_of_broken_logs(tmp_path: Path) -> None:
    """No crash, no hang; hardly a log is called sound."""
    errors = 0
    for first in range(0, SEEDS, _AT_ONCE):
        log_dir = tmp_path / str(first)
        for seed in range(first, first + _AT_ONCE):
            rng = random.Random(seed)
            data = broken(rng, RandomLog(rng).append(rng.choice((1, 3, 10))))
            write(log_dir / f"t-{seed}", rng, data)
        (log_dir / "cleaner-offset-checkpoint").write_bytes(random.Random(first).randbytes(50))
        report = verify([str(log_dir)])
        assert report.partitions == _AT_ONCE
        errors += report.count(Severity.ERROR)
    assert errors > SEEDS


def test_one_damaged_byte_costs_one_batch(tmp_path: Path) -> None:
    """Wherever it is: in a size, an offset, a CRC or a record, of any magic and codec."""
    logs: dict[int, tuple[int, int]] = {}
    for seed in range(400):
        rng = random.Random(f"one {seed}")
        log = RandomLog(rng).append(12)
        data = bytearray(log.data)
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        partition = tmp_path / f"t-{seed}"
        partition.mkdir()
        segment(partition, 0).write_bytes(data)
        logs[seed] = len(log.batches), at
    for seed, (batches, at) in logs.items():
        report = verify([str(tmp_path)], partitions={seed})
        told = f"seed {seed}, byte {at}: {report.findings}"
        assert report.batches >= batches - 1, told
