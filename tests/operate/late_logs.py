"""What moves metrics and takes more than a few lines: logs that will be late, neighbours that wait."""

from collections.abc import Callable

import pytest

from cleanerd.daemon.api.verbs import throttle
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.metric_table import Metric
from cleanerd.daemon.values.models import ThrottleChange
from cleanerd.policy.pace import FLOOR_BYTES_PER_S
from tests.daemon.test_pacer import Paced
from tests.operate.world import World


def more_becomes_due_than_can_be_done(world: World) -> None:
    """Three logs become due together for one worker, which a limit makes slow: those that wait are late."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 5000)
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 0
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=2))
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 2


def neighbours_need_the_machine(world: World) -> None:
    """The kernel reports pressure: the limit that follows it falls."""
    world.configure(cleanerd_throttle_pressure_max_percent=20)
    Paced(world).steps(2, io=50, cpu=10)
    after = world.scrape()
    assert after.total("cleanerd_throttle_pressure_ratio", resource="io") == pytest.approx(0.5)
    assert after.total("cleanerd_throttle_pressure_ratio", resource="cpu") == pytest.approx(0.1)
    assert after.total("cleanerd_io_limit_bytes_per_second", limit="pressure") == FLOOR_BYTES_PER_S


MORE_SCENARIOS: dict[Callable[[World], None], tuple[Metric, ...]] = {
    more_becomes_due_than_can_be_done: (table.DEADLINE_MISSES,),
    neighbours_need_the_machine: (table.IO_LIMIT, table.PRESSURE),
}
