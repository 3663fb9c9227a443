"""Verdicts about records, with their reasons: the words of every count, metric and explanation (rules 4.15-4.19)."""

from enum import IntEnum


class RecordVerdict(IntEnum):
    """Fate of one record; the lower-case name is the `reason` in results and metrics."""

    KEEP = 0
    SUPERSEDED = 1  # a newer record of the same key lies in the cleanable range
    TOMBSTONE = 2  # a null value past its delete horizon
    ABORTED = 3  # data of an aborted transaction
    CONTROL = 4  # a marker whose transaction is empty, past its delete horizon
    NO_KEY = 5  # nothing to compact by

    @property
    def reason(self) -> str:
        """Name in results, metrics and logs."""
        return self.name.lower()


REMOVED_VERDICTS = tuple(verdict for verdict in RecordVerdict if verdict is not RecordVerdict.KEEP)
