"""Several processes: every task has its answer, and one that kills its reader takes no other along."""

import os
import signal

import pytest

from cleanerd.tools.insight import processes
from cleanerd.tools.insight.processes import answers

MUCH_BYTES = processes.INLINE_BYTES + 1


def double(number: int) -> int:
    """-1 kills the process that works on it."""
    if number == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def of_negative(number: int) -> int:
    assert number == -1
    return 1000


@pytest.mark.parametrize(("total_bytes", "count"), [(0, 2), (MUCH_BYTES, 1), (MUCH_BYTES, 2)])
def test_each_task_has_its_answer(total_bytes: int, count: int) -> None:
    found = answers(double, [3, 1, 2], total_bytes, count, of_negative)
    assert sorted(found) == [(1, 2), (2, 4), (3, 6)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("_", range(3))
def test_a_killed_process_costs_its_own_task_only(_: int) -> None:
    """Whenever it is killed: also while tasks are still being handed over."""
    found = answers(double, [-1, *range(20)], MUCH_BYTES, 2, of_negative)
    assert sorted(found) == [(-1, 1000), *((number, 2 * number) for number in range(20))]


def test_what_the_function_raises_is_passed_on() -> None:
    with pytest.raises(TypeError):
        list(answers(double, ["1", None], MUCH_BYTES, 2, of_negative))  # type: ignore[list-item]
