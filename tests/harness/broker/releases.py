"""Kafka's releases, as `tests/kafka/releases.toml` has them: their jars, and how their programs are run.

The jars are copied once into a cache outside of the tree; the marker file is written last, so a cache without it is built
again.
"""

import fcntl
import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parents[2] / "kafka"
POM = HERE / "pom.xml"
COMPLETE = "complete"
TOOL_TIMEOUT_S = 120.0
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:cds*=off")
SWITCH = "CLEANERD_TEST_KAFKA"


@dataclass(frozen=True, slots=True)
class Release:
    version: str
    metadata: str
    logging: str
    dump_log_segments: str
    segment_bytes: str
    first_checkpoint_ms: int
    delete_horizons: bool
    empty_end: bool
    last_offset_in_time_index: bool

    @property
    def has_zookeeper(self) -> bool:
        """Whether topics are known to a ZooKeeper and not to a controller."""
        return self.metadata == "zookeeper"

    def topic_config(self, config: Mapping[str, str]) -> dict[str, str]:
        """Settings of a topic as this release takes them: `internal.segment.bytes` has another name in some."""
        return {
            self.segment_bytes if key == "internal.segment.bytes" else key: value
            for key, value in config.items()
        }


def releases() -> dict[str, Release]:
    """All, by version, oldest first."""
    table = tomllib.loads((HERE / "releases.toml").read_text(encoding="utf-8"))
    return {version: Release(version, **row) for version, row in table.items()}


def newest_release() -> str:
    """Version of the one that the whole suite runs on."""
    return list(releases())[-1]


def current_release() -> Release:
    """The one that tests run on: what the environment says, else the newest."""
    known = releases()
    version = os.environ.get(SWITCH) or newest_release()
    if version not in known:
        raise RuntimeError(f"{SWITCH}={version}: tests/kafka/releases.toml has {', '.join(known)}")
    return known[version]


def required_program(name: str) -> str:
    """Full path of a program that the forced tests cannot do without."""
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"the broker tests were asked for, but there is no {name!r} on the PATH")
    return path


def kafka_libs() -> Path:
    """Directory of the current release's jars, filled on first use by one of the processes that need it."""
    release = current_release()
    return _jars(f"kafka-{release.version}", POM, f"-Dkafka.version={release.version}", "-P", release.logging)


def mirror_maker_libs() -> Path:
    """Directory of the jars of MirrorMaker 2, with its own clients."""
    return _jars("mirror-maker", HERE / "mirror-maker.xml")


def _jars(name: str, pom: Path, *choice: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cleanerd-tests"
    cache.mkdir(parents=True, exist_ok=True)
    libs = cache / name
    marker = libs / COMPLETE
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists() or marker.read_bytes() != pom.read_bytes():
            shutil.rmtree(libs, ignore_errors=True)
            for archive in cache.glob(f"{libs.name}-*"):
                archive.unlink()
            copy = [required_program("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
            run_tool([*copy, *choice, f"-DoutputDirectory={libs}"], timeout_s=600)
            marker.write_bytes(pom.read_bytes())
    return libs


def run_tool(
    command: Sequence[str], *, timeout_s: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; raise `RuntimeError` with its output when it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def class_archive() -> Path:
    """The classes of the current release as this Java has them in memory: with it a broker starts in 1.7 s of a core, and in
    3.0 s without. The first broker that stops in order leaves it (JEP 350).
    """
    made = Path(required_program("java")).resolve().stat().st_mtime_ns
    return kafka_libs().with_name(f"{kafka_libs().name}-{made}.jsa")


def jvm_options() -> list[str]:
    """What makes a JVM start fast."""
    archive = class_archive()
    return [*JVM_OPTIONS, *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else [])]


def java_command(main: str, *arguments: str, heap: str = "256m", options: Sequence[str] = ()) -> list[str]:
    """Argument vector that runs a class of the distribution."""
    jvm = [required_program("java"), f"-Xmx{heap}", *jvm_options(), *options]
    return [*jvm, "-cp", f"{kafka_libs()}/*", main, *arguments]
