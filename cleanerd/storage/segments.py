"""The segments of a partition directory as a reader sees them, while others append, roll, merge and delete.

A reader keeps the file that it reads open, and names no other until it has read that one to its end:
    1. list the directory; while a `.log.swap` is there a commit is under way, so list again;
    2. the next file is the one that covers the next wanted offset, or, when that is the file just read, the one above
       it. A different file under a base already read is a merged segment: it is read, and what is below the wanted
       offset is skipped;
    3. a file that vanishes between listing and opening: back to 1;
    4. once a higher segment exists the old one grows no more, so what was appended to it meanwhile is read first.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from cleanerd.env.files import regular_file
from cleanerd.errors import CorruptFile, SourceChanged
from cleanerd.format.batch import BatchHeader, Record, decode_batch, iterate_batches, parse_header
from cleanerd.format.errors import corruption_in
from cleanerd.format.head import peek_batch
from cleanerd.format.legacy import decode_entry
from cleanerd.format.names import FileKind, Suffix, segment_path

from .partition_dir import bases_of

READ_BYTES = 1 << 20
LIST_ATTEMPTS_MAX = 250
LIST_PAUSE_S = 0.02
"""A commit takes milliseconds; one that has not ended after all these attempts never will."""


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A whole batch of any magic with its place in the file; `header` is None below magic 2."""

    path: str
    position: int
    data: bytes
    header: BatchHeader | None

    @property
    def last_offset(self) -> int:
        """Last offset of the batch."""
        return peek_batch(self.data).offset if self.header is None else self.header.last_offset

    def records(self) -> list[Record]:
        """Decode the batch. Raises `CorruptFile`."""
        with corruption_in(self.path, self.position):
            if self.header is None:
                return list(decode_entry(self.data).records)
            return decode_batch(self.data)[1]


class OpenSegment:
    """A `.log` file by its descriptor: renaming or unlinking it does not disturb the reader."""

    def __init__(self, directory: str, base_offset: int, suffix: Suffix = Suffix.LIVE) -> None:
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, FileKind.LOG, suffix)
        self._file = regular_file(self.path, buffering=0)  # closed by __exit__
        self.inode = os.fstat(self._file.fileno()).st_ino
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def size_bytes(self) -> int:
        """Current size."""
        return os.fstat(self._file.fileno()).st_size

    def batches(self) -> Iterator[LogBatch]:
        """The whole batches from `position` on, which moves with them; stops at a torn tail.

        Raises: `CorruptFile` for bytes that cannot be a batch (rule 4.37).
        """
        want = READ_BYTES
        while True:
            data = os.pread(self._file.fileno(), want, self.position)
            start = self.position
            with corruption_in(self.path, start):
                for at, size_bytes, magic in iterate_batches(data):
                    header = parse_header(data, at) if magic == 2 else None
                    self.position = start + at + size_bytes
                    yield LogBatch(self.path, start + at, data[at : at + size_bytes], header)
            if len(data) < want:
                return
            want = READ_BYTES if self.position > start else want * 2


class _Walk:
    """A walk through a log; `wanted` is the next offset to yield."""

    def __init__(self, directory: str, wanted: int) -> None:
        self._directory = directory
        self._wanted = wanted

    def batches(self) -> Iterator[LogBatch]:
        segment = self._open_next(None)
        while segment is not None:
            with segment:  # open until its follower is, so that its inode cannot be given to another file
                yield from self._rest_of(segment)
                if not any(base > segment.base_offset for base in live_bases(self._directory)):
                    return
                yield from self._rest_of(segment)
                if segment.position < segment.size_bytes:
                    raise CorruptFile(segment.path, segment.position, "a whole batch", "a torn one")
                segment = self._open_next(segment)

    def _rest_of(self, segment: OpenSegment) -> Iterator[LogBatch]:
        for batch in segment.batches():
            if batch.last_offset >= self._wanted:
                self._wanted = batch.last_offset + 1
                yield batch

    def _open_next(self, done: OpenSegment | None) -> OpenSegment | None:
        for _ in range(LIST_ATTEMPTS_MAX):
            bases = settled_bases(self._directory)
            try:
                segment = self._open_covering(bases, done) if bases else None
            except FileNotFoundError:
                continue
            if segment is not None:
                self._wanted = max(self._wanted, segment.base_offset)
            return segment
        raise SourceChanged(f"{self._directory}: segments vanish again and again")

    def _open_covering(self, bases: list[int], done: OpenSegment | None) -> OpenSegment | None:
        covering = max((base for base in bases if base <= self._wanted), default=bases[0])
        segment = OpenSegment(self._directory, covering)
        if done is None or segment.inode != done.inode:
            return segment
        segment.close()
        above = [base for base in bases if base > covering]
        return OpenSegment(self._directory, above[0]) if above else None


def log_batches(directory: str, start_offset: int) -> Iterator[LogBatch]:
    """All batches that reach `start_offset` or beyond, to the end of the log as it is when it is reached.

    Raises: `CorruptFile`; `SourceChanged` when a commit was begun and never finished.
    """
    return _Walk(directory, start_offset).batches()


def live_bases(directory: str) -> list[int]:
    """Base offsets of the segments, ascending."""
    return bases_of(os.listdir(directory))


def settled_bases(directory: str) -> list[int]:
    """Base offsets of the segments, ascending, at a moment when no commit is under way.

    Raises: `SourceChanged` when it does not end.
    """
    for _ in range(LIST_ATTEMPTS_MAX):
        file_names = os.listdir(directory)
        if not bases_of(file_names, suffix=Suffix.SWAP):
            return bases_of(file_names)
        threading.Event().wait(LIST_PAUSE_S)
    raise SourceChanged(f"{directory}: a commit was begun and not finished")
