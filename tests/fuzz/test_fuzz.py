"""A short run of `python -m tests.fuzz`, and that it would find what it looks for."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable

import pytest

from cleanerd.errors import LogUncleanable
from tests.fuzz import decoders, directories, requests
from tests.fuzz.__main__ import shares
from tests.fuzz.guard import Limits, feed
from tests.fuzz.targets import Target, all_targets

INPUTS = 2000
CHEAP = {**decoders.TARGETS, **requests.TARGETS}
"""What takes no thousands of file operations for each input."""


def check(name: str, target: Target, inputs: int) -> None:
    fed = feed(name, target, range(inputs))
    assert not fed.failures, "\n".join(map(str, fed.failures))


@pytest.mark.parametrize("name", CHEAP)
def test_hostile_bytes_are_taken_or_refused(name: str) -> None:
    check(name, CHEAP[name], shares(CHEAP, INPUTS)[name])


@pytest.fixture(scope="module")
def kernels() -> None:
    """Loaded before the first process is forked: each would load them again."""
    directories.load_kernels()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", directories.TARGETS)
def test_hostile_files_are_taken_or_refused(name: str) -> None:
    check(name, directories.TARGETS[name], 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_thousand_inputs() -> None:
    targets = dict(all_targets())
    for name, count in shares(targets, 10_000).items():
        check(name, targets[name], count)


def _dies_in_a_thread() -> None:
    thread = threading.Thread(target=sys.stdin.fileno, args=(1,), name="victim")
    thread.start()
    thread.join()


def _names_no_file() -> None:
    raise LogUncleanable("it does not work")


@pytest.mark.parametrize(
    ("defect", "kind", "text"),
    [
        (lambda: {}[1], "exception", "KeyError: 1"),
        (lambda: ctypes.string_at(0), "crash", "-11"),
        (lambda: time.sleep(60), "hang", "0.5 s"),  # noqa: TID251
        (lambda: bytes(8 << 30), "exception", "MemoryError"),  # a worker may give 1 GiB back
        (_dies_in_a_thread, "traceback", "thread victim: TypeError"),
        (_names_no_file, "exception", "names no file: it does not work"),
    ],
)
def test_a_defect_is_found_with_its_seed(defect: Callable[[], object], kind: str, text: str) -> None:
    """Every other input is harmless, and is fed all the same."""
    target = Target(
        lambda: (b"\0",),
        lambda data, _: defect() if data == b"\1" else None,
        lambda rng, _: bytes((rng.random() < 0.2,)),
        names_file=True,
    )
    fed = feed("planted", target, range(5), Limits(seconds=0.5, memory_bytes=256 << 20))
    assert [(failure.seed, failure.kind) for failure in fed.failures] == [(seed, kind) for seed in (0, 2, 4)]
    assert text in fed.failures[0].text
    assert fed.taken == 2
