"""Metadata logs to be read: frames as a controller writes them (spec disk F2, F3), batches, snapshots."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from cleanerd.config.model import ClusterMetadata
from cleanerd.env.files import RealFiles
from cleanerd.format.batch import Record, encode_batch
from cleanerd.format.codecs import Codec
from cleanerd.format.control import ControlType
from cleanerd.format.record import encode_unsigned_varint
from cleanerd.storage.metadata_log import read_metadata

SAMPLE_TOPIC = bytes.fromhex("01 02 00 04 6d2d61 3c7efbb57fdf4ca1a770c92d3cd3d157 00")
SAMPLE_CONFIG = bytes.fromhex(
    "01 04 00 02 04 6d2d61 0f 636c65616e75702e706f6c696379 0f 636f6d706163742c64656c657465 00"
)
SAMPLE_ID = UUID("3c7efbb5-7fdf-4ca1-a770-c92d3cd3d157")
BEGIN, END, ABORT = (bytes((1, mark, 0, 0)) for mark in (23, 24, 25))
SKIPPED = bytes((1, 20, 0, 0))  # NoOpRecord
TOPIC, BROKER = 2, 4
OTHER_ID = UUID(int=5)


def text(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    data = value.encode()
    return encode_unsigned_varint(len(data) + 1) + data


def topic(name: str, topic_id: UUID) -> bytes:
    return b"\x01\x02\x00" + text(name) + topic_id.bytes + b"\x00"


def remove(topic_id: UUID) -> bytes:
    return b"\x01\x09\x00" + topic_id.bytes + b"\x00"


def config(kind: int, name: str, key: str, value: str | None) -> bytes:
    return b"\x01\x04\x00" + bytes((kind,)) + text(name) + text(key) + text(value) + b"\x00"


def broker(broker_id: int, level: int | None, version: int = 3) -> bytes:
    """A RegisterBrokerRecord (F3) up to its features; what follows them is of no concern."""
    end_point = text("PLAINTEXT") + text("localhost") + struct.pack(">Hh", 9092, 0) + b"\x00"
    features = {"kraft.version": 1} | ({} if level is None else {"metadata.version": level})
    array = b"".join(text(name) + struct.pack(">hh", 0, most) + b"\x00" for name, most in features.items())
    head = struct.pack(">i", broker_id) + b"\x00" * (version >= 2) + bytes(24)
    return bytes((1, 0, version)) + head + b"\x02" + end_point + bytes((len(features) + 1,)) + array + b"rest"


def int32s(numbers: Sequence[int]) -> bytes:
    return encode_unsigned_varint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def partition(
    topic_id: UUID,
    number: int,
    replicas: Sequence[int],
    isr: Sequence[int] | None = None,
    *,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    epoch: int = 0,
    version: int = 0,
) -> bytes:
    """A PartitionRecord (F3); version 1 adds directories, version 2 more tagged fields."""
    arrays = [replicas, replicas if isr is None else isr, removing, adding]
    body = struct.pack(">i", number) + topic_id.bytes + b"".join(map(int32s, arrays))
    body += struct.pack(">iii", replicas[0] if replicas else -1, 7, epoch)
    if version >= 1:
        body += encode_unsigned_varint(len(replicas) + 1) + bytes(16 * len(replicas))
    elr = int32s([9])
    tagged = {0: b"\x01"} | ({1: elr, 2: elr} if version >= 2 else {})
    return bytes((1, 3, version)) + body + _tagged(tagged)


def change(topic_id: UUID, number: int, *, version: int = 0, **fields: Sequence[int]) -> bytes:
    """A PartitionChangeRecord (F3): isr, replicas, removing, adding; with a leader and what else a version has."""
    tags = {"isr": 0, "replicas": 2, "removing": 3, "adding": 4}
    tagged = {tags[name]: int32s(numbers) for name, numbers in fields.items()} | {1: struct.pack(">i", 3)}
    tagged |= {8: b"\x02" + bytes(16)} if version >= 1 else {}
    tagged |= {6: int32s([9]), 7: int32s([])} if version >= 2 else {}
    return bytes((1, 5, version)) + struct.pack(">i", number) + topic_id.bytes + _tagged(tagged)


def _tagged(fields: Mapping[int, bytes]) -> bytes:
    rows = (bytes((tag, len(value))) + value for tag, value in sorted(fields.items()))
    return bytes((len(fields),)) + b"".join(rows)


def batch(
    base_offset: int,
    frames: Iterable[bytes],
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    at_ms: int = 1000,
) -> bytes:
    records = [Record(base_offset + index, at_ms, None, frame) for index, frame in enumerate(frames)]
    return encode_batch(records, base_offset=base_offset, codec=codec, leader_epoch=leader_epoch)


def control(
    offset: int, kind: ControlType, value: bytes = b"\x00\x00\x00", at_ms: int = 1000, leader_epoch: int = 0
) -> bytes:
    record = Record(offset, at_ms, struct.pack(">hh", 0, kind), value)
    return encode_batch([record], base_offset=offset, control=True, leader_epoch=leader_epoch)


def snapshot(*frames: bytes, footer: bool = True, at_ms: int = 1000) -> bytes:
    data = control(0, ControlType.SNAPSHOT_HEADER, at_ms=at_ms) + batch(1, frames, at_ms=at_ms)
    return data + control(1 + len(frames), ControlType.SNAPSHOT_FOOTER, at_ms=at_ms) if footer else data


def log(directory: Path, **files: bytes) -> Path:
    """Write files: `log_<base offset>` and `snapshot_<end offset>`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        kind, offset = name.split("_")
        file_name = (
            f"{int(offset):020d}.log" if kind == "log" else f"{int(offset):020d}-0000000003.checkpoint"
        )
        (directory / file_name).write_bytes(data)
    return directory


def voters(*ids: int) -> bytes:
    """A VotersRecord (C2) with one end point each."""
    end_point = b"\x02" + text("CONTROLLER") + text("localhost") + struct.pack(">Hx", 9093)
    each = [struct.pack(">i", voter) + bytes(16) + end_point + struct.pack(">hhxx", 0, 1) for voter in ids]
    return b"\x00\x00" + bytes((len(ids) + 1,)) + b"".join(each) + b"\x00"


def read(directory: Path) -> ClusterMetadata:
    return read_metadata(RealFiles(), str(directory))
