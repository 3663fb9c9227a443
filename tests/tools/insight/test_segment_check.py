"""A segment against its indexes and against what the checkpoints say was written."""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanerd.format import names
from cleanerd.format.names import FileKind
from cleanerd.format.offset_index import parse_offset_index
from cleanerd.tools.insight import segment_check
from cleanerd.tools.insight.segment_check import OffsetIndexCheck, SegmentReport
from cleanerd.tools.insight.walk import Bounds, Damage, Sound, walk_log
from tests.harness.damage import directories as damage
from tests.harness.logs.logdirs import codes, findings, segment
from tests.harness.logs.troubled import lock_of_another


def test_a_transaction_index_that_was_not_listed_is_read(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer without a lock makes it with the first abort."""
    index = segment(log_dir / "transactions-0", 0, FileKind.TXN_INDEX)
    index.rename(tmp_path / "index")

    def appears(report: SegmentReport) -> None:
        if (tmp_path / "index").exists():
            (tmp_path / "index").rename(index)
        check(report)

    check = segment_check._check
    monkeypatch.setattr(segment_check, "_check", appears)
    assert [finding.kind.severity for finding in findings(log_dir)] == []


@pytest.mark.parametrize("checkpoint", [names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT])
def test_what_was_committed_or_flushed_is_no_torn_tail(checkpoint: str, log_dir: Path) -> None:
    """After a crash the broker cuts it off, and acknowledged records are gone; above it nothing is lost."""
    log, start = damage.torn_tail(log_dir)
    (log_dir / "plain-0" / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n1\n0 0\n")
    first_lost = int.from_bytes(log.read_bytes()[start : start + 8])
    (log_dir / checkpoint).write_text(f"0\n1\nplain 0 {first_lost}\n")
    assert codes(log_dir) == {"torn_tail": 1}
    (log_dir / checkpoint).write_text(f"0\n1\nplain 0 {first_lost + 1}\n")
    assert codes(log_dir) == {"torn_batch": 1, "checkpoint_beyond_end": 1}
    os.truncate(log, start)
    os.truncate(log, start + 100)
    assert codes(log_dir) == {"zeros": 1, "checkpoint_beyond_end": 1}


def test_what_a_live_broker_had_committed_is_no_end_in_writing(log_dir: Path) -> None:
    log = segment(log_dir / "plain-0", 0)
    start = damage.starts(log)[-1]
    os.truncate(log, start)
    os.truncate(log, start + 100)
    with lock_of_another(log_dir / names.LOCK):
        assert codes(log_dir) == {"zeros": 1}


def test_damage_of_an_index_is_found_beside_a_log_that_cannot_be_read_to_its_end(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = segment(log_dir / "plain-0", 0, FileKind.OFFSET_INDEX)
    index.write_bytes(index.read_bytes()[8:16] + index.read_bytes()[:8])

    def to_a_bad_sector(fd: int, path: str, bounds: Bounds) -> Iterator[Sound | Damage]:
        yield from walk_log(fd, path, bounds)
        if "plain-0" in path:
            raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(segment_check, "walk_log", to_a_bad_sector)
    assert {"index_entry", "unreadable"} <= codes(log_dir).keys()


@pytest.mark.parametrize("before", [(), ((3, 400),)])
def test_the_half_of_an_entry_is_one_that_is_being_written(before: tuple[tuple[int, int], ...]) -> None:
    """Kafka puts the offset into the mapped file, then the position (spec disk B2)."""
    content = b"".join(struct.pack(">ii", *entry) for entry in (*before, (8, 0))) + bytes(80)
    is_written, is_settled = (
        OffsetIndexCheck(parse_offset_index(content, 56), is_settled=is_settled)
        for is_settled in (False, True)
    )
    assert is_written.flaw is None
    assert str(is_settled.flaw) == (
        f"at byte {8 * len(before)}: expected rising offsets and positions, found relative offset 8, position 0"
    )
