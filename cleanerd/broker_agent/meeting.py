"""Directories for the agent's jar and the pipes of a session: both processes see them, and no other user may write there.

The jar runs as the broker's user, and no hash protects its first class, which compares the hashes. So anybody who could
replace the jar would act as the broker; anybody who could replace a pipe by a link would have the broker write to a file of
their choice. A log directory to which a group may write (fsGroup in Kubernetes, 2775) is unsafe in this way, and so are
directories below it.
"""

import os

from cleanerd.env.cache import cache_directory
from cleanerd.env.files import Files
from cleanerd.env.trust import why_exposed
from cleanerd.errors import NoWayIn
from cleanerd.format.names import LOCK
from cleanerd.storage.replace import replace_file

from .attach import Jvm
from .jar import AgentJar

JAR = ".cleanerd-agent.jar"


def meeting_place(jvm: Jvm, log_dir: str) -> str:
    """The directory for the pipes: the log directory, else one in the cache directory. Raises NoWayIn."""
    if "\n" in log_dir:
        raise NoWayIn(f"{log_dir!r}: a path with a line feed cannot be told to the broker")
    exposed = why_exposed(log_dir, user=jvm.uid)
    if exposed is None:
        return log_dir
    own = _own_directory(jvm)
    if not own:
        raise NoWayIn(
            f"{exposed}: what process {jvm.pid} loads must lie where nobody else may write, and {log_dir} is all that both "
            "share. Take that permission away, or start the broker with -javaagent:cleanerd-agent.jar"
        )
    return own


def jar_for(jvm: Jvm, directory: str, jar: AgentJar, files: Files) -> str:
    """The path of the jar: that of the installation, else in the directory of the pipes. Raises OSError."""
    if jar.path and _is_ours(jvm, jar.path):
        return jar.path
    placed = f"{directory}/{JAR}"
    if (
        not files.exists(placed) or files.read(placed) != jar.content
    ):  # it stays: a JVM reads it again at each attach
        lock = f"{directory}/{LOCK}"
        replace_file(files, placed, jar.content, lock if files.exists(lock) else None)
    return placed


def is_seen(jvm: Jvm, path: str) -> bool:
    """Whether the JVM has the same file or directory at a path."""
    try:
        return os.path.samefile(f"/proc/{jvm.pid}/root{path}", path)
    except OSError:
        return False


def _is_ours(jvm: Jvm, path: str) -> bool:
    """Whether the JVM sees the path, and only root and its user, who is also ours, may write there."""
    return jvm.uid == os.geteuid() and is_seen(jvm, path) and why_exposed(path, user=jvm.uid) is None


def _own_directory(jvm: Jvm) -> str:
    """A directory below the cache that only our user may enter; empty if none can be made."""
    path = os.path.join(os.path.realpath(cache_directory(os.environ)), "agent")
    if "\n" in path or why_exposed(path, user=jvm.uid) is not None:
        return ""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return path if _is_ours(jvm, path) and not os.stat(path).st_mode & 0o077 else ""
