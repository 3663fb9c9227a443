"""What of the host's environment reaches the processes that cleanerd starts: Java, the Python workers of Spark, the engine.

A host with a Spark, a Hadoop or a broker of its own sets variables for them, in profiles and images: SPARK_HOME,
HADOOP_CONF_DIR, JAVA_TOOL_OPTIONS. Our Spark would read each of them as well, and become another one than cleanerd brings,
or not start. So the list names what passes.
"""

import os
import pwd
import sysconfig
from collections.abc import Mapping

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
        "PATH",
        "TMPDIR",
        "TZ",
        "USER",
        "XDG_CACHE_HOME",
    }
)
_PASSED_PREFIXES = ("LC_", "NUMBA_", "PYTHON")


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is started from one with `environment`; it imports the same cleanerd."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    paths = [*own_paths(), *filter(None, passed.get("PYTHONPATH", "").split(os.pathsep))]
    return {**passed, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def own_paths() -> list[str]:
    """Where cleanerd and what was installed with it lie: a PySpark in the host's PYTHONPATH must not come before ours."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(cleanerd.__file__)))
    return list(dict.fromkeys((root, sysconfig.get_path("purelib"))))


def search_host_last(path: list[str], environment: Mapping[str, str]) -> None:
    """The same for this process, whose `sys.path` is given: what the host adds is found last."""
    given = set(environment.get("PYTHONPATH", "").split(os.pathsep)) - {*own_paths(), ""}
    path.sort(key=given.__contains__)


def user_name() -> str | None:
    """Who this process runs as; None for a user that has no name, as in containers that run with any number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
