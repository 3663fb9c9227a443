"""Messages of tasks to the driver over a `Channel`, and the answers.

Two conversations, each over a channel of its own, because each has another listener:

progress   `Moved`: how many bytes and records since the last report. The answer comes when the task may go on, so that one
           held back is a brake.
places     `PartSize`, `PartMissing` and `PartStart`: where the part of a chunk begins in its new segment (`place`).

On the wire a message is uint8 its kind and five int64, of which it uses the first; an answer is an int64, negative to stop.
"""

import struct
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """Which step of a cleaning has moved something."""

    INDEX = 0
    REWRITE = 1
    VERIFY = 2  # reads the output of the rewrite
    EXAMINE = 3  # before there are tasks; logs are numbered in the order of the request


class Moved(NamedTuple):
    """Progress on a log since the last report of the same task. Answered `GO_ON` or `STOP`."""

    log: int
    phase: Phase
    read_bytes: int
    written_bytes: int
    records: int


class PartSize(NamedTuple):
    """The part `number` of a segment group is whole, and this large. Answered as `PartStart`, which spares a message."""

    log: int
    group: int
    number: int
    size_bytes: int


class Place(NamedTuple):
    """The part `number` (from 0) of segment group `group` of log `log`; travels with the task."""

    log: int
    group: int
    number: int


class PartMissing(Place):
    """There will be no such part: its task has failed. Answered `GO_ON`."""


class PartStart(Place):
    """Asks where a part begins. Answered with that position, or `STOP` when a part before it is missing."""


Message = Moved | PartSize | PartMissing | PartStart


ReportAnswer = int
"""The number that the task asked for, 0 where it asked for none (`GO_ON`); or `STOP`."""
GO_ON, STOP = 0, -1

_KINDS = (Moved, PartSize, PartMissing, PartStart)
_FIELDS = 5
_MESSAGE = struct.Struct(f">B{_FIELDS}q")
MESSAGE_BYTES = _MESSAGE.size
ANSWER = struct.Struct(">q")


def pack_message(message: Message) -> bytes:
    """The bytes of a message on the wire."""
    return _MESSAGE.pack(_KINDS.index(type(message)), *message, *[0] * (_FIELDS - len(message)))


def unpack_message(data: bytes) -> Message:
    """The message of so many bytes."""
    kind, *numbers = _MESSAGE.unpack(data)
    if _KINDS[kind] is Moved:
        log, phase, *moved = numbers
        return Moved(log, Phase(phase), *moved)
    return _KINDS[kind]._make(numbers[: len(_KINDS[kind]._fields)])
