"""The division of work between cleanerd and the broker's cleaner in a log directory, and ways to change it.

Beside a broker whose cleaner works, and with the settings as they come, it mostly watches: nobody should have to find out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cleanerd.daemon.work.condition import Conditions
from cleanerd.units import counted, duration


@dataclass(frozen=True, slots=True)
class Share:
    """`cleans`, `leaves`: compacted logs that are not ignored. `kind`: another one is worth another line of log."""

    cleans: int
    leaves: int
    text: str
    kind: tuple[object, ...]


def share(conditions: Conditions, log_dir: str) -> Share:
    """What cleanerd does in a log directory; asks no broker."""
    config, way = conditions.configuration(), conditions.ownership.way(log_dir)
    logs = [
        log
        for log in conditions.inventory.logs()
        if log.log_dir == log_dir
        and log not in conditions.states.obstacles.ignored
        and config.topic(log.topic_partition.topic).compact
    ]
    is_on = config.broker.log_cleaner_enable
    left = sum(map(conditions.left_to_broker, logs)) if is_on and way.committed_by != "lock" else 0
    cleans = len(logs) - left if is_on else 0
    is_seen = conditions.brokers_cleaner.is_at_work(log_dir)
    said = [f"cleans {counted(cleans, 'log')}"]
    if left:
        grace = duration(config.broker.broker_cleaner_grace_ms / 1000)
        seen = "" if is_seen else ", once that is seen at work"
        said.append(
            f"leaves {counted(left, 'log')} to the broker's own cleaner{seen}, each for {grace} after it is due"
        )
    said.append(
        {
            "lock": "results are committed at once",
            "swap": "the running broker swaps results in at once",
            "restart": f"results wait until the running broker stops ({way.reason})",
        }[way.committed_by]
    )
    changes = list(_changes(conditions, left=left, waits=way.waits, off_by=config.broker.off_by))
    text = "; ".join(said) + (f". To change that: {'; '.join(changes)}" if changes else "")
    return Share(cleans, left, text, (way.committed_by, is_seen, cleans > 0, left > 0))


def _changes(conditions: Conditions, *, left: int, waits: bool, off_by: str | None) -> Iterator[str]:
    if off_by is not None:
        yield f"cleanerd.log.cleaner.enable=true, for {off_by} is false"
    if left:
        yield "a cleanerd.min.cleanable.dirty.ratio below the broker's has cleanerd clean first"
    if left and not waits:
        yield "`cleanerctl mute TOPICS` keeps the broker's cleaner away"
    if waits and conditions.configuration().broker.commit_live == "off":
        yield "cleanerd.commit.live=auto has the broker swap results in"
