"""A broker and cleanerd in containers that share a volume: what is written, what is cleaned, and who was started when."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cleanerd.format.names import RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT
from tests.harness.broker.tools import offset_checkpoint
from tests.harness.daemon.processes import wait_until
from tests.harness.programs import run
from tests.operate.store import Store

TOPIC, KEYS, VALUE_BYTES, SEGMENT_BYTES = "orders", 7, 1000, 1 << 20
ROWS = 3 * SEGMENT_BYTES // VALUE_BYTES + 100
QUICK = {
    "cleanerd.scan.interval.ms": "500",
    "cleanerd.min.cleanable.dirty.ratio": "0.0",
    "cleanerd.broker.cleaner.grace.ms": "0",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "1.0",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
}
"""Added to the broker's configuration: cleanerd cleans at once, the broker's own cleaner never (rule 1.21)."""

START_S, CLEANED_S, SOON_S = 180.0, 300.0, 120.0


@dataclass
class SideBySide:
    """Containers by their role, the directory of the logs on this machine, and the newest number of each key."""

    store: Store
    cleanerd: str
    commit: str
    kafka: str
    logs: Path
    written: dict[str, str] = field(default_factory=dict)
    told: int = 0

    def client(
        self, *words: object, given: str = "", check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """A client of the broker, in its network (`tests.operate.within`): no JVM is started for it."""
        network = ("nsenter", f"--net=/proc/{self.store.inspect(self.kafka, '.State.Pid')}/ns/net")
        return run(*network, sys.executable, "-m", "tests.operate.within", *words, given=given, check=check)

    def wait_for_the_broker(self) -> None:
        """Until it answers."""
        wait_until(lambda: self.client("answers", check=False).returncode == 0, START_S, self.say)

    def create(self) -> None:
        self.client("create", TOPIC, "cleanup.policy=compact", f"segment.bytes={SEGMENT_BYTES}")

    def write(self, count: int = ROWS) -> None:
        """Records, the same keys again and again; by default three segments and some more."""
        first = self.told
        self.told += count
        rows = [(f"key {number % KEYS}", f"{number:0{VALUE_BYTES}}") for number in range(first, self.told)]
        self.client("write", TOPIC, given=json.dumps(rows))
        self.written |= dict(rows)

    def read(self) -> dict[str, str]:
        newest: dict[str, str] = json.loads(self.client("read", TOPIC).stdout)
        return newest

    def assert_nothing_is_lost(self) -> None:
        """A consumer that gives up early, on a broker that has just started, is asked again."""
        wait_until(lambda: self.read() == self.written, START_S, lambda: str(len(self.written)))

    def ctl(self, *words: str, check: bool = True) -> "tuple[int, str]":
        return self.store.podman("exec", self.cleanerd, "cleanerctl", *words, check=check)

    def is_ready(self) -> bool:
        return self.ctl("status", "--timeout", "5s", check=False)[0] == 0

    def state(self) -> str:
        """Of the log, as the daemon says it."""
        code, said = self.ctl("log", f"{TOPIC}-0", "-o", "json", check=False)
        return str(json.loads(said)["logs"][0]["state"]) if code == 0 else said

    def write_until_staged(self) -> None:
        """Records that the daemon has cleaned, all at once, and whose result waits for the end of the broker."""
        self.ctl("pause", TOPIC, "--reason", "records are written")
        self.write()
        wait_until(self.may_all_be_cleaned, SOON_S, self.say)
        self.ctl("resume", TOPIC)
        wait_until(lambda: self.state() == "staged", CLEANED_S, self.say)

    def may_all_be_cleaned(self) -> bool:
        """By the broker's checkpoints: all that was written is replicated, all closed segments are flushed."""
        active = max(int(path.stem) for path in (self.logs / f"{TOPIC}-0").glob("*.log"))
        high_watermark, recovery_point = (
            offset_checkpoint(self.logs / name).get(f"{TOPIC}-0", 0)
            for name in (REPLICATION_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)
        )
        return high_watermark == self.told and recovery_point >= active

    def size(self) -> int:
        return sum(path.stat().st_size for path in (self.logs / f"{TOPIC}-0").glob("*.log"))

    def assert_in_place(self) -> None:
        """What was staged has replaced the segments: one record of each key, and the active segment."""
        assert self.size() < 2 * SEGMENT_BYTES, self.say()
        assert not list((self.logs / f"{TOPIC}-0").glob("*.cleanerd"))

    def outcomes(self) -> list[str]:
        """Of the log's commits, the oldest first."""
        said = self.ctl("history", f"{TOPIC}-0", "-o", "json")[1]
        events = json.loads(said)["events"]
        return [event["outcome"] for event in reversed(events) if event["kind"] == "commit"]

    def began(self, container: str) -> str:
        """When it was started last, as a text that sorts."""
        return self.store.inspect(container, "json .State.StartedAt")

    def ended(self, container: str) -> str:
        return self.store.inspect(container, "json .State.FinishedAt")

    def is_running(self, container: str) -> bool:
        return self.store.inspect(container, ".State.Running") == "true"

    def assert_order_of_start(self) -> None:
        """cleanerd, then what it has to commit, then the broker; nothing of it failed."""
        assert self.began(self.cleanerd) < self.began(self.commit)
        assert self.ended(self.commit) <= self.began(self.kafka)
        assert self.store.inspect(self.commit, ".State.ExitCode") == "0"
        assert "no daemon answers" not in self.said(self.commit)

    def kill(self, container: str) -> None:
        """SIGKILL to its first process, as the kernel does it when memory runs out; what restarts it is not asked."""
        psutil.Process(int(self.store.inspect(container, ".State.Pid"))).kill()

    def said(self, container: str) -> str:
        return self.store.podman("logs", container, check=False)[1]

    def say(self) -> str:
        """For a failure."""
        ends = [self.said(name)[-1500:] for name in (self.cleanerd, self.commit, self.kafka)]
        return "\n".join([self.ctl("history", f"{TOPIC}-0", check=False)[1], *ends])
