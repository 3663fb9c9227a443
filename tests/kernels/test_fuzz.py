"""Hostile bytes: every log is either cleaned as the twin does it or refused as a corrupt file. No crash, no hang."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cleanerd
from cleanerd.errors import CorruptFile
from cleanerd.format.errors import FormatError
from cleanerd.format.names import MAX_OFFSET
from cleanerd.format.offset_index import OffsetIndex
from cleanerd.format.txn_index import AbortedTxn
from cleanerd.kernels.digest import digest_batches
from cleanerd.kernels.fingerprint import fingerprint_records, look_up_answers
from cleanerd.kernels.horizons import next_horizon
from cleanerd.kernels.judge import Context, mark_aborted
from cleanerd.kernels.records import count_records, walk_records
from cleanerd.kernels.scan import first_bad_crc, first_bad_order, first_misplaced, scan_batches
from cleanerd.kernels.tables import AbortedTxns, ReadStatus
from cleanerd.kernels.transactions import PRODUCER, ReplayState, collect_events, replay
from tests.harness.damage.batches import damage, damage_inside_crc, guarded
from tests.harness.kernels import reference
from tests.harness.kernels.real_path import KEY, Layout, RealPath, producer_columns
from tests.harness.kernels.reference import Facts, Segment
from tests.harness.logs.random_log import NOW_MS, LogSegment, RandomLog, random_facts

SEEDS = int(os.environ.get("CLEANERD_TEST_FUZZ_SEEDS", "150"))


def damaged_log(rng: random.Random, log: RandomLog, *, inside_crc: bool) -> bytes:
    """The log with one batch damaged inside its CRC, or with damage anywhere."""
    batches = [placed.data for placed in log.batches]
    if not inside_crc:
        return damage(rng, b"".join(batches))
    number = rng.randrange(len(batches))
    batches[number] = damage_inside_crc(rng, batches[number])
    return b"".join(batches)


def content(data: bytes) -> list[object]:
    """What a reader sees of a log: the same number may be written as a varint with padding."""
    return [
        (
            batch.records,
            replace(batch.header or batch.entry, size_bytes=0, **({"crc": 0} if batch.header else {})),
        )
        for batch in reference.read_batches(data)
    ]


def expected_content(segment: LogSegment, facts: Facts) -> list[object] | None:
    """What the twin makes of it; None where it refuses more than the kernels do.

    It checks the CRCs of messages inside a wrapper and the version of control keys, and its timestamps do not wrap.
    """
    try:
        cleaned = reference.clean([Segment(segment.data, segment.retain_legacy_deletes)], facts)
        return content(cleaned.segments[0])
    except FormatError as error:
        if any(word in str(error.expected) for word in ("CRC", "control key", "a varint of at most 64 bits")):
            return None
        raise


@pytest.mark.parametrize("inside_crc", [False, True])
def test_damaged_logs_are_refused_or_cleaned_right(inside_crc: bool, tmp_path: Path) -> None:
    """CorruptFile, or the log of the twin."""
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        rng = random.Random(f"{seed} {inside_crc}")
        log = RandomLog(rng).append(rng.choice((1, 3, 10)))
        segment = LogSegment(0, damaged_log(rng, log, inside_crc=inside_crc))
        facts = replace(random_facts(rng, log), aborted=())  # they would not fit the damaged markers
        layout = Layout(buckets=rng.choice((1, 4)), piece_bytes=rng.choice((100, 1 << 22)), slice_bytes=300)
        path = RealPath(tmp_path, [segment], facts, layout)
        try:
            cleaned = path.clean()
        except CorruptFile:
            outcomes["refused"] += 1
            continue
        expected = expected_content(segment, facts)
        assert expected is None or content(cleaned.segments[0]) == expected, f"seed {seed}"
        outcomes["cleaned"] += 1
    assert outcomes["refused"] > SEEDS // 4
    assert outcomes["cleaned"] > 0


def read_everything(data: bytes, rng: random.Random) -> ReadStatus:
    """Run every kernel that reads foreign bytes over a buffer with forbidden memory on both sides."""
    raw, nothing = guarded(data, at_start=rng.random() < 0.3), np.empty(0, np.uint8)
    batches, stop, status = scan_batches(raw, 0, len(raw))
    assert 0 <= stop <= len(raw)
    first_bad_crc(raw, batches)
    replay(ReplayState(np.zeros(0, PRODUCER), -1), raw, batches, 0, 10)
    aborted = mark_aborted(batches, AbortedTxns.of(AbortedTxn(n, 0, 1 << 40, 0) for n in range(5)))
    collect_events(raw, batches, aborted, _context())
    if len(batches):
        always = np.full(len(batches), MAX_OFFSET)
        assert first_misplaced(batches, 0, OffsetIndex(always, batches["position"].copy())) == -1
        next_horizon(batches, NOW_MS)
        digest_batches(0, batches)
    plain = (batches["attributes"] & 7 == 0).all()
    rows, impossible = count_records(nothing, batches, 0, len(batches)) if plain else (0, 0)
    if first_bad_order(batches, -1) >= 0 or impossible >= 0:
        return status
    records, walked, _, _ = walk_records(raw, nothing, batches, 0, len(batches), rows, -1)
    if walked is ReadStatus.OK:
        fingerprint_records(raw, nothing, batches, records, aborted, 5, KEY, 4)
        cursors = np.zeros(4, np.int64)
        look_up_answers(raw, nothing, batches, records, aborted, KEY, np.ones(2, np.bool_), cursors)
    return walked


def _context() -> Context:
    return Context(NOW_MS, NOW_MS + 1, 10, producer_columns({}), np.zeros(0, np.int64))


def expand_everything(data: bytes, rng: random.Random) -> ReadStatus:
    """The inner messages of a wrapper, as the walk meets them after decompression."""
    log = RandomLog(rng, kinds=("wrapper",)).append(1)
    raw = guarded(log.batches[0].data)
    batches, _, _ = scan_batches(raw, 0, len(raw))
    expanded = guarded(data, at_start=rng.random() < 0.3)
    batches["expanded"], batches["payload_start"], batches["payload_end"] = 1, 0, len(data)
    batches["count"] = -1
    rows, _ = count_records(expanded, batches, 0, 1)
    assert rows * 26 <= len(data) + 26
    return walk_records(raw, expanded, batches, 0, 1, rows, -1)[1]


@pytest.mark.parametrize("reader", [read_everything, expand_everything])
def test_no_kernel_reads_beyond_its_buffer(reader: Callable[[bytes, random.Random], ReadStatus]) -> None:
    """A read outside ends the process. CRCs are not asked: every length is followed to its end."""
    outcomes: Counter[ReadStatus] = Counter()
    for seed in range(4 * SEEDS):
        rng = random.Random(f"bounds {seed}")
        kinds = ("legacy",) if reader is expand_everything else ("plain", "transactional", "marker", "legacy")
        log = RandomLog(rng, kinds=kinds).append(3)
        data = log.data
        for _ in range(rng.randrange(4)):
            data = damage(rng, data)
        outcomes[reader(data, rng)] += 1
    assert outcomes[ReadStatus.OK] > 0
    assert outcomes[ReadStatus.BAD_RECORD] > 0


@pytest.mark.parametrize("kind", ["plain", "transactional", "marker", "legacy", "wrapper"])
def test_logs_cut_at_every_byte(kind: str, tmp_path: Path) -> None:
    """A log that ends inside a batch is refused; one that ends between two is not."""
    rng = random.Random(kind)
    log = RandomLog(rng, kinds=(kind,)).append(4)
    data, facts = log.data, random_facts(rng, log)
    ends = set(np.cumsum([len(placed.data) for placed in log.batches]).tolist()) | {0}
    for end in [*range(0, len(data), 7), *ends]:
        path = RealPath(tmp_path, [LogSegment(0, data[:end])], facts)
        if end in ends:
            path.clean()
        else:
            with pytest.raises(CorruptFile) as caught:
                path.clean()
            assert caught.value.position in ends


@pytest.mark.soak
def test_with_bounds_checks(tmp_path: Path) -> None:
    """Everything above with more seeds, compiled with numba's bounds checks."""
    root = Path(cleanerd.__file__).parents[1]
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "CLEANERD_TEST_FUZZ_SEEDS": "1000"}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-k",
            "not bounds_checks",
            str(Path(__file__).relative_to(root)),
        ],
        env=os.environ | checked,
        cwd=root,
        check=True,
    )
