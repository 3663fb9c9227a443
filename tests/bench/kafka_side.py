"""Kafka's own cleaner: one broker for all rounds of a workload, in which each round is a topic that is let go in its turn.

The broker has one cleaner thread, G1, a heap of 1 GiB. A topic waits because no log exceeds a dirty ratio of 1.0, until its
`min.cleanable.dirty.ratio` is set to 0. What counts is the time from its first "Beginning cleaning of log" to the last
"cleaned log" that reaches the end, as the broker logs them: all passes over all partitions. While others are measured the
broker is stopped by a signal.
"""

import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import NewTopic

from tests.bench.processes import Meter
from tests.bench.sides import WARM_UP, Round, copy_logs, empty_logs, place, write_checkpoint
from tests.bench.workloads import Built
from tests.harness.broker.kafka import KafkaBroker
from tests.harness.broker.releases import current_release
from tests.harness.broker.workload import TIMEOUT_S, alter_config

_SETTINGS = {
    "log.cleaner.enable": "true",
    "log.cleaner.io.buffer.size": str(512 << 10),
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "200",
    "log.segment.bytes": str(1 << 30),
    "broker.session.timeout.ms": "3600000",  # it may be stopped for minutes
}
_AS_IN_PRODUCTION = ("-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 30),
    "min.cleanable.dirty.ratio": "1.0",
}
_PATIENCE_S = 600.0
_POLL_S = 0.2
_BEGAN = re.compile(r"(\d{13}) .*Beginning cleaning of log (\S+)$")
_CLEANED = re.compile(r"(\d{13}) .*?cleaned log (\S+) \(dirty section = \[\d+, (\d+)\]\)", re.DOTALL)


@dataclass(frozen=True)
class Span:
    """When the cleaning of a topic began and ended, milliseconds since the epoch."""

    began_ms: int
    ended_ms: int


def find_span(messages: Sequence[str], ends: dict[str, int]) -> Span | None:
    """From what the broker logged, once every log of `ends` was cleaned up to the offset named there."""
    began: list[int] = []
    ended: dict[str, int] = {}
    for message in messages:
        if (found := _BEGAN.search(message)) and found[2] in ends:
            began.append(int(found[1]))
        found = _CLEANED.search(message)
        if found and int(found[3]) >= ends.get(found[2], 2**63):
            ended[found[2]] = int(found[1])
    if len(ended) < len(ends):
        return None
    return Span(min(began), max(ended.values()))


class Kafka:
    name = "Kafka"

    def __init__(self, built: Built, work: Path, cache: Path, rounds: int, dedupe_bytes: int) -> None:
        self.built = built
        self._work, self._cache = work / "kafka", cache
        self.log_dir = self._work / "logs"
        self._numbers = [WARM_UP, *range(rounds)]
        settings = {
            **_SETTINGS,
            "log.cleaner.dedupe.buffer.size": str(dedupe_bytes),
            **built.workload.kafka,
        }
        self.broker = KafkaBroker(
            self._work / "broker", [self.log_dir], settings, jvm_options=_AS_IN_PRODUCTION
        )

    def __enter__(self) -> "Kafka":
        self._create_topics()
        for number in self._numbers:
            self._fill(number)
        write_checkpoint(self.log_dir, {_topic(number): self.built for number in self._numbers})
        self.broker.start()
        self.signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        if self.broker.pid is not None:
            self.broker.kill()  # its logs are thrown away
        shutil.rmtree(self._work, ignore_errors=True)

    def prepare(self, number: int) -> None:
        """Every round has been copied before the start: a broker adopts no directory later."""
        place(self.built, (path for directory in self.cleaned(number) for path in directory.glob("*.log")))

    def run(self, number: int) -> Round:
        """A cleaning of the broker, which is stopped before and after."""
        assert self.broker.pid is not None
        self.signal(signal.SIGCONT)
        with Meter(self.broker.pid) as meter:
            seconds = self.clean(number)
        self.signal(signal.SIGSTOP)
        return Round(seconds, meter.cpu_seconds, meter.peak_bytes)

    def clean(self, number: int) -> float:
        """Let the topic of the round go and wait for its end; seconds of the cleaner."""
        ends = {f"{_topic(number)}-{i}": log.end for i, log in enumerate(self.built.logs)}
        alter_config(self.broker.admin(), _topic(number), {"min.cleanable.dirty.ratio": "0.0"})
        span = self._wait(ends)
        return (span.ended_ms - span.began_ms) / 1000

    def cleaned(self, number: int) -> list[Path]:
        return [self.log_dir / f"{_topic(number)}-{i}" for i in range(len(self.built.logs))]

    def drop(self, number: int) -> None:
        """The bytes; the names stay, because the broker lives."""
        empty_logs(self.cleaned(number))

    def _wait(self, ends: dict[str, int]) -> Span:
        deadline_s = time.monotonic() + _PATIENCE_S
        while (span := find_span(self.broker.messages(), ends)) is None:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the broker's cleaner has not cleaned {', '.join(ends)}")
            self.broker.poll()
            time.sleep(_POLL_S)  # noqa: TID251  # real time is what is measured
        return span

    def _create_topics(self) -> None:
        """A log directory of a broker that knows the topics; made once, then copied. Its partitions are to be replaced."""
        logs = [len(self.built.logs)] * len(self._numbers)
        origin = self._cache / f"kafka-{current_release().version}" / "-".join(map(str, logs))
        if not origin.exists():
            unfinished = origin.with_name(f"{origin.name}.{os.getpid()}")
            with KafkaBroker(self._work / "first", [unfinished], {"log.cleaner.enable": "false"}) as broker:
                topics = [
                    NewTopic(_topic(number), count, 1, config=_TOPIC_SETTINGS)
                    for number, count in zip(self._numbers, logs, strict=True)
                ]
                admin = broker.admin()
                for created in admin.create_topics(topics).values():
                    created.result(TIMEOUT_S)
            unfinished.rename(origin)
        shutil.copytree(origin, self.log_dir)

    def _fill(self, number: int) -> None:
        """Put the logs of a round in the place of the empty ones, each under the id of its topic."""
        metadata = [(directory / "partition.metadata").read_bytes() for directory in self.cleaned(number)]
        for directory in self.cleaned(number):
            shutil.rmtree(directory)
        for directory, content in zip(
            copy_logs(self.built, self.log_dir, _topic(number)), metadata, strict=True
        ):
            (directory / "partition.metadata").write_bytes(content)

    def signal(self, number: int) -> None:
        assert self.broker.pid is not None
        os.kill(self.broker.pid, number)


def _topic(number: int) -> str:
    return "warm" if number == WARM_UP else f"round{number}"
