"""`python -m tests.bench.busy_day OUTPUT`: a busy day of three brokers, compressed: what cleaning costs and what it leaves.

The same traffic (`tests.bench.day_load`: an open loop at a fixed rate with acks=all, several compacted topics, keys that
come and go, and a group that reads everything) goes through three modes, one after the other, each on a new cluster:

=========  ==============================================================================================================
mode       who cleans
=========  ==============================================================================================================
kafka      the brokers' own cleaners
restart    one cleanerd beside each broker, niced as its unit is; the topics are muted; each broker restarts once in the time
install    the same without restarts: results are installed by reassignment
=========  ==============================================================================================================

Time and sizes are compressed: segments of 2 MiB stand for those of 1 GiB, so that they roll and are cleaned as often in the
minutes of a mode as in a day. What an install or a cleaning costs whatever the size is (a claim of two seconds, a task of
Spark) is not compressed, so that cleanerd looks worse here than in a day.

Written to OUTPUT: `<mode>.json` (a row a second), `summary.json`, `summary.md`, `busy_day.png` (with the extra `bench`).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench import day_plot
from tests.bench.day_load import PARTITIONS, TOPICS
from tests.broker.cluster import NODES, KafkaCluster
from tests.daemon.processes import ROOT, DaemonProcess, environment

MODES = ("kafka", "restart", "install")
WARM_S = 90.0
"""Left out of the summary: virtual machines warm up, and nothing is there to be cleaned yet."""
SEGMENT_BYTES = 2 << 20
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "delete.retention.ms": "60000",
    "file.delete.delay.ms": "2000",
    "min.insync.replicas": "2",
}
BROKER = {
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "1000",
    "log.segment.delete.delay.ms": "2000",
    "replica.lag.time.max.ms": "10000",
    "replica.fetch.wait.max.ms": "500",
    "broker.session.timeout.ms": "9000",
    "offsets.topic.num.partitions": "3",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "10",
}
JVM = ("-Xmx320m", "-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC")
"""As a broker runs, but for the size of its heap: the tests' own options are for a quick start."""
NICE = 10


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.busy_day", description=__doc__.splitlines()[0]
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0, help="for each mode; default: 20")
    parser.add_argument("--rate", type=int, default=1000, help="records of 1 kB a second; default: 1000")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for mode in options.mode or MODES:
        found = run(mode, options)
        (options.output / f"{mode}.json").write_text(json.dumps(found) + "\n")
    report(options.output)


def run(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One mode on a cluster of its own: a summary, the rows, and when each broker was restarted."""
    root = options.output.absolute() / f"cluster-{mode}"
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster(root, BROKER, jvm_options=JVM))
        create_topics(cluster, is_muted=mode != "kafka")
        nodes = () if mode == "kafka" else NODES
        daemons = {node: stack.enter_context(cleanerd(cluster, node, mode, root)) for node in nodes}
        consumer = Client("consume", cluster, root, options)
        producer = Client("produce", cluster, root, options)
        clients = (stack.enter_context(consumer), stack.enter_context(producer))
        restarts = Restarts(cluster, daemons, 60 * options.minutes if mode == "restart" else None)
        rows = list(sampled(cluster, daemons, clients, restarts, 60 * options.minutes))
        found = producer.ended() | consumer.ended()
        outcomes = [outcome for daemon in daemons.values() for outcome in install_outcomes(daemon)]
    found |= {
        "installs": outcomes.count("installed"),
        "installs_otherwise": len(outcomes) - outcomes.count("installed"),
    }
    due_s, took_ms = np.load(root / "produce.npy").T
    add_latencies(rows, due_s, took_ms)
    settings = {"minutes": options.minutes, "rate": options.rate, "seed": options.seed}
    restarted = [round(at_s, 1) for at_s in restarts.done_s]
    return {
        "mode": mode,
        **settings,
        "restarts_s": restarted,
        "summary": summary(rows, due_s, took_ms) | found,
        "rows": rows,
    }


def create_topics(cluster: KafkaCluster, *, is_muted: bool) -> None:
    """All topics, on all brokers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    config = TOPIC | ({"min.cleanable.dirty.ratio": "1.0"} if is_muted else {})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, len(NODES), config=config) for topic in TOPICS])
    for topic in made.values():
        topic.result(60)


@contextmanager
def cleanerd(cluster: KafkaCluster, node: int, mode: str, root: Path) -> Iterator[DaemonProcess]:
    """One daemon beside a broker."""
    settings = {
        "cleanerd.kafka.bootstrap.servers": cluster.bootstrap,
        "cleanerd.min.cleanable.dirty.ratio": "0.5",
        "cleanerd.install": "reassign" if mode == "install" else "restart",
        "cleanerd.install.min.reclaim.bytes": str(SEGMENT_BYTES),
        "log.cleaner.threads": "1",
        "log.cleaner.backoff.ms": "1000",
        "cleanerd.scan.interval.ms": "1000",
    }
    directory = root / f"cleanerd-{node}"
    directory.mkdir()
    daemon = DaemonProcess(directory, [cluster.log_dir(node)], settings, topics={})
    daemon.start()
    assert daemon.process is not None
    for process in tree(daemon.process.pid):  # before Spark starts, which inherits it
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), os.nice(0) + NICE)
    try:
        yield daemon
    finally:
        with suppress(subprocess.TimeoutExpired):
            daemon.stop(timeout_s=60)
        if daemon.process.poll() is None:
            daemon.process.kill()


def install_outcomes(daemon: DaemonProcess) -> list[str]:
    """Of all installs that have ended."""
    events = [event for event in daemon.events() if event["event"] == "install"]
    return [str(event["outcome"]) for event in events if event["outcome"] != "running"]


class Client:
    """A process of `day_load`."""

    def __init__(self, what: str, cluster: KafkaCluster, root: Path, options: argparse.Namespace) -> None:
        self._output = root / what
        self._arguments = [
            what,
            cluster.bootstrap,
            str(self._output),
            f"--rate={options.rate}",
            f"--seed={options.seed}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Client":
        arguments = [sys.executable, "-m", "tests.bench.day_load", *self._arguments]
        self._process = subprocess.Popen(arguments, cwd=ROOT, env=environment())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    def ended(self) -> dict[str, Any]:
        """What it has measured in the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(600) == 0
        return dict(json.loads(self._output.with_suffix(".json").read_text()))


class Restarts:
    """Each broker is restarted once, at equal distances; what is staged is committed while it is down."""

    def __init__(
        self, cluster: KafkaCluster, daemons: dict[int, DaemonProcess], seconds: float | None
    ) -> None:
        self.done_s: list[float] = []
        self._cluster, self._daemons = cluster, daemons
        step_s = 0.0 if seconds is None else seconds / (len(NODES) + 1)
        self._due = [] if seconds is None else [(step_s * (i + 1), node) for i, node in enumerate(NODES)]
        self._pool = ThreadPoolExecutor(1)
        self._running: list[Future[None]] = []

    def look(self, now_s: float) -> None:
        """Begin the next if it is due. Raises what the last one has ended with."""
        for one in self._running:
            if one.done():
                one.result()
        if self._due and now_s >= self._due[0][0]:
            self.done_s.append(now_s)
            self._running.append(self._pool.submit(self._restart, self._due.pop(0)[1]))

    def _restart(self, node: int) -> None:
        broker = self._cluster.brokers[node]
        broker.stop()
        self._daemons[node].ctl("commit", "--wait", "--timeout", "60", check=False)
        broker.start()


def sampled(
    cluster: KafkaCluster,
    daemons: dict[int, DaemonProcess],
    clients: Sequence[Client],
    restarts: Restarts,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """A row a second."""
    cpu = {"brokers": Cpu(), "cleanerd": Cpu(), "clients": Cpu()}
    began_s, number = time.monotonic(), 0
    while (now_s := time.monotonic() - began_s) < seconds:
        restarts.look(now_s)
        pids = {
            "brokers": [broker.pid for broker in cluster.brokers.values()],
            "cleanerd": [daemon.process.pid for daemon in daemons.values() if daemon.process is not None],
            "clients": [*(client.pid for client in clients), os.getpid()],
        }
        yield {
            "seconds": round(now_s, 2),
            "at_s": time.monotonic(),
            "disk_bytes": sum(used_bytes(cluster.log_dir(node)) for node in NODES),
            **{
                f"{name}_cpu_s": used.seconds(pids[name], is_tree=name == "cleanerd")
                for name, used in cpu.items()
            },
            "machine_cpu_s": round(busy_s(), 2),
        }
        number += 1
        threading.Event().wait(max(number - (time.monotonic() - began_s), 0.0))


def used_bytes(log_dir: Path) -> int:
    """Blocks of all files of a broker, each once: what is linked twice takes its room once."""
    found: dict[int, int] = {}
    for top in (log_dir, *log_dir.parent.glob(".cleanerd-install-*")):
        for parent, _, names in os.walk(top):
            for name in names:
                with suppress(FileNotFoundError):
                    stat = os.stat(os.path.join(parent, name))
                    found[stat.st_ino] = 512 * stat.st_blocks
    return sum(found.values())


def busy_s() -> float:
    """CPU seconds that all of this machine has used."""
    used = psutil.cpu_times()
    return float(sum(used) - used.idle - used.iowait - used.guest - used.guest_nice)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it has begun."""
    with suppress(psutil.NoSuchProcess):
        return [parent := psutil.Process(pid), *parent.children(recursive=True)]
    return []


class Cpu:
    """CPU seconds of processes, of those that have ended, too; children that were waited for are in their parents' time."""

    def __init__(self) -> None:
        self._by_pid: dict[int, float] = {}

    def seconds(self, pids: Iterable[int | None], *, is_tree: bool) -> float:
        """Used so far."""
        for pid in filter(None, pids):
            total_s = 0.0
            for one in tree(pid)[: None if is_tree else 1]:
                with suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    total_s += times.user + times.system
                    total_s += times.children_user + times.children_system if is_tree else 0.0
            self._by_pid[pid] = max(total_s, self._by_pid.get(pid, 0.0))
        return round(sum(self._by_pid.values()), 2)


def add_latencies(
    rows: list[dict[str, Any]], due_s: "np.ndarray[Any, Any]", took_ms: "np.ndarray[Any, Any]"
) -> None:
    """Percentiles of the records that were due in the ten seconds up to each row, ms."""
    order = np.argsort(due_s)
    due_s, took_ms = due_s[order], took_ms[order]
    for row in rows:
        first, last = np.searchsorted(due_s, (row["at_s"] - 10, row["at_s"]))
        values = np.percentile(took_ms[first:last], (50, 99, 99.9)) if last > first else [None] * 3
        for name, value in zip(("p50_ms", "p99_ms", "p999_ms"), values, strict=True):
            row[name] = None if value is None else round(float(value), 2)


def summary(
    rows: list[dict[str, Any]], due_s: "np.ndarray[Any, Any]", took_ms: "np.ndarray[Any, Any]"
) -> dict[str, Any]:
    """What the rows come to, without the time that it takes to get warm."""
    warm = [row for row in rows if row["seconds"] >= min(WARM_S, rows[-1]["seconds"] / 2)]
    first, last = warm[0], warm[-1]
    seconds = last["seconds"] - first["seconds"]
    cores = {
        name: (last[f"{name}_cpu_s"] - first[f"{name}_cpu_s"]) / seconds
        for name in ("brokers", "cleanerd", "clients", "machine")
    }
    there = took_ms[(due_s >= first["at_s"]) & (due_s <= last["at_s"])]
    p50, p99, p999 = np.percentile(there, (50, 99, 99.9))
    disk = [row["disk_bytes"] for row in warm]
    return {
        "seconds": seconds,
        "records": len(there),
        "disk_mean_bytes": sum(disk) // len(disk),
        "disk_max_bytes": max(disk),
        "disk_last_bytes": disk[-1],
        "brokers_cores": cores["brokers"],
        "cleanerd_cores": cores["cleanerd"],
        "clients_cores": cores["clients"],
        "others_cores": cores["machine"] - cores["brokers"] - cores["cleanerd"] - cores["clients"],
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "p999_ms": float(p999),
        "max_ms": float(there.max()),
    }


def report(output: Path) -> None:
    """Table and picture of all modes that were measured."""
    found = [json.loads(path.read_text()) for mode in MODES if (path := output / f"{mode}.json").exists()]
    summaries = {one["mode"]: {k: v for k, v in one.items() if k != "rows"} for one in found}
    (output / "summary.json").write_text(json.dumps(summaries, indent=2) + "\n")
    table = day_plot.table(found)
    (output / "summary.md").write_text(table)
    print(table)
    try:
        day_plot.draw(found, output / "busy_day.png")
    except ImportError:
        print("no picture without matplotlib: pip install '.[bench]'", file=sys.stderr)


if __name__ == "__main__":
    main()
