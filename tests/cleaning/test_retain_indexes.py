"""Retention of segments whose time indexes tell nothing of their age: the records do (rules 1.10, 6.5; spec disk B3).

A broker takes the zeros at the end of such an index for the timestamp of its newest record, and deletes the segment at
once: tests/broker/test_padded_indexes.py.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanerd.cleaning.retain import preview
from cleanerd.format.names import FileKind
from cleanerd.policy.retention import Breach, Keeper
from cleanerd.storage.index_files import largest_timestamp_ms
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter
from tests.harness.logs.retained import (
    EXPIRED,
    FILES,
    NOW_MS,
    OLD_MS,
    append,
    bases,
    run_pass,
    segment_path,
    snapshot_of,
    stop_broker,
    write_log,
)


def pad(index: Path) -> None:
    os.truncate(index, 10485756)


def zero(index: Path) -> None:
    index.write_bytes(bytes(index.stat().st_size))


def garble(index: Path) -> None:
    index.write_bytes(b"\xff" * 12)


HARMS = (pad, zero, garble)


def harmed(log_dir: Path, harm: Callable[[Path], None], base_offsets: tuple[int, ...]) -> None:
    for base in base_offsets:
        harm(segment_path(log_dir, base, FileKind.TIME_INDEX))


def mixed_log(log_dir: Path) -> None:
    """Two segments of old records, one of new ones, an old active one; all files have just been written."""
    write_log(log_dir, 10)
    with LogWriter(str(log_dir), "t", 0, segment_bytes=1 << 20) as writer:
        writer.roll()
        append(writer, 5, 5, NOW_MS)
        writer.roll()
        append(writer, 5, 5, OLD_MS)


@pytest.mark.parametrize("harm", HARMS)
def test_6_5_the_records_tell_the_age(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """Not the index, by which all would go, nor the mtime, by which none would."""
    mixed_log(tmp_path)
    harmed(tmp_path, harm, (0, 5, 10))
    retained = run_pass(tmp_path, EXPIRED)
    assert (retained.segments, retained.reasons) == (2, (Breach.TIME,))
    assert bases(tmp_path) == [10, 15]


def test_6_5_and_so_it_is_for_the_active_segment_of_a_log_that_its_broker_closed(tmp_path: Path) -> None:
    write_log(tmp_path, 5, timestamp_ms=NOW_MS)
    stop_broker(tmp_path, 5)
    harmed(tmp_path, pad, (0,))
    assert run_pass(tmp_path, EXPIRED) is None
    retained = run_pass(tmp_path, EXPIRED, NOW_MS + 1001)
    assert retained.rolled


def test_what_stays_is_told_with_its_true_age(tmp_path: Path) -> None:
    mixed_log(tmp_path)
    harmed(tmp_path, pad, (0, 5, 10))
    kept = preview(FILES, snapshot_of(tmp_path), EXPIRED, NOW_MS).kept
    assert (kept.segment.base_offset, kept.keeper, kept.due_ms) == (10, Keeper.LIMITS, NOW_MS + 1001)


def test_no_log_is_read_but_for_segments_that_would_go_and_each_of_them_once(tmp_path: Path) -> None:
    """A pass comes every few minutes, or seconds."""
    mixed_log(tmp_path)
    largest_timestamp_ms.cache_clear()
    run_pass(tmp_path, EXPIRED, dry_run=True)
    assert largest_timestamp_ms.cache_info().misses == 0
    harmed(tmp_path, pad, (5, 10))
    for _ in range(3):
        run_pass(tmp_path, EXPIRED, dry_run=True)
    assert largest_timestamp_ms.cache_info().misses == 2
    segment_path(tmp_path, 0).touch()
    run_pass(tmp_path, EXPIRED, OLD_MS, dry_run=True)
    assert largest_timestamp_ms.cache_info().misses == 2, "the first segment stays, whatever is behind it"


def test_what_is_hidden_behind_damage_is_no_older_than_the_file(tmp_path: Path) -> None:
    """Of a log that is damaged as well."""
    write_log(tmp_path, 10)
    harmed(tmp_path, pad, (0,))
    log = segment_path(tmp_path, 0)
    data = log.read_bytes()
    log.write_bytes(data[:-90] + bytes(90))
    os.utime(log, ns=(0, NOW_MS * 1_000_000))
    assert run_pass(tmp_path, EXPIRED) is None
    os.utime(log, ns=(0, OLD_MS * 1_000_000))
    assert run_pass(tmp_path, EXPIRED, dry_run=True) is not None


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_largest_timestamp_by_magic(magic: int, tmp_path: Path) -> None:
    """Magic 0 has none: then it is the mtime, as a broker has it."""
    with LogWriter(str(tmp_path), "t", 0, segment_bytes=1 << 20) as writer:
        for timestamp_ms in (5, 9, 7):
            Producer(writer, magic=magic).put(b"k", b"v", timestamp_ms)
    (segment,) = snapshot_of(tmp_path).segments
    expected = segment.identity.mtime_ms if magic == 0 else 9
    assert largest_timestamp_ms(segment.path, segment.identity) == expected
