"""Where cleanerd keeps what it can make again: answers of Java runtimes, wrappers, compiled kernels."""

import os
from collections.abc import Mapping


def cache_directory(environment: Mapping[str, str]) -> str:
    """systemd's cache directory, else that of the user. It may not exist yet, and it may not be writable."""
    given = environment.get("CACHE_DIRECTORY", "").split(":")[0]
    if given:
        return given
    user = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(user, "cleanerd")
