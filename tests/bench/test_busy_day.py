"""Whose CPU time a busy day counts as that of cleaning."""

import multiprocessing
import os
import re
import threading
import time
from pathlib import Path

import pytest

from tests.bench.busy_day import AGENT, OWN_CLEANER, table
from tests.bench.processes import KINDS, seconds_by_kind, thread_seconds
from tests.harness.broker.kafka import KafkaBroker

BURNT_S = 0.3


def burn() -> None:
    end_s = time.thread_time() + BURNT_S
    while time.thread_time() < end_s:
        pass


def burn_in_grandchild() -> None:
    child = multiprocessing.Process(target=burn)
    child.start()
    child.join()
    time.sleep(60)  # noqa: TID251  # until it is killed


def test_only_threads_of_that_name_count() -> None:
    ended = threading.Event()

    def named(name: str, *, burns: bool) -> threading.Thread:
        def run() -> None:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
            if burns:
                burn()
            ready.wait()
            ended.wait()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    ready = threading.Barrier(4)
    names = {OWN_CLEANER + "0": True, OWN_CLEANER + "1": True, "kafka-scheduler": True}
    threads = [named(name, burns=burns) for name, burns in names.items()]
    try:
        ready.wait(60)
        pid = os.getpid()
        assert 2 * BURNT_S - 0.1 < thread_seconds(pid, OWN_CLEANER) < 2 * BURNT_S + 0.2
        with pytest.raises(LookupError, match="has no thread cleanerd-agent"):
            thread_seconds(pid, AGENT)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_process_that_has_ended_counts_as_its_parents() -> None:
    engine = multiprocessing.Process(target=burn_in_grandchild)
    engine.start()
    try:
        deadline_s = time.monotonic() + 60
        while (found := seconds_by_kind(os.getpid()))["engine"] < BURNT_S:
            assert time.monotonic() < deadline_s, found
        assert list(found) == list(KINDS)
    finally:
        engine.kill()
        engine.join()


def test_the_ratio_is_that_of_all_processes_to_the_threads_of_kafkas_cleaner() -> None:
    common = {
        "disk_mean_bytes": 1, "disk_max_bytes": 1, "brokers_cores": 1.0, "cleanerd_cores": 0.0, "memory_max_bytes": 0,
        "p50_ms": 1.0, "p99_ms": 1.0, "p999_ms": 1.0, "max_ms": 1.0, "p99_of_rounds_ms": [1.0, 1.0, 1.0], "errors": 0,
        "consumer_errors": 0, "wrong_keys": 0, "keys": 1, "others_cores": 0.0,
    }  # fmt: skip
    ours = {"daemon": 1.0, "engine": 2.0, "JVM": 3.0, "workers": 3.5, "agent": 0.5, "cleanings": 100}
    found = [
        {"mode": "kafka", "summary": common | {"cleaning": {"threads": 4.0, "cleanings": 80}}},
        {"mode": "swap", "summary": common | {"cleaning": ours}},
    ]
    text = table(found)
    assert "| CPU of cleaning, s | 4.0 | 10.0 |" in text
    assert "| cleanings / CPU of one, ms | 80 / 50 | 100 / 100 |" in text
    assert "Cleaning takes 2.50 times the CPU" in text


@pytest.mark.broker
def test_the_cleaner_of_a_broker_is_found_by_its_thread(tmp_path: Path) -> None:
    """The JVM tells the time of each thread, too."""
    with KafkaBroker(tmp_path, [tmp_path / "logs"]) as broker:
        told_ms = re.findall(rf'"{OWN_CLEANER}\d+".* cpu=([\d.]+)ms', broker.threads())
        assert len(told_ms) == int(broker.properties["log.cleaner.threads"])
        assert broker.pid is not None
        found_s = thread_seconds(broker.pid, OWN_CLEANER)
        later_ms = re.findall(rf'"{OWN_CLEANER}\d+".* cpu=([\d.]+)ms', broker.threads())
        tick_s = 0.01 * len(told_ms)
        assert (
            sum(map(float, told_ms)) / 1000 - tick_s <= found_s <= sum(map(float, later_ms)) / 1000 + tick_s
        )
