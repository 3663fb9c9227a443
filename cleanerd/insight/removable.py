"""What a cleaning would remove of a log now, without cleaning it: superseded, aborted and keyless records up to its bound.

Exact up to `keys_max` keys, an estimate with its error beyond. Tombstones past their delete horizon are not counted.
"""

from dataclasses import dataclass, replace

from cleanerd.kernels.tally import Total

from .inspect import Estimate, committed_or_not, superseded, tally_log


@dataclass(frozen=True, slots=True)
class Removable:
    """Records and bytes (shares of their batches as stored) that a cleaning up to `end_offset` would remove."""

    end_offset: int
    records: Estimate
    bytes: Estimate
    superseded_records: Estimate
    aborted_records: int
    no_key_records: int


def removable(partition_dir: str, end_offset: int, keys_max: int) -> Removable:
    """Read a log up to the first uncleanable offset. Raises as `inspect.inspect_partition`."""
    view = committed_or_not(partition_dir)
    tally = tally_log(replace(view, end_offset=min(view.end_offset, end_offset)), keys_max)
    records, size, totals = *superseded(tally), tally.totals
    aborted, no_key = int(totals[Total.ABORTED]), int(totals[Total.NO_KEY])
    others_bytes = int(totals[Total.ABORTED_BYTES] + totals[Total.NO_KEY_BYTES])
    return Removable(
        end_offset=end_offset,
        records=Estimate(records.value + aborted + no_key, records.error),
        bytes=Estimate(size.value + others_bytes, size.error),
        superseded_records=records,
        aborted_records=aborted,
        no_key_records=no_key,
    )
