"""The JVM of a session: what it starts with, and what keeps it from starting."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from cleanerd.errors import Fatal
from cleanerd.spark_runtime import jvm
from cleanerd.spark_runtime.jvm import PYTHON, spark_environment
from cleanerd.spark_runtime.lazy_spark import LazySpark
from tests.harness.spark.sessions import count, jvm_of, session

OTHER = "/nonexistent/other"
HOST = {
    "BASH_ENV": OTHER,
    "CLASSPATH": OTHER,
    "HADOOP_CONF_DIR": OTHER,
    "HADOOP_USER_NAME": "other",
    "JAVA_TOOL_OPTIONS": "-Xmx1k",
    "JDK_JAVA_OPTIONS": "-XX:+NoSuchOption",
    "PYSPARK_DRIVER_PYTHON": "ipython",
    "PYSPARK_GATEWAY_PORT": "1",
    "PYSPARK_GATEWAY_SECRET": "other",
    "PYSPARK_PYTHON": "/usr/bin/python2.7",
    "PYSPARK_SUBMIT_ARGS": "--packages com.example:nothing:1.0 pyspark-shell",
    "SPARK_CONF_DIR": OTHER,
    "SPARK_CONNECT_MODE_ENABLED": "1",
    "SPARK_DIST_CLASSPATH": OTHER,
    "SPARK_HOME": OTHER,
    "SPARK_LAUNCHER_OPTS": "-Xmx1k",
    "SPARK_LOCAL_DIRS": "/proc/none",
    "SPARK_LOCAL_IP": "10.255.255.1",
    "SPARK_SUBMIT_OPTS": "-XX:+NoSuchOption",
    "SPARK_TESTING": "1",
    "YARN_CONF_DIR": OTHER,
    "_JAVA_OPTIONS": "-Xmx1k",
}
"""Of a host with a Spark, a Hadoop and a broker of its own; most of these keep Spark from starting."""


def variables(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if line)


@pytest.mark.soak
def test_variables_of_the_host_reach_neither_spark_nor_its_workers(
    spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.stop()
    for name, value in HOST.items():
        monkeypatch.setenv(name, value)

    def of_worker(_: Any) -> list[dict[str, str]]:
        return [dict(os.environ)]

    with session() as own:
        (worker,) = own.run(lambda context: context.parallelize([1], 1).mapPartitions(of_worker).collect())
        java = variables(jvm_of(own).pid)
    for found in (worker, java):
        assert not HOST.items() & found.items()
        assert found["SPARK_HOME"] == str(Path(pyspark.__file__).parent)
        assert found["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "passed"),
    [
        ("local[2]", set()),
        ("spark://127.0.0.1:7077", set()),
        ("yarn", {"HADOOP_CONF_DIR", "YARN_CONF_DIR"}),
        ("k8s://https://127.0.0.1:6443", {"KUBECONFIG"}),
    ],
)
def test_clients_of_a_cluster_manager_are_told_where_it_is(master: str, passed: set[str]) -> None:
    """They look nowhere else."""
    given = {"HADOOP_CONF_DIR": "/h", "YARN_CONF_DIR": "/y", "KUBECONFIG": "/k", "SPARK_HOME": "/s"}
    found = spark_environment(given, "/java", master)
    assert set(given) & set(found) - {"SPARK_HOME"} == passed
    assert found["JAVA_HOME"] == "/java"
    assert found["SPARK_HOME"] != "/s"


UNNAMED = """
from cleanerd.spark_runtime.lazy_spark import LazySpark
session = LazySpark("local[1]")
print(session.run(lambda context: context.parallelize([1, 2, 3], 1).count()))
session.stop()
"""


@pytest.mark.soak
def test_a_user_without_a_name_and_a_home_starts_spark(tmp_path: Path) -> None:
    """As in a container that runs with any number: here, of a mount namespace whose passwd nobody is in."""
    nobody = tmp_path / "passwd"
    nobody.write_text("")
    (tmp_path / "nsswitch").write_text("passwd: files\n")
    isolated = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    hide = f"mount --bind {nobody} /etc/passwd && mount --bind {tmp_path}/nsswitch /etc/nsswitch.conf"
    mount = ["sh", "-c", f'{hide} && ! getent passwd 0 && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, *mount, "true"], check=False).returncode:
        pytest.skip("needs a mount namespace")
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*isolated, *mount, sys.executable, "-c", UNNAMED]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert sorted(os.listdir(tmp_path)) == ["nsswitch", "passwd"], "no directory called ~ or ?"


@pytest.mark.soak
def test_a_jvm_that_crashes_leaves_its_report_in_the_cache_and_nothing_where_it_ran(
    tmp_path: Path, spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal of which HotSpot writes a report; the job is done by the next JVM."""
    (here := tmp_path / "here").mkdir()
    (cache := tmp_path / "cache").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("CACHE_DIRECTORY", str(cache))
    spark.stop()
    with session() as own:
        java = jvm_of(own)
        os.kill(java.pid, signal.SIGSEGV)
        java.wait(60)
        assert count(own) == 2
    assert os.listdir(here) == []
    assert (
        "A fatal error has been detected by the Java Runtime Environment" in (cache / "spark.log").read_text()
    )


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """RLIMIT_NOFILE of this process: the last one counts."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: found.append(pair))
    return found


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ((256, 4096), (1024, 4096)),
        ((256, 700), (700, 700)),
        ((256, resource.RLIM_INFINITY), (1024, resource.RLIM_INFINITY)),
        ((65536, 65536), (65536, 65536)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_is_needed(
    limits: list[tuple[int, int]], given: tuple[int, int], after: tuple[int, int]
) -> None:
    limits.append(given)
    jvm._provide_files()
    assert limits[-1] == after


def test_too_few_open_files_are_the_reason_before_anything_starts(limits: list[tuple[int, int]]) -> None:
    limits.append((100, 256))
    with pytest.raises(Fatal, match=r"needs 512 open files or more, and the limit is 256 \(ulimit -n"):
        LazySpark("local[1]").context()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        (
            "spark.driver.memory",
            "900000g",
            "Error occurred during initialization of VM; "
            "Could not reserve enough space for 943718400000KB object heap",
        ),
        ("spark.plugins", "com.example.Absent", "java.lang.ClassNotFoundException: com.example.Absent"),
    ],
)
def test_the_reason_of_a_failed_start_is_what_went_wrong_and_where_all_of_it_is(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, reason: str
) -> None:
    """Before there is a JVM, and in one; the next session is an ordinary one."""
    spark.stop()
    with monkeypatch.context() as patched:
        patched.setenv("CACHE_DIRECTORY", str(tmp_path))
        with pytest.raises(Fatal) as caught:
            LazySpark("local[1]", {setting: value}).context()
    kept = tmp_path / "spark.log"
    assert str(caught.value) == f"Spark did not start with master 'local[1]': {reason} (log: {kept})"
    assert reason.split("; ")[-1] in kept.read_text()
    assert count(spark) == 2


NOISE = "import sys; print('tracing is on', flush=True); import threading\n"


def test_what_the_host_prints_in_a_worker_is_no_part_of_the_conversation(tmp_path: Path) -> None:
    """PySpark's JVM takes the first bytes of its child's standard output for an address (SPARK-23240)."""
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    (tmp_path / "asked.py").write_text("import os, sys; os.write(1, ' '.join(sys.argv[1:]).encode())")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CLEANERD_PYTHON": sys.executable}
    ran = subprocess.run(
        [PYTHON, "-m", "asked", "an", "address"], env=environment, capture_output=True, check=True
    )
    assert ran.stdout == b"an address"
    assert b"tracing is on" in ran.stderr


@pytest.mark.soak
def test_a_session_runs_where_the_host_prints_in_each_python(
    spark: LazySpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spark.stop()
    with session() as own:
        assert count(own) == 2
