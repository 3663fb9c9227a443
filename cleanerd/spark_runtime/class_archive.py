"""The classes of Spark's JVM, parsed and checked once: an archive that later JVMs map (`java -XX:SharedArchiveFile`).

Half of what a start of Spark computes is reading classes from its jars. A JVM writes the archive when it ends, which makes
its own start and end slower; so only a session that was asked to does, and only while there is none. The JVM itself refuses
an archive of another build or of other jars, and then reads the jars as before. An empty file stands for a runtime that can
make none.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyspark

from cleanerd.env.cache import cache_directory, why_untrusted
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles

_ARCHIVE = re.compile(r"spark-[0-9a-f]{16}\.jsa(\.\d+)?")
_UNFINISHED_MS = 3_600_000
"""No JVM takes that long to end."""
_UNUSED_MS = 30 * 86_400_000
"""70 MB each, of releases and settings that are used no more."""
_OF_THE_RUNTIME = ("classes.jsa", "classes_nocoops.jsa")
"""Archives of the JDK that ours extends; the heap decides which. jlink makes none, and Java 17 fails without one."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Paths of a runtime's archive, and of the unfinished one that a JVM writes."""

    path: str
    unfinished: str

    @staticmethod
    def of(java_home: str, jvm_options: str, environment: Mapping[str, str]) -> "ClassArchive | None":
        """The archive for a runtime with these options; None without a cache directory, or where the runtime has none."""
        cache = cache_directory(environment)
        if why_untrusted(cache) is not None or not cache.isprintable() or set(cache) & set(" \"'\\,:"):
            return None
        java = os.path.realpath(os.path.join(java_home, "bin", "java"))
        server = os.path.join(os.path.dirname(os.path.dirname(java)), "lib", "server")
        if not all(os.path.exists(os.path.join(server, name)) for name in _OF_THE_RUNTIME):
            return None
        try:
            os.makedirs(cache, exist_ok=True)
            found = os.stat(java)
        except OSError:
            return None
        spark = f"{pyspark.__version__}|{os.path.dirname(pyspark.__file__)}"
        about = f"{java}|{found.st_size}|{spark}|{jvm_options}"
        path = os.path.join(cache, f"spark-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa")
        return ClassArchive(path, f"{path}.{os.getpid()}")

    def is_wanted(self) -> bool:
        """Whether none has been made yet, and one could be kept."""
        return not os.path.exists(self.path) and os.access(os.path.dirname(self.path), os.W_OK)

    def options(self, *, makes: bool) -> str:
        """Options of the JVM: write an archive if it `makes` one, else use the existing one, if any."""
        with contextlib.suppress(OSError):
            os.utime(self.path)  # it is in use
        self._forget_old_ones()
        if makes:
            return f"-XX:ArchiveClassesAtExit={self.unfinished}"
        has_one = os.path.exists(self.path) and os.path.getsize(self.path)
        return f"-XX:SharedArchiveFile={self.path}" if has_one else ""

    def keep(self) -> None:
        """Adopt the archive of a JVM that has ended by itself, completely or not at all."""
        with contextlib.suppress(OSError):
            if os.path.exists(self.unfinished):
                RealFiles().fsync(self.unfinished)  # a JVM checks only the header of an archive
                os.replace(self.unfinished, self.path)
            else:
                open(self.path, "x").close()

    def drop(self) -> None:
        """Delete the unfinished archive of a JVM that was killed."""
        with contextlib.suppress(OSError):
            os.unlink(self.unfinished)

    def _forget_old_ones(self) -> None:
        directory = os.path.dirname(self.path)
        now_ms = SystemClock().now_ms()
        with contextlib.suppress(OSError):
            for entry in os.scandir(directory):
                found = _ARCHIVE.fullmatch(entry.name)
                if found is None:
                    continue
                age_ms = now_ms - entry.stat().st_mtime_ns // 1_000_000
                if age_ms > (_UNFINISHED_MS if found[1] else _UNUSED_MS):
                    os.unlink(entry.path)
