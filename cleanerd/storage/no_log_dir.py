"""Is a directory a log directory? Nothing is written to one that is not (architecture 2).

A wrong path, a volume that is not mounted, the directory of another program: there is nothing to clean in any of them,
and a lock file of ours would only be in the way.
"""

import os
import re

from cleanerd.env.files import Files
from cleanerd.format.names import parse_partition_dir, parse_segment_file
from cleanerd.units import first_of

from .scan import is_kafka_dir

_ENCRYPTED = "files that are encrypted: mount them, and give the path where they can be read"
_MARKS = (
    (
        re.compile(r"gocryptfs\.(conf|diriv)|cryfs\.config|\.encfs\d\.xml|ECRYPTFS_FNEK_ENCRYPTED\..+"),
        _ENCRYPTED,
    ),
    (re.compile(r"redpanda"), "a data directory of Redpanda, whose segments have another format"),
)
"""The kind of directory, by a name in it."""
_REDPANDAS = re.compile(r"\d+_\d+")
"""A partition and its revision, in the directory of its topic."""
A_LOG_DIR = "meta.properties, or a partition with a segment"
_SHOWN = 3


def why_no_log_dir(files: Files, log_dir: str) -> str | None:
    """Why nothing is written to a directory, None for a log directory. Raises OSError if it cannot be listed."""
    found = found_instead(files, log_dir)
    return None if found is None else f"{log_dir}: expected a log directory ({A_LOG_DIR}), found {found}"


def found_instead(files: Files, log_dir: str) -> str | None:
    """A description of a directory that is no log directory; None if it is one. Raises OSError if it cannot be listed."""
    listed = files.list_names(log_dir)
    if is_kafka_dir(files, log_dir) or any(_holds_segment(files, log_dir, name) for name in listed):
        return None
    other = _other_engine(files, log_dir, listed)
    if other is not None:
        return other
    return first_of(listed, _SHOWN) or "nothing"


def _other_engine(files: Files, log_dir: str, listed: list[str]) -> str | None:
    """The kind of a directory that is no log directory, by the names in it; None if unknown."""
    for mark, engine in _MARKS:
        found = next(filter(mark.fullmatch, listed), None)
        if found is not None:
            return f"{engine} ({found})"
    for name in listed[:_SHOWN]:
        below = _listed(files, os.path.join(log_dir, name))
        found = next(filter(_REDPANDAS.fullmatch, below), None)
        if found is not None:
            return f"{_MARKS[-1][1]} ({name}/{found})"
    return None


def _listed(files: Files, directory: str) -> list[str]:
    try:
        return files.list_names(directory)
    except OSError:
        return []


def _holds_segment(files: Files, log_dir: str, name: str) -> bool:
    """Whether a partition directory has a file of a segment, in whatever transition; one that cannot be listed may have."""
    if parse_partition_dir(name) is None:
        return False
    try:
        return any(parse_segment_file(one) for one in files.list_names(os.path.join(log_dir, name)))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
