"""What is to come: which logs will be late, when a log becomes due."""

import pytest

from cleanerd.cleaning.outcomes import Committed
from cleanerd.cleaning.result import LogResult, Size
from cleanerd.daemon.api.refusals import NotFound
from cleanerd.daemon.api.verbs import forecast as verb
from cleanerd.daemon.api.verbs import pause, throttle
from cleanerd.daemon.reports.forecast import ASSUMED_BYTES_PER_S
from cleanerd.daemon.values.models import Forecast, HistoryEvent, ThrottleChange
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import segment

AHEAD_MS = 600_000


def looked_at(world: World) -> Forecast:
    return world.control.forecasts.of(world.parts.inventory.logs())


def cleaned(world: World, size_bytes: int, seconds: float, job_id: str) -> None:
    """A cleaning that the history remembers."""
    world.history.record(
        HistoryEvent(
            time_ms=world.clock.now_ms(), kind="cleaning", outcome="committed", topic="one", partition=0,
            log_dir=str(world.a), job_id=job_id, seconds=seconds, bytes_before=size_bytes, bytes_after=size_bytes // 2,
        )
    )  # fmt: skip


def test_logs_that_have_to_wait_are_late(world: World) -> None:
    """One worker, three logs that become due together."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + AHEAD_MS)
    world.configure(log_cleaner_min_cleanable_ratio=1)
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=2))
    found = looked_at(world)
    assert {log.due_why for log in found.logs} == {"older than max.compaction.lag.ms"}
    assert sum(log.is_late for log in found.logs) == 2
    assert {log.due_ms for log in found.logs} == {log.deadline_ms for log in found.logs}
    assert (
        found.misses
        == world.control.forecasts.misses(world.parts.conditions.all(world.parts.inventory.logs()))
        == 2
    )
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=10**9))
    assert looked_at(world).misses == 0


def test_without_max_compaction_lag_nothing_is_late(world: World) -> None:
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=1))
    found = looked_at(world)
    assert (found.misses, found.first_miss_ms) == (0, None)
    assert {log.deadline_ms for log in found.logs} == {None}
    assert all(log.takes_ms and log.due_ms == world.clock.now_ms() for log in found.logs)  # dirty enough


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
    """As since its last cleaning, until its ratio is reached; one that nobody has cleaned yet is due when it is."""
    parts, log = world.parts, world.log("one")
    end = int(segment(world.a / "one-0", -1).stem)
    (world.a / "cleaner-offset-checkpoint").write_text(f"0\n1\none 0 {end}\n")
    world.scan()

    def due() -> tuple[int | None, str | None]:
        (found,) = world.control.forecasts.of([log]).logs
        return found.due_ms, found.due_why

    assert due() == (None, None)
    estimate = parts.due_logs.estimate(log)
    assert estimate is not None
    size_bytes = estimate.known.contents.size_bytes
    result = LogResult(
        log.topic_partition, log.log_dir, Committed(), before=Size(size_bytes), after=Size(size_bytes - 1000)
    )
    job = parts.jobs.start("schedule", [log])
    parts.events.cleaned(job, log, result)
    parts.jobs.end(job, [result.outcome.word], None)
    world.clock.advance(100_000)  # 10 bytes a second
    missing_s = estimate.range.clean_bytes / 10  # as much dirty as clean: a ratio of a half
    due_ms, why = due()
    assert due_ms == pytest.approx(world.clock.now_ms() + 1000 * missing_s, abs=2)
    assert why == "dirty ratio above min.cleanable.dirty.ratio"
