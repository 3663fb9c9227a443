"""One damaged batch never costs `verify` another one; that it takes any bytes, `tests/fuzz` shows."""

import random
from pathlib import Path

from cleanerd.tools.insight.verify import verify
from tests.harness.logs.logdirs import segment
from tests.harness.logs.random_log import RandomLog


def test_one_damaged_byte_costs_one_batch(tmp_path: Path) -> None:
    """Wherever it is: in a size, an offset, a CRC or a record, of any magic and codec."""
    logs: dict[int, tuple[int, int]] = {}
    for seed in range(120):
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
