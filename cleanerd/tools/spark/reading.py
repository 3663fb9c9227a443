"""What the batch reader and the stream reader of `kafka-segments` have in common: opening logs, and parts to Arrow."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from cleanerd.errors import SourceChanged
from cleanerd.tools.insight.live import read_part, readable_offsets, when_settled
from cleanerd.tools.insight.records import BATCH, HEADERS, KEY, VALUE, LogRange, open_log

from .arrow import record_batch
from .options import Options

_wait = threading.Event().wait


def open_settled(directory: str, options: Options, **bounds: Any) -> LogRange:
    """`open_log` of a log that may be in use; `bounds` are its arguments. Raises as it does."""
    return when_settled(lambda: open_log(directory, isolation=options.isolation, **bounds), _wait)


def settled_offsets(directory: str, options: Options) -> tuple[int, int, int]:
    """`readable_offsets` of a log that may be in use. Raises as it does."""
    return when_settled(lambda: readable_offsets(directory, options.isolation), _wait)


def batches_of(part: LogRange | None, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of one part, which `split` made; of None, which is what Spark makes of no parts at all, nothing.

    Raises `CorruptFile`; `SourceChanged` for records that were deleted meanwhile, unless that is allowed.
    """
    if part is None:
        return
    columns = {name for name in (KEY, VALUE, HEADERS) if name in names}
    if any(name.startswith("_") for name in names):
        columns.add(BATCH)
    found = read_part(
        part, options.isolation, wait=_wait, columns=columns, on_corrupt=options.on_corrupt,
        with_control=options.with_control,
    )  # fmt: skip
    try:
        for some in found:
            yield record_batch(some, names, part.topic, part.partition)
    except SourceChanged:
        if options.fail_on_data_loss:
            raise
