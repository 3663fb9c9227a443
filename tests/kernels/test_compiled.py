"""Where compiled kernels are kept."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from numba.core import config

import cleanerd
from cleanerd.kernels import compiled
from cleanerd.kernels.compiled import VARIABLE, settle_cache, version
from cleanerd.kernels.kernel_cache import NotKept
from cleanerd.kernels.native import njit


def settled(environment: dict[str, str]) -> str:
    version.cache_clear()
    settle_cache(environment)
    version.cache_clear()
    return environment[VARIABLE]


def test_a_directory_that_is_named_already_holds_that_of_this_version(tmp_path: Path) -> None:
    """What is inherited from a daemon of another version is not its own."""
    own = settled({VARIABLE: str(tmp_path / "named"), "CACHE_DIRECTORY": str(tmp_path)})
    assert own == str(tmp_path / "named" / version())
    assert settled({VARIABLE: own}) == own
    other = str(tmp_path / "named" / "0123456789abcdef")
    assert settled({VARIABLE: other}) == f"{other}/{version()}"
    assert os.listdir(tmp_path) == ["named"]


def test_one_that_cannot_be_used_is_named_and_another_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert not settled({VARIABLE: "/proc/named"}).startswith("/proc")
    assert "/proc/named" in (said := capsys.readouterr().err)
    assert "it cannot be written" in said


def test_without_any_directory_that_can_be_written_each_process_compiles_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container whose file systems are read-only (readOnlyRootFilesystem): what only reads needs none."""
    monkeypatch.setattr("tempfile._get_default_tempdir", Mock(side_effect=FileNotFoundError("none")))
    monkeypatch.setattr("tempfile.tempdir", None)
    environment = {VARIABLE: "/proc/named", "CACHE_DIRECTORY": "/proc/none"}
    settle_cache(environment)
    assert VARIABLE not in environment
    monkeypatch.delenv(VARIABLE, raising=False)
    kernel = njit()(lambda number: number + 1)
    assert isinstance(kernel._cache, NotKept)
    assert kernel(1) == 2
    assert kernel._cache.signatures() == []
    monkeypatch.undo()
    config.reload_config()  # else the next compilation does that, and takes a directory that a test has set for changed


def test_memory_that_may_not_be_executable_is_named() -> None:
    """MemoryDenyWriteExecute= of systemd, execmem of SELinux: LLVM would end the process with SIGABRT."""
    forbid = "import ctypes, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) and sys.exit(77)"  # PR_SET_MDWE, Linux 6.3
    ran = subprocess.run(
        [sys.executable, "-c", f"{forbid}\nimport cleanerd.kernels"], capture_output=True, text=True
    )
    if ran.returncode == 77:
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert "Fatal: this process may not make memory executable" in ran.stderr


def test_a_temporary_one_is_inherited_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pod every user may write to all that is mounted, directories of temporary files as well."""
    tmp_path.chmod(0o2777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {"CACHE_DIRECTORY": str(tmp_path)}
    temporary = settled(environment)
    assert f"every user may write to {tmp_path}" in capsys.readouterr().err
    assert settled(environment) == temporary
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("variable", "below"), [("CACHE_DIRECTORY", "numba"), ("XDG_CACHE_HOME", "cleanerd/numba")]
)
def test_the_cache_directory_of_the_service_or_the_user(tmp_path: Path, variable: str, below: str) -> None:
    """It is created, and is the same the next time."""
    directory = settled({variable: str(tmp_path)})
    assert os.path.isdir(directory)
    assert os.path.dirname(directory) == str(tmp_path / below)
    assert settled({variable: str(tmp_path)}) == directory


def test_another_version_has_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any change of any kernel, which has the code of others in it, and of the modules whose numbers are in it."""
    environment = {"CACHE_DIRECTORY": str(tmp_path)}
    (tmp_path / "native.py").write_text("1")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    before = settled(dict(environment))
    (tmp_path / "native.py").write_text("2")
    after = settled(dict(environment))
    assert after != before
    seen = {before, after}
    for module in compiled._BAKED_IN:
        (tmp_path / module.__name__).write_text("LENGTH_AT = 9")
        monkeypatch.setattr(module, "__file__", str(tmp_path / module.__name__))
        found = settled(dict(environment))
        assert found not in seen
        seen.add(found)


def test_modules_whose_numbers_kernels_use_are_part_of_the_version() -> None:
    """Numbers of `format` and `policy` become part of the compiled code."""
    package = Path(compiled.__file__).parent
    tools = package.parent / "tools" / "kernels"
    compiled_files = {
        path for place in (package, tools) for path in place.glob("*.py") if "@njit" in path.read_text()
    }
    text = "\n".join(path.read_text() for path in compiled_files)
    imported = set(re.findall(r"(?m)^from cleanerd\.((?:format|policy)\.\w+) import", text))
    imported |= {f"policy.{name}" for name in re.findall(r"(?m)^from cleanerd\.policy import (\w+)$", text)}
    assert imported == {module.__name__.removeprefix("cleanerd.") for module in compiled._BAKED_IN}


def test_kernels_of_the_tools_call_none_of_each_other() -> None:
    """Their files are not part of the version: numba looks at the file of the outermost function alone."""
    tools = Path(compiled.__file__).parents[1] / "tools" / "kernels"
    paths = [path for path in tools.glob("*.py") if "@njit" in path.read_text()]
    assert paths
    assert not [path for path in paths if re.search(r"(?m)^from (\.|cleanerd\.tools)", path.read_text())]


@pytest.mark.fault("no HOME, and a cache that cannot be written")
def test_without_a_writable_directory_it_is_a_temporary_one() -> None:
    """Which is gone when the process is."""
    script = "import os, cleanerd.kernels; print(os.environ['NUMBA_CACHE_DIR'], os.listdir(os.environ['NUMBA_CACHE_DIR']))"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"CACHE_DIRECTORY": "/proc/none", "PYTHONPATH": str(Path(cleanerd.__file__).parents[1])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    directory, content = done.stdout.split()
    assert content == "[]"
    assert not os.path.exists(directory)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_named: bool
) -> None:
    """What is loaded from there is executed: a private one takes its place, and that is said."""
    shared = Path(settled({"CACHE_DIRECTORY": str(tmp_path)}))
    assert shared.stat().st_mode & 0o077 == 0
    shared.chmod(0o777)
    directory = settled({VARIABLE: str(shared)} if is_named else {"CACHE_DIRECTORY": str(tmp_path)})
    assert directory != str(shared)
    assert os.stat(directory).st_mode & 0o077 == 0
    assert f"every user may write to {shared}" in capsys.readouterr().err


def test_nor_is_one_in_a_named_directory_that_others_can_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    assert not settled({VARIABLE: str(tmp_path)}).startswith(str(tmp_path))
    assert f"every user may write to {tmp_path}" in capsys.readouterr().err
