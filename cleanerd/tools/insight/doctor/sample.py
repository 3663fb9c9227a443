"""An estimate of what is superseded in a log, in one pass and little memory: the keys of a fixed share of all fingerprints.

All records of a key are in the sample, or none. The fingerprint has a fixed key, so that two replicas sample the same keys.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cleanerd.env.clock import Clock
from cleanerd.env.files import Files, open_regular
from cleanerd.format.head import CONTROL, DELETE_HORIZON
from cleanerd.format.names import MAX_OFFSET
from cleanerd.kernels.fingerprint import fingerprint_records
from cleanerd.kernels.judge import mark_aborted
from cleanerd.kernels.tables import AbortedTxns
from cleanerd.storage.scan import read_aborted_txns
from cleanerd.tools.insight.paced import PacedReads
from cleanerd.tools.insight.processes import ReadProgress
from cleanerd.tools.insight.walk import Bounds, Sound, walk_log

from .facts import LogFacts, Sample

WHOLE_BYTES = 64 << 20
"""Up to here all keys of a log are in its sample."""
_SHARE = 64
_CLOSED, _ACTIVE, _HELD = range(3)
_KEY = (0, 0)


class Budget(PacedReads):
    """Bytes that may still be read, and how quickly. `read` is shown what was read."""

    def __init__(self, clock: Clock, max_bytes: int, bytes_per_s: float, read: ReadProgress) -> None:
        super().__init__(clock, bytes_per_s)
        self._left_bytes = max_bytes
        self._read = read
        self._done_bytes = self.wanted_bytes = 0

    def covers(self, size_bytes: int) -> bool:
        """Whether so much may be read; then it counts as read."""
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def pace(self, read_bytes: int) -> None:
        """So much was read; returns when it is paid for."""
        self._done_bytes += read_bytes
        self._read(self._done_bytes, max(self.wanted_bytes, self._done_bytes))
        super().pace(read_bytes)


@dataclass(slots=True)
class _Rows:
    """Sampled records in the order of their offsets, and what is counted over all. `places`: of their segments; `aborted`:
    bytes by place.
    """

    counted: Sample = field(default_factory=Sample)
    aborted: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    keys: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    sizes: list[npt.NDArray[np.float64]] = field(default_factory=list)
    places: list[npt.NDArray[np.int8]] = field(default_factory=list)


def take_sample(files: Files, log: LogFacts, overdue_before_ms: int, budget: Budget) -> Sample:
    """Read a log up to its last stable offset. Damage is passed over: `verify` names it. Raises OSError, CorruptFile.

    What a limit holds back, such as min.compaction.lag.ms, and all above it, cannot go now, nor after a roll. Tombstones
    with a delete horizon up to `overdue_before_ms` count as overdue.
    """
    snapshot, cleanable_to = log.snapshot, log.range.first_uncleanable_offset
    active = snapshot.segments[-1]
    share = 1 if snapshot.size_bytes <= WHOLE_BYTES else _SHARE
    rows, aborted = _Rows(), AbortedTxns.of(read_aborted_txns(files, snapshot))
    for segment in snapshot.segments:
        bounds = Bounds(segment.base_offset, MAX_OFFSET, log.last_stable_offset, 0, segment.size_bytes)
        place = _CLOSED
        if segment is active or segment.base_offset >= cleanable_to:
            place = _HELD if cleanable_to < active.base_offset else _ACTIVE
        with open_regular(segment.path) as fd:
            for found in walk_log(fd, segment.path, bounds, budget.read_at):
                if isinstance(found, Sound):
                    _take(rows, found, aborted, share, overdue_before_ms, place)
    return _estimate(rows, share)


def _take(
    rows: _Rows, found: Sound, aborted: AbortedTxns, share: int, overdue_before_ms: int, place: int
) -> None:
    batches, records = found.piece.batches, found.part.records
    of = records["batch"]
    is_data = (batches["attributes"] & CONTROL == 0)[of]
    has_key, is_aborted = records["key_length"] >= 0, mark_aborted(batches, aborted)
    sizes = (batches["size"] / np.maximum(np.bincount(of, minlength=len(batches)), 1))[of]
    rows.aborted[place] += float(sizes[is_data & is_aborted[of]].sum())
    fingerprints, _, _ = fingerprint_records(
        found.piece.raw, found.part.expanded, batches, records, is_aborted, 0, _KEY, 1
    )
    kept = fingerprints[:, 0] % np.uint64(share) == 0
    rows.keys.append(fingerprints[kept, 0])
    rows.sizes.append(sizes[is_data & has_key & ~is_aborted[of]][kept])
    rows.places.append(np.full(int(kept.sum()), place, np.int8))
    no_key = records["offset"][is_data & ~has_key & ~is_aborted[of]]
    horizons = np.where(
        (batches["magic"] == 2) & (batches["attributes"] & DELETE_HORIZON != 0),
        batches["base_timestamp"],
        MAX_OFFSET,
    )[of]
    overdue = is_data & has_key & (records["value_is_null"] != 0) & (horizons <= overdue_before_ms)
    counted, number = rows.counted, int(overdue.sum())
    if number and not counted.overdue_tombstones:
        counted = replace(counted, overdue_ms=int(horizons[overdue].min()))
    if len(no_key) and not counted.no_key_records:
        counted = replace(counted, no_key_offset=int(no_key[0]))
    rows.counted = replace(
        counted,
        records=counted.records + int(is_data.sum()),
        no_key_records=counted.no_key_records + len(no_key),
        overdue_tombstones=counted.overdue_tombstones + number,
    )


def _estimate(rows: _Rows, share: int) -> Sample:
    """A record can go now if the next one of its key lies in a closed segment, after a roll if in the active one; each key
    counts `share` times.

    The variance of a sum over keys that are taken with probability p is estimated by that of the keys that were taken:
    the sum of (bytes of the key)^2 * (1 - p) / p^2.
    """
    closed, after_roll, _ = rows.aborted
    if not rows.keys:
        return rows.counted
    keys, sizes, places = (np.concatenate(part) for part in (rows.keys, rows.sizes, rows.places))
    order = np.argsort(keys, kind="stable")
    keys, sizes, places = keys[order], sizes[order], places[order]
    is_newest = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    next_place = np.where(is_newest, _HELD, np.append(places[1:], _HELD)[: len(keys)])
    firsts = np.flatnonzero(np.append(True, is_newest[:-1])) if len(keys) else np.zeros(0, np.int64)
    freed = np.where(next_place == _HELD, 0.0, sizes)
    after_roll += share * float(freed[next_place == _ACTIVE].sum())
    closed += share * float(freed[next_place == _CLOSED].sum())
    per_key = np.add.reduceat(freed, firsts) if len(firsts) else np.zeros(0)
    error = 2 * float(np.sqrt((per_key**2).sum() * (1 - 1 / share))) * share
    return replace(
        rows.counted, keys=share * len(firsts), superseded_bytes=round(closed),
        after_roll_bytes=round(after_roll), error_bytes=round(error),
    )  # fmt: skip
