"""`python -m tests.bench.neighbours OUTPUT`: what a cleaning does to the broker beside it.

A producer (`tests.bench.day_load`: an open loop at a fixed rate, acks=all) writes to a real broker; a consumer reads the
partitions of another topic again and again, which the page cache holds when a slice begins. Slices of some seconds take
turns, in another order in every round:

=========  =================================================================================================
slice      what cleans meanwhile: equal logs on the same disk, which nobody else reads, none of them cached
=========  =================================================================================================
off        nothing
kafka      the broker's own cleaner, one thread: each log once, however long that takes
on         one session of cleanerd without limits, niced as its unit is, one log after the other
kept       the same, but what it has read stays in the page cache
throttled  cleanerd with `log.cleaner.io.max.bytes.per.second`
=========  =================================================================================================

A slice ends with the cleaning that it has begun; its last records count for it. `--page-cache-mib`: no more memory is left
for the page cache. Written to OUTPUT: `neighbours.json`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from cleanerd.env.page_cache import resident_pages
from tests.bench.busy_day import Client
from tests.bench.day_load import SERVED, SERVED_PARTITIONS, TOPICS, Latencies, Traffic
from tests.bench.kafka_side import Kafka
from tests.bench.processes import PAGE_BYTES
from tests.bench.sides import ROOT, WARM_UP, copy_logs, evict, read_through
from tests.bench.worker import TOPIC
from tests.bench.workloads import Built, build, chosen

NICE = 10  # as in systemd/cleanerd.service
LIMIT_BYTES = 50 << 20
MODES: dict[str, dict[str, str]] = {
    "off": {},
    "kafka": {},
    "on": {},
    "kept": {},
    "throttled": {"log.cleaner.io.max.bytes.per.second": str(LIMIT_BYTES)},
}
DEDUPE_BYTES = 128 << 20
LOGS = 6
"""Each a quarter of W1, 256 MiB."""
_SERVED_BYTES = 8 << 20  # of each partition, in records of 16 KiB
_RECORD_BYTES = 16 << 10
_SETTLE_S = 3.0
"""After a slice: what it left for the disk is not the next one's."""
_pause = threading.Event().wait


@dataclass(frozen=True, slots=True)
class Slice:
    """`served_share`: what of the served topic the page cache still holds; `left_bytes`: what it holds of cleaned logs."""

    mode: str
    began_s: float
    ended_s: float
    cleaned_bytes: int
    served_share: float
    left_bytes: int


class Cleaning:
    """A warm session that cleans the same logs again and again; nothing of them is copied, their files are linked."""

    def __init__(self, built: Built, work: Path) -> None:
        self._work, self._flag = work / "cleanerd", work / "keep-cache"
        self._sources = copy_logs(built, self._work / "source", TOPIC)
        self._bytes = [log.bytes for log in built.logs]
        self._rounds = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", str(self._flag)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(NICE),
        )  # fmt: skip

    def prepare(self, mode: str) -> None:
        """Before a slice: nothing that was cleaned before is there, or in the page cache."""
        for old in self._work.glob("[0-9]*"):
            shutil.rmtree(old)
        evict(self.files())
        self._flag.unlink(missing_ok=True)
        if mode == "kept":
            self._flag.touch()

    def once(self, settings: dict[str, str]) -> int:
        """Clean the next log; its bytes."""
        number = self._rounds % len(self._sources)
        source = self._sources[number]
        self._rounds += 1
        log_dir = self._work / str(self._rounds)
        (log_dir / source.name).mkdir(parents=True)
        for path in source.iterdir():
            os.link(path, log_dir / source.name / path.name)
        command = {
            "log_dir": str(log_dir), "dedupe_bytes": DEDUPE_BYTES, "count_cpu": False, "settings": settings,
        }  # fmt: skip
        to, back = _pipes(self._process)
        print(json.dumps(command), file=to, flush=True)
        answer = json.loads(back.readline())
        assert set(answer["outcomes"]) == {"committed"}, answer
        evict(source.glob("*.log"))  # as if they had no other link: they were deleted
        return self._bytes[number]

    def files(self) -> list[Path]:
        """Segments: those that were to be cleaned, and what is left of them."""
        return list(self._work.glob("*/*/*.log"))

    def end(self) -> None:
        _pipes(self._process)[0].close()
        self._process.wait()


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds: what each mode's slices saw."""
    work = options.cache / f"neighbours-{os.getpid()}"
    shape = replace(chosen(["W1"])[0].scaled(options.scale / 4), name="neighbours-cold", logs=LOGS)
    built = build(shape, 1, options.cache)
    try:
        with ExitStack() as stack:
            enter = stack.enter_context
            kafka = enter(Kafka(built, work, options.cache, options.rounds, DEDUPE_BYTES))
            kafka.signal(signal.SIGCONT)
            traffic = Traffic(rate=options.rate, seed=options.seed)
            _create_topics(kafka, traffic)
            cleaning = Cleaning(built, work)
            stack.callback(cleaning.end)
            clients = {
                what: enter(Client(what, kafka.broker.bootstrap, work, traffic))
                for what in ("produce", "reread")
            }
            clients["produce"].send(signal.SIGUSR2)
            cleaning.once({})
            kafka.clean(WARM_UP)  # the broker's code is compiled
            spare = _take_memory(options.page_cache_mib)
            slices = _rounds(kafka, cleaning, options)
            told = {name: value for one in clients.values() for name, value in one.ended().items()}
            del spare
        latencies = {what: Latencies.load(work / f"{what}.npy") for what in clients}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"load": told, "modes": _by_mode(slices, latencies)}


def _rounds(kafka: Kafka, cleaning: Cleaning, options: argparse.Namespace) -> list[Slice]:
    served = sorted(kafka.log_dir.glob(f"{SERVED}-*/*.log"))
    slices = []
    for number in range(options.rounds):
        order = list(MODES)
        for mode in order[number % len(order) :] + order[: number % len(order)]:
            kafka.prepare(number)
            cleaning.prepare(mode)
            read_through(served)
            before_bytes = resident_bytes(served)
            began_s, cleaned_bytes = time.monotonic(), 0
            if mode == "kafka":
                kafka.clean(number)
                cleaned_bytes = kafka.built.bytes
            while time.monotonic() < began_s + options.slice_s and mode != "kafka":
                if mode == "off":
                    _pause(0.1)
                else:
                    cleaned_bytes += cleaning.once(MODES[mode])
            ended_s = time.monotonic()
            left_bytes = resident_bytes([*cleaning.files(), *_segments(kafka, number)])
            share = resident_bytes(served) / before_bytes
            slices.append(Slice(mode, began_s, ended_s, cleaned_bytes, share, left_bytes))
            print(number, slices[-1], file=sys.stderr, flush=True)
            _pause(_SETTLE_S)
    return slices


def _segments(kafka: Kafka, number: int) -> list[Path]:
    return [path for directory in kafka.cleaned(number) for path in directory.glob("*.log")]


def resident_bytes(paths: Iterable[Path]) -> int:
    count = 0
    for path in paths:
        if size := path.stat().st_size:
            with path.open("rb") as file:
                count += resident_pages(file.fileno(), 0, size).count(1)
    return count * PAGE_BYTES


def _create_topics(kafka: Kafka, traffic: Traffic) -> None:
    """Those of the producer, and the one that is served, which is filled here."""
    topics = [NewTopic(topic, traffic.partitions, 1) for topic in TOPICS]
    admin = kafka.broker.admin()
    for future in admin.create_topics([*topics, NewTopic(SERVED, SERVED_PARTITIONS, 1)]).values():
        future.result(60)
    client = Producer({"bootstrap.servers": kafka.broker.bootstrap, "linger.ms": 10, "log_level": 0})
    value = os.urandom(_RECORD_BYTES)
    for partition in range(SERVED_PARTITIONS):
        for _ in range(_SERVED_BYTES // _RECORD_BYTES):
            client.produce(SERVED, value, partition=partition)
        client.flush()
    for path in kafka.log_dir.glob(f"{SERVED}-*/*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _take_memory(page_cache_mib: int | None) -> "np.ndarray[Any, Any] | None":
    """So much that no more is left for the page cache."""
    if page_cache_mib is None:
        return None
    return np.ones(max(psutil.virtual_memory().available - (page_cache_mib << 20), 0), np.uint8)


def _by_mode(slices: Sequence[Slice], latencies: dict[str, Latencies]) -> dict[str, dict[str, float]]:
    modes = defaultdict[str, list[Slice]](list)
    for one in slices:
        modes[one.mode].append(one)
    found = {}
    for mode, parts in modes.items():
        row: dict[str, float] = {}
        for what, measured in latencies.items():
            each = [measured.between(one.began_s, one.ended_s) for one in parts]
            each = [one for one in each if len(one)]  # a slice may be shorter than one reading
            together = np.concatenate(each)
            p99 = [float(np.percentile(one, 99)) for one in each]
            row |= {
                f"{what}_p50_ms": float(np.percentile(together, 50)),
                f"{what}_p99_ms": float(np.percentile(together, 99)),
                f"{what}_p99_least_ms": min(p99),
                f"{what}_p99_most_ms": max(p99),
                f"{what}_longest_ms": float(together.max()),
                f"{what}_count": len(together),
            }
        seconds = sum(one.ended_s - one.began_s for one in parts)
        found[mode] = row | {
            "served_share_least": min(one.served_share for one in parts),
            "served_share_mean": float(np.mean([one.served_share for one in parts])),
            "left_mb": float(np.mean([one.left_bytes for one in parts])) / 1e6,
            "cleaned_mb_per_s": sum(one.cleaned_bytes for one in parts) / seconds / 1e6,
        }
    return found


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cleanerd-bench"
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.neighbours", description=__doc__.splitlines()[0]
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice-s", type=float, default=12.0)
    parser.add_argument("--rate", type=int, default=1000, help="records of 1 kB a second")
    parser.add_argument("--scale", type=float, default=1.0, help="so much of each log")
    parser.add_argument("--page-cache-mib", type=int, help="take all other memory first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=cache)
    options = parser.parse_args()
    found = measure(options)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "neighbours.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["load"]))
    rows = found["modes"]
    print("| mode |", " | ".join(rows["off"]), "|")
    for mode, row in rows.items():
        print("|", mode, "|", " | ".join(f"{value:.2f}" for value in row.values()), "|")


if __name__ == "__main__":
    main()
