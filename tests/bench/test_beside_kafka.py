"""Kafka's own cleaner and `clean` over the same bytes, in turns on the same machine: the shape of `test_speed`."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from cleanerd.cleaning.result import CleanRequest
from cleanerd.cleaning.run import clean_once
from cleanerd.config.load import resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import SystemClock
from cleanerd.pipeline.session import SparkSession
from tests.bench.test_speed import RECORDS
from tests.broker.kafka import KafkaBroker
from tests.broker.workload import create_topics
from tests.cleaning.silent import Silent
from tests.synthetic import Shape, write_log

ROUNDS = 6
DEFAULTS = {
    "log.cleaner.enable": "true",
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.cleaner.io.buffer.size": str(512 << 10),
    "log.cleaner.threads": "1",
    "log.cleaner.min.cleanable.ratio": "0.0",
    "log.cleaner.backoff.ms": "100",
    "log.segment.bytes": str(1 << 30),
}
AS_IN_PRODUCTION = ("-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
TOPICS = ("speed", "warm")
TOOK = re.compile(r"of log processed in ([\d,.]+) seconds")


@pytest.mark.bench
@pytest.mark.broker
@pytest.mark.timeout(1200)
def test_kafka_and_cleanerd_in_turns(spark: SparkSession, tmp_path: Path) -> None:
    """Prints seconds of every round and the ratio of the medians; the first round of each warms it up."""
    original = tmp_path / "original"
    with KafkaBroker(tmp_path / "work", [original], {"log.cleaner.enable": "false"}) as broker:
        settings = {"cleanup.policy": "compact", "segment.bytes": str(1 << 30)}
        create_topics(broker.admin(), dict.fromkeys(TOPICS, settings))
    write_log(tmp_path / "written", RECORDS, Shape(keys=2_000_000))
    for topic in TOPICS:
        directory = original / f"{topic}-0"
        metadata = (directory / "partition.metadata").read_bytes()
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "written", directory)
        (directory / "partition.metadata").write_bytes(metadata)
    kafka, ours = [], []
    for number in range(ROUNDS):
        kafka.append(by_kafka(original, tmp_path / f"kafka-{number}"))
        ours.append(by_cleanerd(spark, original, tmp_path / f"cleanerd-{number}"))
        print(f"round {number}: Kafka {kafka[-1]:.2f} s, cleanerd {ours[-1]:.2f} s")
    middle = [sorted(seconds[1:])[len(seconds[1:]) // 2] for seconds in (kafka, ours)]
    print(
        f"median: Kafka {middle[0]:.2f} s, cleanerd {middle[1]:.2f} s, {middle[0] / middle[1]:.1f} times as fast"
    )


def by_kafka(original: Path, log_dir: Path) -> float:
    """Seconds that the broker's cleaner says it took for the faster of two equal logs: the first warms it up."""
    shutil.copytree(original, log_dir)
    with KafkaBroker(
        log_dir.with_suffix(".work"), [log_dir], DEFAULTS, jvm_options=AS_IN_PRODUCTION
    ) as broker:
        deadline = time.monotonic() + 120
        while True:
            took = TOOK.findall("\n".join(broker.messages()))
            if len(took) >= len(TOPICS):
                break
            assert time.monotonic() < deadline, "the broker's cleaner did not clean"
            broker.poll()
    shutil.rmtree(log_dir)
    return min(float(one.replace(",", "")) for one in took)


def by_cleanerd(spark: SparkSession, original: Path, log_dir: Path) -> float:
    """Wall seconds of `clean` on a warm session."""
    shutil.copytree(original / "speed-0", log_dir / "speed-0")
    os.sync()
    configuration = resolve(read_sources(topic_assignments=[("speed", "cleanup.policy", "compact")]))
    request = CleanRequest(
        config=configuration.broker, topic_config=configuration.topic, log_dirs=(str(log_dir),), force=True
    )
    started = time.perf_counter()
    (result,) = clean_once(request, Silent(), SystemClock(), session=spark)
    seconds = time.perf_counter() - started
    assert result.outcome == "committed"
    shutil.rmtree(log_dir)
    return seconds
