"""Whether what is to be committed still fits its log, and is still wanted (architecture 2)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from cleanerd.cleaning.commit.host import Commit, CommitHost
from cleanerd.cleaning.outcomes import Basis
from cleanerd.errors import PolicyChanged, SourceChanged
from cleanerd.format.names import FileKind, TopicPartition, segment_path
from cleanerd.policy.commit_plan import epochs_contradiction
from cleanerd.storage.checkpoints import read_leader_epochs
from cleanerd.storage.commit import revalidate
from cleanerd.storage.generation import check_generation
from cleanerd.storage.log_dir import CommitFacts, LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import StagedGroup, live_logs, read_manifests
from cleanerd.storage.topic_id import topic_stamp
from cleanerd.units import utc


@dataclass(frozen=True, slots=True)
class Ready:
    """A commit that has passed all checks. `groups` ascend; there are none if only the first dirty offset moves.

    `live`: `storage.staged.live_logs`.
    """

    topic_partition: TopicPartition
    partition: PartitionDir
    basis: Basis
    groups: Sequence[StagedGroup]
    live: list[int]
    moves_checkpoint: bool = True


class Checks:
    """Asks everything that the commits of `logs` rely on. `is_live`: a live broker commits, and asks again by itself.

    Lock: `.lock`, or that of the live broker. Without either an answer may be wrong the moment it is given.
    """

    def __init__(
        self, log_dir: LogDir, host: CommitHost, logs: Collection[TopicPartition], *, is_live: bool = False
    ) -> None:
        self._log_dir, self._host, self._logs, self._is_live = log_dir, host, logs, is_live

    def ready(self, commit: Commit, spare: PartitionDir | None = None) -> Ready | None:
        """The groups that can be committed now; None if nothing is staged. `spare`: where they are, if elsewhere.

        Raises SourceChanged, CorruptFile: the result is worth nothing any more; what the host's `check` raises; OSError.
        """
        tp, basis = commit.topic_partition, commit.unchanged
        partition = self._log_dir.partition(tp)
        if basis is None:
            staged = partition if spare is None else spare
            groups = read_manifests(staged)
            return self._ready_groups(tp, partition, groups, staged) if groups else None
        assert basis.topic_stamp is not None, "no source segment is compared"
        self._check_basis(partition, tp, basis)
        self._check_wanted(partition, tp, basis.round_end)
        return Ready(tp, partition, basis, (), [])

    def _ready_groups(
        self, tp: TopicPartition, partition: PartitionDir, groups: list[StagedGroup], staged: PartitionDir
    ) -> Ready:
        last, live = groups[-1], live_logs(partition)
        if not last.is_last:  # a cleaning that was interrupted while it staged must not move the checkpoint
            raise SourceChanged(
                f"{partition.path}: the cleaning was interrupted before it had staged everything"
            )
        if self._log_dir.clock.now_ms() > last.commit_by_ms:
            raise SourceChanged(
                f"{partition.path}: the result waited too long: after {utc(last.commit_by_ms)} its tombstones may go "
                "before a reader of the values meets them"
            )
        for basis in set(map(_basis, groups)):  # one, where all are of one cleaning
            self._check_basis(partition, tp, basis)
        for group in groups:
            revalidate(partition, group, live, staged)
        if not last.leader_epochs:
            self._check_unwritten(partition, groups, live, staged)
        self._check_wanted(partition, tp, last.round_end)
        if any(group.removes_expired for group in groups):
            self._host.check_expired(tp)
        return Ready(tp, partition, _basis(last), groups, live, last.moves_checkpoint)

    def _check_basis(self, partition: PartitionDir, tp: TopicPartition, basis: Basis) -> None:
        """Raise SourceChanged if the log was truncated, created again, or cut by an unclean leader election below the end of
        the cleaned range (spec disk G), since the cleaning was planned.

        A checkpoint above records that no cleaning has seen would let tombstones among them go before the values that they
        delete. So it moves only from where the cleaning found it. A cleaning judges with all records of its range: what
        superseded a record in a staged group may be gone although nothing in that group has changed.
        """
        check_generation(partition, basis.generation)
        found = self._log_dir.first_dirty_offset(tp)
        if found != basis.checkpoint:
            raise SourceChanged(
                f"{partition.path}: the first dirty offset was {basis.checkpoint}, is {found}"
            )
        if basis.topic_stamp is not None and topic_stamp(partition) != basis.topic_stamp:
            raise SourceChanged(
                f"{partition.path}: the topic was created again, or its directory exchanged, since this was planned"
            )
        epochs = read_leader_epochs(partition)
        reason = epochs_contradiction(basis.leader_epochs, epochs, next_base_offset=basis.round_end)
        if not partition.files.exists(segment_path(partition.path, basis.round_end, FileKind.LOG)):
            reason = f"segment {basis.round_end}, which follows the cleaned range, is gone"
        if reason is not None:
            raise SourceChanged(f"{partition.path}: {reason}")

    def _check_unwritten(
        self,
        partition: PartitionDir,
        groups: Sequence[StagedGroup],
        live: Sequence[int],
        staged: PartitionDir,
    ) -> None:
        """As `_check_basis`, for a log without leader epochs (message format 0 or 1): raise SourceChanged if a segment below
        the end of the range was written after the result was.

        Cleanings keep the times of segments. One that is later than now is that of a clock that was wrong.
        """
        files, now_ns = partition.files, self._log_dir.clock.now_ms() * 1_000_000
        staged_ns = min(staged.stat(group.manifest).mtime_ns for group in groups)
        for base in live:
            path = segment_path(partition.path, base, FileKind.LOG)
            if base < groups[-1].round_end and staged_ns < files.stat(path).mtime_ns <= now_ns:
                raise SourceChanged(
                    f"{path}: was written after the result was staged, and has no leader epochs"
                )

    def _check_wanted(self, partition: PartitionDir, tp: TopicPartition, round_end: int) -> None:
        """What is above the high watermark may be cut off, after what it superseded has gone. The one that the cleaning was
        planned with may have been that of a topic that was deleted and created again, or of before a truncation.
        """
        if tp in self._facts.elsewhere:
            raise PolicyChanged(f"{partition.path}: {self._facts.elsewhere[tp]}")
        high_watermark = self._facts.high_watermarks.get(tp)
        if high_watermark is not None and high_watermark < round_end:
            raise SourceChanged(
                f"{partition.path}: cleaned up to {round_end}, but the high watermark is {high_watermark}"
            )
        self._host.check(tp, round_end)

    @cached_property
    def _facts(self) -> CommitFacts:
        """Read once for all logs; what keeps it from being read is what is wrong with each of them."""
        return self._log_dir.commit_facts(self._logs, is_live=self._is_live)


def _basis(group: StagedGroup) -> Basis:
    return Basis(group.round_end, group.generation, group.checkpoint, group.leader_epochs)
