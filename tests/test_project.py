"""What a stranger gets: the wheel and its files, one version, dependencies that are needed, checks that run."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import cleanerd
from cleanerd.broker_agent.meeting import JAR
from cleanerd.broker_agent.session import _SOCKET
from cleanerd.format import names

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGING = "etc/debian/"  # makes a package, is not in it


def normal(requirement: str) -> str:
    """Name of a distribution as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = target.iterdir()
    return zipfile.ZipFile(path)


@pytest.mark.soak
def test_wheel_brings_along_what_an_installation_needs(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    data = f"cleanerd-{cleanerd.__version__}.data/data/share"
    assert {
        f"{data}/man/man8/cleanerd.8",
        f"{data}/man/man1/cleanerctl.1",
        f"{data}/cleanerd/systemd/cleanerd.service",
        f"{data}/cleanerd/systemd/kafka.service.d/cleanerd.conf",
        f"{data}/cleanerd/cleanerd.properties",
        f"{data}/cleanerd/prometheus/cleanerd.rules.yml",
        f"{data}/cleanerd/grafana/cleanerd.json",
        f"{data}/doc/cleanerd/cleaner-behaviour.md",
        "cleanerd/py.typed",
        "cleanerd/spark_runtime/log4j2.properties",
        "cleanerd/daemon/page/templates/style.css",
        f"cleanerd-{cleanerd.__version__}.dist-info/licenses/LICENSE",
    } <= set(names)
    assert not [name for name in names if name.startswith("tests/")]


@pytest.mark.soak
def test_every_file_beside_the_code_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    """A new man page or unit has to be added to shared-data."""
    shared = [name for name in wheel.namelist() if ".data/data/" in name]
    installed = {(Path(name).name, wheel.read(name)) for name in shared}
    beside = [path for tree in ("etc", "systemd") for path in (ROOT / tree).rglob("*") if path.is_file()]
    missing = {str(p.relative_to(ROOT)) for p in beside if (p.name, p.read_bytes()) not in installed}
    assert not [name for name in missing if not name.startswith(PACKAGING)]


def test_version_stands_in_one_place() -> None:
    """Others take it from there, or are compared with it here."""
    assert "version" in PROJECT["dynamic"]
    assert cleanerd.__version__ not in (ROOT / "Dockerfile").read_text()
    manifests = [path.read_text() for path in (ROOT / "etc/kubernetes").rglob("*.yaml")]
    tags = re.findall(r"image: cleanerd:(\S+)", "\n".join(manifests))
    assert len(tags) == 3
    assert set(tags) == {cleanerd.__version__}
    assert f"\n## [{cleanerd.__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_imported() -> None:
    tops = {
        name.split(".")[0]
        for path in (ROOT / "cleanerd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
    }
    owners = importlib.metadata.packages_distributions()
    imported = {normal(owner) for top in tops - {""} for owner in owners.get(top, [top])}
    assert {normal(requirement) for requirement in PROJECT["dependencies"]} - imported == set()


def test_every_dependency_has_a_version_that_is_tested() -> None:
    pinned = {normal(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    wanted = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    assert {normal(requirement) for requirement in wanted} <= pinned


def test_links_of_the_project_files_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_removal_leaves_nothing_of_cleanerd_in_a_log_directory(tmp_path: Path) -> None:
    log = tmp_path / "orders-0"
    log.mkdir()
    kept = {tmp_path / names.LOCK, log / f"{0:020}.log"}
    ours = {tmp_path / name for name in (names.CLEANERD_LOCK, JAR, _SOCKET)}
    for path in kept | ours | {log / f"{0:020}.log.cleanerd"}:
        path.touch()
    manual = (ROOT / "etc/reference/operating.md").read_text()
    (line,) = re.findall(r"^find /var/lib/kafka .*", manual, re.MULTILINE)
    subprocess.run(["sh", "-c", line.replace("/var/lib/kafka", str(tmp_path))], check=True)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_the_image_is_built_with_the_agent() -> None:
    """Its hook is copied, and a compiler is there."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^COPY .*\bhatch_build\.py\b", dockerfile, re.MULTILINE)
    assert "openjdk-17-jdk-headless" in dockerfile.partition("/build/bin/pip wheel")[0]
    assert "!hatch_build.py" in (ROOT / ".dockerignore").read_text().splitlines()
