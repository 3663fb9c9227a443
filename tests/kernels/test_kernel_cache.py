"""Compiled kernels on disk: what is not whole, or is another's, is compiled again."""

import errno
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config
from numba.core.errors import TypingError

from cleanerd.env.turns import machine_turn
from cleanerd.kernels import kernel_cache, native
from cleanerd.kernels.native import JIT, load_kept, njit


def twice(number: Any) -> Any:
    return number * 2


inner: Any = None  # another kernel, in a test


def twice_and_one(number: Any) -> Any:
    return inner(number) + 1


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def loaded_by_a_new_process(argument: Any = 21) -> int:
    """How often a new dispatcher, which has compiled nothing yet, takes its code from a file."""
    dispatcher = njit(**JIT)(twice)
    assert dispatcher(argument) == argument * 2
    return sum(dispatcher.stats.cache_hits.values())


def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(native, "_KERNELS", [])
    dispatcher = njit(**JIT)(twice)
    load_kept()
    return dispatcher


def files(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def test_code_is_kept_for_each_signature(directory: Path) -> None:
    """One file each, and nothing beside."""
    assert [loaded_by_a_new_process() for _ in range(2)] == [0, 1]
    assert [loaded_by_a_new_process(np.float64(0.5)) for _ in range(2)] == [0, 1]
    assert loaded_by_a_new_process() == 1
    assert [path.suffix for path in files(directory)] == [".nbc", ".nbc"]


def flipped(content: bytes) -> bytes:
    """With another bit in the middle, where the machine code is."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "within the digest": lambda content: content[:20],
    "its end lost": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "a bit": flipped,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_not_whole_is_not_loaded_but_compiled_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As the power failed while it was written."""
    loaded_by_a_new_process()
    (file,) = files(directory)
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    assert not loaded(monkeypatch).overloads
    assert [loaded_by_a_new_process() for _ in range(2)] == [0, 1]


def test_the_code_of_another_signature_is_not_run(directory: Path) -> None:
    """Whatever its file is called."""
    loaded_by_a_new_process()
    loaded_by_a_new_process(np.float64(0.5))
    older, newer = files(directory)
    older.write_bytes(newer.read_bytes())
    assert [loaded_by_a_new_process() for _ in range(2)] == [0, 1]


def test_another_version_of_the_kernels_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code may be in what is called, or a number that changed."""
    loaded_by_a_new_process()
    monkeypatch.setattr(kernel_cache, "version", lambda: "another")
    assert loaded_by_a_new_process() == 0


def test_code_that_checks_indexes_is_not_run_where_none_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the other way round: a search for reads outside would find nothing in what checks nothing."""
    monkeypatch.setattr(config, "BOUNDSCHECK", None)
    loaded_by_a_new_process()
    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    assert [loaded_by_a_new_process() for _ in range(2)] == [0, 1]
    monkeypatch.setattr(config, "BOUNDSCHECK", None)
    assert loaded_by_a_new_process() == 1


def test_a_full_disk_costs_no_result(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the time to compile; nothing unfinished stays behind."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert [loaded_by_a_new_process() for _ in range(2)] == [0, 0]
    assert files(directory) == []


def test_a_kernel_that_another_process_has_compiled_meanwhile_is_loaded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take turns, so that each is compiled once on a machine."""
    loaded_by_a_new_process()
    (file,) = files(directory)
    content = file.read_bytes()
    file.unlink()
    turns = []

    @contextmanager
    def turn(name: str) -> Iterator[None]:
        turns.append(name)
        file.write_bytes(content)  # it had the turn before
        yield
        turns.append("given back")

    monkeypatch.setattr(kernel_cache, "machine_turn", turn)
    assert loaded_by_a_new_process() == 1
    assert turns == ["kernels", "given back"]
    assert loaded_by_a_new_process() == 1
    assert len(turns) == 2, "what is kept needs no turn"


def test_a_kernel_that_cannot_be_compiled_gives_the_turn_back() -> None:
    with pytest.raises(TypingError):
        njit(**JIT)(twice)(None)
    assert kernel_cache._turn._depth == 0
    with machine_turn("kernels"):  # would wait for ever
        pass


def test_what_is_kept_can_be_loaded_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """All signatures, and nothing is compiled for that."""
    for argument in (21, np.float64(0.5)):
        loaded_by_a_new_process(argument)
    dispatcher = loaded(monkeypatch)
    assert len(dispatcher.overloads) == 2
    assert sum(dispatcher.stats.cache_hits.values()) == 2
    assert not dispatcher.stats.cache_misses


def test_a_kernel_that_another_one_calls_is_loaded_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> tuple[Any, Any]:
        monkeypatch.setattr(native, "_KERNELS", [])
        monkeypatch.setitem(globals(), "inner", njit(**JIT)(twice))
        return inner, njit(**JIT)(twice_and_one)

    _, outer = kernels()
    assert outer(20) == 41
    called, outer = kernels()
    load_kept()
    assert (len(called.overloads), len(outer.overloads)) == (0, 1)
    assert outer(20) == 41


def test_what_cannot_be_read_is_passed_over(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version of numba may have left it beside what this one keeps."""
    loaded_by_a_new_process()
    (file,) = files(directory)
    content = b"cno_such_module\nCode\n."
    other = file.with_name(file.name.replace(".nbc", "0.nbc"))
    other.write_bytes(hashlib.sha256(content).digest() + content)
    assert len(loaded(monkeypatch).overloads) == 1


def test_the_code_of_another_processor_is_not_loaded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_by_a_new_process()
    (file,) = files(directory)
    content = file.read_bytes()[32:]
    (signature, _, source), code = pickle.loads(content)
    content = pickle.dumps(((signature, ("other", "processor", ""), source), code))
    file.write_bytes(hashlib.sha256(content).digest() + content)
    assert not loaded(monkeypatch).overloads
