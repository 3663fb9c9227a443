"""Both executors answer alike, on a real session: each task once, what tasks share, values that meet (architecture 4)."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from cleanerd.spark_runtime.block_store import Put, Shipped, load
from cleanerd.spark_runtime.executor import Cluster, Executor, Local
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.resident_job import TaskStep

KEYS = 23
EXECUTORS = pytest.mark.parametrize("kind", [Local, Cluster])


@dataclass(frozen=True)
class Sized:
    """A task that stands for so much log."""

    number: int
    size_bytes: int


class Value(NamedTuple):
    """What a task has about a key."""

    key: int
    number: int
    data: Shipped
    size_bytes: int = 1


def step(count: int, size_bytes: int, do: Callable[..., Any], shared: object = None) -> TaskStep:
    return TaskStep([Sized(number, size_bytes) for number in range(count)], do, lambda: nullcontext(shared))


@EXECUTORS
@pytest.mark.parametrize(("count", "size_bytes"), [(1, 1), (7, 1 << 20), (40, 100 << 20)])
def test_each_task_is_done_once(spark: LazySpark, kind: type[Executor], count: int, size_bytes: int) -> None:
    """In one task of Spark or many; and workers stay: Spark ends those that leave rows unread."""

    def do(tasks: Iterator[Sized], _: object, __: Put) -> Iterator[Any]:
        return ((task.number, os.getpid()) for task in tasks)

    found = kind(spark).run(step(count, size_bytes, do))
    assert [number for number, _ in found] == list(range(count))
    workers = {pid for _, pid in found}
    for _ in range(2 * spark.cores()):
        workers |= {pid for _, pid in kind(spark).run(step(count, size_bytes, do))}
    assert len(workers) <= spark.cores()


@EXECUTORS
def test_tasks_see_what_they_share(spark: LazySpark, kind: type[Executor]) -> None:
    shared = np.random.default_rng(3).integers(1, 2**63, (1000, 2), np.uint64)

    def do(tasks: Iterator[Sized], array: np.ndarray, _: Put) -> Iterator[int]:
        return (int(array[task.number, 1]) for task in tasks)

    assert kind(spark).run(step(1000, 1 << 16, do, shared)) == shared[:, 1].tolist()


@EXECUTORS
@pytest.mark.parametrize("is_together", [False, True])
def test_values_of_a_key_meet_whoever_has_them(
    spark: LazySpark, kind: type[Executor], is_together: bool
) -> None:
    """All of them, once; a key that no task has is not there."""

    def do(tasks: Iterator[Sized], factor: int, put: Put) -> Iterator[Any]:
        for task in tasks:
            keys = {task.number % KEYS, task.number // 2 % KEYS} - {5}
            data = np.array([task.number * factor % 256], np.uint8)
            yield f"answer {task.number}", {key: Value(key, task.number, put(data)) for key in keys}

    def merge(values: list[Value], _: object) -> tuple[int, list[tuple[int, int]]]:
        assert len({value.key for value in values}) == 1
        return values[0].key, sorted((value.number, int(load(value.data)[0])) for value in values)

    executor = kind(spark)
    with executor.together(100 << 20, 100) if is_together else nullcontext():
        answers, merged = executor.exchange(step(100, 1 << 20, do, 3), merge, KEYS, 4)
    assert answers == [f"answer {number}" for number in range(100)]
    expected = {
        key: [(n, n * 3 % 256) for n in range(100) if key in {n % KEYS, n // 2 % KEYS}]
        for key in range(KEYS)
        if key != 5
    }
    assert len(merged) == KEYS - 1
    assert dict(merged) == expected


@EXECUTORS
def test_nothing_to_do_needs_no_session(kind: type[Executor]) -> None:
    session: Any = None
    assert kind(session).run(step(0, 1, lambda *_: iter(()))) == []
    assert kind(session).exchange(step(0, 1, lambda *_: iter(())), lambda *_: None, 1, 1) == ([], [])


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        *[
            ("local", Local),
            ("local[2]", Local),
            ("local[*]", Local),
            ("local[2,4]", Cluster),
            ("yarn", Cluster),
        ],
        *[("local-cluster[2,1,1024]", Cluster), ("spark://a:7077", Cluster), ("k8s://https://a", Cluster)],
    ],
)
def test_only_one_machine_without_repeated_tasks_is_local(master: str, kind: type[Executor]) -> None:
    """`local[2,4]` tries each task four times: one could wait for another that has no core."""
    assert type(LazySpark(master).executor()) is kind
