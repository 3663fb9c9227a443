"""`python -m tests.bench.busy_day OUTPUT`: a busy day of three brokers, compressed: what cleaning costs and what it leaves.

The same traffic (`tests.bench.day_load`: an open loop at a fixed rate with acks=all, several compacted topics, keys that
come and go, and a group that reads everything) goes through two modes, each on a cluster of its own:

=========  ==============================================================================================================
mode       who cleans
=========  ==============================================================================================================
kafka      the brokers' own cleaners
swap       one cleanerd beside each broker, niced as its unit is, which swaps segments into it; the topics are muted
=========  ==============================================================================================================

Both clusters run all the time and take turns in working: a slice of some seconds each, in another order in every round.
So whatever else the machine does falls on both alike, and the spread between rounds shows how much that is. The one
that works has the traffic and the cleaning; brokers of the other are idle, and their cleanerds are stopped.

What cleaning costs is the CPU time of the threads of Kafka's cleaner, or of all processes of cleanerd and of its agent:
brokers that clean and brokers that do not differ less than two slices of either. What collecting garbage and compiling take
for Kafka's cleaner is not in it.

Time and sizes are compressed: segments of 1 MiB stand for those of 1 GiB, so that they roll and are cleaned as often in the
minutes of a mode as in a day. What a cleaning costs whatever the size is (a task of Spark) is not compressed, so that
cleanerd looks worse here than in a day.

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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka.admin import NewTopic

from cleanerd.config.model import CleanerdConfig
from tests.bench.day_load import TOPICS, Latencies, Traffic
from tests.bench.processes import (
    KINDS,
    ProcessTree,
    busy_seconds,
    members,
    seconds_by_kind,
    thread_seconds,
)
from tests.harness.broker.cluster import NODES, KafkaCluster
from tests.harness.daemon.processes import ROOT, DaemonProcess, environment, wait_until

MODES = ("kafka", "swap")
CLIENTS = ("consume", "produce")
DRAIN_S = 5.0
SMOOTH_S = 10.0
"""The latencies of a row are those of so many seconds before it."""
OWN_CLEANER, AGENT = "kafka-log-cleaner-thread-", "cleanerd-agent"
"""Threads of a broker."""
TOPIC = {
    "cleanup.policy": "compact",
    "file.delete.delay.ms": "2000",
    "min.insync.replicas": "2",
}
BROKER = {
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "15000",  # this and the next four: the defaults, which a broker of the tests has not
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.flush.offset.checkpoint.interval.ms": "60000",
    "log.flush.start.offset.checkpoint.interval.ms": "60000",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
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
RETENTION_S = 60
"""delete.retention.ms for each MiB of a segment (17 hours for 1 GiB), of the time in which the brokers of a mode work."""
IDLE_TIMEOUT_MS = int(CleanerdConfig.model_fields["spark_idle_timeout_ms"].default)
"""cleanerd.spark.idle.timeout.ms, of the time in which it works."""
NICE = 10
NAMES = {"kafka": "Kafka's cleaner", "swap": "cleanerd, swaps"}
COLOURS = {"kafka": "#8c8c8c", "swap": "#d98200"}
CORES_S = 15
MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.busy_day", description=__doc__.splitlines()[0]
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=16, help="default: 16")
    parser.add_argument(
        "--slice", type=float, default=35.0, metavar="S", help="of a mode in a round; default: 35 s"
    )
    parser.add_argument(
        "--warm-up", type=int, default=4, metavar="ROUNDS", help="without a place in the summary; default: 4"
    )
    parser.add_argument("--rate", type=int, default=600, help="records of 1 kB a second; default: 600")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--segment-mib", type=int, default=1, help="size of segments, MiB; default: 1")
    parser.add_argument("--partitions", type=int, default=6, help="of each topic; default: 6")
    parser.add_argument("--keys", type=int, default=2_000, help="in the window of a partition; default: 2000")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        days = [stack.enter_context(Day(mode, options)) for mode in options.mode or MODES]
        for number in range(options.rounds):
            for day in days[number % len(days) :] + days[: number % len(days)]:
                day.work(number)
                print(number, day.mode, day.slices[-1], file=sys.stderr, flush=True)
        for day in days:
            (options.output / f"{day.mode}.json").write_text(json.dumps(day.ended()) + "\n")
    report(options.output)


class Day:
    """One mode: a cluster of its own, its clients, its daemons; it works while `work` runs, and at no other time.

    Brokers that do not work have no traffic; a cleanerd that does not work is stopped.
    """

    def __init__(self, mode: str, options: argparse.Namespace) -> None:
        self.mode = mode
        self.slices: list[dict[str, Any]] = []
        self._options = options
        self._traffic = Traffic(options.rate, options.partitions, options.keys, options.seed)
        self._root = options.output.absolute() / f"cluster-{mode}"
        self._worked_s = 0.0
        self._used_s = dict.fromkeys(("brokers", "cleanerd", "clients"), 0.0)
        self._rows: list[dict[str, Any]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Day":
        with ExitStack() as stack:
            self._cluster = stack.enter_context(KafkaCluster(self._root, BROKER, jvm_options=JVM))
            create_topics(self._cluster, self._options, is_muted=self.mode != "kafka")
            nodes = () if self.mode == "kafka" else NODES
            turns = turns_of(self._options)
            self._daemons = {
                node: stack.enter_context(cleanerd(self._cluster, node, self._root, turns)) for node in nodes
            }
            self._clients = [
                stack.enter_context(Client(what, self._cluster.bootstrap, self._root, self._traffic))
                for what in CLIENTS
            ]
            brokers = self._cluster.brokers.values()
            self._trees = {
                "brokers": [ProcessTree(broker.pid) for broker in brokers if broker.pid is not None],
                "cleanerd": [ProcessTree(pid_of(daemon)) for daemon in self._daemons.values()],
                "clients": [ProcessTree(client.pid) for client in self._clients],
            }
            self._freeze()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._thaw()
        self._stack.close()

    def work(self, number: int) -> None:
        """One slice: traffic for its time; then what it has left to do, without traffic."""
        self._thaw()
        work_before, before, used_before_s = self._work(), self._cpu_s(), dict(self._used_s)
        machine_s, began_s = busy_seconds(), time.monotonic()
        self._producer.send(signal.SIGUSR2)
        count = 0
        while (now_s := time.monotonic() - began_s) < self._options.slice:
            self._sample(before, used_before_s, self._worked_s + now_s)
            count += 1
            threading.Event().wait(max(count - (time.monotonic() - began_s), 0.0))
        self._producer.send(signal.SIGUSR1)
        ended_s = time.monotonic()
        others_s = busy_seconds() - machine_s - sum(self._cpu_s().values()) + sum(before.values())
        threading.Event().wait(DRAIN_S)
        self._freeze()
        work = self._work()
        self._worked_s += ended_s - began_s
        after = self._cpu_s()
        for name, used_s in after.items():
            self._used_s[name] += used_s - before[name]
        cores = {f"{name}_cores": (after[name] - before[name]) / (ended_s - began_s) for name in after}
        self.slices.append(
            {
                "round": number, "began_s": began_s, "ended_s": ended_s,
                "others_cores": others_s / (ended_s - began_s), **cores,
                "cleaning": {name: work[name] - work_before[name] for name in work},
            }
        )  # fmt: skip

    def ended(self) -> dict[str, Any]:
        """A summary, the slices and the rows."""
        self._thaw()
        found: dict[str, Any] = {}
        for client in self._clients:
            found |= client.ended()
        latencies = Latencies.load(self._root / "produce.npy")
        for row in self._rows:
            row |= percentiles(latencies.between(row["at_s"] - SMOOTH_S, row["at_s"]))
        for one in self.slices:
            one |= percentiles(latencies.between(one["began_s"], one["ended_s"]))
        return {
            "mode": self.mode,
            "rounds": self._options.rounds,
            **asdict(self._traffic),
            "summary": summary(
                self._rows, self.slices[min(self._options.warm_up, len(self.slices) - 1) :], latencies
            )
            | found,
            "slices": self.slices,
            "rows": self._rows,
        }

    @property
    def _producer(self) -> "Client":
        return self._clients[CLIENTS.index("produce")]

    def _cpu_s(self) -> dict[str, float]:
        return {name: sum(one.cpu_seconds() for one in trees) for name, trees in self._trees.items()}

    def _work(self) -> dict[str, float]:
        """CPU seconds of cleaning so far, by what took them, and the cleanings, all of the three brokers."""
        brokers = [broker for broker in self._cluster.brokers.values() if broker.pid is not None]
        if self.mode == "kafka":
            said = [line for broker in brokers for line in broker.messages()]
            seconds = sum(thread_seconds(broker.pid or 0, OWN_CLEANER) for broker in brokers)
            return {"threads": seconds, "cleanings": sum(" cleaned log " in line for line in said)}
        found = Counter[str]()
        for daemon in self._daemons.values():
            found.update(seconds_by_kind(pid_of(daemon)))
            found["cleanings"] += sum(one.get("outcome") == "committed" for one in daemon.events())
        with suppress(LookupError):  # it is not loaded yet
            found["agent"] = sum(thread_seconds(broker.pid or 0, AGENT) for broker in brokers)
        return {name: found[name] for name in (*KINDS, "agent", "cleanings")}

    def _memory_bytes(self) -> int:
        """Proportional set size of the largest daemon with all that it has begun."""
        trees = (ProcessTree(pid_of(daemon)) for daemon in self._daemons.values())
        return max((tree.pss_bytes() for tree in trees), default=0)

    def _sample(self, before: dict[str, float], used_before_s: dict[str, float], worked_s: float) -> None:
        now = self._cpu_s()
        self._rows.append(
            {
                "seconds": round(worked_s, 2),
                "at_s": time.monotonic(),
                "memory_bytes": self._memory_bytes(),
                "disk_bytes": sum(used_bytes(self._cluster.log_dir(node)) for node in NODES),
                **{f"{name}_cpu_s": used_before_s[name] + now[name] - before[name] for name in now},
            }
        )

    def _thaw(self) -> None:
        for daemon in self._daemons.values():
            signal_tree(daemon, signal.SIGCONT)

    def _freeze(self) -> None:
        for daemon in self._daemons.values():
            signal_tree(daemon, signal.SIGSTOP)


def turns_of(options: argparse.Namespace) -> float:
    """How much faster clocks go than the time of a mode: they go on while others have their turn."""
    return float(len(options.mode or MODES) * (options.slice + DRAIN_S) / options.slice)


def create_topics(cluster: KafkaCluster, options: argparse.Namespace, *, is_muted: bool) -> None:
    config = TOPIC | {"segment.bytes": str(options.segment_mib << 20)}
    config["delete.retention.ms"] = str(round(1000 * RETENTION_S * options.segment_mib * turns_of(options)))
    config |= {"min.cleanable.dirty.ratio": "1.0"} if is_muted else {}
    topics = [NewTopic(topic, options.partitions, len(NODES), config=config) for topic in TOPICS]
    admin = cluster.admin()  # the futures end with it
    for topic in admin.create_topics(topics).values():
        topic.result(60)


@contextmanager
def cleanerd(cluster: KafkaCluster, node: int, root: Path, turns: float) -> Iterator[DaemonProcess]:
    settings = {
        "cleanerd.min.cleanable.dirty.ratio": "0.5",
        "cleanerd.commit.live": "auto",
        "log.cleaner.threads": "1",
        "log.cleaner.backoff.ms": "15000",  # this and the next two: the defaults, which a daemon of the tests has not
        "cleanerd.scan.interval.ms": "30000",
        "cleanerd.retry.backoff.ms": "10000",
        "cleanerd.spark.idle.timeout.ms": str(round(turns * IDLE_TIMEOUT_MS)),
    }
    directory = root / f"cleanerd-{node}"
    directory.mkdir()
    daemon = DaemonProcess(directory, [cluster.log_dir(node)], settings, topics={})
    daemon.start()
    for process in members(pid_of(daemon)):  # before Spark starts, which inherits it
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), os.nice(0) + NICE)
    try:
        yield daemon
    finally:
        with suppress(subprocess.TimeoutExpired):
            daemon.stop(timeout_s=60)
        daemon.kill()


class Client:
    """A process of `day_load`; in a `with` block it runs."""

    def __init__(self, what: str, bootstrap: str, root: Path, traffic: Traffic) -> None:
        self._output = root / what
        command = [sys.executable, "-m", "tests.bench.day_load", what, bootstrap, str(self._output)]
        self._process = subprocess.Popen([*command, *traffic.arguments()], cwd=ROOT, env=environment())
        self.pid = self._process.pid

    def __enter__(self) -> "Client":
        wait_until(self._output.with_suffix(".ready").exists, 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> dict[str, Any]:
        """What it has measured in the end."""
        self.send(signal.SIGTERM)
        assert self._process.wait(600) == 0
        return dict(json.loads(self._output.with_suffix(".json").read_text()))


def pid_of(daemon: DaemonProcess) -> int:
    assert daemon.process is not None
    return daemon.process.pid


def signal_tree(daemon: DaemonProcess, number: int) -> None:
    """To a daemon and all that it has begun, those too that have begun meanwhile."""
    told: set[int] = set()
    while new := {one.pid for one in members(pid_of(daemon))} - told:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        told |= new


def used_bytes(log_dir: Path) -> int:
    """Blocks of all files of a broker, each once: what is linked twice takes its room once."""
    found: dict[int, int] = {}
    for parent, _, names in os.walk(log_dir):
        for name in names:
            with suppress(FileNotFoundError):
                stat = os.stat(os.path.join(parent, name))
                found[stat.st_ino] = 512 * stat.st_blocks
    return sum(found.values())


def percentiles(took_ms: "np.ndarray[Any, Any]") -> dict[str, float | None]:
    values = np.percentile(took_ms, (50, 99)).round(2) if len(took_ms) else (None, None)
    return dict(zip(("p50_ms", "p99_ms"), values, strict=True))


def summary(rows: list[dict[str, Any]], warm: list[dict[str, Any]], latencies: Latencies) -> dict[str, Any]:
    """What the rows and the slices come to that do not warm anything up."""
    seconds = [one["ended_s"] - one["began_s"] for one in warm]
    names = ("brokers_cores", "cleanerd_cores", "clients_cores", "others_cores")
    took_ms = np.concatenate([latencies.between(one["began_s"], one["ended_s"]) for one in warm])
    disk = [row["disk_bytes"] for row in rows if row["at_s"] >= warm[0]["began_s"]]
    of_rounds = sorted(one["p99_ms"] for one in warm)
    return {
        "seconds": sum(seconds),
        "records": len(took_ms),
        "disk_mean_bytes": sum(disk) // len(disk),
        "disk_max_bytes": max(disk),
        "memory_max_bytes": max(row["memory_bytes"] for row in rows),
        **{name: float(np.average([one[name] for one in warm], weights=seconds)) for name in names},
        **percentiles(took_ms),
        "p999_ms": float(np.percentile(took_ms, 99.9)),
        "max_ms": float(took_ms.max()),
        "cleaning": {name: sum(one["cleaning"][name] for one in warm) for name in warm[0]["cleaning"]},
        "p99_of_rounds_ms": [of_rounds[0], float(np.median(of_rounds)), of_rounds[-1]],
    }


def report(output: Path) -> None:
    found = [json.loads(path.read_text()) for mode in MODES if (path := output / f"{mode}.json").exists()]
    summaries = {one["mode"]: {k: v for k, v in one.items() if k != "rows"} for one in found}
    (output / "summary.json").write_text(json.dumps(summaries, indent=2) + "\n")
    text = table(found)
    (output / "summary.md").write_text(text)
    print(text)
    for one in found:
        if not one["summary"]["cleaning"]["cleanings"]:
            print(f"{NAMES[one['mode']]}: no log was cleaned after the warm-up", file=sys.stderr)
    try:
        draw(found, output / "busy_day.png")
    except ImportError:
        print("no picture without matplotlib: pip install '.[bench]'", file=sys.stderr)


def table(found: Sequence[dict[str, Any]]) -> str:
    names = [NAMES[one["mode"]] for one in found]
    rows = [
        ("disk used, mean / most, MB", lambda s: f"{s['disk_mean_bytes'] / MB:.0f} / {s['disk_max_bytes'] / MB:.0f}"),
        ("CPU of the brokers, cores", lambda s: f"{s['brokers_cores']:.2f}"),
        ("CPU of cleanerd, cores", lambda s: f"{s['cleanerd_cores']:.2f}" if s["cleanerd_cores"] else "-"),
        ("CPU of cleaning, s", lambda s: f"{cleaning_s(s):.1f}"),
        ("of that", lambda s: ", ".join(f"{name} {took:.1f}" for name, took in parts_s(s).items())),
        ("cleanings / CPU of one, ms", lambda s: " / ".join(f"{one:.0f}" for one in cleanings(s))),
        ("memory of a cleanerd at most, MiB", lambda s: str(s["memory_max_bytes"] >> 20 or "-")),
        ("produce p50, ms", lambda s: f"{s['p50_ms']:.1f}"),
        ("produce p99, ms", lambda s: f"{s['p99_ms']:.1f}"),
        ("the same by round, least / median / most, ms", lambda s: " / ".join(f"{p:.0f}" for p in s["p99_of_rounds_ms"])),
        ("produce p99.9, ms", lambda s: f"{s['p999_ms']:.0f}"),
        ("longest, ms", lambda s: f"{s['max_ms']:.0f}"),
        ("errors of clients", lambda s: str(s["errors"] + s["consumer_errors"])),
        ("wrong keys", lambda s: f"{s['wrong_keys']} of {s['keys']}"),
        ("CPU of others on the machine, cores", lambda s: f"{s['others_cores']:.2f}"),
    ]  # fmt: skip
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(tell(one["summary"]) for one in found) + " |" for name, tell in rows
    ]
    if len(found) == len(MODES):
        theirs, ours = (cleaning_s(one["summary"]) for one in found)
        lines += ["", f"Cleaning takes {ours / theirs:.2f} times the CPU of the threads of Kafka's cleaner."]
    return "\n".join(lines) + "\n"


def parts_s(summary: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds of cleaning by what took them."""
    return {name: took for name, took in summary["cleaning"].items() if name != "cleanings"}


def cleaning_s(summary: Mapping[str, Any]) -> float:
    """The same together."""
    return sum(parts_s(summary).values())


def cleanings(summary: Mapping[str, Any]) -> tuple[int, float]:
    """How many there were, and the CPU time of one on average, ms."""
    count = summary["cleaning"]["cleanings"]
    return count, 1000 * cleaning_s(summary) / max(count, 1)


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Disk, CPU and latency over time. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (disk, cpu, latency) = pyplot.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    for one in found:
        rows, colour = one["rows"], COLOURS[one["mode"]]
        minutes = [row["seconds"] / 60 for row in rows]
        disk.plot(minutes, [row["disk_bytes"] / MB for row in rows], color=colour, label=NAMES[one["mode"]])
        for name, style in (("brokers", "-"), ("cleanerd", ":")):
            if rows[-1][f"{name}_cpu_s"]:
                cpu.plot(minutes, cores(rows, f"{name}_cpu_s"), style, color=colour)
        latency.plot(minutes, [row["p99_ms"] for row in rows], color=colour)
        latency.plot(minutes, [row["p50_ms"] for row in rows], color=colour, linewidth=0.6)
    disk.set_ylabel("disk used by three brokers, MB")
    cpu.set_ylabel("CPU, cores\nline: brokers, dots: cleanerd")
    latency.set_ylabel("produce, ms, of the last 10 s\nthick: p99, thin: p50")
    latency.set_yscale("log")
    latency.set_xlabel("minutes")
    for axes in (disk, cpu):
        axes.set_ylim(bottom=0)
    for axes in (disk, cpu, latency):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(found))
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True})
    pyplot.close(figure)


def cores(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Used by the second, over the seconds before."""
    found = []
    for number, row in enumerate(rows):
        before = rows[max(number - CORES_S, 0)]
        seconds = row["seconds"] - before["seconds"]
        found.append((row[name] - before[name]) / seconds if seconds else 0.0)
    return found


if __name__ == "__main__":
    main()
