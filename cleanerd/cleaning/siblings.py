"""The other log directories of a broker, and the replicas that it moves from one to another (rule 2.10).

A broker that moves a replica fills a `-future` directory from the log as it is, from its beginning on, and goes on with that
after a restart. What was copied before a cleaning and what is copied after it do not fit together: a tombstone may be gone
from the log before it is copied, while the value that it deleted has been. So such a log is not cleaned, as Kafka's own
cleaner is paused for it, and what was staged before is dropped.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from cleanerd.env.files import Files
from cleanerd.errors import CleanerdError, guarded
from cleanerd.format import names
from cleanerd.format.errors import FormatError
from cleanerd.format.meta_properties import parse_meta_properties
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir


def siblings(files: Files, log_dir: str, log_dirs: Sequence[str]) -> Iterator[str]:
    """Those of `log_dirs` that are of the same broker, without `log_dir` itself and without any that fails.

    Raises OSError for `log_dir`.
    """
    broker, inode = _broker(files, log_dir), files.stat(log_dir).inode

    def is_sibling(other: str) -> bool:
        is_other = files.exists(other) and files.stat(other).inode != inode
        return is_other and _broker(files, other) == broker

    for other in log_dirs:
        if other != log_dir and guarded(partial(is_sibling, other), other) is True:
            yield other


def futures(listed: Iterable[str]) -> Iterator[TopicPartition]:
    """Partitions that are on their way to a log directory with these names in it."""
    for name in listed:
        parsed = parse_partition_dir(name) if name.endswith(DirKind.FUTURE.value) else None
        if parsed is not None:
            yield parsed[0]


def moving(
    files: Files, log_dir: str, log_dirs: Sequence[str], *, is_kafka: bool
) -> dict[TopicPartition, str]:
    """Partitions that are on their way to another directory of the same broker, and to which. Raises OSError for `log_dir`.

    To be asked with `.lock` of `log_dir` held: only a live broker begins to move one.
    """
    found: dict[TopicPartition, str] = {}
    for other in siblings(files, log_dir, log_dirs) if is_kafka and len(log_dirs) > 1 else ():
        listed = guarded(partial(files.list_names, other), other)
        if not isinstance(listed, CleanerdError):
            found |= dict.fromkeys(futures(listed), other)
    return found


def _broker(files: Files, log_dir: str) -> tuple[str | None, int | None] | None:
    try:
        found = parse_meta_properties(files.read(f"{log_dir}/{names.META_PROPERTIES}"))
    except (FileNotFoundError, FormatError):
        return None
    return found.cluster_id, found.node_id
