"""What a rescue never does itself, or cannot, in words: the next steps of a person."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from cleanerd.cleaning.result import CleanRequest
from cleanerd.env.space import space_of
from cleanerd.format.names import DirKind, TopicPartition
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import log_size
from cleanerd.units import counted, size


def why_alone(alone: Mapping[TopicPartition, str]) -> Iterator[str]:
    """Why logs are left alone, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for tp, reason in alone.items():
        by_reason.setdefault(reason, []).append(str(tp))
    for reason, logs in by_reason.items():
        more = f" and {len(logs) - 1} more" if logs[1:] else ""
        yield f"{logs[0]}{more}: left alone: {reason}"


def never_done(log_dir: LogDir, request: CleanRequest, ours: Sequence[TopicPartition]) -> Iterator[str]:
    """Other ways to free space on a disk, which a person has to decide about."""
    strays = [name for name in log_dir.files.list_names(log_dir.path) if name.endswith(DirKind.STRAY.value)]
    if strays:
        many = counted(len(strays), "directory")
        yield f"{many} of replicas that do not belong to this broker any more, from {strays[0]} on"
    deleting = {
        tp: log_size(log_dir.partition(tp))[0] for tp in ours if not request.topic_config(tp.topic).compact
    }
    largest = max(deleting, key=lambda tp: deleting[tp], default=None)
    if largest is not None and not log_dir.is_known:
        yield (
            f"a cleanup.policy for {largest} and others (--topic-set): no broker has left here how its topics are "
            "configured"
        )
    elif largest is not None and deleting[largest]:
        yield (
            f"a shorter retention.ms of topics without compact, which hold {size(sum(deleting.values()))}, {largest} "
            f"{size(deleting[largest])} of that (--topic-set {largest.topic}:retention.ms=...)"
        )
    for other in log_dir.siblings():
        with contextlib.suppress(OSError):
            free_bytes = space_of(other.path).free_bytes
            if free_bytes > space_of(log_dir.path).free_bytes:
                yield f"{other.path} of the same broker has {size(free_bytes)} free: move a replica there"
    yield "a larger disk: tombstones, active segments and the newest value of each key stay"


def more_bytes(path: str, least_bytes: int) -> str:
    """Where there is no room for any file."""
    return (
        f"{size(least_bytes)} and some names (inodes) free, to make files with: move something away that is not Kafka's. On "
        f"XFS, which keeps up to 32 MiB for itself, `xfs_io -x -c 'resblks 1024' {path}` lends nearly all of it to the "
        "broker, at once and until the next mount"
    )
