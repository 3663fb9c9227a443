"""A result that waits for its commit: for how long it may, and when to make it again.

Delete horizons count from the cleaning, which for Kafka's cleaner is the moment in which the values go. A result that waits
takes them later: who has read a value before its commit, a consumer or a replica, must have delete.retention.ms from then
on to meet the tombstone. So the horizons of a result that will wait are `WAIT_MS` later, it is not committed after that, and
made again when half of the time has gone by. One that was to be committed at once, and waits all the same because a broker
has started meanwhile, may do so for half of delete.retention.ms.
"""

WAIT_MS = 30 * 86_400_000
"""A broker restarts for its updates more often than this, and to clean a log again every two weeks costs little."""
_LEAST_MS = 600_000
"""A commit may take so long however short delete.retention.ms is."""


def commit_within_ms(delete_retention_ms: int, *, waits: bool) -> int:
    """How long after its staging a result may be committed. `waits`: until a broker stops that swaps nothing."""
    return WAIT_MS if waits else max(delete_retention_ms // 2, _LEAST_MS)


def has_half_waited(since_ms: int, commit_by_ms: int, now_ms: int) -> bool:
    """Whether to make a result again that has waited since then."""
    return 2 * (now_ms - since_ms) > commit_by_ms - since_ms


def pays_again(
    *, staged_bytes: int, clean_bytes: int, dirty_bytes: int, min_cleanable_dirty_ratio: float
) -> bool:
    """Whether to throw a waiting result away and make it again, with what has become cleanable behind it.

    `staged_bytes`: what would be thrown away. `clean_bytes`: the log up to the end of the cleaned range, once the result is
    committed. `dirty_bytes`: cleanable since. The log must qualify again by its own ratio (1.21). What is ever thrown away
    for this stays within the bytes that were appended.
    """
    if staged_bytes > dirty_bytes or dirty_bytes <= 0:
        return False
    return dirty_bytes > min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes)
