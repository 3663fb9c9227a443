"""Directories to look at: what a real broker left (`tests/golden`), without the entries of logs that are not kept there."""

import random
import shutil
from collections import Counter
from pathlib import Path

from cleanerd.format.checkpoint import parse_offset_checkpoint, render_offset_checkpoint
from cleanerd.format.names import FileKind
from cleanerd.format.txn_index import render_txn_index
from cleanerd.tools.insight.findings import Finding
from cleanerd.tools.insight.verify import verify
from tests.harness.logs.random_log import RandomLog

GOLDEN = Path(__file__).parents[2] / "golden" / "logs"


def broker_log_dir(target: Path) -> Path:
    """A copy of the golden log directory of a broker that stopped in order."""
    shutil.copytree(GOLDEN, target)
    for path in target.glob("*-offset-checkpoint"):
        offsets = parse_offset_checkpoint(path.read_bytes())
        kept = {tp: offset for tp, offset in offsets.items() if (target / str(tp)).is_dir()}
        path.write_bytes(render_offset_checkpoint(kept))
    return target


def findings(*log_dirs: Path) -> list[Finding]:
    return verify([str(log_dir) for log_dir in log_dirs]).findings


def codes(*log_dirs: Path) -> Counter[str]:
    return Counter(finding.code for finding in findings(*log_dirs))


def segment(partition: Path, base_offset: int, kind: FileKind = FileKind.LOG) -> Path:
    return partition / f"{base_offset:020d}{kind.value}"


def random_partition(directory: Path, seed: int) -> Path:
    """A partition directory with one segment of 40 random batches and the index of its aborted transactions."""
    log = RandomLog(random.Random(seed)).append(40)
    directory.mkdir()
    segment(directory, 0).write_bytes(log.data)
    txns = sorted(log.aborted, key=lambda txn: txn.last_offset)
    segment(directory, 0, FileKind.TXN_INDEX).write_bytes(render_txn_index(txns))
    return directory
