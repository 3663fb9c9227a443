"""What moves metrics and takes more than a few lines: logs that will be late."""

from collections.abc import Callable

from cleanerd.daemon.api.verbs import throttle
from cleanerd.daemon.telemetry import metric_table as table
from cleanerd.daemon.telemetry.metric_table import Metric
from cleanerd.daemon.values.models import ThrottleChange
from tests.operate.world import World


def more_becomes_due_than_can_be_done(world: World) -> None:
    """Three logs become due together for one worker, which a limit makes slow: those that wait are late."""
    world.configure(log_cleaner_max_compaction_lag_ms=world.clock.now_ms() - 1000 + 5000)
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 0
    throttle.set_throttle(world.control, ThrottleChange(io_bytes_per_s=2))
    assert world.scrape().total("cleanerd_deadline_misses_predicted") == 2


MORE_SCENARIOS: dict[Callable[[World], None], tuple[Metric, ...]] = {
    more_becomes_due_than_can_be_done: (table.DEADLINE_MISSES,),
}
