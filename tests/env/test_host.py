"""What of the host reaches the processes that cleanerd starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cleanerd
from cleanerd.env.host import own_paths, passed_on, user_name

ROOT = str(Path(cleanerd.__file__).parents[1])


def test_only_what_is_listed_passes() -> None:
    """Not what is meant for another Spark, Hadoop or Java, nor what nobody thought of."""
    passed = {
        "PATH": "/bin",
        "PYTHONHOME": "/python",
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
            "MALLOC_ARENA_MAX",
            "NUMBA_DISABLE_JIT",
            "PYTHONDEVMODE",
            "PYTHONINSPECT",
            "PYTHONIOENCODING",
            "PYTHONWARNINGS",
            "PYSPARK_SUBMIT_ARGS",
            "SPARK_HOME",
            "_JAVA_OPTIONS",
        ),
        "/other",
    )
    ours = {"PYTHONPATH": os.pathsep.join(own_paths()), "PYTHONSAFEPATH": "1"}
    assert passed_on({**passed, **foreign}) == {**passed, **ours}


@pytest.mark.parametrize("given", ["/a:/b", f"/a:{ROOT}:/b", ":/a::/b"])
def test_the_same_cleanerd_is_found_first(given: str) -> None:
    assert passed_on({"PYTHONPATH": given})["PYTHONPATH"] == os.pathsep.join([*own_paths(), "/a", "/b"])


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name()
    monkeypatch.setattr(os, "geteuid", lambda: 1000650123)
    assert user_name() is None


def test_a_pyspark_in_the_path_of_the_host_is_not_the_one_that_runs(tmp_path: Path) -> None:
    """As where PYTHONPATH is $SPARK_HOME/python."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('the one of the host')\n")
    code = "from cleanerd.cli.main import main; main(['--version']); import pyspark; print(pyspark.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), ROOT])}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert str(tmp_path) not in ran.stdout
    child = [sys.executable, "-c", "import pyspark; print(pyspark.__file__)"]
    ran = subprocess.run(child, env=passed_on(environment), capture_output=True, text=True, check=True)
    assert str(tmp_path) not in ran.stdout


HOST = {
    "PYTHONWARNINGS": "error",  # and a library that warns while it is imported would end the process
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_OPT": "none",
    "NUMBA_DUMP_BYTECODE": "1",
    "NUMBA_THREADING_LAYER": "of-another-application",
}


def test_what_the_host_sets_for_other_python_programs_changes_nothing(tmp_path: Path) -> None:
    """Variables, numba's file in the current directory, and modules that lie there under names of the library."""
    (tmp_path / ".numba_config.yaml").write_text("disable_jit: 1\nopt: 9\n")
    (tmp_path / "queue.py").write_text("raise ImportError('of another application')\n")
    code = (
        "import subprocess, sys, warnings; sys.argv[1:] = ['--version'];"
        "from cleanerd.cli.main import main; main();"
        "import cleanerd.kernels.scan, numba; warnings.warn('of a library');"
        "print(numba.config.DISABLE_JIT, int(numba.config.OPT), numba.config.DUMP_BYTECODE);"
        "subprocess.run([sys.executable, '-c', 'import queue'], check=True)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | HOST,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-3:] == ["0", "3", "0"]
