"""What the batch reader and the stream reader of `kafka-segments` have in common: parts of logs to Arrow."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from cleanerd.errors import SourceChanged
from cleanerd.tools.insight.live import read_part
from cleanerd.tools.insight.records import BATCH, HEADERS, KEY, VALUE, LogRange

from .arrow import record_batch
from .options import Options


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
        part, options.isolation, columns=columns, on_corrupt=options.on_corrupt,
        with_control=options.with_control,
    )  # fmt: skip
    try:
        for some in found:
            yield record_batch(some, names, part.topic, part.partition)
    except SourceChanged:
        if options.fail_on_data_loss:
            raise
