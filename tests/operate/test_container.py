"""The image, built and run by real tools, alone and beside a broker as the samples for Kubernetes and Compose have it."""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.broker.kafka import free_ports
from tests.harness.daemon.processes import wait_until
from tests.harness.logs.logdirs import GOLDEN, broker_log_dir
from tests.harness.logs.troubled import assert_settled, leave_to_nobody, newest, write_logs
from tests.harness.programs import missing, need, run
from tests.operate.pod import POD, Pod
from tests.operate.side_by_side import SEGMENT_BYTES, SOON_S
from tests.operate.stack import Stack
from tests.operate.store import IMAGE, Store, build_broker, built
from tests.operate.test_manifests import COMPOSE, STATEFULSET, documents, kustomized

UNKNOWN_UID = 4711  # not in /etc/passwd of the image
CLEANED_S = 150.0  # kernels are compiled on the way
MUST_BUILD = os.environ.get("CLEANERD_TEST_CONTAINER") == "1"
EMULATED_S = 3600.0
needs_emulation = pytest.mark.skipif(
    os.environ.get("CLEANERD_TEST_ARM") != "1", reason="a slow emulation; needs CLEANERD_TEST_ARM=1"
)
needs_operate = pytest.mark.skipif(not MUST_BUILD, reason="builds an image; needs CLEANERD_TEST_CONTAINER=1")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    if os.geteuid() != 0:
        missing("building an image takes root here")
    with built() as store:
        yield store


@needs_operate
def test_image_says_what_it_is_and_how_it_is_run(store: Store) -> None:
    config: dict[str, Any] = json.loads(store.buildah("inspect", "--type=image", IMAGE))["Docker"]["config"]
    assert config["User"] == "1000:1000", "numeric, so that runAsNonRoot can be checked"
    assert config["Entrypoint"] == ["tini", "--", "cleanerd"]
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
    leave_to_nobody(logs)
    for path in [logs, *logs.rglob("*")]:
        os.chown(path, UNKNOWN_UID, UNKNOWN_UID)
    (port,) = free_ports(1)
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


@needs_emulation
@pytest.mark.timeout(3 * EMULATED_S)
def test_image_for_aarch64_leaves_the_bytes_that_this_processor_leaves(tmp_path: Path) -> None:
    """QEMU runs all of it, from the base image on. Logs of a real broker: every codec, aborted transactions."""
    need("qemu-aarch64-static", "qemu-user-static and binfmt-support")
    here, there = (broker_log_dir(tmp_path / name) for name in ("here", "logs"))
    clean = (
        "clean",
        "--force",
        "--roll",
        "--set=log.cleanup.policy=compact",
        "--now-ms=1800000000000",
        "--assume=now",
    )
    told = run(sys.executable, "-m", "cleanerd.cli.main", *clean, f"--log-dir={here}", timeout_s=300).stdout
    assert (
        told.count("committed") == len(list(GOLDEN.glob("*-0"))) - 1
    )  # not the log of the cluster's metadata
    for path in [there, *there.rglob("*")]:
        os.chown(path, UNKNOWN_UID, UNKNOWN_UID)
    (tmp_path / "etc").mkdir()
    with built("--arch=arm64", timeout_s=EMULATED_S) as store:
        options = ("--rm", *confined(tmp_path, 0))
        assert store.podman("run", *options, "--entrypoint=uname", IMAGE, "-m")[1].split()[0] == "aarch64"
        store.podman("run", *options, IMAGE, *clean, "--log-dir=/var/lib/kafka/data", timeout_s=EMULATED_S)
    assert files(there) == files(here)


def files(directory: Path) -> dict[str, bytes]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def confined(directory: Path, port: int) -> list[str]:
    written = ("/run/cleanerd", "/var/lib/cleanerd", "/var/cache/cleanerd")
    return [
        "--network=host", "--no-healthcheck", "--passwd=false", f"--user={UNKNOWN_UID}:{UNKNOWN_UID}",
        "--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges",
        "--tmpfs=/tmp", *(f"--tmpfs={path}:mode=1777" for path in written),
        f"--volume={directory / 'logs'}:/var/lib/kafka/data", f"--volume={directory / 'etc'}:/etc/kafka:ro",
        f"--env=CLEANERD_METRICS_LISTEN=127.0.0.1:{port}",
    ]  # fmt: skip


# -- beside a broker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_broker(store: Store) -> Store:
    """The store, with images under the names of the samples."""
    pod = documents(STATEFULSET)[2]["spec"]["template"]["spec"]
    store.buildah("tag", IMAGE, f"localhost/{pod['initContainers'][0]['image']}")
    build_broker(store, pod["containers"][0]["image"])
    return store


@pytest.fixture
def pod(with_broker: Store, tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(with_broker, tmp_path, documents(STATEFULSET))
    yield pod
    pod.remove()


@needs_operate
@pytest.mark.timeout(900)
def test_a_pod_commits_before_its_broker_starts_and_loses_nothing_when_parts_of_it_are_killed(
    pod: Pod,
) -> None:
    pod.start()  # the directory of the logs is not there yet
    pod.assert_order_of_start()
    pod.create()
    pod.write_until_staged()

    pod.kill(pod.kafka)  # and its container alone starts again
    wait_until(lambda: not pod.is_running(pod.kafka), SOON_S)
    pod.start(with_cleanerd=False)
    wait_until(lambda: pod.outcomes() == ["committed"], SOON_S, pod.say)
    pod.assert_nothing_is_lost()

    pod.write_until_staged()
    pod.kill(pod.cleanerd)  # the broker goes on
    pod.write(10)
    pod.run(pod.cleanerd)
    wait_until(lambda: pod.state() == "staged", SOON_S, pod.say)
    pod.kill_all()
    pod.start()
    pod.assert_order_of_start()
    pod.assert_in_place()
    pod.assert_nothing_is_lost()


@needs_operate
@pytest.mark.timeout(900)
def test_a_pod_whose_broker_is_first_commits_in_the_next_gap_and_ends_in_order(pod: Pod) -> None:
    """As where a kubelet knows no sidecars: nothing is put in place below a broker that lives, and nothing is lost."""
    pod.start()
    pod.create()
    pod.write_until_staged()
    pod.kill_all()
    pod.start(with_cleanerd=False)
    began = pod.began(pod.kafka)
    pod.start_cleanerd()
    assert pod.store.inspect(pod.commit, ".State.ExitCode") == "0", "whatever comes of it, the broker starts"
    wait_until(lambda: pod.state() == "staged", SOON_S, pod.say)
    assert pod.outcomes() == []
    assert pod.is_running(pod.kafka)
    assert pod.began(pod.kafka) == began
    pod.assert_nothing_is_lost()

    pod.kill(pod.kafka)
    wait_until(lambda: pod.outcomes() == ["committed"], SOON_S, pod.say)
    pod.start(with_cleanerd=False)
    pod.assert_in_place()
    pod.assert_nothing_is_lost()

    pod.write_until_staged()
    pod.stop()
    pod.assert_ended_in_order()
    pod.start()
    pod.assert_order_of_start()
    pod.assert_in_place()
    pod.assert_nothing_is_lost()


@needs_operate
@pytest.mark.timeout(900)
def test_a_pod_whose_broker_brings_the_agent_has_results_swapped_in(
    with_broker: Store, tmp_path: Path
) -> None:
    """Containers that see nothing of each other but the volume of the logs."""
    overlay = "resources: [../base]\ncomponents: [../base/live]\n"
    pod = Pod(with_broker, tmp_path, kustomized(tmp_path, overlay))
    try:
        pod.run(f"{POD}-agent")
        wait_until(lambda: not pod.is_running(f"{POD}-agent"), SOON_S, pod.say)
        pod.start()
        began = pod.began(pod.kafka)
        pod.create()
        pod.write()
        wait_until(lambda: pod.size() < SEGMENT_BYTES, CLEANED_S, pod.say)
        pod.assert_nothing_is_lost()
        assert pod.began(pod.kafka) == began
    finally:
        pod.remove()


@needs_operate
@pytest.mark.timeout(900)
def test_compose_starts_in_order_and_a_cleanerd_that_cannot_start_keeps_no_broker_waiting(
    with_broker: Store, tmp_path: Path
) -> None:
    stack = Stack(with_broker, tmp_path, COMPOSE)
    stack.up()
    stack.assert_order_of_start()
    stack.create()
    stack.write_until_staged()
    stack.compose("restart", "kafka")
    stack.wait_for_the_broker()
    wait_until(lambda: stack.outcomes() == ["committed"], SOON_S, stack.say)
    stack.assert_nothing_is_lost()

    stack.write_until_staged()
    before = stack.began(stack.cleanerd)
    stack.kill(stack.cleanerd)
    wait_until(lambda: stack.began(stack.cleanerd) != before and stack.is_ready(), SOON_S, stack.say)
    stack.compose("down")
    stack.up()
    stack.assert_order_of_start()
    stack.assert_in_place()
    stack.assert_nothing_is_lost()

    stack.compose("down")
    stack.configure(CLEANERD_RETRY_MAX="none")
    stack.up()
    stack.assert_nothing_is_lost()
    assert "retry" in stack.said(stack.cleanerd).lower()
    stack.compose("down")
