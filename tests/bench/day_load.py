"""The clients of a busy day: `python -m tests.bench.day_load produce|consume|reread` as processes of their own.

Each works until SIGTERM. The producer pauses, as it does at first, until SIGUSR2, and again after SIGUSR1.

Traffic is the same whenever the seed is: skewed updates of a window of keys for each partition, which moves on: a new key
comes, and the oldest goes with a tombstone. The loop is open: each record has a time at which it is due, whatever became of
those before it, and its latency counts from then (acks=all).
"""

import argparse
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

TOPICS = ("orders", "carts", "prices", "sessions")
VALUE_BYTES = 1_000
SERVED = "served"
"""The topic that is read again and again, and its partitions; one is read every so many seconds, if it is quick enough."""
SERVED_PARTITIONS, REREAD_S = 64, 0.25
NEW_KEYS = 0.02
"""Share of records that bring a new key."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the producer sends. `rate`: records a second; `keys`: in the window of each partition."""

    rate: int = 1000
    partitions: int = 6
    keys: int = 2_000
    seed: int = 1

    def arguments(self) -> list[str]:
        return [f"--{name}={value}" for name, value in asdict(self).items()]


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a client measured: when each record was due (monotonic, s), in that order, and how long it took (ms)."""

    due_s: "np.ndarray[Any, Any]"
    took_ms: "np.ndarray[Any, Any]"

    @staticmethod
    def load(path: Path) -> "Latencies":
        due_s, took_ms = np.load(path).T
        order = np.argsort(due_s, kind="stable")
        return Latencies(due_s[order], took_ms[order])

    def between(self, began_s: float, ended_s: float) -> "np.ndarray[Any, Any]":
        """Of the records that were due in this time, ms."""
        first, last = np.searchsorted(self.due_s, (began_s, ended_s))
        return self.took_ms[first:last]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.day_load", description=__doc__.splitlines()[0]
    )
    parser.add_argument("what", choices=("produce", "consume", "reread"))
    parser.add_argument("bootstrap")
    parser.add_argument("output", type=Path, help="where what was measured goes at the end")
    for name, default in asdict(Traffic()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    stopping, working = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGUSR1, lambda *_: working.clear())
    signal.signal(signal.SIGUSR2, lambda *_: working.set())
    options.output.with_suffix(".ready").touch()
    if options.what == "produce":
        produce(options, stopping, working)
    elif options.what == "consume":
        consume(options, stopping)
    else:
        reread(options, stopping)


def records(options: argparse.Namespace) -> Iterator[tuple[str, int, bytes, bool]]:
    """Topic, partition, key and whether it is a tombstone, for ever."""
    rng, keys = random.Random(options.seed), options.keys
    places = [(topic, partition) for topic in TOPICS for partition in range(options.partitions)]
    first = dict.fromkeys(places, 0)
    while True:
        place = rng.choice(places)
        if rng.random() < NEW_KEYS:
            yield *place, b"key-%d" % first[place], True
            first[place] += 1
            yield *place, b"key-%d" % (first[place] + keys - 1), False
        else:
            yield *place, b"key-%d" % (first[place] + int(keys * rng.random() ** 2)), False


def produce(options: argparse.Namespace, stopping: threading.Event, working: threading.Event) -> None:
    """Write `<output>.npy`: when each record was due (monotonic, s) and how long it took (ms); `<output>.json`."""
    client = Producer(
        {"bootstrap.servers": options.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 10, "log_level": 0}
    )  # fmt: skip
    body, newest, errors = os.urandom(VALUE_BYTES), dict[tuple[str, int, bytes], int | None](), list[str]()
    due_s, took_ms = list[float](), list[float]()

    def delivered(error: object, due: float) -> None:
        took_ms.append(1000 * (time.monotonic() - due))
        due_s.append(due)
        if error is not None:
            errors.append(str(error))

    began_s = time.monotonic()  # later by all pauses so far
    for number, (topic, partition, key, is_tombstone) in enumerate(records(options)):
        paused_s = time.monotonic()
        if not working.is_set():
            while not working.is_set() and not stopping.is_set():
                client.poll(0.05)
            began_s += time.monotonic() - max(paused_s, began_s + number / options.rate)
        due = began_s + number / options.rate
        while time.monotonic() < due:
            client.poll(0)
            stopping.wait(0.002)
        if stopping.is_set():
            break
        value = None if is_tombstone else b"%016d" % number + body
        while True:
            try:
                client.produce(
                    topic, value, key, partition, on_delivery=lambda e, _, due=due: delivered(e, due)
                )
                break
            except BufferError:
                client.poll(0.01)
        newest[topic, partition, key] = None if is_tombstone else number
    left = client.flush(120)
    np.save(options.output.with_suffix(".npy"), np.array([due_s, took_ms]).T)
    wrong = compare(options, newest)
    told = {
        "errors": len(errors),
        "error": errors[:1],
        "unanswered": left,
        "keys": len(newest),
        "wrong_keys": wrong,
    }
    options.output.with_suffix(".json").write_text(json.dumps(told))


def compare(options: argparse.Namespace, newest: dict[tuple[str, int, bytes], int | None]) -> int:
    """How many keys a consumer from the beginning finds with another value than the one that was sent last."""
    client = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found, ends = dict[tuple[str, int, bytes], int | None](), dict[Place, int]()
    for topic in TOPICS:
        for partition in range(options.partitions):
            ends[topic, partition] = client.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=60
            )[1]
    client.assign([TopicPartition(*place, 0) for place, end in ends.items() if end])
    deadline_s = time.monotonic() + 300
    while ends and time.monotonic() < deadline_s:
        for message in client.consume(1000, 1):
            if message.error() is not None:
                continue
            place = (message.topic(), message.partition())
            found[*place, message.key()] = None if message.value() is None else int(message.value()[:16])
            if message.offset() + 1 >= ends.get(place, 2**63):
                del ends[place]
        ends = {place: end for place, end in ends.items() if _position(client, place) < end}
    client.close()
    return sum(found.get(key) != number for key, number in newest.items())


def _position(client: Any, place: Place) -> int:
    return int(client.position([TopicPartition(*place)])[0].offset)


def consume(options: argparse.Namespace, stopping: threading.Event) -> None:
    """A group that reads everything; `<output>.json` says how many records came, and the errors that were not retriable."""
    settings = {
        "bootstrap.servers": options.bootstrap,
        "group.id": "day",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    client, count, errors = Consumer(settings), 0, 0
    client.subscribe(list(TOPICS))
    while not stopping.is_set():
        for message in client.consume(500, 0.5):
            if message.error() is None:
                count += 1
            else:
                errors += not message.error().retriable()
    client.close()
    options.output.with_suffix(".json").write_text(json.dumps({"consumed": count, "consumer_errors": errors}))


def reread(options: argparse.Namespace, stopping: threading.Event) -> None:
    """Read partition after partition of `SERVED`; `<output>.npy`: when each began (s), and how long it took (ms)."""
    settings = {
        "bootstrap.servers": options.bootstrap,
        "group.id": "reread",
        "fetch.wait.max.ms": 1,  # else a partition waits for the end of what was asked of the one before
        "log_level": 0,
    }
    client = Consumer(settings)
    places = [TopicPartition(SERVED, partition, 0) for partition in range(SERVED_PARTITIONS)]
    ends = [client.get_watermark_offsets(place, timeout=60)[1] for place in places]
    began_s, took_ms = list[float](), list[float]()
    while not stopping.wait(max(began_s[-1] + REREAD_S - time.monotonic(), 0) if began_s else 0):
        place, end, offset = places[len(began_s) % len(places)], ends[len(began_s) % len(places)], 0
        began_s.append(time.monotonic())
        client.assign([place])
        while offset < end and not stopping.is_set():
            for message in client.consume(min(end - offset, 500), 0.5):  # it waits until there are so many
                offset = message.offset() + 1 if message.error() is None else offset
        took_ms.append(1000 * (time.monotonic() - began_s[-1]))
    client.close()
    np.save(options.output.with_suffix(".npy"), np.array([began_s, took_ms]).T)
    options.output.with_suffix(".json").write_text(json.dumps({"reread": len(began_s)}))


if __name__ == "__main__":
    main()
