"""Detect relevant new records in a live metadata log, from what was appended since the last look.

The active controller appends a batch twice a second, whether or not anything happened. Reading the whole log
each time would cost seconds of CPU; so only new bytes are read, and their records are only sorted into
those about topics, configuration or voters and the rest. This is a hint, never the truth: for
anything unexpected (another segment, truncation, a record that cannot be read, a system error) the answer is
yes, and `read_metadata` finds out. Bytes at the end that are no batch are one that is being written.

Truncation: the last batch that was read must still be where it was, byte for byte in its header. Leader epoch
and offset are in there, and together they fix everything before them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cleanerd.env.files import Files, regular_file
from cleanerd.format.batch import decode_batch, iterate_batches
from cleanerd.format.control import ControlType, parse_control_key
from cleanerd.format.errors import FormatError
from cleanerd.format.head import HEADER_SIZE
from cleanerd.format.metadata_records import parse_metadata_record
from cleanerd.format.names import FileKind, segment_path
from cleanerd.storage.metadata_log import Batch, index_position, starts_batch
from cleanerd.storage.partition_dir import bases_of


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a segment was read: `end` is the byte after its last whole batch, which is at `position`."""

    path: str
    position: int
    header: bytes
    end: int

    @classmethod
    def of(cls, path: str, start: int, data: bytes) -> "Mark":
        """The mark at the last whole batch of `data`, which begins at byte `start` of the segment."""
        *_, (position, size_bytes) = [(0, 0), *_whole_batches(data)]
        header = data[position : position + min(size_bytes, HEADER_SIZE)]
        return cls(path, start + position, header, start + position + size_bytes)

    def is_there(self) -> bool:
        """Whether that batch is where it was. Raises OSError."""
        with regular_file(self.path) as file:
            file.seek(self.position)
            return file.read(len(self.header)) == self.header

    def read_on(self) -> tuple["Mark", list[Batch]]:
        """The new mark, and the batches between the old one and the new one.

        Raises: `FormatError` for a record that cannot be read, or another batch where the last one was; OSError.
        """
        data = _read_from(self.path, self.position)
        if not data.startswith(self.header) or len(data) < self.end - self.position:
            raise FormatError(self.position, "the batch that was there", "another one")
        new = [at for at, _ in _whole_batches(data) if self.position + at >= self.end]
        batches = [(self.position + at, *decode_batch(data, at)) for at in new]
        return Mark.of(self.path, self.position, data), batches


class MetadataTail:
    """Watch on the metadata log in the first of `directories` that exists. Not for several threads."""

    def __init__(self, files: Files, directories: Sequence[str]) -> None:
        self._files = files
        self._directories = directories
        self._mark: Mark | None = None

    def has_changed(self) -> bool:
        """Whether something that matters may have come since the last call. Never raises.

        The first call returns True wherever there is a log.
        """
        before, self._mark = self._mark, None
        try:
            path = self._newest_segment()
            if path is None:
                return before is not None
            if before is not None and before.path == path:
                self._mark, batches = before.read_on()
                return any(map(_matters, batches))
            self._mark = self._end_of(path)
        except (OSError, FormatError):
            pass
        return True

    def _newest_segment(self) -> str | None:
        for directory in filter(self._files.exists, self._directories):
            bases = bases_of(self._files.list_names(directory))
            if bases:
                return segment_path(directory, bases[-1], FileKind.LOG)
        return None

    def _end_of(self, path: str) -> Mark:
        """Mark at the last whole batch of a segment that was not read before."""
        start = index_position(self._files, path)
        data = _read_from(path, start)
        if start and not starts_batch(data, 0):
            start, data = 0, _read_from(path, 0)
        return Mark.of(path, start, data)


def _whole_batches(data: bytes) -> list[tuple[int, int]]:
    """Positions and sizes in bytes; what follows is being written."""
    batches = []
    with suppress(FormatError):
        for position, size_bytes, _ in iterate_batches(data):
            batches.append((position, size_bytes))
    return batches


def _read_from(path: str, position: int) -> bytes:
    with regular_file(path) as file:
        file.seek(position)
        return file.read()


def _matters(batch: Batch) -> bool:
    _, header, records = batch
    if header.is_control:
        return any(parse_control_key(record.key) is ControlType.KRAFT_VOTERS for record in records)
    return any(parse_metadata_record(record.value or b"") is not None for record in records)
