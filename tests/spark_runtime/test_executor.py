"""Both executors answer alike, on a real session: each task once, what tasks share, values that meet (architecture 4)."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cleanerd.errors import JobFailed
from cleanerd.spark_runtime.block_store import HostBytes, Put, Shipped, StoredBytes, load
from cleanerd.spark_runtime.executor import Cluster, Executor, Local
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.resident_job import TaskStep
from tests.harness.spark.sessions import session

KEYS = 23


@dataclass(frozen=True)
class Sized:
    number: int
    size_bytes: int


class Value(NamedTuple):
    key: int
    number: int
    data: Shipped
    size_bytes: int = 1


@pytest.fixture(
    scope="module",
    params=["local[2]", pytest.param("local[2,2]", marks=pytest.mark.soak)],
    ids=["Local", "Cluster"],
)
def executor(request: pytest.FixtureRequest, spark: LazySpark) -> Iterator[Executor]:
    if request.param == spark.master:
        yield spark.executor()
        return
    spark.stop()
    with session(request.param) as own:
        yield own.executor()


def path_of(value: Value) -> str:
    assert isinstance(value.data, StoredBytes | HostBytes)
    return value.data.path


def step(count: int, size_bytes: int, do: Callable[..., Any], shared: object = None) -> TaskStep:
    return TaskStep([Sized(number, size_bytes) for number in range(count)], do, lambda: nullcontext(shared))


@pytest.mark.parametrize(("count", "size_bytes"), [(1, 1), (7, 1 << 20), (40, 100 << 20)])
def test_each_task_is_done_once(executor: Executor, count: int, size_bytes: int) -> None:
    """In one task of Spark or many; and workers stay: Spark ends those that leave rows unread."""

    def do(tasks: Iterator[Sized], _: object, __: Put) -> Iterator[Any]:
        return ((task.number, os.getpid()) for task in tasks)

    found = executor.run(step(count, size_bytes, do))
    assert [number for number, _ in found] == list(range(count))
    workers = {pid for _, pid in found}
    for _ in range(2 * executor.cores):
        workers |= {pid for _, pid in executor.run(step(count, size_bytes, do))}
    assert len(workers) <= executor.cores


def test_tasks_see_what_they_share(executor: Executor) -> None:
    shared = np.random.default_rng(3).integers(1, 2**63, (1000, 2), np.uint64)

    def do(tasks: Iterator[Sized], array: np.ndarray, _: Put) -> Iterator[int]:
        return (int(array[task.number, 1]) for task in tasks)

    assert executor.run(step(1000, 1 << 16, do, shared)) == shared[:, 1].tolist()


@pytest.mark.parametrize("is_together", [False, True])
def test_values_of_a_key_meet_whoever_has_them(executor: Executor, is_together: bool) -> None:
    """All of them, once; a key that no task has is not there."""

    def do(tasks: Iterator[Sized], factor: int, put: Put) -> Iterator[Any]:
        for task in tasks:
            keys = {task.number % KEYS, task.number // 2 % KEYS} - {5}
            data = np.array([task.number * factor % 256], np.uint8)
            yield f"answer {task.number}", {key: Value(key, task.number, put(data)) for key in keys}

    def merge(values: list[Value], _: object) -> tuple[int, list[tuple[int, int]]]:
        assert len({value.key for value in values}) == 1
        return values[0].key, sorted((value.number, int(load(value.data)[0])) for value in values)

    with executor.together(100 << 20, 100) if is_together else nullcontext():
        answers, merged = executor.exchange(step(100, 1 << 20, do, 3), merge)
    assert answers == [f"answer {number}" for number in range(100)]
    expected = {
        key: [(n, n * 3 % 256) for n in range(100) if key in {n % KEYS, n // 2 % KEYS}]
        for key in range(KEYS)
        if key != 5
    }
    assert len(merged) == KEYS - 1
    assert dict(merged) == expected


@pytest.mark.parametrize("is_gone_for_good", [False, True])
def test_values_that_were_lost_are_made_again(
    executor: Executor, tmp_path: Path, is_gone_for_good: bool
) -> None:
    """With an executor that has ended, and once: what ends twice is no accident."""

    def do(tasks: Iterator[Sized], _: object, put: Put) -> Iterator[Any]:
        for task in tasks:
            yield None, {task.number % 2: Value(task.number % 2, task.number, put(np.zeros(9, np.uint8)))}

    def merge(values: list[Value], _: object) -> int:
        if is_gone_for_good or not (tmp_path / "lost").exists():
            (tmp_path / "lost").touch()
            Path(path_of(values[0])).unlink(missing_ok=True)
        return sum(int(load(value.data).sum()) + 1 for value in values)

    if is_gone_for_good:
        with pytest.raises(JobFailed):
            executor.exchange(step(10, 1, do), merge)
    else:
        assert executor.exchange(step(10, 1, do), merge)[1] == [5, 5]


def test_nothing_is_left_of_values_that_have_met(executor: Executor) -> None:
    def do(tasks: Iterator[Sized], _: object, put: Put) -> Iterator[Any]:
        for task in tasks:
            yield None, {0: Value(0, task.number, put(np.zeros(9, np.uint8)))}

    def merge(values: list[Value], _: object) -> set[str]:
        return {os.path.dirname(path_of(value)) for value in values}

    ((directory, *_),) = executor.exchange(step(10, 1, do), merge)[1]
    assert not os.path.exists(directory)


@pytest.mark.parametrize("kind", [Local, Cluster])
def test_nothing_to_do_needs_no_session(kind: type[Executor]) -> None:
    session: Any = None
    assert kind(session).run(step(0, 1, lambda *_: iter(()))) == []
    assert kind(session).exchange(step(0, 1, lambda *_: iter(())), lambda *_: None) == ([], [])


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        *((master, Local) for master in ("local", "local[2]", "local[*]")),
        *(
            (master, Cluster)
            for master in ("local[2,4]", "yarn", "local-cluster[2,1,1024]", "spark://a:7077")
        ),
        ("k8s://https://a", Cluster),
    ],
)
def test_only_one_machine_without_repeated_tasks_is_local(master: str, kind: type[Executor]) -> None:
    """`local[2,4]` tries each task four times: one could wait for another that has no core."""
    assert type(LazySpark(master).executor()) is kind
