"""What other batches would save: a bounded sample of records, put into batches of other sizes and codecs."""

from typing import NamedTuple

import numpy as np

from cleanerd.format.codecs import Codec, compress
from cleanerd.format.head import HEADER_SIZE
from cleanerd.pipeline.values import TopicCodec

from .walk import Sound

_UNIT_BYTES = 256 << 10
_UNITS_MAX = 32
_CUTS_MAX = 1024  # of a unit: batches may be as small as a record
_BATCH_BYTES = (16 << 10, 256 << 10)
"""The default of Kafka's producer (batch.size), and what a busy one with some linger.ms makes."""


class Recoded(NamedTuple):
    """Estimated size of the log in batches of up to `batch_bytes` before compression, with a codec."""

    codec: str
    batch_bytes: int
    size_bytes: int
    saved_bytes: int
    is_of_topic: bool = (
        False  # codec and level that compression.type names, and batches as large as they are on average
    )


class RecordSample:
    """Runs of records from all over a log, at equal distances that double when there are too many of them."""

    def __init__(self) -> None:
        self._units: list[bytes] = []
        self._step = 1
        self._seen = 0

    def add(self, sound: Sound) -> None:
        """Sample the first records of every n-th slice, without batch headers."""
        if self._seen % self._step == 0:
            self._units.append(_records(sound))
        self._seen += 1
        if len(self._units) > _UNITS_MAX:
            self._units = self._units[::2]
            self._step *= 2

    def alternatives(
        self, records_bytes: int, size_bytes: int, batches: int, topic_codec: TopicCodec | None = None
    ) -> tuple[Recoded, ...]:
        """Other batches for a log of `size_bytes` whose records take `records_bytes` uncompressed, the smallest first."""
        if not any(self._units):
            return ()

        def recoded(
            codec: Codec, batch_bytes: int, level: int | None = None, *, is_of_topic: bool = False
        ) -> Recoded:
            units = [unit[: _CUTS_MAX * batch_bytes] for unit in self._units]
            taken = sum(_size(unit, codec, batch_bytes, level) for unit in units)
            estimate = round(taken * records_bytes / sum(map(len, units)))
            return Recoded(codec.name.lower(), batch_bytes, estimate, size_bytes - estimate, is_of_topic)

        found = [recoded(codec, batch_bytes) for batch_bytes in _BATCH_BYTES for codec in Codec]
        if topic_codec is not None:
            mean_bytes = max(records_bytes // batches, 1)
            found.append(recoded(topic_codec.codec, mean_bytes, topic_codec.level, is_of_topic=True))
        return tuple(sorted(found, key=lambda one: one.size_bytes))


def _records(sound: Sound) -> bytes:
    parts, filled = [], 0
    for batch in sound.batches:
        buffer = sound.part.expanded if batch["expanded"] else sound.piece.raw
        start = int(batch["payload_start"])
        part = buffer[start : min(int(batch["payload_end"]), start + _UNIT_BYTES - filled)]
        parts.append(part)
        filled += len(part)
        if filled >= _UNIT_BYTES:
            break
    return np.concatenate(parts).tobytes()


def _size(unit: bytes, codec: Codec, batch_bytes: int, level: int | None) -> int:
    cuts = range(0, len(unit), batch_bytes)
    return sum(HEADER_SIZE + len(compress(codec, unit[cut : cut + batch_bytes], level=level)) for cut in cuts)
