"""Targets that take bytes: every parser of `cleanerd.format`, and the kernels over forbidden memory."""

import contextlib
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from uuid import UUID

from cleanerd.format import codecs
from cleanerd.format.batch import decode_batch, iterate_batches, parse_header
from cleanerd.format.checkpoint import parse_leader_epochs, parse_offset_checkpoint
from cleanerd.format.codecs import Codec
from cleanerd.format.control import parse_control_key, parse_end_txn_value
from cleanerd.format.head import peek_batch
from cleanerd.format.legacy import decode_entry
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.metadata_records import parse_metadata_record
from cleanerd.format.names import parse_partition_dir, parse_segment_file
from cleanerd.format.offset_index import parse_offset_index
from cleanerd.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot, render_producer_snapshot
from cleanerd.format.record import decode_unsigned_varint, decode_varint
from cleanerd.format.time_index import parse_time_index
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index, render_txn_index
from cleanerd.tools.insight.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    parse_coordinator_key,
    parse_coordinator_record,
)
from tests.fuzz.mutate import batches_mutated
from tests.fuzz.targets import Target
from tests.kernels.random_log import LogSegment, RandomLog, random_facts
from tests.kernels.real_path import Layout, RealPath
from tests.kernels.test_fuzz import damaged_log, expand_everything, read_everything
from tests.storage.test_metadata_log import SAMPLE_CONFIG, SAMPLE_TOPIC, remove
from tests.tools.insight.test_coordinator_records import OLD, WRITTEN

_PRODUCER = ProducerEntry(5, 1, 9, 100, 3, 1_700_000_000_000, 0, 90)
_TXN = AbortedTxn(5, 10, 20, 21)
_CODECS = list(Codec)
_EXPANDED_MAX_BYTES = 1 << 20
_ANY_OFFSET = 1 << 40


@cache
def batches() -> tuple[bytes, ...]:
    """One of each kind, and more: of every magic and codec."""
    log = RandomLog(random.Random("valid batches")).append(120)
    return tuple(placed.data for placed in log.batches)


def _of_magic_2() -> tuple[bytes, ...]:
    return tuple(data for data in batches() if data[16] == 2)


def _legacy() -> tuple[bytes, ...]:
    return tuple(data for data in batches() if data[16] < 2)


def _blobs() -> tuple[bytes, ...]:
    data = b"some text, some text, and then some more of it" * 9
    return tuple(
        bytes((codec, magic)) + codecs.compress(codec, data, magic)
        for codec in _CODECS
        for magic in (0, 1, 2)
        if codec is not Codec.ZSTD or magic == 2
    )


def _decompress(data: bytes, _: Path) -> None:
    if len(data) >= 2:
        codec = _CODECS[data[0] % len(_CODECS)]
        found = codecs.decompress(codec, data[2:], data[1] % 3, _EXPANDED_MAX_BYTES)
        assert len(found) <= max(_EXPANDED_MAX_BYTES, len(data))


def _coordinator(data: bytes, _: Path) -> None:
    topic = TRANSACTION_STATE if data[:1] == b"t" else CONSUMER_OFFSETS
    end = 3 + int.from_bytes(data[1:3])
    parse_coordinator_key(topic, data[3:end])
    parse_coordinator_record(topic, data[3:end], data[end:])


def _coordinator_records() -> tuple[bytes, ...]:
    old = "0001000762696c6c696e67000174" + "00" * 4
    found = [(topic, key, value) for topic, key, value, *_ in WRITTEN]
    found += [(CONSUMER_OFFSETS, old, value) for _, value, _ in OLD]
    return tuple(
        (b"t" if topic == TRANSACTION_STATE else b"c")
        + struct.pack(">H", len(bytes.fromhex(key)))
        + bytes.fromhex(key + value.replace(" ", ""))
        for topic, key, value in found
    )


def _names(data: bytes, _: Path) -> None:
    name = data.decode("utf-8", "surrogateescape")
    parse_segment_file(name)
    parsed = parse_partition_dir(name)
    assert parsed is None or "/" not in parsed[0].topic


def _varints(data: bytes, _: Path) -> None:
    for bits in (32, 64):
        for read in (decode_varint, decode_unsigned_varint):
            with contextlib.suppress(IndexError):  # as its docstring says: callers turn it into "too short"
                read(data, 0, bits)


def _dice(data: bytes) -> random.Random:
    """Chance that follows from the input alone."""
    return random.Random(zlib.crc32(data))


def _clean(data: bytes, directory: Path) -> None:
    """The whole path of a cleaning, without Spark."""
    rng = _dice(data)
    facts = replace(random_facts(rng, RandomLog(rng).append(1)), aborted=(), round_end=_ANY_OFFSET)
    layout = Layout(buckets=rng.choice((1, 4)), piece_bytes=rng.choice((100, 1 << 22)), slice_bytes=300)
    RealPath(directory, [LogSegment(0, data)], facts, layout).clean()


def _a_log(rng: random.Random, _: Sequence[bytes]) -> bytes:
    """A whole log, damaged; ascending offsets, so that most of it is looked at."""
    return damaged_log(rng, RandomLog(rng).append(rng.choice((1, 3, 10))), inside_crc=rng.random() < 0.7)


def _logs() -> tuple[bytes, ...]:
    log = RandomLog(random.Random("a valid log"), kinds=("plain",)).append(30)
    return (b"".join(placed.data for placed in log.batches),)


def _texts(*texts: bytes) -> Sequence[bytes]:
    return texts


TARGETS = {
    "batch": Target(_of_magic_2, lambda data, _: decode_batch(data), batches_mutated),
    "batch header": Target(_of_magic_2, lambda data, _: parse_header(data)),
    "batches": Target(batches, lambda data, _: list(iterate_batches(data)), batches_mutated),
    "head": Target(batches, lambda data, _: peek_batch(data)),
    "legacy entry": Target(_legacy, lambda data, _: decode_entry(data), batches_mutated),
    "compressed": Target(_blobs, _decompress),
    "varint": Target(lambda: _texts(b"\x00", b"\xff\xff\xff\xff\x0f", b"\x80\x01"), _varints),
    "control key": Target(lambda: _texts(b"\0\0\0\1", b"\0\0\0\0"), lambda data, _: parse_control_key(data)),
    "end txn value": Target(lambda: _texts(b"\0\0\0\0\0\7"), lambda data, _: parse_end_txn_value(data)),
    "coordinator record": Target(_coordinator_records, _coordinator),
    "metadata record": Target(
        lambda: _texts(SAMPLE_TOPIC, SAMPLE_CONFIG, remove(UUID(int=5))),
        lambda data, _: parse_metadata_record(data),
    ),
    "offset index": Target(
        lambda: _texts(struct.pack(">iiii", 3, 100, 9, 2000)), lambda data, _: parse_offset_index(data, 0)
    ),
    "time index": Target(
        lambda: _texts(struct.pack(">qiqi", 1000, 3, 2000, 9)),
        lambda data, _: parse_time_index(data, 0),
    ),
    "txn index": Target(
        lambda: _texts(render_txn_index([_TXN, AbortedTxn(6, 22, 30, 31)])),
        lambda data, _: parse_txn_index(data),
    ),
    "producer snapshot": Target(
        lambda: _texts(render_producer_snapshot([_PRODUCER, replace(_PRODUCER, producer_id=6)])),
        lambda data, _: parse_producer_snapshot(data, 1 << 40),
    ),
    "offset checkpoint": Target(
        lambda: _texts(b"0\n2\nt 0 17\nother-topic 11 5\n", b"0\n0\n"),
        lambda data, _: parse_offset_checkpoint(data),
    ),
    "leader epochs": Target(lambda: _texts(b"0\n2\n0 0\n3 17\n"), lambda data, _: parse_leader_epochs(data)),
    "meta.properties": Target(
        lambda: _texts(
            b"#\nversion=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n", b"version=0\nbroker.id=0\n"
        ),
        lambda data, _: parse_meta_properties(data),
    ),
    "partition.metadata": Target(
        lambda: _texts(render_partition_metadata(UUID(int=77))),
        lambda data, _: parse_partition_metadata(data),
    ),
    "names": Target(
        lambda: _texts(b"orders-0", b"a.0123456789abcdef0123456789abcdef-delete", b"%020d.log.cleaned" % 7),
        _names,
    ),
    "kernels": Target(batches, lambda data, _: read_everything(data, _dice(data)), batches_mutated, cost=3),
    "kernels on expanded": Target(_legacy, lambda data, _: expand_everything(data, _dice(data)), cost=3),
    "cleaning": Target(_logs, _clean, _a_log, names_file=True, cost=8),
}
