"""Bytes that a real broker wrote, against what Kafka's own tools say of them (`tests/golden/`)."""

import json
from dataclasses import astuple
from pathlib import Path

import pytest

from cleanerd.format.batch import BatchHeader, decode_batch, encode_batch, encode_empty_batch, iterate_batches
from cleanerd.format.control import ControlType, parse_control_key, parse_end_txn_value
from cleanerd.format.names import FileKind, parse_partition_dir, parse_segment_file
from cleanerd.format.offset_index import parse_offset_index, render_offset_index
from cleanerd.format.producer_snapshot import parse_producer_snapshot, render_producer_snapshot
from cleanerd.format.record import Record
from cleanerd.format.time_index import parse_time_index, render_time_index
from cleanerd.format.txn_index import parse_txn_index, render_txn_index

GOLDEN = Path(__file__).parent.parent / "golden"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))["logs"]
FILES = [(log, name) for log, content in MANIFEST.items() for name in content["files"]]
Facts = list[dict[str, str]]


def files_of(kind: FileKind) -> pytest.MarkDecorator:
    """Parametrize a test with path, base offset and expected facts of all files of a kind."""
    rows = [
        pytest.param(
            GOLDEN / "logs" / log / name, parsed.base_offset, MANIFEST[log]["files"][name], id=f"{log}/{name}"
        )
        for log, name in FILES
        if (parsed := parse_segment_file(name)) is not None and parsed.kind is kind
    ]
    return pytest.mark.parametrize(("path", "base_offset", "facts"), rows)


def columns(facts: Facts, *words: str) -> list[tuple[int, ...]]:
    return [tuple(int(fact[word]) for word in words) for fact in facts]


def batches(path: Path) -> list[tuple[int, BatchHeader, list[Record]]]:
    data = path.read_bytes()
    return [(position, *decode_batch(data, position)) for position, _, _ in iterate_batches(data)]


@files_of(FileKind.LOG)
def test_headers(path: Path, base_offset: int, facts: Facts) -> None:
    expected = [fact for fact in facts if "baseOffset" in fact]
    found = batches(path)
    assert expected == [header_facts(position, header) for position, header, _ in found]
    assert sum(header.size_bytes for _, header, _ in found) == path.stat().st_size, "and nothing behind them"


@files_of(FileKind.LOG)
def test_uncompressed_batches_are_written_as_the_broker_writes_them(
    path: Path, base_offset: int, facts: Facts
) -> None:
    """Encoding what was decoded gives the same bytes, horizons and empty batches included.

    Not with LogAppendTime: the producer's base timestamp is still in the header, and no record has it.
    """
    data = path.read_bytes()
    for position, header, records in batches(path):
        if header.codec == 0 and not header.is_log_append_time:
            assert encoded_again(header, records) == data[position : position + header.size_bytes]


@files_of(FileKind.LOG)
def test_markers(path: Path, base_offset: int, facts: Facts) -> None:
    expected = [
        (int(fact["offset"]), fact["endTxnMarker"], int(fact["coordinatorEpoch"]))
        for fact in facts
        if "endTxnMarker" in fact
    ]
    markers = [record for _, header, records in batches(path) if header.is_control for record in records]
    assert expected == [
        (marker.offset, parse_control_key(marker.key).name, parse_end_txn_value(marker.value))
        for marker in markers
    ]
    assert ControlType.UNKNOWN not in {parse_control_key(marker.key) for marker in markers}


@pytest.mark.parametrize("log", MANIFEST)
def test_records(log: str) -> None:
    """Offsets, times, keys, values and headers are those that a consumer got."""
    found = [
        [record.offset, record.timestamp_ms, text(record.key), text(record.value), headers(record)]
        for path in sorted((GOLDEN / "logs" / log).glob("*.log"))
        for _, header, records in batches(path)
        if not header.is_control
        for record in records
    ]
    assert MANIFEST[log]["records"] == found


@files_of(FileKind.OFFSET_INDEX)
def test_offset_index(path: Path, base_offset: int, facts: Facts) -> None:
    index = parse_offset_index(path.read_bytes(), base_offset)
    found = zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
    assert columns(facts, "offset", "position") == list(found)
    assert index.flaw is None
    assert render_offset_index(index, base_offset) == path.read_bytes()


@files_of(FileKind.TIME_INDEX)
def test_time_index(path: Path, base_offset: int, facts: Facts) -> None:
    index = parse_time_index(path.read_bytes(), base_offset)
    found = zip(index.timestamps_ms.tolist(), index.offsets.tolist(), strict=True)
    assert columns(facts, "timestamp", "offset") == list(found)
    assert index.flaw is None
    assert render_time_index(index, base_offset) == path.read_bytes()


@files_of(FileKind.TXN_INDEX)
def test_txn_index(path: Path, base_offset: int, facts: Facts) -> None:
    entries = parse_txn_index(path.read_bytes(), base_offset)
    expected = columns(facts, "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    assert expected == [astuple(entry) for entry in entries]
    assert render_txn_index(entries) == path.read_bytes()


@files_of(FileKind.PRODUCER_SNAPSHOT)
def test_producer_snapshot(path: Path, base_offset: int, facts: Facts) -> None:
    """Entries, and the same bytes when they are written again.

    After a marker with a new epoch (transaction version 2) no batch is known, and the tool prints none.
    """
    entries = parse_producer_snapshot(path.read_bytes(), base_offset)
    found = [
        {
            "producerId": str(entry.producer_id),
            "producerEpoch": str(entry.producer_epoch),
            "coordinatorEpoch": str(entry.coordinator_epoch),
            "currentTxnFirstOffset": optional(entry.current_txn_first_offset),
            "lastTimestamp": str(entry.timestamp_ms),
            "lastSequence": str(entry.last_sequence),
            "lastOffset": str(entry.last_offset),
        }
        for entry in entries
    ]
    unknown = {"lastSequence": "-1", "lastOffset": "-1"}
    assert [{word: {**unknown, **fact}[word] for word in found[0]} for fact in facts] == found
    assert render_producer_snapshot(entries) == path.read_bytes()


def test_manifest_covers_the_directory() -> None:
    logs = {path.name for path in (GOLDEN / "logs").iterdir() if parse_partition_dir(path.name)}
    assert logs - {"__cluster_metadata-0"} == set(MANIFEST)
    facts = [fact for content in MANIFEST.values() for rows in content["files"].values() for fact in rows]
    seen = {word: {fact.get(word) for fact in facts} for word in ("compresscodec", "endTxnMarker", "count")}
    assert seen["compresscodec"] >= {"none", "gzip", "snappy", "lz4", "zstd"}
    assert seen["endTxnMarker"] >= {"COMMIT", "ABORT"}
    assert "0" in seen["count"]


def header_facts(position: int, header: BatchHeader) -> dict[str, str]:
    """A header as DumpLogSegments words it."""
    return {
        "baseOffset": str(header.base_offset),
        "lastOffset": str(header.last_offset),
        "count": str(header.record_count),
        "baseSequence": str(header.base_sequence),
        "lastSequence": str(header.last_sequence),
        "producerId": str(header.producer_id),
        "producerEpoch": str(header.producer_epoch),
        "partitionLeaderEpoch": str(header.leader_epoch),
        "isTransactional": str(header.is_transactional).lower(),
        "isControl": str(header.is_control).lower(),
        "deleteHorizonMs": optional(header.delete_horizon_ms),
        "position": str(position),
        "LogAppendTime" if header.is_log_append_time else "CreateTime": str(header.max_timestamp_ms),
        "size": str(header.size_bytes),
        "magic": str(header.magic),
        "compresscodec": header.codec.name.lower(),
        "crc": str(header.crc),
        "isvalid": "true",
    }


def optional(value: int | None) -> str:
    """A number that may be missing, as Java prints it."""
    return "OptionalLong.empty" if value in {None, -1} else f"OptionalLong[{value}]"


def encoded_again(header: BatchHeader, records: list[Record]) -> bytes:
    if not records:
        return encode_empty_batch(header)
    return encode_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        log_append_time=header.is_log_append_time,
        transactional=header.is_transactional,
        control=header.is_control,
        delete_horizon_ms=header.delete_horizon_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def headers(record: Record) -> list[list[str | None]]:
    return [[key, text(value)] for key, value in record.headers]
