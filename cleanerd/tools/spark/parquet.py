"""Documents as a Parquet file: a row for each, with its lists and objects."""

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path: str, documents: Sequence[Mapping[str, object]]) -> None:
    """All of them or no file; columns have the types that their values have. Raises `OSError`."""
    part = f"{path}.part"
    try:
        pq.write_table(pa.Table.from_pylist(list(documents)), part)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
