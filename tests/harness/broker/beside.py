"""A broker with two log directories, a daemon beside it, clients of all kinds, and everything that can happen to them."""

import json
import random
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cleanerd.format.record import Record
from tests.harness.broker.kafka import NOT_OF_LOGS, KafkaBroker
from tests.harness.broker.live import (
    COMPACT,
    COMPACT_DELETE,
    DAEMON,
    EVENTS,
    PATIENCE_S,
    create_elsewhere,
    fixed_ports,
    home,
)
from tests.harness.broker.tools import READ_COMMITTED, offset_checkpoint, read_all, run_cleanerd, served_from
from tests.harness.broker.traffic import Groups, Ledger, Traffic, Transactions
from tests.harness.broker.workload import TIMEOUT_S, alter_config, create_topics, delete_records
from tests.harness.daemon.processes import DaemonProcess, wait_until

RATIO = "min.cleanable.dirty.ratio"
CHECKPOINT = "cleaner-offset-checkpoint"
STAGED_S = 180.0
READS_MAX = 20
BREATH_S = 1.5
PARTIES = ("billing", "search", "audit")

TOPICS: Mapping[str, Mapping[str, str]] = {
    "accounts": COMPACT,
    "sessions": {**COMPACT, "delete.retention.ms": "1"},
    "payments": {**COMPACT, "delete.retention.ms": "1"},
    "shared": {**COMPACT, RATIO: "0.0"},
    "flips": COMPACT,
    "reborn": COMPACT,
    "moved": COMPACT,
    "bounded": {**COMPACT_DELETE, "retention.bytes": "65536"},
    "events": {**EVENTS, "retention.bytes": "65536"},
}
"""All with one partition; the broker's own cleaner takes `shared` only."""
INTERNAL = ("__consumer_offsets", "__transaction_state")
BROKER = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "3000"}
"""Retention begins when the cleaner is there: else it may resume what it has not paused, and the broker complains."""
OWN_CLEANER = {**BROKER, "log.cleaner.min.cleanable.ratio": "0.0"}

COMPLAINT = re.compile(r"ERROR |FATAL |.*(Exception|Error)\b")
ALLOWED = re.compile(rf"ERROR .*({NOT_OF_LOGS})|.*NoSuchFileException: .*-future/\d{{20}}\.snapshot")
"""The latter: a flush that was scheduled for a future replica finds its directory renamed, once the replica has moved."""


class World:
    """The processes, the clients and their model."""

    def __init__(self, root: Path, seed: int, *, swaps: bool = False) -> None:
        """`swaps`: the broker is asked to swap each result; else results wait until it stops."""
        self.swaps = swaps
        self.rng = random.Random(seed)
        self.log_dirs = (root / "a", root / "b")
        self._root = root
        self._ports = fixed_ports(2)
        self._said: list[str] = []
        self.broker = self._new_broker("broker", BROKER)
        self.bootstrap = f"127.0.0.1:{self._ports[0]}"
        settings = {
            **DAEMON,
            "cleanerd.commit.live": "auto" if swaps else "off",
            "cleanerd.staged.min.free.ratio": "0.01",  # how full the machine's disk is has no part in this
        }
        self.daemon = DaemonProcess(root / "daemon", list(self.log_dirs), settings, {})
        self.ledgers = {
            topic: Ledger(topic, self.bootstrap, random.Random(f"{seed} {topic}")) for topic in TOPICS
        }
        self.traffic = Traffic(self.ledgers)

    def open(self) -> None:
        """Start everything but the traffic."""
        self.broker.start()
        create_topics(self.broker.admin(), TOPICS)
        self.groups = Groups(self.bootstrap, PARTIES, list(TOPICS))
        self.groups.commit()
        self.transactions = Transactions(self.ledgers["payments"], self.bootstrap)
        for topic in INTERNAL:
            alter_config(
                self.broker.admin(), topic, {"internal.segment.bytes": COMPACT["internal.segment.bytes"]}
            )
        self.daemon.start()

    def close(self) -> None:
        if self.broker.pid is not None:
            self.broker.kill()
        self.daemon.kill()

    # -- the broker and the daemon ---------------------------------------------------------------------------------

    def stop_broker(self, *, kill: bool = False) -> None:
        """End it, and keep what it said."""
        (self.broker.kill if kill else self.broker.stop)()
        self._said += self.broker.messages()

    def own_cleaner(self) -> None:
        """Start the stopped broker with its cleaner on for every topic."""
        self.broker = self._new_broker("own", OWN_CLEANER)
        self.broker.start()
        alter_config(self.broker.admin(), "accounts", {RATIO: "0.0"})

    def commit(self) -> None:
        """As ExecStartPre= of the broker's unit does."""
        self.daemon.ctl("commit", "--wait", "--timeout", "60")

    def complaints(self) -> list[str]:
        lines = self._said + (self.broker.messages() if self.broker.pid is not None else [])
        return [line for line in lines if COMPLAINT.match(line) and not ALLOWED.match(line)]

    def has_cleaner_thread(self) -> bool:
        """Whether `kafka-log-cleaner-thread-0` lives; the kernel keeps 15 characters of a name."""
        names = [path.read_text() for path in Path(f"/proc/{self.broker.pid}/task").glob("*/comm")]
        return names.count("kafka-log-clean\n") == int(self.broker.properties["log.cleaner.threads"])

    def _new_broker(self, name: str, properties: Mapping[str, str]) -> KafkaBroker:
        broker, controller = self._ports
        return KafkaBroker(self._root / name, self.log_dirs, properties, ports=(broker, controller))

    # -- looking ---------------------------------------------------------------------------------------------------

    def first_dirty_offset(self, topic: str) -> int:
        """As the checkpoint of its directory tells; 0 without an entry."""
        log_dir = home(topic, self.log_dirs)
        assert log_dir is not None
        return offset_checkpoint(log_dir / CHECKPOINT).get(f"{topic}-0", 0)

    def wait_staged(self, topic: str) -> None:
        """Until a result waits, or has been swapped in."""
        before = self.first_dirty_offset(topic)

        def is_staged() -> bool:
            if self.swaps:
                return self.first_dirty_offset(topic) > before
            return bool(self.daemon.log(f"{topic}-0")["state"] == "staged")

        wait_until(is_staged, STAGED_S, self.daemon.output)

    def history(self, pattern: str = "*") -> list[dict[str, Any]]:
        found = self.daemon.ask("history", pattern, "--limit", "10000")["events"]
        return list(found)[::-1]

    def check(self) -> None:
        """Every topic and group against the model, while nobody writes and no transaction is open."""
        with self.traffic.still():
            self._wait_stable()
            log_starts, seen = self._read()
            for topic, ledger in self.ledgers.items():
                ledger.check(seen[topic], log_starts[topic])
            self.groups.check()

    def verify(self) -> list[dict[str, Any]]:
        """Errors that `cleanerd verify` finds in the directories."""
        done = run_cleanerd("verify", "-o", "json", *(f"--log-dir={log_dir}" for log_dir in self.log_dirs))
        return [row for row in json.loads(done.stdout)["findings"] if row["severity"] == "error"]

    def _read(self) -> tuple[dict[str, int], dict[str, list[Record]]]:
        """Log start offsets and what consumers see, between two moves of retention."""
        for _ in range(READS_MAX):
            before = {topic: self._log_start(topic) for topic in TOPICS}
            seen = read_all(self.broker, list(TOPICS), READ_COMMITTED)
            if before == {topic: self._log_start(topic) for topic in TOPICS}:
                return before, seen
        raise AssertionError("retention never rests")

    def _wait_stable(self) -> None:
        """Until the last marker is written: a commit is answered before."""
        admin = self.broker.admin()

        def end(level: IsolationLevel) -> int:
            asked = {TopicPartition("payments", 0): OffsetSpec.latest()}
            found = admin.list_offsets(asked, isolation_level=level, request_timeout=TIMEOUT_S)
            return int(next(iter(found.values())).result(TIMEOUT_S).offset)

        wait_until(
            lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED), PATIENCE_S
        )

    def _log_start(self, topic: str) -> int:
        return served_from(self.bootstrap, topic)

    # -- what happens ----------------------------------------------------------------------------------------------

    def over_a_restart(self, restart: Callable[[], None]) -> None:
        """With a transaction open before and ended after; then everything is still there."""
        self.transactions.write()
        restart()
        self.end_transaction()
        self.check()

    def end_transaction(self) -> None:
        self.transactions.write()
        commit = self.rng.random() < 0.6
        self.transactions.end(commit=commit)

    def breathe(self) -> None:
        """Let clients and both cleaners work for a moment."""
        self.groups.commit()
        self.end_transaction()
        threading.Event().wait(BREATH_S)

    def restart_cleanly(self) -> None:
        self.stop_broker()
        self.commit()
        self.broker.start()

    def kill_broker(self) -> None:
        """SIGKILL, and an immediate start without any hook."""
        self.stop_broker(kill=True)
        self.broker.start()

    def kill_while_committing(self) -> None:
        """The daemon dies while it commits, the broker starts at once."""
        self.stop_broker()
        threading.Event().wait(self.rng.random() * 0.4)
        self.daemon.kill()
        self.broker.start()
        self.daemon.start()

    def kill_daemon_at_work(self) -> None:
        """SIGKILL and a new one, under a living broker."""
        self.daemon.kill()
        self.daemon.start()

    def recreate(self) -> None:
        """The same name, another topic, in the other directory."""
        with self.traffic.without("reborn") as ledger:
            create_elsewhere(self.broker.admin(), "reborn", self.log_dirs)
            ledger.restart()

    def move(self) -> None:
        from kafka.admin import KafkaAdminClient  # slow

        before = home("moved", self.log_dirs)
        target = next(path for path in self.log_dirs if path != before)
        client = KafkaAdminClient(bootstrap_servers=[self.bootstrap])
        try:
            client.alter_replica_log_dirs({("moved", 0, 1): str(target)})
        finally:
            client.close()
        wait_until(
            lambda: home("moved", self.log_dirs) == target,
            PATIENCE_S,
            lambda: "\n".join(self.broker.messages()),
        )

    def delete_records(self) -> None:
        """Of a topic that retention shortens as well."""
        offsets = sorted(self.ledgers["bounded"].written)
        start = self._log_start("bounded")
        kept = [offset for offset in offsets if offset >= start]
        delete_records(self.broker.admin(), "bounded", kept[len(kept) // 3])

    def flip_policy(self) -> None:
        """From compact to delete while a result waits: the commit must not compact."""
        admin = self.broker.admin()
        self.wait_staged("flips")
        alter_config(admin, "flips", {"cleanup.policy": "delete"})
        since = len(self.history("flips-0"))
        self.over_a_restart(self.restart_cleanly)
        commits = [event for event in self.history("flips-0")[since:] if event["kind"] == "commit"]
        assert {event["outcome"] for event in commits} <= {"dropped"}, commits
        alter_config(self.broker.admin(), "flips", {"cleanup.policy": "compact"})

    def race(self) -> None:
        """The broker's cleaner and ours at the same log at once."""
        alter_config(self.broker.admin(), "accounts", {RATIO: "0.0"})
        for _ in range(4):
            for topic in ("shared", "accounts"):
                self.daemon.ctl("clean", f"{topic}-0", check=False)
            threading.Event().wait(BREATH_S)
        alter_config(self.broker.admin(), "accounts", {RATIO: "1.0"})

    def mute(self) -> None:
        """The broker's cleaner is kept away, and let in again."""
        self.daemon.ctl("mute", "shared")
        self.wait_staged("shared")
        self.daemon.ctl("unmute", "shared")
        assert self.daemon.ask("status")["status"]["muted"] == []

    def hold(self) -> None:
        """What is paused is neither cleaned nor committed, over a restart; what is aborted starts again."""
        self.daemon.ctl("abort", "*", check=False)
        self.daemon.ctl("pause", "accounts", "--reason", "story", "--timeout", "80s")
        since = len(self.history("accounts-0"))
        self.over_a_restart(self.restart_held)
        found = [event for event in self.history("accounts-0")[since:] if event["outcome"] == "committed"]
        assert not found, found
        self.daemon.ctl("resume", "accounts")

    def restart_held(self) -> None:
        """Stop and start; `commit --wait` does not wait for what is held."""
        self.stop_broker()
        self.daemon.ctl("commit", "--wait", "--timeout", "60", check=False)
        self.broker.start()

    def reload(self) -> None:
        self.daemon.configure(**{"cleanerd.scan.interval.ms": self.rng.choice((300, 500, 800))})
        self.daemon.ctl("reload")
