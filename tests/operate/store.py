"""Images and containers of a test session, and a broker in one of them.

The base image is made here, for no registry is asked: Debian 12 by debootstrap, as `debian:bookworm-slim` is, with the
certificates of this machine. It is kept with the other things that tests download. The broker's image stands for
`apache/kafka`: the same start (the broker's own `KafkaDockerWrapper`), user and directories, around the jars of
`tests/kafka`.
"""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.broker.releases import kafka_libs
from tests.harness.programs import ROOT, need, run

BASE, IMAGE, PAUSE = "localhost/cleanerd-base", "localhost/cleanerd", "localhost/pause"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

# Limits: the runtime would raise them, which takes a capability that a nested machine may lack.
SETTINGS = """
[containers]
default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]
[engine]
infra_image = "{pause}"
"""
START_BROKER = """#!/bin/sh
set -eu
java() {
  exec /opt/java/bin/java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 ${KAFKA_OPTS-} -cp '/opt/kafka/libs/*' "$@"
}
told=$(java kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \\
  --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1) ||
  case $told in *'already formatted'*) ;; *) echo "$told"; exit 1 ;; esac
java -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml kafka.Kafka /opt/kafka/config/server.properties
"""
LOG4J = """
Configuration:
  Appenders: {Console: {name: out, PatternLayout: {pattern: "%p %c %m%n"}}}
  Loggers: {Root: {level: INFO, AppenderRef: [{ref: out}]}}
"""
BROKERS_DIRECTORIES = "/opt/kafka/config /mnt/shared/config /var/lib/kafka/data"


@dataclass(frozen=True)
class Store:
    """Images, containers and volumes below a directory."""

    directory: Path

    def options(self) -> list[str]:
        return ["--root", str(self.directory / "root"), "--runroot", str(self.directory / "run")]

    def settings(self) -> list[str]:
        return ["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]

    def environment(self) -> dict[str, str]:
        return {"CONTAINERS_CONF": str(self.directory / "containers.conf")}

    def buildah(self, *words: object, timeout_s: float = 600) -> str:
        env = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
        done = run(need("buildah", "buildah"), *self.options(), *words, env=env, timeout_s=timeout_s)
        return done.stdout.strip()

    def podman(
        self, *words: object, check: bool = True, given: str | None = None, timeout_s: float = 120
    ) -> "tuple[int, str]":
        """Exit code, and all that it says."""
        command = [need("podman", "podman"), *self.options(), *self.settings(), *words]
        done = run(*command, check=check, timeout_s=timeout_s, env=self.environment(), given=given)
        return done.returncode, done.stdout + done.stderr

    def inspect(self, container: str, what: str) -> str:
        return self.podman("inspect", container, f"--format={{{{{what}}}}}")[1].strip()

    @property
    def cache(self) -> Path:
        """What cleanerd keeps between starts, for all its containers: each alone would compile the kernels for a minute."""
        return self.directory / "cache"

    def prepare(self) -> None:
        self.cache.mkdir()
        os.chown(self.cache, 1000, 1000)
        nofile, nproc = (_soft(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        (self.directory / "containers.conf").write_text(
            SETTINGS.format(nofile=nofile, nproc=nproc, pause=PAUSE)
        )


def _soft(limit: int) -> int:
    return min(resource.getrlimit(limit)[0], 4096)


@contextmanager
def built(*arch: str, timeout_s: float = 600) -> Iterator[Store]:
    """A store with the image in it, built from the Dockerfile as it is; for another processor with `--arch=`."""
    store = Store(Path(tempfile.mkdtemp(prefix="cleanerd-")))  # Podman wants a short path
    try:
        store.prepare()
        container = store.buildah("from", *arch, "scratch")
        store.buildah("copy", "-q", container, _base_root(*arch, timeout_s=timeout_s), "/")
        store.buildah("commit", "-q", container, BASE)
        store.buildah("config", '--cmd=["sleep","infinity"]', container)
        store.buildah("commit", "-q", "--rm", container, PAUSE)
        store.buildah(
            "bud", *arch, "--jobs=2", "--format=docker", "--layers=false", f"--build-arg=BASE={BASE}",
            "--build-arg=REVISION=abc", "-t", IMAGE, "-f", ROOT / "Dockerfile", ROOT, timeout_s=timeout_s,
        )  # fmt: skip
        yield store
    finally:
        store.podman("pod", "rm", "--all", "--force", "--time=0", check=False)
        store.podman("rm", "--all", "--force", "--time=0", check=False)
        store.podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(store.directory, ignore_errors=True)


def _base_root(*arch: str, timeout_s: float) -> Path:
    """Root of a minimal Debian 12, made once."""
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cleanerd-tests"
    directory = kept / "".join(("bookworm", *arch))
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        debootstrap = need("debootstrap", "debootstrap")
        command = (*arch, "--variant=minbase", "--include=ca-certificates", "bookworm", directory / "root")
        run(debootstrap, *command, timeout_s=timeout_s)
        (directory / "complete").touch()
    shutil.copy(f"/{CERTIFICATES}", directory / "root" / CERTIFICATES)
    return directory / "root"


def build_broker(store: Store, name: str) -> None:
    """The broker's image, under the name that a manifest has for it."""
    container = store.buildah("from", BASE)
    etc = store.directory / "etc"
    etc.mkdir()
    for file, text in {"run": START_BROKER, "log4j2.yaml": LOG4J, "tools-log4j2.yaml": LOG4J}.items():
        (etc / file).write_text(text)
        (etc / file).chmod(0o755)
    java = store.directory / "java"  # a whole one: that of cleanerd's image loads no agents
    home = Path(need("java", "default-jdk-headless")).resolve().parents[1]
    shutil.copytree(
        home, java, ignore=shutil.ignore_patterns("jmods", "src.zip"), ignore_dangling_symlinks=True
    )
    store.buildah("copy", "-q", container, java, "/opt/java")
    store.buildah("copy", "-q", container, kafka_libs(), "/opt/kafka/libs")
    store.buildah("copy", "-q", container, etc, "/etc/kafka/docker")
    for command in (f"mkdir -p {BROKERS_DIRECTORIES}", f"chown 1000:1000 {BROKERS_DIRECTORIES}"):
        store.buildah("run", container, *command.split())
    path = "PATH=/usr/bin:/bin"
    store.buildah("config", "--user=1000", "--cmd=/etc/kafka/docker/run", f"--env={path}", container)
    store.buildah("commit", "-q", "--rm", container, f"docker.io/{name}")
