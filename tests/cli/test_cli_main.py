"""`cleanerd` itself and `cleanerd config`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd import __version__
from tests.cli.conftest import ENVIRONMENT, Run


def test_version(run: Run) -> None:
    """On stdout, exit 0."""
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"cleanerd {__version__}\n")


@pytest.mark.parametrize(
    "command", [(), ("clean",), ("config",), ("config", "show"), ("config", "check"), ("demo",)]
)
def test_help(run: Run, command: tuple[str, ...]) -> None:
    """Every command explains itself; the root shows examples."""
    ran = run(*command, "--help")
    assert ran.code == 0
    assert "usage: cleanerd" in ran.out
    assert command or "examples:\n  cleanerd clean --config" in ran.out


def test_python_o_is_refused() -> None:
    """The assertions guard data."""
    command = [sys.executable, "-O", "-m", "cleanerd.cli.main", "config", "check"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -O" in done.stderr


def test_help_imports_nothing_heavy() -> None:
    """Every library of any size waits until a command needs it."""
    heavy = [
        "numpy",
        "numba",
        "pandas",
        "pyspark",
        "pydantic",
        "rich",
        "javaproperties",
        "structlog",
        "asyncio",
    ]
    code = (
        "import sys; from cleanerd.cli.main import main; main(['--help']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


def test_config_show_as_json(run: Run, tmp_path: Path) -> None:
    """Values by key; those of the topics asked for beside them."""
    (tmp_path / "c").write_text("log.dirs=/a,/b\nlog.retention.hours=1\n")
    document = json.loads(run("config", "show", "--config", "c", "--topic", "t", "-o", "json").out)
    assert document["apiVersion"] == "cleanerd/v1"
    assert document["broker"]["log.dirs"] == ["/a", "/b"]
    assert document["broker"]["log.cleaner.enable"] is True
    assert document["topics"]["t"]["retention.ms"] == 3_600_000


def test_config_show_tells_origins(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and line, variable, option, default; as JSON and as a table."""
    (tmp_path / "c").write_text("\nlog.retention.hours=1\n")
    monkeypatch.setenv("KAFKA_LOG_CLEANER_THREADS", "2")
    arguments = ("config", "show", "--config", "c", "--origin", "--set", "log.dir=/x", "--topic", "t")
    document = json.loads(run(*arguments, "-o", "json").out)
    assert document["broker"]["log.retention.hours"] == {"value": 1, "origin": "config file: c:2"}
    assert document["broker"]["log.cleaner.threads"]["origin"] == "environment: KAFKA_LOG_CLEANER_THREADS"
    assert document["broker"]["log.dir"]["origin"] == "command line: --set log.dir"
    assert document["topics"]["t"]["retention.ms"]["origin"] == "config file: c:2"
    assert document["topics"]["t"]["segment.bytes"]["origin"] == "default"
    table = run(*arguments).out
    assert "log.cleaner.enable" in table
    assert "environment: KAFKA_LOG_CLEANER_THREADS" in table
    assert "ORIGIN" not in run("config", "show").out


def test_config_check(run: Run, tmp_path: Path) -> None:
    """Exit 0 or 78, nothing on stdout."""
    (tmp_path / "c").write_text("log.dirs=/a\n")
    ran = run("config", "check", "--config", "c")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "cleanerd: the configuration is valid; log directories: /a\n"
    (tmp_path / "c").write_text("log.retention.ms=0\n")
    ran = run("config", "check", "--config", "c")
    assert (ran.code, ran.out) == (78, "")
    assert "(config file: c:1)" in ran.err
    assert run("config", "check", "--config", "missing").code == 78
