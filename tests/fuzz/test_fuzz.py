"""A short run of `python -m tests.fuzz`, and that it would find what it looks for."""

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from cleanerd.errors import CorruptFile, LogUncleanable
from cleanerd.format.errors import FormatError
from tests.fuzz import decoders, directories, requests
from tests.fuzz.__main__ import shares
from tests.fuzz.guard import Limits, feed
from tests.fuzz.targets import Target, all_targets

INPUTS = 4000
CHEAP = {**decoders.TARGETS, **requests.TARGETS}
"""What takes no thousands of file operations for each input."""


@pytest.mark.parametrize("name", CHEAP)
def test_hostile_bytes_are_taken_or_refused(name: str) -> None:
    fed = feed(name, CHEAP[name], range(shares(CHEAP, INPUTS)[name]))
    assert not fed.failures, "\n".join(map(str, fed.failures))


@pytest.fixture(scope="module")
def kernels() -> None:
    """Loaded before the first process is forked: each would load them again."""
    directories.load_kernels()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", [name for name in directories.TARGETS if name not in CHEAP])
def test_hostile_files_are_taken_or_refused(name: str) -> None:
    fed = feed(name, directories.TARGETS[name], range(4))
    assert not fed.failures, "\n".join(map(str, fed.failures))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_thousand_inputs() -> None:
    targets = all_targets()
    for name, count in shares(dict(targets), 50_000).items():
        fed = feed(name, targets[name], range(count))
        assert not fed.failures, "\n".join(map(str, fed.failures))


@pytest.mark.soak
def test_kernels_keep_within_their_arrays() -> None:
    """Compiled anew, with a check at every index, load, store and copy, which takes half a minute of a processor."""
    targets = [f"--target={name}" for name in ("kernels", "kernels on expanded", "cleaning")]
    arguments = [sys.executable, "-m", "tests.fuzz", "--bounds", "--inputs=3000", *targets]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert ", 0 failed" in done.stdout


@pytest.mark.skipif(find_spec("atheris") is None, reason="needs cleanerd[fuzz]")
def test_a_target_can_be_guided_by_coverage() -> None:
    arguments = [sys.executable, "-m", "tests.fuzz.coverage", "coordinator record", "-runs=2000"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 2000 runs" in done.stderr


def _falls(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        raise KeyError(data[0])


def _crashes(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        ctypes.string_at(0)


def _hangs(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        time.sleep(60)  # noqa: TID251


def _eats(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        bytes(1 << 30)


def _dies_in_a_thread(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        thread = threading.Thread(target=sys.stdin.fileno, args=(1,), name="victim")
        thread.start()
        thread.join()


def _names_nothing(data: bytes, _: Path) -> None:
    if data.startswith(b"\x01"):
        raise LogUncleanable("it does not work")


@pytest.mark.parametrize(
    ("run", "kind", "told"),
    [
        (_falls, "exception", "KeyError: 1"),
        (_crashes, "crash", "-11"),
        (_hangs, "hang", "0.5 s"),
        (_eats, "exception", "MemoryError"),
        (_dies_in_a_thread, "traceback", "thread victim: TypeError"),
        (_names_nothing, "exception", "names no file: it does not work"),
    ],
)
def test_what_must_not_be_is_found_with_its_seed(
    run: Callable[[bytes, Path], object], kind: str, told: str
) -> None:
    """Every other input is harmless, and is fed all the same."""
    target = Target(lambda: (b"\0",), run, lambda rng, _: bytes((rng.random() < 0.2,)), names_file=True)
    fed = feed("planted", target, range(5), Limits(seconds=0.5, memory_bytes=256 << 20))
    bad = [seed for seed in range(5) if target.input("planted", seed) == b"\x01"]
    assert bad == [0, 2, 4]
    assert [(failure.seed, failure.kind) for failure in fed.failures] == [(seed, kind) for seed in bad]
    assert told in fed.failures[0].text


def test_errors_of_ours_refuse_an_input(tmp_path: Path) -> None:
    def refuse(data: bytes, directory: Path) -> None:
        if data == b"1":
            raise CorruptFile(str(directory / "file"), 5, "that", "this")
        raise FormatError(1, "that", "this")

    target = Target(lambda: (b"1", b"2"), refuse, names_file=True)
    assert not target.feed(b"1", tmp_path)
    with pytest.raises(AssertionError, match="without a file"):
        target.feed(b"2", tmp_path)
