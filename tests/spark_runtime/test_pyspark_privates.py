"""What cleanerd counts on of Spark's inside, and no session that runs would show."""

import zipfile
from pathlib import Path

import pyspark
import pytest

from cleanerd.spark_runtime.pyspark_privates import SETTINGS

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
