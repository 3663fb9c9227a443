"""Write `logs/` and `manifest.json` anew: `python -m tests.golden.make_golden`, from the top of the tree.

`logs/` is the log directory of a real broker, cleanly stopped: a topic for each thing that a reader of the
formats has to know, plus the metadata log. Topics of coordinators are left out. What `manifest.json` says of
them comes from Kafka's own DumpLogSegments and from a consumer, never from cleanerd.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanerd.format.record import Record
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.origin import clean_by_broker
from tests.harness.broker.producers import Message, Style, Writer, WriterPool
from tests.harness.broker.releases import current_release
from tests.harness.broker.tools import (
    READ_UNCOMMITTED,
    forget_checkpoint,
    read_all,
    run_dump_log_segments,
    segment_files,
)
from tests.harness.broker.workload import YEARS_MS, create_topics

HERE = Path(__file__).parent
LOGS = HERE / "logs"
MANIFEST = HERE / "manifest.json"
START_MS = 1_700_000_000_000
SEGMENT_BYTES = 1536
CONFIG = {
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "index.interval.bytes": "300",
    "segment.ms": str(YEARS_MS),
    "retention.ms": "-1",
}
LEFT_OUT = ("__transaction_state-*", "__consumer_offsets-*", "*.deleted", ".lock", "bootstrap.checkpoint")
CLEANED = "cleaned-0"


def plain(writer: Writer, topic: str) -> None:
    """Four batches of four records; the first shows every corner of a record."""
    corners = [
        Message(b"key", b"value", START_MS, (("name", b"value"), ("empty", b""), ("null", None))),
        Message(None, b"no key", START_MS + 5),
        Message(b"", b"", START_MS - 5),
        Message("schlüssel".encode(), None, START_MS, (("größe", b"\x00\xff"),)),
    ]
    writer.send(topic, corners)
    for number in range(1, 4):
        writer.send(topic, [_message(number * 4 + place) for place in range(4)])


def transactions(writer: Writer, topic: str) -> None:
    """Committed, aborted, committed and aborted; keys come again."""
    for number in range(4):
        writer.begin()
        for part in range(2):
            writer.send(topic, [_message(part * 3 + place, b"%d-" % number) for place in range(3)])
        if number % 2:
            writer.abort()
        else:
            writer.commit()


def tombstones(writer: Writer, topic: str) -> None:
    """Keys written twice, every third of them deleted at the end, and an active segment of its own."""
    for number in range(6):
        writer.send(topic, [_message((number * 4 + place) % 12) for place in range(4)])
    writer.send(topic, [Message(b"key-%d" % number, None, START_MS) for number in range(0, 12, 3)])


def mixed(writer: Writer, topic: str) -> None:
    """Transactions over a compacted topic.

    The last one is aborted and its two batches do not fit one segment: the first of them is the last batch of
    the cleaned range, which is kept empty (rule 4.16b).
    """
    transactions(writer, topic)
    writer.begin()
    writer.send(topic, [Message(b"key-1", None, START_MS), _message(2)])
    writer.commit()
    writer.begin()
    for number in range(2):
        writer.send(topic, [Message(b"seal-%d" % number, b"x" * (SEGMENT_BYTES * 6 // 10), START_MS)])
    writer.abort()


@dataclass(frozen=True, slots=True)
class Golden:
    """A topic: how it is written and what it is set to."""

    write: Callable[[Writer, str], None]
    style: Style
    config: tuple[tuple[str, str], ...] = ()


TOPICS = {
    "plain": Golden(plain, Style()),
    "gzip": Golden(plain, Style("gzip", jvm=True)),
    "snappy": Golden(plain, Style("snappy", jvm=True)),
    "snappy-bare": Golden(plain, Style("snappy")),
    "lz4": Golden(plain, Style("lz4", jvm=True)),
    "zstd": Golden(plain, Style("zstd", jvm=True)),
    "append-time": Golden(plain, Style(), (("message.timestamp.type", "LogAppendTime"),)),
    "idempotent": Golden(tombstones, Style(idempotent=True)),
    "transactions": Golden(transactions, Style(transactional=True)),
    "transactions-v2": Golden(transactions, Style(transactional=True, jvm=True)),
    "cleaned": Golden(
        mixed,
        Style(transactional=True),
        (("cleanup.policy", "compact"), ("delete.retention.ms", str(YEARS_MS))),
    ),
}


def main() -> None:
    """Run the broker, keep what it leaves, and write down what its tools say about it."""
    with tempfile.TemporaryDirectory() as temporary:
        work_dir = Path(temporary)
        log_dir = work_dir / "logs"
        _write(work_dir, log_dir)
        for _ in range(2):  # the second pass sees the emptied transactions and gives their markers a horizon
            forget_checkpoint(log_dir)
            clean_by_broker(work_dir / "cleaning", log_dir, [CLEANED])
        shutil.rmtree(LOGS, ignore_errors=True)
        shutil.copytree(log_dir, LOGS, ignore=shutil.ignore_patterns(*LEFT_OUT))
        manifest = {"kafka": current_release().version, "logs": _describe(work_dir, log_dir)}
    MANIFEST.write_text(_lines(manifest), encoding="utf-8")


def _lines(manifest: dict[str, Any]) -> str:
    """JSON with one line for each log."""
    logs = ",\n".join(f"{json.dumps(name)}: {json.dumps(log)}" for name, log in manifest["logs"].items())
    return f'{{"kafka": {json.dumps(manifest["kafka"])}, "logs": {{\n{logs}\n}}}}\n'


def _write(work_dir: Path, log_dir: Path) -> None:
    with KafkaBroker(work_dir / "writing", [log_dir]) as broker, WriterPool(broker.bootstrap) as pool:
        configs = {name: {**CONFIG, **dict(golden.config)} for name, golden in TOPICS.items()}
        create_topics(broker.admin(), configs)
        for name, golden in TOPICS.items():
            golden.write(pool.writer(golden.style, name), name)


def _message(number: int, prefix: bytes = b"") -> Message:
    """A record whose value any codec makes smaller."""
    return Message(b"key-%d" % number, prefix + b"value %d " % number * 6, START_MS + number * 1000)


def _describe(work_dir: Path, log_dir: Path) -> dict[str, object]:
    """Records, headers, index entries and snapshots of every topic, by directory and file name."""
    with KafkaBroker(work_dir / "reading", [log_dir]) as broker:
        records = read_all(broker, list(TOPICS), READ_UNCOMMITTED)
    return {
        f"{topic}-0": {
            "records": [_described(record) for record in records[topic]],
            "files": dict(_dumped(work_dir, segment_files(LOGS / f"{topic}-0"))),
        }
        for topic in TOPICS
    }


def _described(record: Record) -> list[object]:
    """Offset, timestamp, key, value and headers; bytes as Latin-1 text."""
    headers = [[key, _text(value)] for key, value in record.headers]
    return [record.offset, record.timestamp_ms, _text(record.key), _text(record.value), headers]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _dumped(work_dir: Path, files: Sequence[Path]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Per file the lines of DumpLogSegments that state facts, as mappings from its words to its values."""
    output = run_dump_log_segments(work_dir, [str(path) for path in files], "--deep-iteration").stdout
    for part in re.split(r"^Dumping ", output, flags=re.MULTILINE)[1:]:
        path, *lines = part.splitlines()
        yield Path(path).name, [_facts(line) for line in lines if _is_fact(line)]


def _is_fact(line: str) -> bool:
    """Batches, index entries, snapshots and markers; users' records are the consumer's."""
    return (
        ": " in line and (not line.startswith("|") or "endTxnMarker" in line) and "Log starting" not in line
    )


def _facts(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+): (\S+)", line))


if __name__ == "__main__":
    main()
