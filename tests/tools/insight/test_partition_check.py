"""What only shows when the segments of a log, its indexes and the checkpoints are put together."""

from dataclasses import replace
from pathlib import Path

from cleanerd.format.names import FileKind
from cleanerd.format.txn_index import parse_txn_index, render_txn_index
from tests.harness.logs.logdirs import codes, segment


def test_an_abort_begins_between_the_marker_before_and_its_first_batch(log_dir: Path) -> None:
    """The batch has 21 to 23, a COMMIT lies at 20. Later, aborted records show; earlier, committed ones are hidden."""
    index = segment(log_dir / "transactions-0", 17, FileKind.TXN_INDEX)
    (txn,) = parse_txn_index(index.read_bytes(), 17)
    for first in range(txn.last_offset + 1):
        index.write_bytes(render_txn_index([replace(txn, first_offset=first)]))
        expected = {} if 21 <= first <= 23 else {"txn_index_entry": 1}
        assert codes(log_dir) == expected, first
