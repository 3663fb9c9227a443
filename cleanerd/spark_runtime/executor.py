"""How the steps of a pipeline run: `Local` on one machine, `Cluster` elsewhere, behind one interface.

A step is one function for many tasks. Between the two executors this differs, and nothing else:

                  Local                                               Cluster
what they share   a file that workers map (`shared_value`)            is sent to each process, or broadcast
large answers     files of the session (`block_store`)                files of the hosts (`block_store`)
a lost process    is the end of the job                               its tasks are repeated
new segments      parts go to one file                                a file for each attempt at a part

In both one job lasts for the steps of a cleaning that ends soon, and a process that is free takes the next task
(`resident_job`). Another step is a job of its own: there `Local` has tasks taken from a file (`task_queue`), and `Cluster`
lets Spark hand out rows.
"""

import os
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar

from pyspark import SparkContext

from cleanerd.errors import JobFailed

from .block_store import block_file, drop, host_block_file, scratch_directory, server_here, travelling
from .channel import Endpoint
from .resident_job import Answers, Blocks, ResidentJob, Session, TaskStep, Work
from .shared_value import SentValue, SharedFile
from .task_queue import TURN_BYTES, TaskQueue, spark_tasks, turns

_ROWS_PER_CORE = 2  # of a cluster: they end together, and each costs two JVMs some 40 ms of computing

Merge = Callable[[list[Any], Any], Any]
"""`merge(values, shared)` combines all values of a key, which come in any order."""


class Executor(ABC):
    """Runs the steps of one cleaning."""

    shares_files: ClassVar[bool]
    """Whether tasks have files in common, and may write to one together: none of them is ever repeated."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._resident: ResidentJob | None = None

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""
        return self._session.cores()

    def run(self, step: TaskStep) -> list[Any]:
        """The answers, in the order of the tasks. Raises JobFailed, OSError."""
        if not step.tasks:
            return []
        found = None if self._resident is None else self._resident.run(step, self._work)
        if found is None:
            self.release()
            found = self._session.run(partial(self._job, step))
        answers = sorted(found, key=itemgetter(0))
        assert [number for number, _ in answers] == list(range(len(step.tasks))), (
            "every task is answered once"
        )
        return [answer for _, answer in answers]

    @abstractmethod
    def _job(self, step: TaskStep, spark: SparkContext) -> Answers:
        """`step` as a job of its own."""

    @abstractmethod
    def _work(self, step: TaskStep, directory: str, value: Any) -> Work:
        """The input of each process. `directory`: of this step and process; `value`: shared by its tasks."""

    def exchange(self, step: TaskStep, merge: Merge) -> tuple[list[Any], list[Any]]:
        """Run a step whose values go to files, then `merge` with a task for each key.

        `step` answers a task with (answer, {key: value}). A value has `size_bytes`, as a task has. Returns the answers in
        the order of their tasks, and the merged values in any order. Raises JobFailed, OSError.
        """
        try:
            return self._exchange(step, merge)
        except _ValuesGone:
            return self._exchange(step, merge)

    def _exchange(self, step: TaskStep, merge: Merge) -> tuple[list[Any], list[Any]]:
        """Raises _ValuesGone if values were lost, with a session or an executor, between its steps."""
        answers: list[Any] = []
        values: dict[int, list[Any]] = defaultdict(list)
        with ExitStack() as stack:
            for answer, mine in self._kept(step, stack):
                answers.append(answer)
                for key, value in mine.items():
                    values[key].append(value)
            tasks = [_MergeTask(members) for members in values.values()]
            merged = self.run(TaskStep(tasks, partial(_merge_each, merge), step.shared, step.begun))
        for one in merged:
            if isinstance(one, _ValuesGone):
                raise one
        return answers, merged

    @abstractmethod
    def _kept(self, step: TaskStep, stack: ExitStack) -> list[Any]:
        """As `run`, but later steps can load the `put` values until `stack` is left."""

    @contextmanager
    def together(self, size_bytes: int, tasks: int) -> Iterator[None]:
        """While this lasts steps over so many bytes in so many tasks share a job, if they are few bytes.

        Such a job holds its cores while this process has work to do between two steps.
        """
        if 0 < size_bytes <= self.cores * TURN_BYTES:
            self._resident = self._session.residents.take(
                spark_tasks(tasks, size_bytes, self.cores, self.cores)
            )
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let the common job go, if there is one; steps that follow are jobs of their own."""
        resident, self._resident = self._resident, None
        if resident is not None:
            self._session.residents.give_back(resident)


class Local(Executor):
    """All tasks are processes of this machine, started in order and never repeated."""

    shares_files = True

    def _job(self, step: TaskStep, spark: SparkContext) -> Answers:
        with scratch_directory(spark) as directory, step.shared() as value:
            queue = TaskQueue.of(directory, step.tasks)
            work = self._work(step, directory, value)
            shares = turns(step.tasks, self.cores)
            answers = spark.parallelize(shares, len(shares)).mapPartitions(
                lambda mine: work.answer(queue.take(sum(mine)))
            )
            step.begun()
            return [(number, step.take(answer)) for number, answer in answers.collect()]

    def _work(self, step: TaskStep, directory: str, value: Any) -> Work:
        blocks = partial(block_file, directory) if step.blocks is None else step.blocks(directory)
        return Work(step.do, SharedFile.of(directory, value), blocks)

    def _kept(self, step: TaskStep, stack: ExitStack) -> list[Any]:
        def beside(directory: str) -> Blocks:
            """It outlives the step, and belongs to the same session."""
            path = tempfile.mkdtemp(dir=os.path.dirname(directory))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            return partial(block_file, path)

        return self.run(replace(step, blocks=beside))


class Cluster(Executor):
    """Tasks run on machines that share no scratch files, and are repeated when their process is lost."""

    shares_files = False

    def _job(self, step: TaskStep, spark: SparkContext) -> Answers:
        with step.shared() as value:
            work = replace(self._work(step, "", None), shared=spark.broadcast(value))
            size_bytes = sum(task.size_bytes for task in step.tasks)
            count = spark_tasks(len(step.tasks), size_bytes, _ROWS_PER_CORE * self.cores, self.cores)
            answers = spark.parallelize(list(enumerate(step.tasks)), count).mapPartitions(
                lambda rows: work.answer(iter(rows))
            )
            step.begun()
            return [(number, step.take(answer)) for number, answer in answers.collect()]

    def _work(self, step: TaskStep, directory: str, value: Any) -> Work:
        return Work(step.do, SentValue(value), travelling if step.blocks is None else step.blocks(directory))

    def _kept(self, step: TaskStep, stack: ExitStack) -> list[Any]:
        name = secrets.token_hex(8)
        of_host = replace(
            step,
            do=partial(_with_server, step.do),
            take=lambda found: (step.take(found[0]), found[1]),
            blocks=lambda _: partial(host_block_file, name),
        )
        found = self.run(of_host)
        stack.callback(drop, name, {server for _, server in found})
        return [answer for answer, _ in found]


def _with_server(do: Callable[..., Iterable[Any]], *of_step: Any) -> Iterator[tuple[Any, Endpoint]]:
    """Each answer of `do`, with the server of the host that made it."""
    return ((answer, server_here()) for answer in do(*of_step))


class _ValuesGone(JobFailed):
    """Values that an earlier step left in files went with their session, or their executor."""


@dataclass(frozen=True, slots=True)
class _MergeTask:
    """All values of a key."""

    values: list[Any]

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return sum(value.size_bytes for value in self.values)


def _merge_each(merge: Merge, tasks: Iterator[_MergeTask], shared: Any, _: object) -> Iterator[Any]:
    for task in tasks:
        try:
            yield merge(task.values, shared)
        except (OSError, EOFError) as error:
            yield _ValuesGone(str(error))
