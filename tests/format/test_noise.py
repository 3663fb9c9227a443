"""No parser answers damage with anything but `FormatError`."""

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanerd.format.batch import decode_batch, iterate_batches, parse_header
from cleanerd.format.checkpoint import parse_leader_epochs, parse_offset_checkpoint
from cleanerd.format.control import parse_control_key, parse_end_txn_value
from cleanerd.format.errors import FormatError
from cleanerd.format.legacy import decode_entry
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.offset_index import parse_offset_index
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.producer_snapshot import parse_producer_snapshot
from cleanerd.format.time_index import parse_time_index
from cleanerd.format.txn_index import parse_txn_index

PARSERS = {
    "batch": decode_batch,
    "batch header": parse_header,
    "batches": lambda data: list(iterate_batches(data)),
    "control key": parse_control_key,
    "end txn value": parse_end_txn_value,
    "leader epochs": parse_leader_epochs,
    "legacy entry": decode_entry,
    "meta.properties": parse_meta_properties,
    "offset checkpoint": parse_offset_checkpoint,
    "offset index": lambda data: parse_offset_index(data, 0),
    "partition.metadata": parse_partition_metadata,
    "producer snapshot": lambda data: parse_producer_snapshot(data, 9),
    "time index": lambda data: parse_time_index(data, 0),
    "txn index": parse_txn_index,
}
text_like = st.text("0123456789ab -:=_\\\n\r\t", max_size=60).map(str.encode)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.binary(max_size=150) | text_like)
def test_noise(name, data):
    """Bytes of any kind."""
    with contextlib.suppress(FormatError):
        PARSERS[name](data)


def test_format_error_crosses_process_borders():
    """Position, expected and found survive pickling."""
    error = pickle.loads(pickle.dumps(FormatError(7, "a", "b")))
    assert (error.position, error.expected, error.found) == (7, "a", "b")
    assert str(error) == "at byte 7: expected a, found b"
