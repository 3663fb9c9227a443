"""Targets that take bytes: every parser of `cleanerd.format`. The kernels have their own (`tests.kernels.test_fuzz`)."""

import contextlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from uuid import UUID

from cleanerd.format import codecs
from cleanerd.format.batch import decode_batch, iterate_batches, parse_header
from cleanerd.format.checkpoint import parse_leader_epochs, parse_offset_checkpoint
from cleanerd.format.codecs import Codec
from cleanerd.format.control import parse_control_key, parse_end_txn_value
from cleanerd.format.head import peek_batch
from cleanerd.format.legacy import decode_entry
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.metadata_records import parse_metadata_record, parse_partition_record
from cleanerd.format.names import parse_partition_dir, parse_segment_file
from cleanerd.format.offset_index import parse_offset_index
from cleanerd.format.partition_metadata import parse_partition_metadata, render_partition_metadata
from cleanerd.format.producer_snapshot import ProducerEntry, parse_producer_snapshot, render_producer_snapshot
from cleanerd.format.record import decode_unsigned_varint, decode_varint
from cleanerd.format.time_index import parse_time_index
from cleanerd.format.txn_index import AbortedTxn, parse_txn_index, render_txn_index
from tests.fuzz.targets import Target
from tests.harness.damage.bytes import batches_mutated, mutated
from tests.harness.logs.metadata import SAMPLE_CONFIG, SAMPLE_TOPIC, change, partition, remove
from tests.harness.logs.random_log import RandomLog

_PRODUCER = ProducerEntry(5, 1, 9, 100, 3, 1_700_000_000_000, 0, 90)
_TXN = AbortedTxn(5, 10, 20, 21)
_CODECS = list(Codec)
_EXPANDED_MAX_BYTES = 1 << 20


@cache
def batches() -> tuple[bytes, ...]:
    """One of each kind, and more: of every magic and codec."""
    log = RandomLog(random.Random("valid batches")).append(120)
    return tuple(placed.data for placed in log.batches)


def _of_magic_2() -> tuple[bytes, ...]:
    return tuple(data for data in batches() if data[16] == 2)


def _legacy() -> tuple[bytes, ...]:
    return tuple(data for data in batches() if data[16] < 2)


def _compressed() -> tuple[bytes, ...]:
    data = b"some text, some text, and then some more of it" * 9
    return tuple(
        bytes((codec, magic)) + codecs.compress(codec, data, magic)
        for codec in _CODECS
        for magic in (0, 1, 2)
        if codec is not Codec.ZSTD or magic == 2
    )


def _decompress(data: bytes) -> None:
    if len(data) >= 2:
        codec = _CODECS[data[0] % len(_CODECS)]
        found = codecs.decompress(codec, data[2:], data[1] % 3, _EXPANDED_MAX_BYTES)
        assert len(found) <= max(_EXPANDED_MAX_BYTES, len(data))


def _names(data: bytes) -> None:
    name = data.decode("utf-8", "surrogateescape")
    parse_segment_file(name)
    parsed = parse_partition_dir(name)
    assert parsed is None or "/" not in parsed[0].topic


def _varints(data: bytes) -> None:
    for bits in (32, 64):
        for read in (decode_varint, decode_unsigned_varint):
            with contextlib.suppress(IndexError):  # as its docstring says: callers turn it into "too short"
                read(data, 0, bits)


def _parser(parse: Callable[[bytes], object], *valid: bytes) -> Target:
    return Target(lambda: valid, lambda data, _: parse(data))


def _made(
    parse: Callable[[bytes], object], valid: Callable[[], tuple[bytes, ...]], mutate: Any = mutated
) -> Target:
    """The same, with inputs that take time to make."""
    return Target(valid, lambda data, _: parse(data), mutate)


TARGETS = {
    "batch": _made(decode_batch, _of_magic_2, batches_mutated),
    "batch header": _made(parse_header, _of_magic_2),
    "batches": _made(lambda data: list(iterate_batches(data)), batches, batches_mutated),
    "head": _made(peek_batch, batches),
    "legacy entry": _made(decode_entry, _legacy, batches_mutated),
    "compressed": _made(_decompress, _compressed),
    "varint": _parser(_varints, b"\x00", b"\xff\xff\xff\xff\x0f", b"\x80\x01"),
    "control key": _parser(parse_control_key, b"\0\0\0\1", b"\0\0\0\0"),
    "end txn value": _parser(parse_end_txn_value, b"\0\0\0\0\0\7"),
    "partition record": _parser(
        parse_partition_record,
        *(partition(UUID(int=5), 1, [1, 2], epoch=9, version=version) for version in range(3)),
        *(change(UUID(int=5), 1, isr=[1], removing=[2], version=version) for version in range(3)),
    ),
    "metadata record": _parser(parse_metadata_record, SAMPLE_TOPIC, SAMPLE_CONFIG, remove(UUID(int=5))),
    "offset index": _parser(lambda data: parse_offset_index(data, 0), struct.pack(">iiii", 3, 100, 9, 2000)),
    "time index": _parser(lambda data: parse_time_index(data, 0), struct.pack(">qiqi", 1000, 3, 2000, 9)),
    "txn index": _parser(parse_txn_index, render_txn_index([_TXN, AbortedTxn(6, 22, 30, 31)])),
    "producer snapshot": _parser(
        lambda data: parse_producer_snapshot(data, 1 << 40),
        render_producer_snapshot([_PRODUCER, replace(_PRODUCER, producer_id=6)]),
    ),
    "offset checkpoint": _parser(parse_offset_checkpoint, b"0\n2\nt 0 17\nother-topic 11 5\n", b"0\n0\n"),
    "leader epochs": _parser(parse_leader_epochs, b"0\n2\n0 0\n3 17\n"),
    "meta.properties": _parser(
        parse_meta_properties,
        b"#\nversion=1\nnode.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n",
        b"version=0\nbroker.id=0\n",
    ),
    "partition.metadata": _parser(parse_partition_metadata, render_partition_metadata(UUID(int=77))),
    "names": _parser(
        _names, b"orders-0", b"a.0123456789abcdef0123456789abcdef-delete", b"%020d.log.cleaned" % 7
    ),
}
