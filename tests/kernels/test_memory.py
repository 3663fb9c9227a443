"""Kernels that go to memory without an index: with NUMBA_BOUNDSCHECK=1 they keep within their arrays as indexes do."""

import os
import pkgutil
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.dispatcher import Dispatcher

from cleanerd import kernels
from cleanerd.kernels import native
from cleanerd.kernels.libraries import addresses
from cleanerd.kernels.native import JIT, call_lz4, copy_bytes
from tests.harness.kernels.real_path import RealPath
from tests.harness.logs.random_log import RandomLog, cut_segments, random_facts

LENGTH = 24
LOADS = {"u8": 1, "le64": 8, "le32": 4, "be64u": 8, "be32u": 4, "be16u": 2}
STORES: dict[str, np.signedinteger[Any]] = {
    "store_be64": np.int64(5),
    "store_be32": np.int32(5),
    "store_be16": np.int16(5),
}


@pytest.mark.soak
def test_bytes_beside_an_array_are_an_error_where_indexes_are_checked() -> None:
    """In a process of its own: whether they are checked is settled when numba is imported."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def touching() -> Iterator[tuple[str, int | None, Callable[..., object]]]:
    """(name, bytes that it takes, the kernel of a position); where the kernel is told how many, of that, too."""
    ours, other = np.zeros(LENGTH, np.uint8), np.zeros(LENGTH, np.uint8)
    for name, size in LOADS.items():
        load = getattr(native, name)
        yield name, size, partial(compiled(lambda array, at, load=load: load(array, at)), ours)
    for name, value in STORES.items():
        store = getattr(native, name)
        kernel = compiled(lambda array, value, at, store=store: store(array, at, value))
        yield name, value.nbytes, partial(kernel, ours, value)
    copy = compiled(lambda *given: copy_bytes(*given))
    yield "copy to", None, lambda at, size: copy(ours, at, other, 0, size)
    yield "copy of", None, lambda at, size: copy(other, 0, ours, at, size)
    lz4 = compiled(lambda *given: call_lz4(*given))
    expand = partial(lz4, addresses().lz4_decompress, 0)
    yield "call reads", None, lambda at, size: expand(ours, at, size, other, 0, LENGTH)
    yield "call writes", None, lambda at, size: expand(other, 0, LENGTH, ours, at, size)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return numba.njit(**JIT)(function)  # type: ignore[no-any-return]


def refused(touch: Callable[..., object], *given: int) -> bool:
    try:
        touch(*given)
    except IndexError as error:
        return "outside of an array" in str(error)
    return False


def check() -> None:
    """All that lies inside is taken, and nothing of which one byte does not."""
    for name, takes, touch in touching():
        for size in (0, 1, LENGTH) if takes is None else (takes,):
            told = (size,) if takes is None else ()
            for at in range(LENGTH + 1 - size):
                assert not refused(touch, at, *told), (name, at, size)
            for at in (-LENGTH, -1, LENGTH + 1 - size, 1 << 40, (1 << 63) - 1, -(1 << 63)):
                assert refused(touch, at, *told), (name, at, size)
        for size in (-1, -(1 << 63), (1 << 63) - 1) if takes is None else ():
            assert refused(touch, 1, size), (name, size)


if __name__ == "__main__":
    check()


def test_no_kernel_returns_an_array(tmp_path: Path) -> None:
    """Kernels count no references (`native.JIT`): what an array of theirs points to could be gone."""
    rng = random.Random(1)
    log = RandomLog(rng).append(60)
    RealPath(tmp_path, cut_segments(rng, log.batches, 2), random_facts(rng, log)).clean()
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
    members = [one for name in names for one in vars(import_module(f"{kernels.__name__}.{name}")).values()]
    compiled = {one: one.nopython_signatures for one in members if isinstance(one, Dispatcher)}
    returned = [signature.return_type for signatures in compiled.values() for signature in signatures]
    assert len(returned) > 20
    for answer in returned:
        parts = answer.types if isinstance(answer, types.BaseTuple) else (answer,)  # type: ignore[attr-defined]
        assert not any(isinstance(part, types.Array) for part in parts)
