"""May tombstones and transaction markers go whose time has come?

A replica that has a value, and fetches what follows only after the leader has dropped the tombstone, keeps the value for
good; one that has data of a transaction, and never meets its marker, takes aborted data for committed or waits for ever. So
both go only when every other assigned replica is known to be in sync, so that it has all up to the high watermark, and has
been for delete.retention.ms, so that this is on its disk. Until then they stay, with horizons as ever; superseded values and
aborted data go. The node itself need not be in sync: its log has what is cleaned there.
"""

from dataclasses import dataclass

from cleanerd.units import utc

KNOWN_FOR_MS = 180_000
"""For so long after the end of the metadata log it counts. A live one gets a batch twice a second; and what happens in the
minutes after a broker has ended, a cleaning just before could not have known either; a broker that is cut off from its
controllers goes on by what it knew for as long. So a result is committed between its stop and its start."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """The replicas of a partition. `is_moving`: some are being added or removed.

    `since_ms`: since when all but this node have been in sync, or some not, at the latest. `known_until_ms`: when that was
    last heard of; None if nobody can have changed it since.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_moving: bool
    since_ms: int
    known_until_ms: int | None

    def away(self, node_id: int) -> list[int]:
        """Replicas on other nodes that are not in sync."""
        return sorted(set(self.replicas) - {node_id, *self.isr})

    def is_settled(self, node_id: int) -> bool:
        """Whether all other replicas are in sync, and stay the same."""
        return not self.is_moving and not self.away(node_id)


@dataclass(frozen=True, slots=True)
class Stay:
    """Why tombstones and markers stay, in words. `until_ms`: all replicas are in sync, and from then on they have been for
    long enough; None: they are not, or that is not known.
    """

    reason: str
    until_ms: int | None = None


def why_tombstones_stay(
    found: ReplicaFacts, node_id: int, delete_retention_ms: int, now_ms: int, latest_ms: int
) -> Stay | None:
    """Why expired tombstones and markers must stay in the log of this node; None if they may go. `latest_ms`: the clock."""
    if set(found.replicas) == {node_id}:
        return None
    if found.known_until_ms is not None and abs(latest_ms - found.known_until_ms) > KNOWN_FOR_MS:
        return Stay(f"which replicas are in sync is known up to {utc(found.known_until_ms)} only")
    if found.is_moving:
        return Stay("replicas are being reassigned")
    if away := found.away(node_id):
        which = f"replica {away[0]} is" if len(away) == 1 else f"replicas {', '.join(map(str, away))} are"
        return Stay(f"{which} not in sync since {utc(found.since_ms)}")
    until_ms = found.since_ms + delete_retention_ms
    if until_ms > now_ms:
        since = f"all replicas are in sync since {utc(found.since_ms)}"
        return Stay(f"{since}, which is less than delete.retention.ms ({delete_retention_ms}) ago", until_ms)
    return None


def wait_for_ratio_ms(dirty_ratio: float, min_cleanable_dirty_ratio: float, delete_retention_ms: int) -> int:
    """For how long a log is not cleaned for a delete horizon alone that has passed.

    One that is more than half-way to its ratio will soon be cleaned for that, and what has expired goes with it. So it waits
    for delete.retention.ms, in which it got there; else a second cleaning would follow each of its cleanings.
    """
    is_soon = min_cleanable_dirty_ratio / 2 < dirty_ratio and min_cleanable_dirty_ratio < 1
    return delete_retention_ms if is_soon else 0
