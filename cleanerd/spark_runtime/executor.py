"""How the steps of a pipeline run: `Local` on one machine, `Cluster` elsewhere, behind one interface.

A step is one function for many tasks. Between the two executors this differs, and nothing else:

                  Local                                               Cluster
tasks             a free process takes one from a file (`task_queue`) Spark hands out rows
what they share   a file that workers map (`shared_value`)            a broadcast
large answers     files of the session (`block_store`)                travel through Spark
`exchange`        two steps                                           Spark's shuffle
a job             lasts for several steps (`resident_job`)            one for each step
new segments      parts go to one file: no task is repeated           a file for each part
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Protocol, TypeVar

from pyspark import SparkContext

from cleanerd.errors import JobFailed

from .block_store import block_file, scratch_directory, travelling
from .resident_job import Answers, ResidentJob, Residents, TaskStep, answer_all
from .shared_value import SharedFile
from .task_queue import TURN_BYTES, TaskQueue, spark_tasks, turns

_T = TypeVar("_T")

_ROWS_PER_CORE = 4  # of a cluster: small ones end together

Merge = Callable[[list[Any], Any], Any]
"""`merge(values, shared)`: what becomes of all values of a key, which come in no order."""

Exchanged = tuple[list[Any], list[Any]]
"""The answers in the order of their tasks, and what was merged, in no order."""


class Session(Protocol):
    """What an executor asks of its session."""

    residents: Residents

    def cores(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(self, work: Callable[[SparkContext], _T]) -> _T:
        """As a job. Raises JobFailed."""
        ...


class Executor(ABC):
    """Runs the steps of one cleaning."""

    shares_files: ClassVar[bool]
    """Whether tasks have files in common, and may write to one together: none of them is ever repeated."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""
        return self._session.cores()

    def run(self, step: TaskStep) -> list[Any]:
        """The answers, in the order of the tasks. Raises JobFailed, OSError."""
        if not step.tasks:
            return []
        answers = sorted(self._answers(step), key=itemgetter(0))
        assert [number for number, _ in answers] == list(range(len(step.tasks))), (
            "every task is answered once"
        )
        return [answer for _, answer in answers]

    @abstractmethod
    def _answers(self, step: TaskStep) -> Answers: ...

    @abstractmethod
    def exchange(self, step: TaskStep, merge: Merge, keys: int, partitions: int) -> Exchanged:
        """What `merge` makes of the values of each key.

        `step` answers a task with (answer, {key: value}); keys are numbers below `keys`. A value has `size_bytes`, as a task
        has. Where Spark shuffles, values of so many `partitions` are merged at a time. Raises JobFailed, OSError.
        """

    def together(self, size_bytes: int, tasks: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """While this lasts steps over so many bytes in so many tasks share a job, where that pays."""
        return nullcontext()

    def release(self) -> None:  # noqa: B027 - most have none
        """Let the common job go, if there is one; steps that follow are jobs of their own."""


class Local(Executor):
    """All tasks are processes of this machine, started in order and never repeated."""

    shares_files = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._resident: ResidentJob | None = None

    @contextmanager
    def together(self, size_bytes: int, tasks: int) -> Iterator[None]:
        """If they are few bytes: such a job holds its cores while this process has work to do between two steps."""
        if size_bytes > 0 and size_bytes <= self.cores * TURN_BYTES:
            self._resident = self._session.residents.take(
                spark_tasks(tasks, size_bytes, self.cores, self.cores)
            )
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give the resident job back."""
        resident, self._resident = self._resident, None
        if resident is not None:
            self._session.residents.give_back(resident)

    def _answers(self, step: TaskStep) -> Answers:
        found = None if self._resident is None else self._resident.run(step)
        if found is not None:
            return found
        self.release()
        return self._session.run(partial(self._job, step))

    def _job(self, step: TaskStep, spark: SparkContext) -> Answers:
        with scratch_directory(spark) as directory, step.shared() as value:
            shared = SharedFile.of(directory, value)
            queue = TaskQueue.of(directory, step.tasks)
            do, blocks = step.do, partial(block_file, step.blocks_in(directory))
            shares = turns(step.tasks, self.cores)
            answers = spark.parallelize(shares, len(shares)).mapPartitions(
                lambda mine: answer_all(queue.take(sum(mine)), do, shared, blocks)
            )
            step.begun()
            return [(number, step.take(answer)) for number, answer in answers.collect()]

    def exchange(self, step: TaskStep, merge: Merge, keys: int, partitions: int) -> Exchanged:  # noqa: ARG002
        """A step, whose values lie in files, and a step with a task for each key."""
        try:
            return self._exchange(step, merge)
        except _ValuesGone:
            return self._exchange(step, merge)

    def _exchange(self, step: TaskStep, merge: Merge) -> Exchanged:
        """Raises _ValuesGone if the session was lost between its steps."""
        answers: list[Any] = []
        values: dict[int, list[Any]] = defaultdict(list)
        with ExitStack() as stack:

            def beside(directory: str) -> str:
                """It outlives the step, and belongs to the same session."""
                path = tempfile.mkdtemp(dir=os.path.dirname(directory))
                stack.callback(shutil.rmtree, path, ignore_errors=True)
                return path

            for answer, mine in self.run(replace(step, blocks_in=beside)):
                answers.append(answer)
                for key, value in mine.items():
                    values[key].append(value)
            tasks = [_MergeTask(members) for members in values.values()]
            merged = self.run(TaskStep(tasks, partial(_merge_each, merge), step.shared, step.begun))
        for one in merged:
            if isinstance(one, _ValuesGone):
                raise one
        return answers, merged


class Cluster(Executor):
    """Tasks run on machines that share no scratch files, and Spark repeats those that fail."""

    shares_files = False

    def _answers(self, step: TaskStep) -> Answers:
        def job(spark: SparkContext) -> Answers:
            with step.shared() as value:
                do, shared = step.do, spark.broadcast(value)
                answers = self._rows(spark, step).mapPartitions(
                    lambda rows: answer_all(rows, do, shared, travelling)
                )
                step.begun()
                return [(number, step.take(answer)) for number, answer in answers.collect()]

        return self._session.run(job)

    def _rows(self, spark: SparkContext, step: TaskStep) -> Any:
        size_bytes = sum(task.size_bytes for task in step.tasks)
        count = spark_tasks(len(step.tasks), size_bytes, _ROWS_PER_CORE * self.cores, self.cores)
        return spark.parallelize(list(enumerate(step.tasks)), count)

    def exchange(self, step: TaskStep, merge: Merge, keys: int, partitions: int) -> Exchanged:
        """One job with a shuffle: each partition holds a run of keys."""
        if not step.tasks:
            return [], []

        def job(spark: SparkContext) -> list[tuple[int | None, Any]]:
            with step.shared() as value:
                do, shared = step.do, spark.broadcast(value)
                spread = self._rows(spark, step).mapPartitions(
                    lambda rows: _spread(answer_all(rows, do, shared, travelling), keys, partitions)
                )
                merged = spread.partitionBy(partitions, lambda partition: partition).mapPartitions(
                    lambda rows: _merged(rows, merge, shared)
                )
                step.begun()
                return list(merged.collect())

        found = self._session.run(job)
        numbered = sorted((row for row in found if row[0] is not None), key=itemgetter(0))
        assert len(numbered) == len(step.tasks), "every task is answered once"
        return [answer for _, answer in numbered], [merged for number, merged in found if number is None]


class _ValuesGone(JobFailed):
    """Values that an earlier step left in files went with their session."""


@dataclass(frozen=True, slots=True)
class _MergeTask:
    """All values of a key."""

    values: list[Any]

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(value.size_bytes for value in self.values)


def _merge_each(merge: Merge, tasks: Iterator[_MergeTask], shared: Any, _: object) -> Iterator[Any]:
    for task in tasks:
        try:
            yield merge(task.values, shared)
        except (OSError, EOFError) as error:
            yield _ValuesGone(str(error))


def _spread(answers: Iterable[tuple[int, Any]], keys: int, partitions: int) -> Iterator[tuple[int, Any]]:
    """(partition, row): an answer with its number, or values by key; a row for each partition that gets any."""
    for number, (answer, values) in answers:
        yield 0, (number, answer)
        shares: dict[int, dict[int, Any]] = defaultdict(dict)
        for key, value in values.items():
            shares[key * partitions // keys][key] = value
        yield from shares.items()


def _merged(rows: Iterable[tuple[int, Any]], merge: Merge, shared: Any) -> Iterator[tuple[int | None, Any]]:
    """Answers with their numbers pass through; what is merged has none."""
    values: dict[int, list[Any]] = defaultdict(list)
    for _, row in rows:
        if isinstance(row, Mapping):
            for key, value in row.items():
                values[key].append(value)
        else:
            yield row
    for key in list(values):
        yield None, merge(values.pop(key), shared.value)
