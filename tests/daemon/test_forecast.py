"""What is to come: which logs will be late, what would be enough, when a log becomes due."""

import pytest

from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.api.verbs import forecast as verb
from cleanerd.daemon.api.verbs import pause, throttle
from cleanerd.daemon.reports.forecast import ASSUMED_BYTES_PER_S, forecast, misses, written_bytes_per_s
from cleanerd.daemon.values.models import Forecast, HistoryEvent, ThrottleChange
from cleanerd.policy.backtest import SizeSample
from tests.operate.world import World

AHEAD_MS, LAG_MS = 600_000, 3_600_000


def looked_at(world: World) -> Forecast:
    return forecast(world.parts, world.parts.inventory.logs())


def cleaned(world: World, size_bytes: int, seconds: float, job_id: str) -> None:
    """A cleaning that the history remembers."""
    world.history.record(
        HistoryEvent(
            time_ms=world.clock.now_ms(), kind="cleaning", outcome="committed", topic="one", partition=0,
            log_dir=str(world.a), job_id=job_id, seconds=seconds, bytes_before=size_bytes, bytes_after=size_bytes // 2,
        )
    )  # fmt: skip


def test_logs_that_have_to_wait_are_late_and_the_rate_that_is_named_is_enough(world: World) -> None:
    """One worker, three logs that become due together."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + AHEAD_MS)
    world.configure(log_cleaner_min_cleanable_ratio=1)
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=2))
    found = looked_at(world)
    assert {log.due_why for log in found.logs} == {"older than max.compaction.lag.ms"}
    assert sum(log.is_late for log in found.logs) == 2
    assert {log.due_ms for log in found.logs} == {log.deadline_ms for log in found.logs}
    assert found.misses == misses(world.parts, world.parts.conditions.all(world.parts.inventory.logs())) == 2
    assert found.enough_bytes_per_s is not None
    assert found.enough_bytes_per_s > found.bytes_per_s == 2
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=found.enough_bytes_per_s))
    assert looked_at(world).misses == 0


def test_without_max_compaction_lag_nothing_is_late(world: World) -> None:
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=1))
    found = looked_at(world)
    assert (found.misses, found.first_miss_ms, found.enough_bytes_per_s) == (0, None, None)
    assert {log.deadline_ms for log in found.logs} == {None}
    assert all(log.end_ms and log.start_ms for log in found.logs)  # dirty enough now


def test_a_misspelled_log_gets_no_forecast_of_all_being_well(world: World) -> None:
    with pytest.raises(NotFound, match="no log matches ome"):
        verb.forecast(world.control, "ome")


def test_the_rate_is_that_of_the_larger_half_of_past_jobs(world: World) -> None:
    """Small jobs mostly wait for Spark; logs of one job share its time."""
    assert looked_at(world).bytes_per_s == ASSUMED_BYTES_PER_S
    cleaned(world, 1000, 10, "small")
    cleaned(world, 6_000_000, 10, "large")
    cleaned(world, 4_000_000, 10, "large")
    found = looked_at(world)
    assert (found.bytes_per_s, found.rate_is_measured) == (1_000_000, True)


def test_a_paused_log_is_not_planned(world: World) -> None:
    pause.pause(world.control, "one", "anna", "", None, 0)
    assert "one" not in {log.topic for log in looked_at(world).logs}


def test_a_log_becomes_due_as_it_grows(world: World) -> None:
    """By the samples of the last week, until its ratio is reached."""
    world.configure(log_cleaner_min_cleanable_ratio=1)
    (log,) = (one for one in looked_at(world).logs if one.topic == "one")
    assert (log.due_ms, log.start_ms) == (None, None)
    sizes = {0: 1000, 10_000: 3000, 20_000: 500, 40_000: 2500}
    samples = [SizeSample(time_ms, size, 0, 0) for time_ms, size in sizes.items()]
    assert written_bytes_per_s(samples) == 100  # 2000 before a cleaning and 2000 after it, in 40 s
    assert written_bytes_per_s(samples[:1]) == 0


def test_what_other_settings_would_have_done(world: World) -> None:
    """From the samples of the history; as it is comes first."""
    world.configure(log_segment_bytes=100_000_000)
    log, now_ms = world.log("one"), world.clock.now_ms()
    for i in range(40):
        sample = SizeSample(now_ms - (40 - i) * LAG_MS, 10**9 + i * 10**8, 10**9, i * 10**8)
        world.history.record_samples(sample, {log: sample})
    (found,) = forecast(world.parts, [log]).logs
    results = {one.setting: one for one in found.what_if}
    assert next(iter(results)) == "as it is"
    assert found.what_if[0].lasted_ms == 39 * LAG_MS
    lower, higher = (results[f"min.cleanable.dirty.ratio={ratio}"] for ratio in (0.1, 0.8))
    assert lower.cleanings > results["as it is"].cleanings > higher.cleanings == 0
    assert lower.max_bytes < results["as it is"].max_bytes < higher.max_bytes == 49 * 10**8
