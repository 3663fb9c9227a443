"""`python -m tests.bench.busy_day`: a busy day of three brokers, compressed: what their cleaning costs and what it leaves.

The same producer writes to the same topic in three modes, one after the other, each on a new cluster:

=========  ==============================================================================================================
mode       who cleans
=========  ==============================================================================================================
kafka      the brokers' own cleaners
restart    one cleanerd beside each broker; the brokers' cleaners are muted; each broker restarts once in the time
install    the same without restarts: results are installed by reassignment
=========  ==============================================================================================================

Every second a row is added to `<output>/<mode>.jsonl`: bytes of all log directories, CPU seconds of the brokers and of
cleanerd so far, and the produce latencies of that second (acks=all, p50 and p99 in ms). `summary.json` sums them up.
"""

import argparse
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.cluster import NODES, KafkaCluster
from tests.daemon.processes import DaemonProcess

MODES = ("kafka", "restart", "install")
TOPIC = "day"
PARTITIONS = 3
KEYS = 3_000
VALUE_BYTES = 500


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.busy_day", description=__doc__.splitlines()[0]
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0, help="for each mode; default: 20")
    parser.add_argument("--rate", type=int, default=2000, help="records a second; default: 2000")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    found = {mode: run(mode, options) for mode in options.mode or MODES}
    (options.output / "summary.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def run(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One mode on a cluster of its own."""
    root, rows = options.output / f"cluster-{mode}", list[dict[str, Any]]()
    is_kafka = mode == "kafka"
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster(root, {"log.cleaner.min.cleanable.ratio": "0.5"}))
        config = {"cleanup.policy": "compact", "segment.bytes": str(2 << 20)}
        config |= {} if is_kafka else {"min.cleanable.dirty.ratio": "1.0"}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=config)])[TOPIC].result(60)
        daemons = (
            [] if is_kafka else [stack.enter_context(cleanerd(cluster, node, mode, root)) for node in NODES]
        )
        traffic = stack.enter_context(Load(cluster, options.rate))
        brokers_cpu, cleanerd_cpu = Cpu(), Cpu()
        began_s, restarts = time.monotonic(), list(NODES if mode == "restart" else ())
        with (options.output / f"{mode}.jsonl").open("w") as file:
            while (now_s := time.monotonic() - began_s) < 60 * options.minutes:
                due_s = 60 * options.minutes * (len(NODES) - len(restarts) + 1) / (len(NODES) + 1)
                if restarts and now_s > due_s:
                    node = restarts.pop(0)
                    cluster.brokers[node].stop()
                    time.sleep(3)  # noqa: TID251 - the gap in which what is staged is committed
                    cluster.brokers[node].start()
                rows.append(row(now_s, cluster, traffic))
                pids = [broker.pid for broker in cluster.brokers.values()]
                rows[-1]["broker_cpu_s"] = brokers_cpu.seconds(pids)
                rows[-1]["cleanerd_cpu_s"] = cleanerd_cpu.seconds(d.process.pid for d in daemons if d.process)
                file.write(json.dumps(rows[-1]) + "\n")
                time.sleep(1)  # noqa: TID251 - a sample a second
    return summary(rows, traffic.errors)


@contextmanager
def cleanerd(cluster: KafkaCluster, node: int, mode: str, root: Path) -> Iterator[DaemonProcess]:
    """One daemon beside a broker."""
    settings = {
        "cleanerd.kafka.bootstrap.servers": cluster.bootstrap,
        "cleanerd.min.cleanable.dirty.ratio": "0.5",
        "cleanerd.install": "reassign" if mode == "install" else "restart",
        "cleanerd.install.min.reclaim.bytes": str(2 << 20),
    }
    directory = root / f"cleanerd-{node}"
    directory.mkdir()
    daemon = DaemonProcess(directory, [cluster.log_dir(node)], settings, topics={})
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


class Load:
    """A producer of so many records a second, with acks=all, and how long each took."""

    def __init__(self, cluster: KafkaCluster, rate: int) -> None:
        self.errors = 0
        self._rate = rate
        self._took_ms: list[float] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def taken_ms(self) -> list[float]:
        """Latencies since the last time of asking."""
        found, self._took_ms = self._took_ms, []
        return sorted(found)

    def _run(self) -> None:
        value, number = os.urandom(VALUE_BYTES), 0
        while not self._stopping.wait(0.01):
            for _ in range(self._rate // 100):
                began_s = time.monotonic()
                key = b"%d" % (number * 7919 % KEYS)
                self._producer.produce(
                    TOPIC,
                    value,
                    key,
                    number % PARTITIONS,
                    on_delivery=lambda e, _, s=began_s: self._done(e, s),
                )
                number += 1
            self._producer.poll(0)
        self._producer.flush(60)

    def _done(self, error: object, began_s: float) -> None:
        self.errors += error is not None
        self._took_ms.append(1000 * (time.monotonic() - began_s))


def row(now_s: float, cluster: KafkaCluster, traffic: Load) -> dict[str, Any]:
    """What is sampled."""
    took_ms = traffic.taken_ms()
    disk = {node: used_bytes(cluster.log_dir(node)) for node in NODES}
    return {
        "seconds": round(now_s, 1),
        "disk_bytes": sum(disk.values()),
        "records": len(took_ms),
        "p50_ms": round(took_ms[len(took_ms) // 2], 1) if took_ms else None,
        "p99_ms": round(took_ms[int(len(took_ms) * 0.99)], 1) if took_ms else None,
    }


def used_bytes(directory: Path) -> int:
    """Blocks of all files, each once: what is linked twice takes its room once."""
    found: dict[int, int] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                stat = os.stat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            found[stat.st_ino] = 512 * stat.st_blocks
    return sum(found.values())


class Cpu:
    """CPU seconds of processes and of their children, of those that have ended, too, as far as they were seen."""

    def __init__(self) -> None:
        self._last_s: dict[int, float] = {}
        self._total_s = 0.0

    def seconds(self, pids: Iterable[int | None]) -> float:
        """Used so far."""
        for pid in filter(None, pids):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in (parent := psutil.Process(pid), *parent.children(recursive=True)):
                    now_s = sum(one.cpu_times()[:2])
                    self._total_s += now_s - self._last_s.get(one.pid, 0.0)
                    self._last_s[one.pid] = now_s
        return round(self._total_s, 1)


def summary(rows: list[dict[str, Any]], errors: int) -> dict[str, Any]:
    """What the rows come to."""
    p99 = sorted(one["p99_ms"] for one in rows if one["p99_ms"] is not None)
    return {
        "seconds": rows[-1]["seconds"],
        "records": sum(one["records"] for one in rows),
        "errors": errors,
        "disk_bytes_mean": sum(one["disk_bytes"] for one in rows) // len(rows),
        "disk_bytes_last": rows[-1]["disk_bytes"],
        "broker_cpu_s": rows[-1]["broker_cpu_s"],
        "cleanerd_cpu_s": rows[-1]["cleanerd_cpu_s"],
        "p99_ms_median": p99[len(p99) // 2] if p99 else None,
        "p99_ms_worst": p99[-1] if p99 else None,
    }


if __name__ == "__main__":
    main()
