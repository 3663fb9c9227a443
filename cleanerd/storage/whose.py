"""The owner of a log directory, by its files: nobody, a broker, or a broker whose directory is damaged (architecture 2).

`meta.properties` makes a directory a broker's. Without it, or with one that names no node, whatever else only a broker
leaves makes it damaged: a partial restore, a volume that is being repaired. Its broker may come back, and nothing says what
it will do then with the logs. Neither cleanerd nor `cleanerd.tools.client` writes any of these files to a directory of
their own.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from cleanerd.env.files import Files
from cleanerd.format import names
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import parse_partition_dir

_SIGNS = (
    names.REPLICATION_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.CLEAN_SHUTDOWN,
    names.BOOTSTRAP_CHECKPOINT,
    f"{names.CLUSTER_METADATA_TOPIC}-0",
)
_RESTORE = (
    "restore it, with the cluster.id and node.id (or broker.id) of another log directory of that broker"
)


@dataclass(frozen=True, slots=True)
class Whose:
    """`is_kafka`: it is a broker's, whether that runs or not. `damage`: why nothing may be done to it, with the remedy."""

    is_kafka: bool
    damage: str | None = None


def whose(files: Files, log_dir: str, node: str | None = None, *, thorough: bool = False) -> Whose:
    """Look at a log directory. Raises OSError where it cannot be looked at.

    `node`: the setting that names the node whose directory it is, if there is one. `thorough`: look at each partition, too.
    """
    path = os.path.join(log_dir, names.META_PROPERTIES)
    try:
        found = parse_meta_properties(files.read(path))
    except FileNotFoundError:
        signs = _signs(files, log_dir, thorough=thorough)
        return Whose(bool(signs or node), _why_missing(path, signs, node) if signs or node else None)
    except FormatError as problem:
        damage = f"{path}: expected {problem.expected}, found {problem.found}"
    else:
        if found.node_id is not None:
            return Whose(is_kafka=True)
        damage = f"{path}: expected broker.id or node.id, found neither"
    return Whose(True, f"{damage}: it is not known whose these logs are, so they are left alone; {_RESTORE}")


def partition_sign(files: Files, log_dir: str, name: str) -> str | None:
    """The name of a file in a partition directory that only a broker writes; None if there is none. Raises OSError."""
    sign = os.path.join(name, names.PARTITION_METADATA)
    return sign if files.exists(os.path.join(log_dir, sign)) else None


def why_of_broker(log_dir: str, sign: str) -> str:
    """Why a log is left alone that has this sign of a broker, in a directory that has none."""
    return _why_missing(os.path.join(log_dir, names.META_PROPERTIES), [sign], None)


def _signs(files: Files, log_dir: str, *, thorough: bool) -> list[str]:
    signs = [name for name in _SIGNS if files.exists(os.path.join(log_dir, name))]
    if thorough:
        listed = [name for name in files.list_names(log_dir) if parse_partition_dir(name) is not None]
        found = [sign for name in listed if (sign := partition_sign(files, log_dir, name))]
        signs += found if len(found) < 2 else [f"{names.PARTITION_METADATA} of {len(found)} partitions"]
    return signs


def _why_missing(path: str, signs: list[str], node: str | None) -> str:
    remedy = []
    if signs:
        remedy.append(f"remove {', '.join(signs)}")
    if node is not None:
        remedy.append(f"leave out {node}")
    return (
        f"{path}: expected the file, found none beside {', '.join([*signs, *filter(None, [node])])}: the directory is a "
        f"broker's, and it is not known whose, so it is left alone; {_RESTORE}; or, if this is a copy on which no broker "
        f"will ever start, {' and '.join(remedy)}"
    )


class Onlooker:
    """Owners of log directories over the life of a process: a broker's directory never counts as nobody's again.
    Thread-safe.

    `node`: as `whose` takes it.
    """

    def __init__(self, files: Files, node: Callable[[], str | None] = lambda: None) -> None:
        self._files = files
        self._node = node
        self._mutex = threading.Lock()
        self._brokers: set[str] = set()
        self._damaged: dict[str, str] = {}  # by what was found at the last thorough look

    def look(self, log_dir: str, *, thorough: bool = False) -> Whose:
        """Look at a log directory. Raises OSError. `thorough`: what that finds holds until the next such look."""
        found = whose(self._files, log_dir, self._node(), thorough=thorough)
        with self._mutex:
            if found.is_kafka and found.damage is None:
                self._brokers.add(log_dir)
                self._damaged.pop(log_dir, None)
                return found
            if not found.is_kafka and log_dir in self._brokers:
                path = os.path.join(log_dir, names.META_PROPERTIES)
                lost = f"{path}: expected the file, which was there before, found none"
                restart = "if no broker will ever start here again, restart cleanerd"
                found = Whose(True, f"{lost}: the directory is left alone; {_RESTORE}; {restart}")
            if thorough:
                self._damaged.pop(log_dir, None)
                if found.damage is not None:
                    self._damaged[log_dir] = found.damage
            known = self._damaged.get(log_dir)
            return replace(found, is_kafka=True, damage=known) if known and found.damage is None else found
