"""Looking at a log from outside: Kafka's DumpLogSegments, consumers, checkpoints, and `cleanerd clean`."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cli.main import main
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.format.record import Record
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.logdump import LogDump
from tests.harness.broker.releases import TOOL_TIMEOUT_S, current_release, java_command
from tests.harness.broker.workload import TopicPlan
from tests.harness.ctl import captured
from tests.harness.daemon.processes import ROOT, environment
from tests.harness.spark.sessions import SESSION

READ_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 90.0
CLEAN_TIMEOUT_S = 300.0
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"

GAP = re.compile(r"Non-consecutive offsets in |  -?\d+ is followed by \d+")
"""Compaction leaves gaps: no problem."""
IN_BATCH = re.compile(
    r"The following indexed offsets are not found in .*|Indexed offset: \d+, found log offset: \d+"
)
"""Of a time index that has another offset of the batch than its last."""
BAD_LINE = re.compile(r"isvalid: false|invalid bytes at the end|Exception")
MISMATCH = re.compile(r"  Index timestamp: \d+, log timestamp: (-?\d+)")


@dataclass(frozen=True, slots=True)
class CleanResult:
    """What `cleanerd clean` said: a row of its document for every partition directory."""

    exit_code: int
    rows: dict[str, dict[str, Any]]
    messages: str


def dump_log_segments(work_dir: Path, files: Iterable[Path]) -> list[str]:
    """Let Kafka's tool read all files and check each index against its log; return what it complains about.

    One JVM reads everything and a second checks the indexes as the broker does when it loads them. The names
    go through an argument file, so there may be any number of them.

    A time index entry of a batch without records is reported as a mismatch with time -1, in the broker's own
    segments as well: not a problem.
    """
    names = [str(path) for path in files]
    assert names
    problems = _problems(work_dir, names, "--deep-iteration", "--verify-index-only")
    indexes = [name for name in names if name.endswith((".index", ".timeindex"))]
    return problems + (_problems(work_dir, indexes, "--index-sanity-check") if indexes else [])


def _problems(work_dir: Path, names: Sequence[str], *modes: str) -> list[str]:
    done = run_dump_log_segments(work_dir, names, *modes)
    lines = done.stdout.splitlines()
    problems = [line for line in lines if BAD_LINE.search(line)]
    problems += _complaints(done.stderr.splitlines())
    if done.returncode != 0:
        problems.append(f"ended with {done.returncode}")
    elif sum(line.startswith("Dumping ") for line in lines) != len(names):
        problems.append("not all files were read")
    return problems


def run_dump_log_segments(
    work_dir: Path, names: Sequence[str], *modes: str
) -> subprocess.CompletedProcess[str]:
    """Run the tool once over all files, whatever it says."""
    arguments = java_command(current_release().dump_log_segments, *modes, "--files", ",".join(names))
    argument_file = work_dir / "dump-log-segments.args"
    argument_file.write_text("\n".join(f'"{argument}"' for argument in arguments[1:]), encoding="utf-8")
    command = [arguments[0], f"@{argument_file}"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)


def _complaints(lines: Sequence[str]) -> list[str]:
    """Lines of the error output without gaps, mismatches of empty batches, and a backend that misses its configuration."""
    kept: list[str] = []
    in_batch = not current_release().last_offset_in_time_index
    for line in lines:
        mismatch = MISMATCH.fullmatch(line)
        is_known = (
            GAP.match(line) or line.startswith("log4j:WARN ") or (in_batch and IN_BATCH.fullmatch(line))
        )
        if is_known or (mismatch is not None and mismatch[1] == "-1"):
            continue
        kept.append(line)
    headings = [line for line in kept if line.startswith("Found timestamp mismatch in :")]
    return [] if kept == headings else kept


def segment_files(partition_dir: Path) -> list[Path]:
    """The files of a partition directory that DumpLogSegments can read."""
    return sorted(path for path in partition_dir.iterdir() if path.suffix in DUMPED)


def read_all(broker: KafkaBroker, topics: Sequence[str], isolation: str) -> dict[str, list[Record]]:
    """All that a consumer of this isolation level sees of each topic's partition 0, with CRCs checked."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        return _read_to_the_ends(consumer, topics)
    finally:
        consumer.close()


def _read_to_the_ends(consumer: Consumer, topics: Sequence[str]) -> dict[str, list[Record]]:
    records: dict[str, list[Record]] = {topic: [] for topic in topics}
    unfinished = set(topics)
    deadline = time.monotonic() + READ_TIMEOUT_S
    while unfinished:
        assert time.monotonic() < deadline, unfinished
        for message in consumer.consume(10_000, timeout=0.05):
            topic, error = message.topic(), message.error()
            assert topic is not None, str(error)
            if error is None:
                records[topic].append(_record(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                unfinished.discard(topic)
    return records


def _record(message: Message) -> Record:
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or ()
    kind, timestamp_ms = message.timestamp()
    known_ms = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
    return Record(offset, known_ms, message.key(), message.value(), tuple(headers))


def offset_checkpoint(path: Path) -> dict[str, int]:
    """An offset checkpoint file by directory name, read without cleanerd's own code."""
    if not path.exists():
        return {}
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in lines[2:]}


def log_dirs_in(place: Path) -> list[Path]:
    """The log directories of one broker: those in `place` that `log_dir_names` named, else `place` itself."""
    return sorted(place.glob("log-dir-*")) or [place]


def log_dir_names(count: int) -> list[str]:
    """Names for several log directories in one place."""
    return [f"log-dir-{number}" for number in range(count)]


def partition_dir(place: Path, name: str) -> Path:
    """The directory of a partition, in whichever log directory it lies."""
    (found,) = [log_dir / name for log_dir in log_dirs_in(place) if (log_dir / name).is_dir()]
    return found


def checkpointed(place: Path, checkpoint: str) -> dict[str, int]:
    """The entries of a checkpoint file of all log directories."""
    found: dict[str, int] = {}
    for log_dir in log_dirs_in(place):
        found |= offset_checkpoint(log_dir / checkpoint)
    return found


def served_from(bootstrap: str, topic: str) -> int:
    """First offset of partition 0 that its broker serves."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), READ_TIMEOUT_S)[0])
    finally:
        consumer.close()


def log_start_offset(place: Path, log: LogDump) -> int:
    """First offset that consumers may read (spec disk D2.7)."""
    return max(log.bases[0], checkpointed(place, "log-start-offset-checkpoint").get(log.name, 0))


def first_dirty_offset(place: Path, log: LogDump) -> int:
    """Where the dirty part of a log starts (rule 1.5)."""
    start = log_start_offset(place, log)
    return max(start, checkpointed(place, "cleaner-offset-checkpoint").get(log.name, start))


def wait_until_cleaned(broker: KafkaBroker, place: Path, ends: Mapping[str, int]) -> None:
    """Wait until the broker's own cleaner has cleaned each partition up to its end offset, exactly."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while any(_cleaned(place).get(name, 0) < end for name, end in ends.items()):
        assert time.monotonic() < deadline, (ends, _cleaned(place))
        broker.poll()
    found = _cleaned(place)
    assert dict(ends) == {name: found.get(name, 0) for name in ends}


def _cleaned(place: Path) -> dict[str, int]:
    return checkpointed(place, "cleaner-offset-checkpoint")


def wait_until_deleted(broker: KafkaBroker, partition_dir: Path, log_start: int) -> None:
    """Wait until the broker has removed all segments below the log start (rule 1.28)."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while sum(int(path.stem) <= log_start for path in partition_dir.glob("*.log")) > 1:
        assert time.monotonic() < deadline, sorted(path.name for path in partition_dir.iterdir())
        broker.poll()


def copy_log_dir(source: Path, target: Path) -> None:
    """Copy a log directory of a stopped broker, or a place of several, with modification times (rule 4.12)."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted", ".lock"))


def forget_checkpoint(place: Path) -> None:
    """Make every log of a stopped broker dirty from its start again."""
    for log_dir in log_dirs_in(place):
        (log_dir / "cleaner-offset-checkpoint").write_bytes(b"")


def clean_in_process(*words: str) -> "subprocess.CompletedProcess[str]":
    """`cleanerd clean --force -o json` with the session of this process: no start of Python and of a JVM."""
    arguments = ["clean", "--force", "-o", "json", *words]
    done = captured(partial(main, clean_once=partial(clean_once, session=SESSION)), arguments)
    assert done.returncode in {0, 1}, done.stderr
    return done


def run_cleanerd(*words: str, before: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """The command to its end, which is in order or names what is not; `before`: a program that runs it."""
    command = [*before, sys.executable, "-m", "cleanerd.cli.main", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=CLEAN_TIMEOUT_S,
    )
    assert done.returncode in {0, 1}, done.stderr
    return done


def _assumed(place: Path, plans: Iterable[TopicPlan]) -> str:
    """What nothing there shows: the time, and where no metadata log has a topic, that it has a single replica."""
    is_known = not current_release().has_zookeeper and all(
        (partition_dir(place, plan.directory) / PARTITION_METADATA).exists() for plan in plans
    )
    return "now" if is_known else "now,replicas"


def clean(place: Path, plans: Sequence[TopicPlan], *arguments: str) -> CleanResult:
    """Clean a broker's logs, told what its topics are set to."""
    words = [
        f"--assume={_assumed(place, plans)}",
        *(f"--log-dir={log_dir}" for log_dir in log_dirs_in(place)),
    ]
    for plan in plans:
        for key, value in plan.cleaner_config.items():
            words += ["--topic-set", f"{plan.topic}:{key}={value}"]
    done = clean_in_process(*words, *arguments)
    document = json.loads(done.stdout)
    assert document["apiVersion"] == "cleanerd/v1"
    rows = {f"{row['topic']}-{row['partition']}": row for row in document["results"]}
    return CleanResult(done.returncode, rows, done.stderr)
