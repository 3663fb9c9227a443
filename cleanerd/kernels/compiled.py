"""Where compiled kernels are kept; settled before numba is imported.

Kernels have each other's code in them, and numbers of other modules (`_BAKED_IN`), but numba compiles a kept one again only
when the file of its outermost function changed. So the directory is named by the content of all these files: another
version never runs the code of this one.
"""

import atexit
import contextlib
import ctypes
import hashlib
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from functools import cache

from cleanerd.env.cache import cache_directory, why_untrusted
from cleanerd.errors import Fatal
from cleanerd.format import codecs, head, offset_index
from cleanerd.policy import verdicts, winner

VARIABLE = "NUMBA_CACHE_DIR"
_BAKED_IN = (codecs, head, offset_index, verdicts, winner)


def settle_cache(environment: MutableMapping[str, str]) -> None:
    """Name a directory that can be written, by this user alone: what is loaded from there is executed.

    That is one in the directory that is named already, else in the cache directory; a temporary one, which goes away with
    this process, if another user could have written there, or it is not writable at all; none where that cannot be made
    either: then each process compiles for itself. Processes started later inherit it,
    and take it again: where every user may write to the directory of temporary files, each engine would compile all kernels.
    Those of another version, of an engine that was installed below a running daemon, do not.
    """
    named = environment.get(VARIABLE)
    directory = named or os.path.join(cache_directory(environment), "numba")
    if os.path.basename(directory) != version():
        directory = os.path.join(directory, version())
    wrong = why_untrusted(named or directory, is_vouched_for=named is not None)
    is_writable = wrong is None and _is_writable(directory)
    if named and wrong is None and not is_writable:
        wrong = "it cannot be written"
    if wrong is not None:
        sys.stderr.write(f"cleanerd: compiled kernels are not taken from {directory}: {wrong}\n")
    if not is_writable:
        try:
            temporary = tempfile.mkdtemp(prefix="cleanerd-numba-")
        except OSError:
            environment.pop(VARIABLE, None)
            return
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        directory = os.path.join(temporary, version())
        os.mkdir(directory, 0o700)
    environment[VARIABLE] = directory


def check_memory() -> None:
    """Raise Fatal if this process may not make memory executable: LLVM would end it without an error message."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise Fatal(
            f"this process may not make memory executable ({reason}), which compiled kernels and Java need: no "
            "MemoryDenyWriteExecute= in its unit, or allow it execmem (SELinux)"
        )


@cache
def version() -> str:
    """Version of the kernels: it changes with their code and with every compiled-in number."""
    digest = hashlib.sha256()
    package = os.path.dirname(os.path.abspath(__file__))
    kernels = [os.path.join(package, name) for name in sorted(os.listdir(package)) if name.endswith(".py")]
    for path in [*kernels, *(str(module.__file__) for module in _BAKED_IN)]:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:16]


def _is_writable(directory: str) -> bool:
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True
