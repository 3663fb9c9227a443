"""`python -m tests.bench.neighbours OUTPUT`: what a cleaning does to the broker beside it.

A producer (`tests.bench.day_load`: an open loop at a fixed rate, acks=all) writes to a real broker. Slices of some seconds
take turns, in another order in every round:

=========  =================================================================================================
slice      what cleans meanwhile, from copies of one log on the same disk
=========  =================================================================================================
off        nothing
on         one session of cleanerd without limits, niced as its unit is, one log after the other
throttled  the same with `log.cleaner.io.max.bytes.per.second`
=========  =================================================================================================

A slice ends with the cleaning that it has begun; its last records count for it. Written to OUTPUT: `neighbours.json`.
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
from pathlib import Path
from typing import IO, Any

import numpy as np
from confluent_kafka.admin import NewTopic

from tests.bench.busy_day import Client
from tests.bench.day_load import TOPICS, Traffic
from tests.bench.sides import ROOT, copy_logs, read_through
from tests.bench.worker import TOPIC
from tests.bench.workloads import Built, build, chosen
from tests.broker.kafka import KafkaBroker

NICE = 10  # as in systemd/cleanerd.service
LIMIT_BYTES = 50 << 20
MODES: dict[str, dict[str, str] | None] = {
    "off": None,
    "on": {},
    "throttled": {"log.cleaner.io.max.bytes.per.second": str(LIMIT_BYTES)},
}
_JVM = ("-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
_SETTLE_S = 3.0
"""After a slice: what it left for the disk is not the next one's."""
_pause = threading.Event().wait


class Cleaning:
    """A warm session that cleans the same log again and again; nothing of it is copied, its files are linked."""

    def __init__(self, built: Built, work: Path) -> None:
        self._bytes, self._work = built.bytes, work
        self._source = work / "source"
        read_through(path for log in copy_logs(built, self._source, TOPIC) for path in log.glob("*.log"))
        self._rounds = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(NICE),
        )  # fmt: skip

    def once(self, settings: dict[str, str]) -> int:
        self._rounds += 1
        log_dir = self._work / str(self._rounds)
        for log in self._source.iterdir():
            (log_dir / log.name).mkdir(parents=True)
            for path in log.iterdir():
                os.link(path, log_dir / log.name / path.name)
        command = {
            "log_dir": str(log_dir),
            "dedupe_bytes": 128 << 20,
            "count_cpu": False,
            "settings": settings,
        }
        to, back = _pipes(self._process)
        print(json.dumps(command), file=to, flush=True)
        answer = json.loads(back.readline())
        assert set(answer["outcomes"]) == {"committed"}, answer
        shutil.rmtree(log_dir)
        return self._bytes

    def end(self) -> None:
        _pipes(self._process)[0].close()
        self._process.wait()


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds: the slices as (mode, begin, end, bytes cleaned), and what the producer saw."""
    work = options.cache / f"neighbours-{os.getpid()}"
    built = build(chosen(["W1"])[0].scaled(0.25), 1, options.cache)
    slices: list[tuple[str, float, float, int]] = []
    try:
        broker = KafkaBroker(
            work / "broker", [work / "broker-logs"], {"log.cleaner.enable": "false"}, jvm_options=_JVM
        )
        with broker:
            admin = broker.admin()
            traffic = Traffic(rate=options.rate, seed=options.seed)
            topics = [NewTopic(topic, traffic.partitions, 1) for topic in TOPICS]
            for future in admin.create_topics(topics).values():
                future.result(60)
            cleaning = Cleaning(built, work)
            cleaning.once({})
            with Client("produce", broker.bootstrap, work, traffic) as producer:
                producer.send(signal.SIGUSR2)
                _pause(options.slice_s)  # the broker's code is compiled
                for number in range(options.rounds):
                    order = list(MODES.items())
                    for mode, settings in order[number % 3 :] + order[: number % 3]:
                        slices.append((mode, *_slice(cleaning, settings, options.slice_s)))
                        _pause(_SETTLE_S)
                told = producer.ended()
            cleaning.end()
        due_s, took_ms = np.load(work / "produce.npy").T
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {"load": told, "modes": _by_mode(slices, due_s, took_ms)}


def _slice(cleaning: Cleaning, settings: dict[str, str] | None, slice_s: float) -> tuple[float, float, int]:
    """(begin, end, bytes cleaned)."""
    began_s, cleaned_bytes = time.monotonic(), 0
    while time.monotonic() < began_s + slice_s:
        if settings is None:
            _pause(0.1)
        else:
            cleaned_bytes += cleaning.once(settings)
    return began_s, time.monotonic(), cleaned_bytes


def _by_mode(
    slices: list[tuple[str, float, float, int]], due_s: np.ndarray, took_ms: np.ndarray
) -> dict[str, dict[str, float]]:
    modes: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for mode, *rest in slices:
        modes[mode].append((rest[0], rest[1], rest[2]))
    found = {}
    for mode, parts in modes.items():
        each = [took_ms[(due_s >= began) & (due_s < end)] for began, end, _ in parts]
        together, seconds = np.concatenate(each), sum(end - began for began, end, _ in parts)
        found[mode] = {
            "p50_ms": float(np.percentile(together, 50)),
            "p99_ms": float(np.percentile(together, 99)),
            "p99_least_ms": min(float(np.percentile(one, 99)) for one in each),
            "p99_most_ms": max(float(np.percentile(one, 99)) for one in each),
            "p999_ms": float(np.percentile(together, 99.9)),
            "longest_ms": float(together.max()),
            "records": len(together),
            "cleaned_mb_per_s": sum(size for *_, size in parts) / seconds / 1e6,
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=cache)
    options = parser.parse_args()
    found = measure(options)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "neighbours.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["load"]))
    for mode, row in found["modes"].items():
        print("|", mode, "|", " | ".join(f"{value:.1f}" for value in row.values()), "|")


if __name__ == "__main__":
    main()
