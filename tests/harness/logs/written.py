"""What the tests of the writer share: small logs, their bytes, and spec disk B4 written down a second time."""

import os
import struct

from cleanerd.format.batch import iterate_batches, parse_header
from cleanerd.format.codecs import Codec
from cleanerd.format.legacy import decode_entry
from cleanerd.format.names import GENERATION, parse_segment_file
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.writer import LogWriter, WriterOptions


def open_writer(
    log_dir, *, segment_bytes=1000, index_interval_bytes=150, start_offset=0, **options
) -> LogWriter:
    """A writer of t-0 with small segments, unless told otherwise."""
    return LogWriter(
        str(log_dir),
        "t",
        0,
        segment_bytes=segment_bytes,
        index_interval_bytes=index_interval_bytes,
        start_offset=start_offset,
        options=WriterOptions(**options),
    )


def contents(log_dir) -> dict[str, bytes]:
    """Every file of t-0 but the mark of its life, which is random."""
    directory = log_dir / "t-0"
    names = sorted(name for name in os.listdir(directory) if name != GENERATION)
    return {name: (directory / name).read_bytes() for name in names}


def indexes_by_rule_b4(log: bytes, base: int, interval: int) -> tuple[bytes, bytes]:
    """Spec disk B4 once more, written down independently: `.index` and `.timeindex` of a closed segment."""
    index, time_index, since, largest, indexed = [], [], 0, (-1, 0), -1
    for position, size, magic in iterate_batches(log):
        batch = log[position : position + size]
        if magic == 2:
            header = parse_header(batch)
            last_offset, timestamp = header.last_offset, header.max_timestamp_ms
        else:
            entry = decode_entry(batch)
            last_offset, timestamp = entry.last_offset, entry.timestamp_ms
        if timestamp > largest[0]:
            largest = (timestamp, last_offset)
        if since > interval:
            index.append(struct.pack(">ii", last_offset - base, position))
            if largest[0] > indexed:
                time_index.append(struct.pack(">qi", largest[0], largest[1] - base))
                indexed = largest[0]
            since = 0
        since += size
    if largest[0] > indexed:
        time_index.append(struct.pack(">qi", largest[0], largest[1] - base))
    return b"".join(index), b"".join(time_index)


def check_indexes(log_dir, interval=150) -> int:
    """Compare the indexes of all segments with spec disk B4; returns the number of segments."""
    found = contents(log_dir)
    logs = {parse_segment_file(name).base_offset: name for name in found if name.endswith(".log")}
    for base, name in logs.items():
        index, time_index = indexes_by_rule_b4(found[name], base, interval)
        assert found[name.replace(".log", ".index")] == index
        assert found[name.replace(".log", ".timeindex")] == time_index
    return len(logs)


def busy(writer: LogWriter, rounds: range) -> None:
    """Two producers, one of them aborting now and then, its transactions crossing segments."""
    plain = Producer(writer, producer_id=9, next_sequence=rounds.start, codec=Codec.ZSTD)
    for n in rounds:
        plain.put(b"p%d" % (n % 5), b"v" * n, n)
        transactional = Producer(writer, producer_id=4, next_sequence=2 * n)
        transactional.begin()
        transactional.put(b"t%d" % n, b"v" * n, n)
        plain.put(b"q", None, n)
        if n % 3 == 0:
            transactional.abort(n)
        else:
            transactional.commit(n)
