"""Where to start in a segment of the metadata log: its offset index, never trusted.

A quiet controller writes 170 000 batches a day, and the segment that holds the end of the newest snapshot is
up to a week old. Without the index each reading would walk over all of them.
"""

from cleanerd.env.files import Files
from cleanerd.format.batch import decode_batch
from cleanerd.format.errors import FormatError
from cleanerd.format.names import MAX_OFFSET, FileKind, parse_segment_file

from .index_files import read_offset_index


def index_position(files: Files, log_path: str, offset: int = MAX_OFFSET) -> int:
    """Position that the index of `log_path` gives for `offset`; 0 without a usable index. Never raises."""
    directory, _, name = log_path.rpartition("/")
    segment = parse_segment_file(name)
    assert segment is not None, "the path of a log file"
    path = f"{directory}/{name.removesuffix(FileKind.LOG.value)}{FileKind.OFFSET_INDEX.value}"
    try:
        return read_offset_index(files, path, segment.base_offset).lookup(offset)
    except OSError:
        return 0


def starts_batch(data: bytes | memoryview, position: int, offset: int = MAX_OFFSET) -> bool:
    """Whether a sound batch lies at `position` and begins at or before `offset`."""
    try:
        header, _ = decode_batch(data, position)
    except FormatError:
        return False
    return header.base_offset <= offset
