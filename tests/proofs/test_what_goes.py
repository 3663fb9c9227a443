"""A cleaning takes what the rules let go and nothing else, and leaves what Kafka's own cleaner leaves.

The whole path, index to rewrite, against the plain twin: equal batches, equal counts, however the work is cut. And a round
of `python -m tests.broker.differential`, which takes as many seeds as one likes; here of each scenario twice.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from cleanerd.policy.verdicts import RecordVerdict
from tests.broker.differential import differences
from tests.harness.broker.workload import SCENARIOS
from tests.harness.kernels import reference
from tests.harness.kernels.agreement import assert_agree
from tests.harness.kernels.real_path import Layout, RealPath
from tests.harness.kernels.reference import Cleaned, Facts, Segment
from tests.harness.logs.random_log import (
    KEYS,
    NOW_MS,
    RETENTION_MS,
    LogSegment,
    Placed,
    RandomLog,
    cut_segments,
    random_facts,
)

SEEDS_PER_TEST = 20


def twin_of(segments: list[LogSegment], facts: Facts) -> Cleaned:
    return reference.clean([Segment(s.data, s.retain_legacy_deletes) for s in segments], facts)


def random_layout(rng: random.Random) -> Layout:
    """Some way to cut the work; pieces and slices of a single batch are among them."""
    return Layout(
        chunk_bytes=rng.choice((1, 300, 1 << 20)),
        buckets=rng.choice((1, 4, 64)),
        map_side=rng.random() < 0.5,
        piece_bytes=rng.choice((100, 1000, 1 << 22)),
        slice_bytes=rng.choice((1, 300, 1 << 22)),
        segments_per_group=rng.choice((1, 2)),
        combined_chunks=rng.choice((1, 3, 100)),
    )


def assert_only_changed_groups_change(path: RealPath, cleaned: Cleaned) -> None:
    """A group that is not rewritten would have come out as it is."""
    for number, segment in enumerate(path.segments):
        if number // path.layout.segments_per_group not in path.indexed.changed_groups:
            assert cleaned.segments[number] == segment.data


def agree_on(seed: int, directory: Path) -> None:
    rng = random.Random(seed)
    log = RandomLog(rng).append(rng.choice((1, 3, 10, 60)))
    segments, facts = cut_segments(rng, log.batches, rng.choice((1, 2, 5))), random_facts(rng, log)
    path = RealPath(directory, segments, facts, random_layout(rng))
    expected = twin_of(segments, facts)
    assert_agree(path.clean(), expected, f"seed {seed}, {path.layout}")
    assert_only_changed_groups_change(path, expected)


@pytest.mark.parametrize("block", range(6))
def test_random_logs(block: int, tmp_path: Path) -> None:
    """Everything that a log may hold, in any layout."""
    for seed in range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST):
        directory = tmp_path / str(seed)
        directory.mkdir()
        agree_on(seed, directory)


@pytest.mark.parametrize("seed", range(12))
def test_passes_over_the_same_log(seed: int, tmp_path: Path) -> None:
    """Each pass gets what the one before left, with more behind it and the clock moved on (rule 4.21)."""
    rng, now_ms = random.Random(f"passes {seed}"), NOW_MS
    log = RandomLog(rng, keys=rng.choice((KEYS, KEYS[:3])))
    for number in range(4):
        log.append(rng.choice((2, 10, 30)))
        segments = cut_segments(rng, log.batches, rng.choice((1, 2, 5)))
        facts = random_facts(rng, log, now_ms)
        directory = tmp_path / str(number)
        directory.mkdir()
        path = RealPath(directory, segments, facts, random_layout(rng))
        expected = twin_of(segments, facts)
        assert_agree(path.clean(), expected)
        assert_only_changed_groups_change(path, expected)
        log.batches = [
            Placed(batch.base_offset, batch.data)
            for data in expected.segments
            for batch in reference.read_batches(data)
        ]
        log.aborted = list(expected.kept_aborted)
        now_ms += rng.choice((0, 1, RETENTION_MS, RETENTION_MS + 1))


def test_the_random_logs_meet_every_rule(tmp_path: Path) -> None:
    """The agreement is worth something only if all verdicts and both kinds of markers occur."""
    verdicts: Counter[RecordVerdict] = Counter()
    markers = aborted = 0
    for seed in range(12):
        rng = random.Random(seed)
        log = RandomLog(rng).append(60)
        facts = random_facts(rng, log)
        cleaned = twin_of(cut_segments(rng, log.batches, 2), facts)
        verdicts += cleaned.counts
        markers += len(cleaned.discardable_markers)
        aborted += len(cleaned.kept_aborted)
    assert set(verdicts) == set(RecordVerdict)
    assert markers > 0
    assert aborted > 0


@pytest.mark.trap("transaction state across groups and partial segments")
@pytest.mark.parametrize("map_side", [False, True])
@pytest.mark.parametrize("buckets", [1, 4, 64])
@pytest.mark.parametrize(("piece_bytes", "slice_bytes"), [(50, 1), (400, 1 << 22), (1 << 22, 500)])
def test_no_layout_changes_the_result(
    map_side: bool, buckets: int, piece_bytes: int, slice_bytes: int, tmp_path: Path
) -> None:
    """Both physical plans, any number of buckets, batches larger than a piece or than a slice."""
    rng = random.Random(7)
    log = RandomLog(rng).append(40)
    segments, facts = cut_segments(rng, log.batches, 3), random_facts(rng, log)
    layout = Layout(700, buckets, map_side, piece_bytes, slice_bytes)
    assert_agree(RealPath(tmp_path, segments, facts, layout).clean(), twin_of(segments, facts))


@pytest.mark.trap("an endless loop at holes and at dirty offsets inside of batches")
def test_a_first_dirty_offset_inside_a_batch(tmp_path: Path) -> None:
    """Rule 1.8: the offset, not the batch, divides clean from dirty."""
    rng = random.Random(3)
    log = RandomLog(rng, kinds=("plain",), keys=KEYS[:3]).append(6)
    segments, facts = cut_segments(rng, log.batches, 2), random_facts(rng, log)
    for offset in range(log.next_offset + 1):
        moved = Facts(
            facts.now_ms, facts.new_horizon_ms, offset, facts.round_end, facts.producers, facts.aborted
        )
        layout = Layout(chunk_bytes=150, buckets=4, map_side=offset % 2 == 0)
        assert_agree(RealPath(tmp_path, segments, moved, layout).clean(), twin_of(segments, moved))


@pytest.mark.soak
def test_many_random_logs(tmp_path: Path) -> None:
    """The same as `test_random_logs` with other seeds, for longer."""
    for seed in range(10_000, 11_000):
        agree_on(seed, tmp_path)


@pytest.mark.broker
@pytest.mark.timeout(1800)
def test_both_cleaners_agree_and_the_broker_goes_on(tmp_path: Path) -> None:
    """Two log directories, old magics, three passes with time between them (rules 4.15-4.21), and the broker afterwards."""
    assert differences(tmp_path / "round", range(2 * len(SCENARIOS))) == []
