"""A cleaning in steps that can be interleaved with anything: cleanerd's own code, its Spark jobs run in this process."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cleanerd.cleaning.choose import Candidate, examine
from cleanerd.cleaning.commit.committer import Committer
from cleanerd.cleaning.commit.host import Commit, CommitHost
from cleanerd.cleaning.outcomes import Basis, Skipped
from cleanerd.cleaning.plan import CleaningPlan, merge_neighbours, plan_cleaning
from cleanerd.cleaning.result import CleanRequest
from cleanerd.cleaning.stage import stage_log
from cleanerd.config.load import Configuration, resolve
from cleanerd.config.sources import read_sources
from cleanerd.env.clock import FixedNow
from cleanerd.env.files import Files
from cleanerd.env.pace import unpaced
from cleanerd.errors import CleanerdError
from cleanerd.format.names import TopicPartition
from cleanerd.pipeline.job import Budget, Pipeline
from cleanerd.pipeline.values import IndexedLog
from cleanerd.spark_runtime.channel import Advance
from cleanerd.spark_runtime.executor import Local
from cleanerd.spark_runtime.messages import Phase
from cleanerd.storage.log_dir import LogDir
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.staged import StagedGroup, discard_staged
from tests.harness.clock import Standstill

TP = TopicPartition("t", 0)
DELETE_RETENTION_MS = 2


@functools.cache
def defaults() -> Configuration:
    """Read once: a world plans a thousand cleanings."""
    return resolve(read_sources())


@dataclass
class _Shared:
    value: Any


class _Rows(list[Any]):
    def mapPartitions(self, step: Callable[[Any], Any]) -> "_Rows":
        return _Rows(step(iter(self)))

    def collect(self) -> list[Any]:
        return self


class _NoResidents:
    """Each step is a job."""

    def take(self, _: int) -> "_NoResidents":
        return self

    def give_back(self, _: "_NoResidents") -> None: ...

    def run(self, _: Any, __: Any) -> None: ...


class InProcess:
    """What the pipeline asks of a Spark session and its context."""

    defaultParallelism = 1
    _temp_dir = None
    residents: Any = _NoResidents()

    def executor(self) -> Local:
        return Local(self)

    def cores(self) -> int:
        return 1

    def run(self, work: Callable[[Any], Any]) -> Any:
        return work(self)

    def broadcast(self, value: Any) -> _Shared:
        return _Shared(value)

    def parallelize(self, rows: Iterable[Any], _: int) -> _Rows:
        return _Rows(rows)


class Silent:
    """A reporter to whom nobody listens."""

    def advance(self, log: int, phase: Phase) -> contextlib.AbstractContextManager[Advance]:
        return contextlib.nullcontext(lambda *_: None)

    def live(self, log: int, phase: Phase) -> None: ...


@dataclass
class Cleaning:
    """One cleaning of t-0 on its way. Each step raises what the daemon would make a result of."""

    files: Files
    log_dir: str
    now_ms: int
    plan: CleaningPlan | None = None
    indexed: IndexedLog | None = None
    staged: Sequence[StagedGroup] = ()
    before: StagedGroup | None = None
    groups_at_once: int | None = None  # in a round; all

    @property
    def directory(self) -> str:
        return f"{self.log_dir}/{TP}"

    @property
    def is_ready(self) -> bool:
        """Whether nothing is left to do but to commit."""
        return self.indexed is not None and (bool(self.staged) or not self.indexed.changed_groups)

    def choose(self) -> bool:
        """Scan and plan; whether there is anything to clean."""
        configuration = defaults()
        topic = configuration.topic("t").but(
            cleanup_policy=("compact",),
            topic_segment_bytes=500,
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        request = CleanRequest(
            config=configuration.broker, topic_config=lambda _: topic, log_dirs=(self.log_dir,), force=True
        )
        log_dir = LogDir.at(self.files, self.log_dir, FixedNow(self.now_ms))
        found = examine(log_dir, TP, log_dir.checkpoints(), request, pace=unpaced)
        if not isinstance(found, Candidate):
            assert isinstance(found.outcome, Skipped), found
            return False
        discard_staged(PartitionDir(self.files, self.directory))
        self.plan = plan_cleaning(self.files, found, now_ms=self.now_ms, chunk_bytes=300, pace=unpaced)
        return True

    def index(self) -> None:
        assert self.plan is not None
        (self.indexed,) = self._pipeline().index([self.plan.work], [(1, 2)])
        _raise(self.indexed.error)
        self.plan = merge_neighbours(self.plan, self.indexed)

    def stage(self) -> None:
        assert self.plan is not None
        assert self.indexed is not None
        now = sorted(self.indexed.changed_groups)[: self.groups_at_once]
        self.indexed.later_groups = self.indexed.changed_groups.difference(now)
        (rewritten,) = self._pipeline().rewrite([self.indexed], write=True)
        _raise(rewritten.error)
        self.staged = stage_log(self.files, self.plan, rewritten, before=self.before)

    def goes_on(self) -> bool:
        """Begin the next round, after a commit; False where there is none."""
        if self.indexed is None or not self.indexed.later_groups:
            return False
        self.indexed, self.before, self.staged = self.indexed.rest(), self.staged[-1], ()
        return True

    def commit(self, files: Files | None = None) -> int | None:
        """Under the lock; the new checkpoint, None when what was staged is gone."""
        assert self.plan is not None
        log_dir = LogDir.at(files or self.files, self.log_dir, Standstill())
        if self.staged:
            return committed(log_dir)
        return committed(log_dir, unchanged=self.plan.candidate.basis)

    def run(self) -> int | None:
        """All steps, one after the other."""
        assert self.choose()
        self.index()
        self.stage()
        end = self.commit()
        while self.goes_on():
            self.stage()
            end = self.commit()
        return end

    def _pipeline(self) -> Pipeline:
        session: Any = InProcess()
        reporter: Any = Silent()
        return Pipeline(session, Budget(1 << 20), reporter)


def committed(log_dir: LogDir, host: CommitHost | None = None, unchanged: Basis | None = None) -> int | None:
    """Commit what waits, or is `unchanged`; the new checkpoint, None where there is nothing. Raises what went wrong."""
    done = Committer(log_dir, host).commit([Commit(TP, unchanged=unchanged)])[TP]
    if isinstance(done, CleanerdError):
        raise done
    return None if done is None else done.end_offset


def _raise(error: CleanerdError | None) -> None:
    if error is not None:
        raise error
