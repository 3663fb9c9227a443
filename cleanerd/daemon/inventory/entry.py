"""A partition directory, as the inventory remembers it between two scans."""

from dataclasses import dataclass, field

from cleanerd.daemon.inventory.listed_log import ClosedSegment, ListedLog
from cleanerd.daemon.inventory.urgency import FOREVER_MS, DirtyEstimate
from cleanerd.daemon.values.log_id import LogId
from cleanerd.env.files import FileStat


@dataclass(slots=True)
class Visits:
    """What `due_logs` remembers about a log as long as its directory exists."""

    estimate: DirtyEstimate | None = None
    first_batches_ms: dict[ClosedSegment, int | None] = field(default_factory=dict)
    due_since_s: float | None = None
    offered: object = None  # what the last `Due` was based on
    examined: object = None  # what the last examination that found nothing to do was based on ...
    examined_until_ms: int = FOREVER_MS  # ... and until when it counts
    unrecorded: object = None  # the same of one with nothing to remove that no checkpoint has
    clean_section: frozenset[ClosedSegment] | None = None  # when it was last known; None: never
    horizon_ms: int = FOREVER_MS  # when to look there for delete horizons that have expired


@dataclass(slots=True)
class Entry:
    """A partition directory; `known` is None as long as no segment was seen in it. Only scans change it, and `visits`."""

    log: LogId
    identity: FileStat | None = None
    is_settled: bool = False  # listed when its times were old enough to show the next change
    checkpoints_read: int = -1  # those of its log directory that `known` was made with
    known: ListedLog | None = None
    error: str | None = None
    visits: Visits = field(default_factory=Visits)
