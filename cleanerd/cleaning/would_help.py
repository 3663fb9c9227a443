"""What a rescue never does itself, or cannot, in words: the next steps of a person."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from cleanerd.cleaning.rescued import Rescued
from cleanerd.cleaning.result import CleanRequest
from cleanerd.cleaning.through_spare import why_no_spare
from cleanerd.env.host import user_name
from cleanerd.env.space import names_left, space_of
from cleanerd.errors import CleanerdError
from cleanerd.format.names import DirKind, FileKind, SegmentFileName, TopicPartition
from cleanerd.storage.log_dir import LogDir, Owner
from cleanerd.storage.partition_dir import PartitionDir, log_size
from cleanerd.storage.staged import live_logs
from cleanerd.units import counted, first_of, size

LEAST_BYTES, LEAST_INODES = 512 << 10, 32
"""With less than that nothing at all can be written. XFS makes no file with less than 200 KiB."""


def why_alone(alone: Mapping[TopicPartition, str]) -> Iterator[str]:
    """Why logs are left alone, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for tp, reason in alone.items():
        by_reason.setdefault(reason, []).append(str(tp))
    for reason, logs in by_reason.items():
        yield f"{first_of(logs, 1)}: left alone: {reason}"


def _active_bytes(partition: PartitionDir) -> int:
    """Of the segment that no cleaning looks into; 0 where that is not known."""
    with contextlib.suppress(CleanerdError, OSError):
        bases = live_logs(partition)
        return partition.stat(SegmentFileName(bases[-1], FileKind.LOG)).size_bytes if bases else 0
    return 0


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
    active = {
        tp: _active_bytes(log_dir.partition(tp)) for tp in ours if request.topic_config(tp.topic).compact
    }
    largest = max(active, key=lambda tp: active[tp], default=None)
    if largest is not None and active[largest]:
        yield (
            f"a roll: the active segments of compacted logs hold {size(sum(active.values()))}, {largest} "
            f"{size(active[largest])} of that, and at most that would go (`cleanerd clean --force --roll`, once the broker "
            "has started, or has stopped as it should)"
        )
    yield "a larger disk: tombstones, active segments and the newest value of each key stay"


def next_help(log_dir: LogDir, found: Rescued, spare: str | None, *, asks_broker: bool) -> Iterator[str]:
    """What this rescue lacks. `spare`: what was given as such; `asks_broker`: whether a live one may be asked to swap."""
    path, no_room = log_dir.path, [step for step in found.steps if step.outcome == "no_room"]
    if (reason := why_not_writable(path)) is not None:
        yield reason
    if log_dir.owner is Owner.LIVE_BROKER:
        if not asks_broker:
            yield "its broker runs: --set cleanerd.commit.live=auto, and it swaps the results in, or stop it"
    elif no_room and (no_spare := why_no_spare(log_dir, spare)) is not None:
        yield f"a spare that can be used: {no_spare}"
    elif no_room and (spare is None or any(step.name == "spare" for step in no_room)):
        least_bytes = min(step.needs_bytes for step in no_room)
        least = f"with {size(least_bytes)} free" if least_bytes else "with some room"
        yield f"--spare DIR, a directory on another file system {least}"
    is_full = found.free_bytes_after < LEAST_BYTES or names_left(path) < LEAST_INODES
    if is_full and not found.is_enough:
        yield (
            f"{size(LEAST_BYTES)} and some names (inodes) free, to make files with: move something away that is not "
            f"Kafka's. On XFS, which keeps up to 32 MiB for itself, `xfs_io -x -c 'resblks 1024' {path}` lends nearly all "
            "of it to the broker, at once and until the next mount"
        )


def why_not_writable(path: str) -> str | None:
    """Why this user can change nothing in a log directory. Raises OSError."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path}: its file system is mounted read-only; see `dmesg` for the reason"
    if os.access(path, os.W_OK | os.X_OK):
        return None
    owner = os.stat(path).st_uid
    return f"{path}: {user_name() or os.geteuid()} cannot write there: run this as its owner, {user_name(owner) or owner}"
