"""Compiled kernels on disk: a file for each signature, used only if it is whole.

numba's own files are made for one process at a time: it numbers the signatures of a function in an index that it reads,
changes and writes, so two processes that compile at the same time (tasks of one job do) may give two signatures one
number, and each then finds the code of the other. And a file that lost its end when the power failed makes every later
call raise until it is deleted. Here the name of a file follows from its signature, and what is not whole is compiled
again. And processes of one machine take turns to compile, so that each kernel is compiled by one of them.
"""

import contextlib
import glob
import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from cleanerd.env.turns import machine_turn

from .compiled import VARIABLE, version

_DIGEST_BYTES = hashlib.sha256().digest_size


class KernelCache(FunctionCache):
    """The cache of the compiled code of one function, in numba's interface."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = f"{version()} checked" if cpu_target.target_context.enable_boundscheck else version()
        self._cache_file: _Files = _Files(self.cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None: then it is to be compiled here, within `compiling`."""
        found = super().load_overload(sig, target_context)
        if found is None and _turn.take():  # another process may have compiled it meanwhile
            found = super().load_overload(sig, target_context)
        return found

    def signatures(self) -> list[Any]:
        """The signatures whose code is kept for this processor."""
        codegen = cpu_target.target_context.codegen()
        kept = self._cache_file.keys()
        return [key[0] for key in kept if key == self._index_key(key[0], codegen)]


class NotKept(NullCache):
    """The cache if there is no directory for compiled code: each process compiles the kernels that it calls."""

    def signatures(self) -> list[Any]:
        """None."""
        return []


def cache_of(function: Callable[..., Any]) -> KernelCache | NotKept:
    """The cache of the compiled code of a function."""
    return KernelCache(function) if VARIABLE in os.environ else NotKept()


class _Turn:
    """The machine's turn to compile: from the first missing kernel to the end of the outermost `compiling`."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_taken = False
        self._held = contextlib.ExitStack()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """While a kernel is loaded or compiled, and with it those that it calls."""
        with global_compiler_lock:  # of this process
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._is_taken = False
                    self._held.close()

    def take(self) -> bool:
        """Wait for it; False if this process has it, or is not `compiling`."""
        if self._is_taken or self._depth == 0:
            return False
        self._held.enter_context(machine_turn("kernels"))
        self._is_taken = True
        return True


_turn = _Turn()
compiling = _turn.compiling


class _Files(IndexDataCacheFile):
    """Cache files without an index. A key is a signature and the target processor; the version covers the rest."""

    def load(self, key: Any) -> Any:
        """The compiled code, or None where there is none, or none that is whole and for this key."""
        found = _read(self._path_of(key))
        return found[1] if found is not None and found[0] == key else None

    def keys(self) -> list[Any]:
        """The keys of all whole files."""
        found = []
        for path in sorted(glob.glob(f"{glob.escape(self._path_without_end())}.*.nbc")):
            # Another version of numba may have written the file, in a form that this one cannot read.
            with contextlib.suppress(Exception):
                read = _read(path)
                if read is not None and path == self._path_of(read[0]):
                    found.append(read[0])
        return found

    def save(self, key: Any, code: Any) -> None:
        """Replace a file as a whole. If the disk is full, the next process compiles again."""
        content = dumps((key, code))
        path = self._path_of(key)
        with contextlib.suppress(OSError):
            handle, unfinished = tempfile.mkstemp(prefix=".", dir=self._cache_path)
            try:
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                os.replace(unfinished, path)
            except OSError:
                os.unlink(unfinished)

    def _path_of(self, key: Any) -> str:
        name = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode()).hexdigest()[:16]
        return f"{self._path_without_end()}.{name}.nbc"

    def _path_without_end(self) -> str:
        return os.path.splitext(self._index_path)[0]


def _read(path: str) -> tuple[Any, Any] | None:
    """Key and code of a file; None without a whole one."""
    try:
        with open(path, "rb") as file:
            digest, content = file.read(_DIGEST_BYTES), file.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    key, code = pickle.loads(content)  # noqa: S301  # written by this user alone: `settle_cache`
    return key, code
