"""Which variables of the host's environment reach Java, the Python workers of Spark and the engine.

A host with a Spark, a Hadoop or a broker of its own sets variables for them, in profiles and images: SPARK_HOME,
HADOOP_CONF_DIR, JAVA_TOOL_OPTIONS. Our Spark would read each of them as well, and become another one than cleanerd brings,
or not start. So the list names what passes.
"""

import os
import pwd
import sys
import sysconfig
import warnings
from collections.abc import Mapping, MutableMapping

import cleanerd

_PASSED = frozenset(
    {
        "CACHE_DIRECTORY",
        "HOME",
        "JAVA_HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",  # without them this Python may not start a second time
        "LD_PRELOAD",
        "LOGNAME",
        "NUMBA_BOUNDSCHECK",
        "NUMBA_CACHE_DIR",
        "NUMBA_CPU_FEATURES",
        "NUMBA_CPU_NAME",
        "OPENBLAS_NUM_THREADS",
        "PATH",
        "PYTHONCOERCECLOCALE",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED",
        "PYTHONHOME",  # this and the next ones say where the interpreter finds itself and its packages
        "PYTHONNOUSERSITE",
        "PYTHONPATH",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
        "PYTHONUTF8",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_CACHE_HOME",
    }
)
_PASSED_PREFIXES = ("LC_",)
_OURS = {"NUMBA_DISABLE_JIT": "0", "NUMBA_OPT": "3", "OPENBLAS_NUM_THREADS": "1"}
"""What a `.numba_config.yaml` in the current directory must not change: numba takes a variable before the file. No threads
for linear algebra, of which we have none: where no more can be started, OpenBLAS sends the process a SIGINT.
"""
_NOT_THE_CURRENT_DIRECTORY = "PYTHONSAFEPATH"
"""Else `python -m` and `python -c` look for every module in the directory first in which cleanerd happens to run."""


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is started from one with `environment`; it imports the same cleanerd."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    paths = [*own_paths(), *filter(None, passed.get("PYTHONPATH", "").split(os.pathsep))]
    return {**passed, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), _NOT_THE_CURRENT_DIRECTORY: "1"}


def own_paths() -> list[str]:
    """The directories of cleanerd and its dependencies, so that a PySpark in the host's PYTHONPATH does not precede ours."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(cleanerd.__file__)))
    return list(dict.fromkeys((root, sysconfig.get_path("purelib"))))


def search_host_last(path: list[str], environment: Mapping[str, str]) -> None:
    """Move directories that the host adds to the end of `path`, the `sys.path` of this process."""
    given = set(environment.get("PYTHONPATH", "").split(os.pathsep)) - {*own_paths(), ""}
    path.sort(key=given.__contains__)


def leave_settings(environment: MutableMapping[str, str]) -> None:
    """Undo settings of the host for other Python programs, in this process and its children.

    Such settings turn warnings into errors, or switch numba's compiler off. Call it before numba is imported.
    """
    for name in [name for name in environment if name.startswith("NUMBA_") and name not in _PASSED]:
        del environment[name]
    environment.update({_NOT_THE_CURRENT_DIRECTORY: "1", **_OURS})
    if sys.warnoptions:
        sys.warnoptions.clear()
        warnings.resetwarnings()
        warnings.simplefilter("ignore")


def user_name(user: int | None = None) -> str | None:
    """The name of this process's user, or of another id; None if it has none, as in containers."""
    try:
        return pwd.getpwuid(os.geteuid() if user is None else user).pw_name
    except KeyError:
        return None
