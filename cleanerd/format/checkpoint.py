r"""Checkpoint files: offsets of partitions, leader epochs of one partition (spec disk A6, A7, rule 0.12).

=====  ========================================================================================
line   content
=====  ========================================================================================
1      format version, exactly 0
2      number of the lines that follow
3...   `<topic> <partition> <offset>`, or in `leader-epoch-checkpoint` `<epoch> <start offset>`
=====  ========================================================================================

An empty file means no entries. Kafka takes the log directory offline when it cannot read one, so rendering is
exact: one blank between fields, `\n` after every line.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cleanerd.format.errors import FormatError
from cleanerd.format.names import TopicPartition

_NUMBER = re.compile(rb"[+-]?[0-9]{1,19}")
_BLANKS = re.compile(rb"[ \t\x0b\f]+")
_PLAIN_HEAD = re.compile(rb"0\n([0-9]{1,9})\n")
_PLAIN = re.compile(rb"(?:\S+ [0-9]{1,9} [0-9]{1,18}\n)*")
_INT32 = 2**31
_INT64 = 2**63


class EpochEntry(NamedTuple):
    """Leader `epoch` wrote the records from `start_offset` on."""

    epoch: int
    start_offset: int


def parse_offset_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    """Read partition -> offset; of two lines for one partition the last wins.

    Raises: `FormatError` for a wrong version, count or number of fields, or a field not a number (7.16b).
    """
    offsets = _plain_offsets(data)
    if offsets is not None:
        return offsets
    offsets = {}
    for position, (topic, partition, offset) in _entries(data, 3):
        key = TopicPartition(_text(topic, position), _number(partition, position, _INT32))
        offsets[key] = _number(offset, position, _INT64)
    return offsets


def _plain_offsets(data: bytes) -> dict[TopicPartition, int] | None:
    """The entries of a file as brokers write it, in a fraction of the time; None where each line has to be looked at."""
    head = _PLAIN_HEAD.match(data)
    if head is None or _PLAIN.fullmatch(data, head.end()) is None:
        return None
    fields = data[head.end() :].split()
    topics, partitions, offsets = fields[::3], fields[1::3], fields[2::3]
    if len(topics) != int(head[1]):
        return None
    try:
        keys = map(TopicPartition, map(bytes.decode, topics), map(int, partitions))
        return dict(zip(keys, map(int, offsets), strict=True))
    except UnicodeDecodeError:
        return None


def render_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The file for these offsets, sorted by partition."""
    rows = sorted((key.topic, key.partition, offset) for key, offset in offsets.items())
    return _render(f"{topic} {partition} {offset}" for topic, partition, offset in rows)


def parse_leader_epochs(data: bytes) -> tuple[EpochEntry, ...]:
    """Read the epochs, ascending, as a broker does: an entry replaces earlier ones with the same or a higher epoch or
    offset.

    Two epochs may start at one offset, where the first of them wrote nothing, and an epoch may be listed twice.

    Raises: `FormatError` as for offsets, and for negative numbers.
    """
    entries: list[EpochEntry] = []
    for position, (epoch, start_offset) in _entries(data, 2):
        entry = EpochEntry(_number(epoch, position, _INT32), _number(start_offset, position, _INT64))
        if min(entry) < 0:
            raise FormatError(position, "an epoch and offset of 0 or more", tuple(entry))
        if entries and entry.epoch == entries[-1].epoch and entry.start_offset >= entries[-1].start_offset:
            continue
        while entries and (
            entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset
        ):
            entries.pop()
        entries.append(entry)
    return tuple(entries)


def render_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """The file for these epochs, in the given order."""
    return _render(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def _render(lines: Iterable[str]) -> bytes:
    content = list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(content)), *content)).encode()


def _entries(data: bytes, field_count: int) -> Iterable[tuple[int, list[bytes]]]:
    """Check version and count, then yield (byte of the line, its fields)."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return
    version = _number(lines[0].rstrip(b"\r\n"), 0, _INT32)
    if version != 0:
        raise FormatError(0, "checkpoint version 0", version)
    position = len(lines[0])
    if len(lines) < 2:
        raise FormatError(position, "the number of entries", "the end")
    count = _number(lines[1].rstrip(b"\r\n"), position, _INT32)
    if count != len(lines) - 2:
        raise FormatError(position, f"{count} entries", f"{len(lines) - 2} lines")
    position += len(lines[1])
    for line in lines[2:]:
        fields = _BLANKS.split(line.rstrip())
        if len(fields) != field_count:
            raise FormatError(position, f"{field_count} fields", line)
        yield position, fields
        position += len(line)


def _number(field: bytes, position: int, limit: int) -> int:
    if _NUMBER.fullmatch(field) is None or not -limit <= int(field) < limit:
        raise FormatError(position, "a number", field)
    return int(field)


def _text(field: bytes, position: int) -> str:
    try:
        return field.decode()
    except UnicodeDecodeError:
        raise FormatError(position, "UTF-8", field) from None
