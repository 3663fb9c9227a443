"""The cache directory: facts about Java runtimes, wrappers, compiled kernels; all can be made again.

Its files are executed, so a directory that another user could have written to is not used.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping

from .trust import why_exposed, why_exposed_itself

_OF_LOG_DIRS = (
    "meta.properties", ".lock", ".cleanerd.lock", "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint",
    "bootstrap.checkpoint", "__cluster_metadata-0",
)  # fmt: skip


def cache_directory(environment: Mapping[str, str]) -> str:
    """systemd's cache directory, else that of the user. It may not exist yet, and it may not be writable.

    A user without a home that can be written, as in containers, has one among the temporary files; where there is no
    directory for those either, none can be written.
    """
    given = environment.get("CACHE_DIRECTORY", "").split(":")[0]
    if os.path.isabs(given):
        return given
    if os.path.isabs(environment.get("XDG_CACHE_HOME", "")):  # others are to be ignored
        return os.path.join(environment["XDG_CACHE_HOME"], "cleanerd")
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.access(home, os.W_OK | os.X_OK) and not _is_log_dir(home):
        return os.path.join(home, ".cache", "cleanerd")
    return os.path.join(temporary_directory() or "/tmp", f"cleanerd-{os.geteuid()}")  # noqa: S108


def _is_log_dir(path: str) -> bool:
    """Whether a home is a log directory as well. No broker starts beside a directory that is no log's, such as `.cache`."""
    return any(os.path.lexists(os.path.join(path, name)) for name in _OF_LOG_DIRS)


def temporary_directory() -> str | None:
    """The directory for temporary files: the first of TMPDIR, /tmp, /var/tmp that can be written; else None."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def write_whole(path: str, text: str, mode: int) -> None:
    """Write a file there whole or not at all, also with another process at the same. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(temporary, path)


def why_untrusted(directory: str, *, is_vouched_for: bool = False) -> str | None:
    """Why another user could have written what lies in `directory`; None if only this one or root could.

    `is_vouched_for`: whoever named the directory answers for those above, in which another user could put one in its place.
    A missing directory is made before it is looked at: in a /tmp another user could make it a moment later.
    """
    with contextlib.suppress(OSError):
        os.makedirs(directory, 0o700, exist_ok=True)
    wrong = why_exposed(directory, above=not is_vouched_for)
    inside = _inside(os.path.realpath(directory))
    return wrong or next((found for path in inside if (found := why_exposed_itself(path)) is not None), None)


def _inside(directory: str) -> Iterator[str]:
    """All in a directory; not what lies in one that only its owner can enter."""
    for root, directories, files in os.walk(directory):
        if not os.stat(root).st_mode & 0o077:
            directories.clear()
            continue
        yield from (os.path.join(root, name) for name in (*directories, *files))
