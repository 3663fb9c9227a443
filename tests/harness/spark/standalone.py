"""A standalone Spark on loopback: a master and workers, processes of this one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from cleanerd.spark_runtime.java import find_java_home
from tests.harness.broker.kafka import free_ports
from tests.harness.daemon.processes import ROOT, wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


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


@contextmanager
def standalone(tmp_path: Path, workers: int, **properties: str) -> Iterator[tuple[str, list[Path]]]:
    """Master URL, and what each worker says; `properties` (dots as underscores) hold for all of them."""
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    told = [tmp_path / f"worker-{number}.log" for number in range(workers)]
    defaults = tmp_path / "defaults.conf"
    defaults.write_text("".join(f"{k.replace('_', '.')} {v}\n" for k, v in properties.items()))
    common = ["--host", "127.0.0.1", "--webui-port", "0", "--properties-file", str(defaults)]
    with ExitStack() as running:
        master_log = tmp_path / "master.log"
        arguments = [f"{package}.master.Master", *common, "--port", str(port)]
        running.enter_context(spark_daemon(master_log, *arguments))
        wait_until(lambda: "I have been elected leader" in master_log.read_text(), 60)
        for number, log in enumerate(told):
            place = ["-c", "1", "-m", "1g", "-d", str(tmp_path / f"w{number}"), master]
            running.enter_context(spark_daemon(log, f"{package}.worker.Worker", *common, *place))
        wait_until(lambda: all("Successfully registered" in log.read_text() for log in told), 60)
        yield master, told
