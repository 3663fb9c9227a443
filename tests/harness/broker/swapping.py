"""A broker, clients that write all the time, and `cleanerd clean` that swaps beside them."""

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import hatch_build
from cleanerd.broker_agent.brokers import LiveBrokers
from cleanerd.broker_agent.session import Session
from cleanerd.broker_agent.swap import Swap, Swapped
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.format.names import SEGMENT_KINDS, FileKind, SegmentFileName, Suffix, TopicPartition
from cleanerd.storage.checkpoints import read_leader_epochs
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import SourceSegment, StagedGroup, live_logs, write_manifest
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.live import COMPACT, PATIENCE_S, fixed_ports, warnings
from tests.harness.broker.tools import READ_COMMITTED, clean_in_process, offset_checkpoint, read_all
from tests.harness.broker.traffic import Ledger, Traffic, Transactions
from tests.harness.broker.workload import alter_config, create_topics
from tests.harness.daemon.processes import ROOT, wait_until
from tests.harness.programs import need

FILES = RealFiles()
TOPIC = "keys"
TXN_TOPIC = "payments"
QUICK = {**COMPACT, "delete.retention.ms": "1"}


def build_agent() -> None:
    """The jar of this source tree, as an installation of it has it; made again where a source is newer.

    One process at a time does so: others read the jar and its hash meanwhile.
    """
    package = Path(ROOT, "cleanerd", "broker_agent")
    sources = os.open(package / "java", os.O_RDONLY)
    try:
        fcntl.flock(sources, fcntl.LOCK_EX)
        sha256 = package / "cleanerd-agent.jar.sha256"
        made_s = sha256.stat().st_mtime if sha256.exists() else 0.0
        if max(source.stat().st_mtime for source in (package / "java").rglob("*.java")) >= made_s:
            assert hatch_build.build_agent(Path(ROOT)), "no Java compiler"
    finally:
        os.close(sources)


def asked_brokers(untested: str = "false") -> LiveBrokers:
    """That may be asked to swap."""
    settings = [("cleanerd.commit.live", "auto"), ("cleanerd.broker.agent.untested", untested)]
    config = resolve(read_sources(None, settings)).broker
    return LiveBrokers(FILES, SystemClock(), lambda: config)


def swap_words(log_dir: Path, topics: Iterable[str]) -> list[str]:
    """Options of `cleanerd clean` for topics with the settings `QUICK`, with the agent."""
    words = ["--log-dir", str(log_dir), "--set", "cleanerd.commit.live=auto"]
    for topic in topics:
        words += ["--topic", topic]
        for key, value in QUICK.items():
            words += [] if key.startswith("internal.") else ["--topic-set", f"{topic}:{key}={value}"]
    return words


def swap_command(log_dir: Path, topics: Iterable[str]) -> list[str]:
    """`cleanerd clean --force` of topics as a process; prints JSON."""
    command = [sys.executable, "-m", "cleanerd.cli.main", "clean", "--force", "-o", "json"]
    return [*command, *swap_words(log_dir, topics)]


class Swapping:
    """One broker with one log directory, its two compacted topics, and what clients were promised of them.

    In a `with` block it runs with the agent of this source tree, both topics written.
    """

    def __init__(
        self,
        root: Path,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        log_dirs: Sequence[Path] = (),
    ) -> None:
        """`log_dirs`: not `root/logs`; the first is looked at."""
        broker, controller = fixed_ports(2)
        self.strace_log = root / "strace.log"
        log_dirs = log_dirs or [root / "logs"]
        self.log_dir = log_dirs[0]
        self.broker = KafkaBroker(
            root / "broker", log_dirs, properties, ports=(broker, controller), jvm_options=jvm
        )
        self.ledgers = {
            topic: Ledger(topic, f"127.0.0.1:{broker}", random.Random(topic)) for topic in (TOPIC, TXN_TOPIC)
        }
        self.traffic = Traffic(self.ledgers)

    def __enter__(self) -> "Swapping":
        build_agent()
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """With both topics, and many records in them: of one some are aborted, and a transaction stays open."""
        self.broker.start()
        create_topics(self.broker.admin(), dict.fromkeys(self.ledgers, QUICK))
        self.transactions = Transactions(self.ledgers[TXN_TOPIC], self.broker.bootstrap)
        self.write(120)
        self.transactions.write()

    def write(self, rounds: int) -> None:
        """To both topics; ends the transaction that is open, and aborts each second one."""
        for number in range(rounds):
            for ledger in self.ledgers.values():
                ledger.send()
            if number % 3 == 0:
                self.transactions.write()
                self.transactions.end(commit=number % 2 == 0)
        for ledger in self.ledgers.values():
            ledger.flush()

    def close(self) -> None:
        if self.broker.pid is not None:
            self.broker.kill()

    def directory(self, topic: str = TOPIC) -> Path:
        """Of partition 0."""
        return self.log_dir / f"{topic}-0"

    def first_dirty_offset(self, topic: str) -> int:
        """0 without an entry."""
        return offset_checkpoint(self.log_dir / "cleaner-offset-checkpoint").get(f"{topic}-0", 0)

    def clean(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """`cleanerd clean --force` with the agent; results by topic."""
        done = clean_in_process(*swap_words(self.log_dir, self.ledgers), *arguments)
        return {row["topic"]: row for row in json.loads(done.stdout)["results"]}

    def check(self) -> None:
        """What consumers of committed records see, against what they were promised."""
        with self.traffic.still():
            seen = read_all(self.broker, [*self.ledgers], READ_COMMITTED)
            for topic, ledger in self.ledgers.items():
                ledger.check(seen[topic], 0)

    def complaints(self) -> list[str]:
        """Warnings and errors of the broker since its last start."""
        return [line for line in warnings(self.broker) if "`log.cleaner.enable` is deprecated" not in line]

    def let_own_cleaner_go_on(self) -> None:
        """Until it has taken both logs."""
        before = {topic: self.first_dirty_offset(topic) for topic in self.ledgers}
        for topic in self.ledgers:
            alter_config(self.broker.admin(), topic, {"min.cleanable.dirty.ratio": "0.0"})
        wait_until(
            lambda: all(self.first_dirty_offset(topic) > offset for topic, offset in before.items()),
            PATIENCE_S,
            lambda: f"{before} {self.broker.troubles()}",
        )
        for topic in self.ledgers:
            alter_config(self.broker.admin(), topic, {"min.cleanable.dirty.ratio": "1.0"})

    def check_in_order(self) -> None:
        """As `check`, and the broker has nothing to complain of."""
        self.check()
        assert self.complaints() == []

    def errors(self) -> list[str]:
        """Its complaints that are errors."""
        return [line for line in self.complaints() if "ERROR" in line]

    def swap(self, session: Session) -> None:
        """Swap a few copies, as soon as the broker's own cleaner is not at it."""
        wait_until(lambda: self.stage_copies(groups_max=3).by(session).outcome == "swapped", 30)

    def session(self) -> Session:
        assert self.broker.pid is not None
        return Session(self.broker.pid, str(self.log_dir), FILES, SystemClock())

    @contextmanager
    def injecting(self, fault: str, calls: str, *paths: Path) -> Iterator[Path]:
        """The next of these system calls of the broker on one of the files has a fault of strace; yields its log."""
        told, pid = self.strace_log, self.broker.pid
        command = [need("strace", "strace"), "-f", "-qq", "-o", str(told), "-p", str(pid)]
        command += [word for path in paths for word in ("-P", str(path))]
        command += ["-e", f"trace={calls}", "-e", f"inject={calls}:{fault}:when=1"]
        told.write_bytes(b"")
        tracer = subprocess.Popen(command)
        wait_until(lambda: "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text(), 30)
        try:
            yield told
        finally:
            tracer.terminate()
            tracer.wait()

    def stage_copies(self, topic: str = TOPIC, groups_max: int = 1000) -> Swap:
        """`staged_copies` of one of its logs."""
        return staged_copies(self.log_dir, topic, groups_max)


def answered(swap: Swap, session: Session) -> Swapped:
    """The answer of a broker whose own cleaner, which looks at every log again and again, has left this one."""
    while (answer := swap.by(session)).outcome == "busy":
        pass
    return answer


def staged_copies(log_dir: Path, topic: str, groups_max: int = 1000) -> Swap:
    """Each segment of partition 0 but the last two is staged as a group that changes nothing."""
    partition, tp = PartitionDir(FILES, str(log_dir / f"{topic}-0")), TopicPartition(topic, 0)
    checkpoint = offset_checkpoint(log_dir / "cleaner-offset-checkpoint").get(str(tp))
    bases = live_logs(partition)[:-1][: groups_max + 1]
    before, groups = None, list[StagedGroup]()
    for base, end in pairwise(bases):
        group = _copy(partition, base, end, bases[-1], checkpoint)
        before = write_manifest(partition, group, before)
        groups.append(before)
    return Swap(partition, tp, groups, bases[-1], checkpoint, groups[-1].leader_epochs)


def _copy(
    partition: PartitionDir, base: int, end: int, round_end: int, checkpoint: int | None
) -> StagedGroup:
    sizes: dict[FileKind, int] = {}
    for kind in SEGMENT_KINDS:
        live = Path(partition.path_of(SegmentFileName(base, kind)))
        if live.exists():
            staged = Path(partition.path_of(SegmentFileName(base, kind, Suffix.STAGED)))
            shutil.copy(live, staged)
            sizes[kind] = staged.stat().st_size
    log = SegmentFileName(base, FileKind.LOG)
    return StagedGroup(
        sources=(SourceSegment.of(base, partition.stat(log)),),
        next_base_offset=end,
        round_end=round_end,
        sizes=sizes,
        log_mtime_ns=partition.stat(log.with_suffix(Suffix.STAGED)).mtime_ns,
        last_offset=end - 1 if sizes[FileKind.LOG] else -1,
        leader_epochs=tuple(read_leader_epochs(partition)),
        is_last=end == round_end,
        checkpoint=checkpoint,
    )
