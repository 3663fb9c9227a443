"""Logs to be troubled, runs of the command line over them, and what is left afterwards."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cleanerd.cleaning.one_shot import clean_once
from cleanerd.cli.main import main
from cleanerd.env.files import Files
from cleanerd.format import names
from cleanerd.format.codecs import Codec
from cleanerd.format.names import FileKind, Suffix, parse_segment_file
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.tools.client.producer import Producer
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.client.writer import LogWriter
from tests.harness.ctl import captured

GOOD = "good"
RECORDS, KEYS, SEGMENT_BYTES = 160, 7, 4000
META_PROPERTIES = "version=1\ncluster.id=c\nnode.id=1\n"
HOLDER = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fcntl.lockf(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.readline()
"""

Contents = dict[str, tuple[int, int, bytes]]


@dataclass(frozen=True)
class Ran:
    """What one `cleanerd clean` left behind."""

    code: int
    results: dict[tuple[str, str], dict[str, Any]]  # by name of log directory and topic
    told: str

    def outcome(self, topic: str, log_dir: str = "logs") -> str:
        return str(self.results[log_dir, topic]["outcome"])

    def reason(self, topic: str, log_dir: str = "logs") -> str:
        """Why a log failed; it is also told on standard error."""
        assert self.outcome(topic, log_dir) == "failed"
        reason = self.results[log_dir, topic]["reason"]
        assert isinstance(reason, str)
        assert reason in self.told
        return reason


def clean(
    session: LazySpark, *log_dirs: Path, files: Files | None = None, options: Sequence[str] = ()
) -> Ran:
    """Run the command line over some log directories, every topic compacted unless the `options` say otherwise."""
    arguments = ["clean", "--force", "-o", "json", "--set=log.cleanup.policy=compact"]
    arguments += [*(f"--log-dir={log_dir}" for log_dir in log_dirs), *options]
    done = captured(partial(main, clean_once=partial(clean_once, session=session, files=files)), arguments)
    results = json.loads(done.stdout)["results"]
    by_log = {(Path(result["log_dir"]).name, result["topic"]): result for result in results}
    assert len(by_log) == len(results), "a log has one result"
    return Ran(done.returncode, by_log, done.stderr)


def put(
    log_dir: Path,
    topic: str,
    records: Iterable[tuple[bytes, bytes | None]],
    *,
    segment_bytes: int = 1 << 20,
    index_interval_bytes: int = 4096,
    magic: int = 2,
    codec: Codec = Codec.NONE,
) -> int:
    """Append records to a log, one each millisecond from 1000 on; returns the log end offset."""
    with LogWriter(
        str(log_dir), topic, 0, segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes
    ) as writer:
        producer = Producer(writer, magic=magic, codec=codec)
        for number, (key, value) in enumerate(records):
            producer.put(key, value, 1000 + number)
        return writer.log_end_offset


def write_logs(log_dir: Path, *topics: str) -> Path:
    """Equal logs of several closed segments each, in a directory of a broker that stopped."""
    log_dir.mkdir(exist_ok=True)
    records = [(b"key %d" % (number % KEYS), b"value %d" % number * 3) for number in range(RECORDS)]
    sizes = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 300}
    stop_broker(log_dir, {topic: put(log_dir, topic, records, **sizes) for topic in topics})
    return log_dir


def stop_broker(log_dir: Path, ends: Mapping[str, int]) -> None:
    """A broker that has written all of these logs, up to their ends, leaves their directory."""
    entries = "".join(f"{topic} 0 {end}\n" for topic, end in ends.items())
    for name in (names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (log_dir / name).write_text(f"0\n{len(ends)}\n{entries}")
    (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)


def leave_to_nobody(log_dir: Path) -> None:
    """Take everything that a broker has left beside the logs: none will ever come back to them."""
    for name in (names.META_PROPERTIES, names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (log_dir / name).unlink(missing_ok=True)


def segment(partition: Path, number: int, kind: FileKind = FileKind.LOG) -> Path:
    """A file of the segment with this number."""
    return sorted(partition.glob("*.log"))[number].with_suffix(kind.value)


def contents(directory: Path) -> Contents:
    """Every file: inode, mtime, bytes."""
    found: Contents = {}
    for path in sorted(directory.iterdir()):
        stat = path.lstat()
        found[path.name] = (stat.st_ino, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


def size_of(directory: Path) -> int:
    return sum(len(content) for _, _, content in contents(directory).values())


def newest(directory: Path) -> dict[bytes | None, bytes | None]:
    """What a consumer ends up with."""
    return {record.key: record.value for record in read_records(str(directory))}


TRUTH = {b"key %d" % key: b"value %d" % max(range(key, RECORDS, KEYS)) * 3 for key in range(KEYS)}


def assert_cleaned(ran: Ran, partition: Path) -> None:
    """Committed, short, and for a consumer what it was."""
    topic = partition.name.removesuffix("-0")
    assert ran.outcome(topic, partition.parent.name) == "committed"
    assert newest(partition) == TRUTH
    assert size_of(partition) < RECORDS * 40
    assert_settled(partition)


def assert_settled(partition: Path) -> None:
    """Nothing staged, nothing half done."""
    parsed = {name: parse_segment_file(name) for name in os.listdir(partition)}
    assert not [
        name for name, found in parsed.items() if found is not None and found.suffix is not Suffix.LIVE
    ]
    assert not [name for name in parsed if name.endswith(Suffix.STAGED.value)]


@contextlib.contextmanager
def holder(*paths: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has locked these files as a broker does, until the block ends."""
    arguments = [sys.executable, "-S", "-c", HOLDER, *map(str, paths)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process


@contextlib.contextmanager
def lock_of_another(*paths: Path) -> Iterator[int]:
    """The same; yields its pid."""
    with holder(*paths) as process:
        yield process.pid
