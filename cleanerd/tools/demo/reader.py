"""The demo's reader: reads a log to its end, and compares every key with the truth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cleanerd.format.batch import Record
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.demo.topics import Latest, Truth


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read found: newest record of each key, and everything that is not as it must be."""

    newest: Mapping[bytes, Record]
    records: int
    problems: tuple[str, ...]


def read_and_compare(directory: str, truth: Truth) -> Reading:
    """Read all that is committed; a writer may append and a cleaner may clean meanwhile.

    For every key that was committed before the read began: its newest record, or a newer one, or, when it was deleted,
    nothing. And every record that is seen was written exactly so, at that offset, and never aborted.
    """
    expected = truth.latest()
    newest: dict[bytes, Record] = {}
    problems = []
    records = 0
    for record in _records(directory):
        assert record.key is not None
        newest[record.key] = record
        records += 1
        if not truth.was_committed(record):
            problems.append(f"offset {record.offset}: {record.key!r} is not what was committed there")
    problems += _differences(expected, newest)
    return Reading(newest, records, tuple(problems))


def _records(directory: str) -> Iterator[Record]:
    """To the end, then what came after the end meanwhile: for its sake older records may have been cleaned away."""
    position = 0
    for _ in range(2):
        for record in read_records(directory, isolation="read_committed", start_offset=position):
            yield record
            position = record.offset + 1


def _differences(expected: Mapping[bytes, Latest], newest: Mapping[bytes, Record]) -> Iterator[str]:
    for key, latest in expected.items():
        found = newest.get(key)
        if found is None:
            if latest.value is not None:
                yield f"{key!r}: its newest value at offset {latest.offset} is lost, and so are all older ones"
        elif found.offset < latest.offset:
            yield f"{key!r}: offset {found.offset} is read, but {latest.offset} is newer"
