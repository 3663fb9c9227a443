"""`cleanerd.spark.master` names a cluster: a standalone master and two workers on loopback clean for the daemon."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from cleanerd.pipeline.java import find_java_home
from tests.cleaning.logs import newest, write_logs
from tests.daemon.processes import ROOT, running, wait_until
from tests.daemon.test_daemon_process import committed

pytestmark = pytest.mark.soak

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def spark_daemon(out: Path, *arguments: str) -> Iterator[None]:
    environment = {
        **os.environ,
        "JAVA_HOME": find_java_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    with out.open("wb") as told:
        process = subprocess.Popen([str(SPARK_CLASS), *arguments], stdout=told, stderr=told, env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[Path]]]:
    """Master URL, and what each worker says."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    ports = ["--port", str(port), "--webui-port", "0"]
    told = [tmp_path / f"worker-{number}.log" for number in range(WORKERS)]
    with spark_daemon(tmp_path / "master.log", f"{package}.master.Master", "--host", "127.0.0.1", *ports):
        wait_until(lambda: "I have been elected leader" in (tmp_path / "master.log").read_text(), 60)
        start = [
            f"{package}.worker.Worker",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "-c",
            "1",
            "-m",
            "1g",
        ]
        with (
            spark_daemon(told[0], *start, "-d", str(tmp_path / "w0"), master),
            spark_daemon(told[1], *start, "-d", str(tmp_path / "w1"), master),
        ):
            wait_until(lambda: all("Successfully registered" in log.read_text() for log in told), 60)
            yield master, told


def test_daemon_cleans_on_a_standalone_cluster(tmp_path: Path, cluster: tuple[str, list[Path]]) -> None:
    master, told = cluster
    logs = write_logs(tmp_path / "logs", "one", "two")
    settings = {"cleanerd_spark_master": master, "cleanerd_spark_idle_timeout_ms": 600_000}
    with running(tmp_path / "d", logs, **settings) as daemon:
        wait_until(lambda: committed(daemon, "one-0") and committed(daemon, "two-0"), 120, daemon.output)
    assert len(newest(logs / "one-0")) == len(newest(logs / "two-0")) == 7
    executors = [re.findall(r"executor app-\S+", log.read_text()) for log in told]
    assert any(executors), "workers of the cluster did the work"
