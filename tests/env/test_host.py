"""What of the host reaches the processes that cleanerd starts."""

import os
from pathlib import Path

import pytest

import cleanerd
from cleanerd.env.host import passed_on, user_name

ROOT = str(Path(cleanerd.__file__).parents[1])


def test_only_what_is_listed_passes() -> None:
    """Not what is meant for another Spark, Hadoop or Java, nor what nobody thought of."""
    passed = {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "JAVA_HOME": "/java",
        "NUMBA_CACHE_DIR": "/n",
        "TMPDIR": "/t",
    }
    foreign = dict.fromkeys(
        (
            "BASH_ENV",
            "CLASSPATH",
            "HADOOP_CONF_DIR",
            "JAVA_TOOL_OPTIONS",
            "KAFKA_HEAP_OPTS",
            "PYSPARK_SUBMIT_ARGS",
            "SPARK_HOME",
            "_JAVA_OPTIONS",
        ),
        "/other",
    )
    assert passed_on({**passed, **foreign}) == {**passed, "PYTHONPATH": ROOT}


@pytest.mark.parametrize("given", ["/a:/b", f"/a:{ROOT}:/b", ":/a::/b"])
def test_the_same_cleanerd_is_found_first(given: str) -> None:
    assert passed_on({"PYTHONPATH": given})["PYTHONPATH"] == os.pathsep.join([ROOT, "/a", "/b"])


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name()
    monkeypatch.setattr(os, "geteuid", lambda: 1000650123)
    assert user_name() is None
