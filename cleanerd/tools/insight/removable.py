"""What a cleaning would remove of a log now, without cleaning it: what is superseded, tombstones past their delete horizon,
aborted and keyless records, up to its bound.

Exact up to `keys_max` keys, an estimate with its error beyond. Not counted: markers of transactions, and tombstones of magic
0 and 1, which have no horizon.
"""

from dataclasses import dataclass, replace

from cleanerd.tools.kernels.tally import Total

from .inspect import Estimate, committed_or_not, compactable, tally_log


@dataclass(frozen=True, slots=True)
class Removable:
    """Records, and bytes (shares of their batches as stored), that a cleaning would remove."""

    records: Estimate
    bytes: Estimate


def removable(partition_dir: str, end_offset: int, keys_max: int, now_ms: int) -> Removable:
    """Read a log up to the first uncleanable offset. Raises as `inspect.inspect_partition`."""
    view = committed_or_not(partition_dir)
    tally = tally_log(replace(view, end_offset=min(view.end_offset, end_offset)), keys_max, now_ms=now_ms)
    (records, size), totals = compactable(tally), tally.totals
    others = int(totals[Total.ABORTED] + totals[Total.NO_KEY])
    others_bytes = int(totals[Total.ABORTED_BYTES] + totals[Total.NO_KEY_BYTES])
    return Removable(
        records=Estimate(records.value + others, records.error),
        bytes=Estimate(size.value + others_bytes, size.error),
    )
