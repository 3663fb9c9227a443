"""Targets that read files: one file of a sound directory is exchanged for hostile bytes, and every reader goes over it."""

import atexit
import contextlib
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from uuid import UUID

from pydantic import TypeAdapter

from cleanerd.cleaning import retain
from cleanerd.cleaning.choose import Candidate, examine
from cleanerd.cleaning.outcomes import Failed
from cleanerd.cleaning.plan import plan_cleaning
from cleanerd.cleaning.result import CleanRequest
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.daemon.store import HOLD, Store
from cleanerd.daemon.values.holds import Hold
from cleanerd.daemon.values.models import HistoryEvent
from cleanerd.env.clock import FixedNow, SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.env.pace import unpaced
from cleanerd.errors import (
    BadConfiguration,
    BadUsage,
    CleanerdError,
    Fatal,
    InternalError,
    LogUncleanable,
    SourceChanged,
)
from cleanerd.format import names
from cleanerd.format.batch import iterate_batches
from cleanerd.format.head import peek_batch
from cleanerd.format.partition_metadata import render_partition_metadata
from cleanerd.storage.checkpoints import read_checkpoints
from cleanerd.storage.commit import revalidate
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.metadata_log import find_metadata, read_metadata
from cleanerd.storage.metadata_tail import MetadataTail
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.recover import recover
from cleanerd.storage.scan import scan_partition
from cleanerd.storage.staged import read_manifests
from cleanerd.tools.client.reader import read_records
from cleanerd.tools.insight.digest import Question, digest_logs
from cleanerd.tools.insight.doctor.facts import Limits
from cleanerd.tools.insight.doctor.gather import Gathering
from cleanerd.tools.insight.doctor.rules import judge
from cleanerd.tools.insight.doctor.sample import Budget
from cleanerd.tools.insight.find import find
from cleanerd.tools.insight.records import open_log, read_columns
from cleanerd.tools.insight.salvage import salvage
from cleanerd.tools.insight.verify import verify
from tests.config.test_metadata_fuzz import LOG as CLUSTER_LOG
from tests.config.test_metadata_fuzz import SNAPSHOT
from tests.fuzz.targets import Target
from tests.harness.damage.bytes import Mutate, batches_mutated, json_mutated, mutated, spoilt
from tests.harness.disks import by_hand
from tests.harness.disks.by_hand import TP
from tests.harness.logs.troubled import META_PROPERTIES

FILES = RealFiles()
_STAGED, _MID_COMMIT = ".cleaned", ".deleted"
NOW_MS = 1_700_000_000_000
_CHECKPOINTS = {
    names.REPLICATION_CHECKPOINT: 220,
    names.RECOVERY_POINT_CHECKPOINT: 220,
    names.CLEANER_OFFSET_CHECKPOINT: 29,
    names.LOG_START_CHECKPOINT: 0,
}


@cache
def _made(stop_at: str) -> Path:
    """A log directory of a broker with one log, whose cleaning has come as far as a rename to such a name; "": not begun."""
    log_dir = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, log_dir, ignore_errors=True)
    partition = log_dir / str(TP)
    by_hand.write_log(log_dir, seed=7)
    for name, offset in _CHECKPOINTS.items():
        (log_dir / name).write_text(f"0\n1\n{TP.topic} {TP.partition} {offset}\n")
    (log_dir / names.META_PROPERTIES).write_text(META_PROPERTIES)
    if not stop_at:  # what is staged in these tests knows of no epoch
        (partition / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n0 0\n")
    (partition / names.PARTITION_METADATA).write_bytes(render_partition_metadata(UUID(int=77)))
    log = partition / f"{0:020d}.log"
    (position, _, _) = list(iterate_batches(log.read_bytes()))[5]
    entry = struct.pack(">ii", peek_batch(log.read_bytes(), position)[0], position)
    log.with_suffix(".index").write_bytes(entry)
    if stop_at:
        by_hand.clean_until(str(log_dir), stop_at)
    return log_dir


def _files(log_dir: Path) -> list[Path]:
    return sorted(path for path in log_dir.rglob("*") if path.is_file())


def _laid_out(directory: Path, made: Path, exchanged: Path, data: bytes) -> Path:
    """The log directory with one file exchanged. The others are links: a manifest knows the inodes of its sources."""
    log_dir = directory / "logs"
    shutil.rmtree(directory, ignore_errors=True)
    (log_dir / str(TP)).mkdir(parents=True)
    for path in _files(made):
        os.link(path, log_dir / path.relative_to(made))
    if exchanged.read_bytes() != data:
        new = log_dir / exchanged.relative_to(made)
        new.unlink()
        new.write_bytes(data)
    return log_dir


@cache
def _request() -> CleanRequest:
    sets = [
        (TP.topic, key, value) for key, value in (("cleanup.policy", "compact,delete"), ("retention.ms", "1"))
    ]
    found = resolve(read_sources(topic_assignments=[*sets, (TP.topic, "max.compaction.lag.ms", "5")]))
    return CleanRequest(config=found.broker, topic_config=found.topic, log_dirs=("/nowhere",), force=True)


def _choose_and_plan(log_dir: Path) -> None:
    """As a worker does, up to what needs Spark."""
    directory, request = str(log_dir), _request()
    place = LogDir.at(FILES, directory, FixedNow(NOW_MS))
    found = examine(place, TP, place.checkpoints(), request, pace=unpaced)
    if isinstance(found, Candidate):
        plan_cleaning(FILES, found, now_ms=NOW_MS, chunk_bytes=1000, pace=unpaced)
    elif isinstance(found.outcome, Failed):
        assert "internal error" not in found.outcome.reason, found
        raise LogUncleanable(found.outcome.reason)


def _retain(log_dir: Path) -> None:
    checkpoints = read_checkpoints(FILES, str(log_dir))
    snapshot = scan_partition(PartitionDir.of(FILES, str(log_dir), TP), TP, checkpoints, is_kafka=True)
    assert snapshot is not None
    retain.preview(FILES, snapshot, _request().topic_config(TP.topic), NOW_MS)


def _read(log_dir: Path) -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        for _ in read_columns(open_log(str(log_dir / str(TP)), isolation=isolation)):
            pass


def _consume(log_dir: Path) -> None:
    """The client's reader waits for the end of a commit that is under way: here none ever comes."""
    if not list((log_dir / str(TP)).glob("*.swap")):
        list(read_records(str(log_dir / str(TP))))


def _verify(log_dir: Path) -> None:
    """It ends with findings, whatever there is."""
    defects = [f for f in verify([str(log_dir)], processes=1).findings if f.code == "not_judged"]
    assert not defects, defects


def _look(log_dir: Path) -> None:
    """The doctor has facts, or a reason; each log a digest, or a reason; a key is looked for in what is sound."""
    if list((log_dir / str(TP)).glob("*.swap")) or list((log_dir / str(TP)).glob("*.cleaned")):
        return  # they wait for the end of a commit that is under way
    limits, budget = Limits(), Budget(SystemClock(), 1 << 30, 1e12, lambda *_: None)
    configuration = resolve(read_sources(None, (), [(TP.topic, "cleanup.policy", "compact")]))
    broker = Gathering(configuration, "", SystemClock(), limits, budget).run([str(log_dir)], (), ())
    judge(broker, limits)
    reasons = dict(broker.directories[0].failed or {})
    reasons |= digest_logs([str(log_dir / str(TP))], Question(wanted=frozenset({0}))).failed
    reasons |= find([str(log_dir)], [b"k1", b""]).failed
    assert not [reason for reason in reasons.values() if "internal error" in reason], reasons


def _salvage(log_dir: Path) -> None:
    """It copies what is sound, whatever there is."""
    with contextlib.suppress(BadUsage):  # a segment waits to be swapped in
        salvage(str(log_dir / str(TP)), str(log_dir.parent / "salvaged"))


def _settle(log_dir: Path) -> None:
    """What is waiting is looked at, then brought into order."""
    partition = PartitionDir(FILES, str(log_dir / str(TP)))
    with contextlib.suppress(CleanerdError):
        for group in read_manifests(partition):
            with contextlib.suppress(SourceChanged):
                revalidate(partition, group)
    for is_kafka in (True, False):
        recover(partition, is_kafka=is_kafka)


READERS: tuple[Callable[[Path], object], ...] = (
    _choose_and_plan,
    _retain,
    _read,
    _verify,
    _look,
    _consume,
    lambda log_dir: find_metadata(FILES, [str(log_dir)], str(log_dir)),
    _salvage,
    _settle,  # the last one: it changes something
)


def _read_by_all(exchanged: Path, stop_at: str, data: bytes, directory: Path) -> None:
    log_dir, refusal = _laid_out(directory, _made(stop_at), exchanged, data), None
    for read in READERS:
        try:
            read(log_dir)
        except (InternalError, Fatal):
            raise
        except CleanerdError as error:
            if str(directory) not in str(error):
                raise AssertionError(f"names no file: {error}") from error
            refusal = error
    if refusal is not None:
        raise refusal


def load_kernels() -> None:
    """Have every reader go over a sound directory once, in this process."""
    made = _made("")
    with tempfile.TemporaryDirectory() as directory:
        for read in READERS:
            read(_laid_out(Path(directory, "input"), made, _files(made)[-1], _files(made)[-1].read_bytes()))


def _a_file(ending: str, mutate: Mutate = mutated, stop_at: str = "") -> Target:
    """The file of the log directory whose name ends like this, the first one that holds something."""

    def file() -> Path:
        found = _files(_made(stop_at))
        return next(path for path in found if path.name.endswith(ending) and path.stat().st_size)

    return Target(
        lambda: (file().read_bytes(),),
        lambda data, directory: _read_by_all(file(), stop_at, data, directory),
        mutate,
        names_file=True,
        cost=60,
        is_sound=stop_at != _MID_COMMIT,
    )


def _batches_of(data: bytes) -> list[bytes]:
    return [data[start : start + size] for start, size, _ in iterate_batches(data)]


def _whole_segment(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """Its batches, some of them spoilt behind their CRC."""
    (data,) = valid
    return spoilt(rng, _batches_of(data), 1.0)


# -- what is not in a log directory ------------------------------------------------------------------------------------


def _metadata(name: str, data: bytes, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / name).write_bytes(data)
    tail = MetadataTail(FILES, [str(directory)])
    tail.has_changed()
    tail.has_changed()
    read_metadata(FILES, str(directory))


def _metadata_target(name: str, whole: bytes, batches: Sequence[bytes]) -> Target:
    def mutate(rng: random.Random, valid: Sequence[bytes]) -> bytes:
        return batches_mutated(rng, batches) if rng.random() < 0.5 else mutated(rng, valid)

    return Target(lambda: (whole,), partial(_metadata, name), mutate, names_file=True, cost=8)


def _valid_history() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "history.db")
        history = _history(path)
        for number in range(50):
            history.record(
                HistoryEvent(time_ms=number, kind="cleaning", outcome="committed", topic="t", partition=0)
            )
            history.put(HOLD, f"h{number}", {"pattern": "t", "reason": "x" * 100})
        history.close()
        return (path.read_bytes(),)


def _history(path: Path) -> Store:
    return Store(str(path))


def _open_history(data: bytes, directory: Path) -> None:
    """Never an error: the daemon goes on without it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    path = directory / "history.db"
    path.write_bytes(data)
    history = _history(path)
    history.record(HistoryEvent(time_ms=1, kind="cleaning", outcome="committed", topic="t", partition=0))
    history.events("t*", 100, None, ["cleaning"])
    history.all(HOLD, TypeAdapter(Hold).validate_python)
    history.prune(5, 1 << 30)
    history.close()


def _configure(data: bytes, directory: Path) -> None:
    path = directory / "server.properties"
    path.write_bytes(data)
    resolve(read_sources(str(path)))


def _properties() -> tuple[bytes, ...]:
    return (b"log.dirs=/a\nlog.cleaner.threads=2\nlog.retention.hours=5\ncleanerd.scan.interval.ms=500\n",)


TARGETS = {
    "file log": _a_file(".log", _whole_segment),
    "file offset index": _a_file(".index"),
    "file time index": _a_file(".timeindex"),
    "file txn index": _a_file(".txnindex"),
    "file producer snapshot": _a_file(".snapshot"),
    "file leader epochs": _a_file(names.LEADER_EPOCH_CHECKPOINT),
    "file partition.metadata": _a_file(names.PARTITION_METADATA),
    "file generation": _a_file(names.GENERATION),
    "file meta.properties": _a_file(names.META_PROPERTIES),
    **{f"file {name}": _a_file(name) for name in _CHECKPOINTS},
    "staged manifest": _a_file(".manifest.cleanerd", json_mutated, _STAGED),
    "staged log": _a_file(".log.cleanerd", _whole_segment, _STAGED),
    "log in mid commit": _a_file(".log.swap", _whole_segment, _MID_COMMIT),
    "manifest in mid commit": _a_file(".manifest.cleanerd", json_mutated, _MID_COMMIT),
    "metadata log": _metadata_target(f"{0:020d}.log", b"".join(CLUSTER_LOG), CLUSTER_LOG),
    "metadata snapshot": _metadata_target(f"{4:020d}-0000000003.checkpoint", SNAPSHOT, _batches_of(SNAPSHOT)),
    "history": Target(_valid_history, _open_history, cost=100),
    "configuration": Target(_properties, _configure, refusals=(BadConfiguration,), cost=20),
}
