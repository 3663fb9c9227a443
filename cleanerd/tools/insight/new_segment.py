"""Write a segment from batches as they come, then its indexes, under names that brokers ignore."""

import os

import numpy as np

from cleanerd.env.files import Files, new_file, open_regular
from cleanerd.errors import LockHeld
from cleanerd.format.names import MAX_OFFSET, FileKind, Suffix, segment_path
from cleanerd.format.offset_index import OffsetIndex, render_offset_index
from cleanerd.format.time_index import TimeIndex, render_time_index
from cleanerd.format.txn_index import AbortedTxn, render_txn_index
from cleanerd.kernels.tables import WRITTEN, Bytes, Table
from cleanerd.pipeline.segment_indexes import index_entries
from cleanerd.policy.grouping import MAX_RELATIVE_OFFSET
from cleanerd.storage.lock import probe

from .walk import Bounds, Damage, walk_log


def check_stopped(log_dir: str) -> None:
    """Raise `LockHeld` while a process holds the log directory."""
    pid = probe(log_dir)
    if pid is not None:
        raise LockHeld(f"{log_dir} is in use by process {pid}: stop it first", pid)


class NewSegment:
    """Takes rows of batches that lie end to end or not; `like` is the `.log` that they come from, whose owner and time
    the files get; empty for none.

    `aborted`: the transactions for its index, ascending by marker, to be filled before `write_aborted`.
    """

    def __init__(self, files: Files, directory: str, base_offset: int, like: str) -> None:
        self.base_offset = base_offset
        self.like = like if os.path.isfile(like) else None
        self.size_bytes = 0
        self.aborted: list[AbortedTxn] = []
        self._files = files
        self._directory = directory
        self._rows: list[Table] = []
        self._kinds = [FileKind.OFFSET_INDEX, FileKind.TIME_INDEX]
        self._log = open(new_file(self._staged(FileKind.LOG), self.like), "wb", buffering=0)  # noqa: SIM115 - closed by close or abandon

    @property
    def owner(self) -> int:
        """The user whose file the open `.log` is."""
        return os.fstat(self._log.fileno()).st_uid

    def fitting(self, rows: Table, bytes_max: int) -> int:
        """How many of the rows fit into `bytes_max` and below the last offset that indexes can hold; one, if it is empty."""
        sizes = self.size_bytes + np.cumsum(rows["size"], dtype=np.int64)
        fits = (rows["last_offset"] - self.base_offset <= MAX_RELATIVE_OFFSET) & (sizes <= bytes_max)
        count = len(fits) if fits.all() else int(np.argmin(fits))
        return max(count, int(self.size_bytes == 0))

    def append(self, raw: Bytes, rows: Table) -> None:
        """Copy batches of `raw`, byte for byte."""
        written = np.zeros(len(rows), WRITTEN)
        sizes = rows["size"].astype(np.int64)
        written["position"] = self.size_bytes + np.cumsum(sizes) - sizes
        for name in ("last_offset", "max_timestamp", "size"):
            written[name] = rows[name]
        starts = rows["position"]
        edges = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
        for begin, end in zip([0, *edges], [*edges, len(rows)], strict=True):
            view = raw[int(starts[begin]) : int(starts[end - 1] + sizes[end - 1])].data
            while view:
                view = view[self._log.write(view) :]
        self._rows.append(written)
        self.size_bytes += int(sizes.sum())

    def close(self, interval_bytes: int) -> None:
        """Write the indexes; everything is synced."""
        self._log.close()
        entries = index_entries(np.concatenate([np.zeros(0, WRITTEN), *self._rows]), interval_bytes)
        self._rows = []
        largest_before = np.maximum.accumulate(np.concatenate([[-1], entries.timestamps]))[:-1]
        rises = entries.timestamps > largest_before
        offsets = OffsetIndex(entries.offsets, entries.positions)
        times = TimeIndex(entries.timestamps[rises], entries.timestamp_offsets[rises])
        self._write(FileKind.OFFSET_INDEX, render_offset_index(offsets, self.base_offset))
        self._write(FileKind.TIME_INDEX, render_time_index(times, self.base_offset))
        self._settle(FileKind.LOG)

    def read_back(self) -> int:
        """How many records are in the closed `.log`; every batch is sound. Raises `CorruptFile`, `OSError`."""
        path, records = self._staged(FileKind.LOG), 0
        with open_regular(path) as fd:
            for found in walk_log(
                fd, path, Bounds(self.base_offset, MAX_OFFSET, MAX_OFFSET, 0, self.size_bytes)
            ):
                if isinstance(found, Damage):
                    raise found.error(path)
                records += len(found.part.records)
        return records

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._log.close()

    def write_aborted(self) -> None:
        """Write the transaction index, if there are aborted transactions."""
        if self.aborted:
            self._write(FileKind.TXN_INDEX, render_txn_index(self.aborted))
            self._kinds.append(FileKind.TXN_INDEX)

    def publish(self) -> None:
        """Give the files the names that a broker reads, the `.log` last."""
        for kind in (*self._kinds, FileKind.LOG):
            live = segment_path(self._directory, self.base_offset, kind)
            self._files.rename(self._staged(kind), live)

    def _write(self, kind: FileKind, content: bytes) -> None:
        self._files.write(self._staged(kind), content, self.like)
        self._settle(kind)

    def _settle(self, kind: FileKind) -> None:
        """The time of the original, by which retention goes when there are no timestamps; then to the disk."""
        path = self._staged(kind)
        if self.like is not None:
            self._files.set_mtime_ns(path, self._files.stat(self.like).mtime_ns)
        self._files.fsync(path)

    def _staged(self, kind: FileKind) -> str:
        return segment_path(self._directory, self.base_offset, kind, Suffix.STAGED)
