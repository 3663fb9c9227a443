"""A producer on top of a `LogWriter`: batches of keys and values, their sequences and transactions."""

from collections.abc import Iterable
from typing import NamedTuple

from cleanerd.format.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType, encode_end_txn_marker
from cleanerd.format.legacy import encode_message, encode_wrapper
from cleanerd.format.record import Headers
from cleanerd.tools.client.writer import LogWriter


class ProducerRecord(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Headers = ()


class Producer:
    """Sends rows to `writer`. With a `producer_id` its batches carry sequences, from `next_sequence` on;
    between `begin` and `commit` or `abort` they are transactional. Magic 0 and 1 know neither.
    """

    def __init__(
        self,
        writer: LogWriter,
        *,
        codec: Codec = Codec.NONE,
        magic: int = 2,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = 0,
        next_sequence: int = 0,
    ) -> None:
        assert magic == 2 or producer_id == NO_PRODUCER_ID
        self._writer = writer
        self._codec = codec
        self._magic = magic
        self._producer_id = producer_id
        self._producer_epoch = NO_PRODUCER_EPOCH if producer_id == NO_PRODUCER_ID else producer_epoch
        self._next_sequence = NO_SEQUENCE if producer_id == NO_PRODUCER_ID else next_sequence
        self._in_transaction = False

    def put(self, key: bytes | None, value: bytes | None, timestamp_ms: int = 0) -> int:
        """Append a batch of one record; returns its offset."""
        return self.send([ProducerRecord(key, value, timestamp_ms)])

    def send(self, rows: Iterable[ProducerRecord]) -> int:
        """Append all the rows as one batch (as one each, in magic 0 and 1 without a codec).

        Returns: the offset of the first row. Raises: as `LogWriter.append`.
        """
        base_offset = self._writer.log_end_offset
        records = [
            Record(base_offset + delta, row.timestamp_ms, *row[:2], row.headers)
            for delta, row in enumerate(rows)
        ]
        if self._magic < 2:
            self._send_legacy(records)
            return base_offset
        self._writer.append(
            encode_batch(
                records,
                base_offset=base_offset,
                codec=self._codec,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._next_sequence,
                transactional=self._in_transaction,
            )
        )
        if self._next_sequence != NO_SEQUENCE:
            self._next_sequence = (self._next_sequence + len(records)) % 2**31
        return base_offset

    def _send_legacy(self, records: list[Record]) -> None:
        if self._codec == Codec.NONE:
            for record in records:
                self._writer.append(encode_message(record, magic=self._magic))
        else:
            self._writer.append(encode_wrapper(records, magic=self._magic, codec=self._codec))

    def begin(self) -> None:
        """Make the batches that follow part of one transaction."""
        assert self._producer_id != NO_PRODUCER_ID, "a transaction needs a producer id"
        assert not self._in_transaction
        self._in_transaction = True

    def commit(self, timestamp_ms: int = 0, coordinator_epoch: int = 0) -> int:
        """End the transaction; returns the offset of the marker."""
        return self._end(ControlType.COMMIT, timestamp_ms, coordinator_epoch)

    def abort(self, timestamp_ms: int = 0, coordinator_epoch: int = 0) -> int:
        """End the transaction as if it had not been; returns the offset of the marker."""
        return self._end(ControlType.ABORT, timestamp_ms, coordinator_epoch)

    def _end(self, control_type: ControlType, timestamp_ms: int, coordinator_epoch: int) -> int:
        assert self._in_transaction
        offset = self._writer.log_end_offset
        marker = encode_end_txn_marker(
            control_type,
            offset=offset,
            timestamp_ms=timestamp_ms,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        self._writer.append(marker)
        self._in_transaction = False
        return offset
