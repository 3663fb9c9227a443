"""What cleanerd uses of PySpark's inside is there, in the release that is installed: each by its name."""

import inspect
import os
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext, cloudpickle, daemon, java_gateway

from cleanerd.spark_runtime.java import VECTOR_MODULE, find_java_home
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.pyspark_privates import (
    CONNECTION_FILE,
    SETTINGS,
    is_stopped,
    java_command,
    scratch_root,
)
from tests.harness.programs import run

CORE = next((Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar"))


@pytest.mark.parametrize("setting", SETTINGS)
def test_spark_reads_the_setting(setting: str) -> None:
    """A setting that Spark does not know is ignored: the session would be slow, and nothing would say so."""
    with zipfile.ZipFile(CORE) as jar:
        assert setting.encode() in jar.read("org/apache/spark/internal/config/Python$.class")


def test_pyspark_ends_idle_workers_after_a_minute() -> None:
    """That is why a session keeps them busy (`lazy_spark`); with a setting for it, that could go."""
    factory = "org/apache/spark/api/python/PythonWorkerFactory"
    with zipfile.ZipFile(CORE) as jar:
        found = [jar.read(name) for name in jar.namelist() if name.startswith(factory)]
    assert any(b"IDLE_WORKER_TIMEOUT" in data for data in found)


def test_a_plain_session_starts_the_jvm_that_sparks_launcher_would_start() -> None:
    """But for the module of MLlib, which not every runtime has, and with the class that SparkSubmit would call."""
    spark, java = os.path.dirname(pyspark.__file__), os.path.join(find_java_home(), "bin", "java")
    told = run(
        java, "-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit",
        "--conf", "spark.driver.memory=2g", "--conf", "spark.driver.extraJavaOptions=-Da=b -Dc=d", "pyspark-shell",
        env={"SPARK_SCALA_VERSION": "2.13", "SPARK_HOME": spark, "JAVA_HOME": os.path.dirname(os.path.dirname(java))},
    )  # fmt: skip
    words = [word for word in told.stdout.strip("\0\n").split("\0") if VECTOR_MODULE not in word]
    words = words[: words.index("org.apache.spark.deploy.SparkSubmit")]
    *ours, main = java_command(java, spark, "2g", ["-Da=b", "-Dc=d"])
    assert ours == words
    with zipfile.ZipFile(CORE) as jar:
        submit = [
            jar.read(name)
            for name in jar.namelist()
            if name.startswith("org/apache/spark/deploy/SparkSubmit")
        ]
    assert any(main.encode() in data for data in submit)


def test_a_jvm_writes_how_it_is_called_to_a_file_that_a_variable_names() -> None:
    """Port and secret, each behind its length or in four bytes, as PySpark itself reads them."""
    source = inspect.getsource(java_gateway)
    for part in (f'env["{CONNECTION_FILE}"]', "read_int(info)", "UTF8Deserializer().loads(info)"):
        assert part in source


@pytest.mark.parametrize("name", ["_gateway", "_jvm", "_active_spark_context"])
def test_a_process_keeps_the_gateway_in_class_attributes(name: str, spark: LazySpark) -> None:
    context = spark.context()
    assert getattr(SparkContext, name) is not None
    assert context._gateway is SparkContext._gateway


def test_a_context_has_what_is_used_of_it(spark: LazySpark) -> None:
    context = spark.context()
    assert os.path.isdir(scratch_root(context))
    assert not is_stopped(context)
    assert context.pythonExec
    server = context._accumulatorServer
    assert server is not None
    assert callable(server.handle_error)
    assert callable(server.shutdown)


def test_functions_that_workers_run() -> None:
    """The daemon of workers takes nothing; functions are pickled by PySpark's own cloudpickle."""
    assert not inspect.signature(daemon.manager).parameters
    assert list(inspect.signature(cloudpickle.dump).parameters)[:2] == ["obj", "file"]
    assert {"conf", "gateway"} <= set(inspect.signature(SparkContext).parameters)
