"""Ask a running broker to let staged groups of a log take the place of their sources, as its own cleaner would.

One request for all groups of a round, ascending. Where there are thousands, one for some of them after the other, of
which the last moves the first dirty offset: between two the log is as after a cleaning that was interrupted. The agent
(`java/cleanerd/agent/Swap.java`) pauses the broker's cleaner for the log; if that, or something else, is at work there:
busy. Then it checks, under the log's own lock, that the log is the one that the cleaning was planned on, and all groups; if
not: changed, nothing was touched. Then for each group:

====  ==========================================================  =====================================================
step  what is done                                                what a kill, or a power failure, after it leaves, and
                                                                  what the broker's start makes of it
====  ==========================================================  =====================================================
0     everything is checked; nothing is touched                   the old log, staged files and manifest: the group waits
1     the manifest is unlinked, the directory synced              the old log; the staged files are leftovers, which the
                                                                  next recovery or cleaning takes away
2     the locks are taken, everything checked again               as 1
3     `.cleanerd` -> `.cleaned`, `.log` first                     the old log: Kafka deletes `.cleaned` (spec disk D2)
4     the segment is opened; `UnifiedLog.replaceSegments` renames the old log, as 3, until `.log` is `.swap`; the new log
      `.cleaned` -> `.swap`, `.log` first                         then: Kafka deletes what it covers and renames it
5     likewise: sources -> `.deleted`, ascending, and the         the new log; what it does not cover holds nothing that
      producer snapshots of all but the first                     survived, goes oldest first, and is cleaned again
6     likewise: `.swap` -> live, the directory synced; the        the new log; Kafka deletes `.deleted`
      locks are let go, and `.deleted` unlinked after
      file.delete.delay.ms
7     after the last group: `cleaner-offset-checkpoint`           before it: the groups that are there, as after a cleaning
                                                                  that was interrupted; they are cleaned again
8     the broker's cleaner goes on with the log                   -
====  ==========================================================  =====================================================

`tests/proofs/test_swap.py` stops at each step, for a kill of either process and for a power failure.

Two locks: that of the log, and before it that under which the broker creates logs. A move to another log directory begins
with a new log, which is filled from this one: what was copied before a swap and after it would not fit together.

From step 1 on the group has no manifest: what lies there from step 3 on is the broker's, as if its own cleaner had been
interrupted, and cleanerd's recovery leaves it to the broker. A kill of cleanerd ends nothing that has begun.

No group is begun more than 30 s after the request, whatever it had to wait for; whoever asks gives up after 60 s. So a
broker that hung and goes on touches no files of a later cleaning.

Steps 4 to 6 are the broker's own operation, with its guarantee for a power failure: it relies on a file system that keeps
the order of renames in a directory, as ext4, XFS, Btrfs and ZFS do. The new files were synced when they were staged.

Inode, size and time prove that the staged `.log` is the one that verification read, as at every commit. A digest would have
the broker read each byte again: 1.1 s for a GiB that is cached, 15 s for one that is not (CRC32C, on a busy machine), where
a swap takes milliseconds. What decays on the disk in between fails the CRC of its batch, at the next cleaning as at a fetch.

An error in step 3, or in step 4 before the broker has renamed the `.log`, takes the `.cleaned` files away, and the log is as
it was: the broker has no memory, or has closed the log to stop. A later one in steps 4 to 6 takes the log directory offline
in the broker, as one of its own cleaner does. One in step 7 is reported by the broker in its own way.

A broker that deletes or cuts a log takes its entry back without waiting for us. So the log is checked again after step 7,
and if it is another one by then, its entry goes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cleanerd.env.files import FileStat
from cleanerd.errors import CleanerdError, LockHeld
from cleanerd.format.names import FileKind, TopicPartition
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import StagedGroup

from .live_logs import named_log, refusal
from .session import Session

_TIMEOUT_S = 30.0
"""No group is begun later than so long after the request."""
_ANSWER_S = 2 * _TIMEOUT_S

_REQUEST_MAX = 5_000
"""Most groups and sources of a request: not much more than a megabyte, of the four that the agent takes."""

REFUSAL_CAUSES = (
    "another_log", "broker_at_work", "broker_starts", "broker_stops", "cleanup_policy", "files", "first_dirty_offset",
    "high_watermark", "leader_epochs", "log_moves", "no_log", "other", "out_of_memory", "segments", "storage", "time_up",
)  # fmt: skip
"""Words of the agent for why it has not swapped, beside the reason in full."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A request to swap. Without groups it only moves the first dirty offset, which was `checkpoint` at planning time."""

    partition: PartitionDir
    topic_partition: TopicPartition
    groups: Sequence[StagedGroup]
    round_end: int
    checkpoint: int | None
    leader_epochs: Sequence[tuple[int, int]]
    moves_checkpoint: bool = True

    def by(self, session: Session) -> "Swapped":
        """Send the request to the broker. Raises NoWayIn, also if the outcome is unknown; CorruptFile, OSError."""
        seconds: tuple[float, ...] = ()
        for piece in self._pieces():
            answer = session.ask(piece._request(), _ANSWER_S)
            seconds += tuple(int(micros) / 1e6 for micros in answer.get("lock_us", ()))
            if answer.get("outcome") != "swapped":
                break
        has_cleaner = answer.get("has_cleaner") is not False
        cause = str(answer.get("cause"))
        return Swapped(
            str(answer.get("outcome")),
            cause if cause in REFUSAL_CAUSES else "other",
            str(answer.get("reason")),
            seconds,
            self.partition.path,
            has_cleaner,
        )

    def _pieces(self) -> Iterator["Swap"]:
        """Split a large request into pieces; the last one moves the first dirty offset."""
        first, count = 0, 0
        for number, group in enumerate(self.groups):
            count += 1 + len(group.sources)
            if count > _REQUEST_MAX and number > first:
                yield replace(self, groups=self.groups[first:number], moves_checkpoint=False)
                first, count = number, 1 + len(group.sources)
        yield replace(self, groups=self.groups[first:])

    def _request(self) -> dict[str, Any]:
        return {
            "request": "swap",
            **named_log(self.partition, self.topic_partition),
            "round_end": self.round_end,
            "checkpoint": self.checkpoint,
            "moves_checkpoint": self.moves_checkpoint,
            "leader_epochs": self.leader_epochs,
            "timeout_ms": int(_TIMEOUT_S * 1000),
            "groups": [_group(group) for group in self.groups],
        }


class BrokerStarting(LockHeld):
    """The broker swaps no log at the moment: it starts or stops."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The answer. `outcome`: swapped, changed, busy (ask again at once), later, starting or failed; `cause`: why not
    swapped, one of REFUSAL_CAUSES; `lock_s`: seconds under the log's lock, of each group that was swapped, whatever the
    outcome. `has_cleaner`: the broker's cleaner is on, and writes checkpoints.
    """

    outcome: str
    cause: str
    reason: str
    lock_s: tuple[float, ...]
    directory: str
    has_cleaner: bool

    def error(self) -> CleanerdError | None:
        """The error that the outcome stands for; None if everything was done."""
        message = f"{self.directory}: {self.reason}"
        if self.outcome == "swapped":
            return None
        return BrokerStarting(message) if self.outcome == "starting" else refusal(self.outcome, message)


def _group(group: StagedGroup) -> dict[str, Any]:
    staged_log = FileStat(group.log_inode or 0, group.sizes[FileKind.LOG], group.log_mtime_ns)
    return {
        "base_offset": group.base_offset,
        "next_base_offset": group.next_base_offset,
        "sources": [
            {"base_offset": source.base_offset, **_identity(source.identity)} for source in group.sources
        ],
        "staged": [[kind.value, size] for kind, size in group.sizes.items()],
        "staged_log": _identity(staged_log),
    }


def _identity(found: FileStat) -> dict[str, int]:
    return {"inode": found.inode, "size_bytes": found.size_bytes, "mtime_ms": found.mtime_ms}
