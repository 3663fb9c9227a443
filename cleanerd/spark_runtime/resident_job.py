"""One Spark job for step after step, on one machine: its tasks stay.

To begin a Spark job keeps all cores waiting for 25 ms, and so does its end, in all a fifth of what it took to clean a GiB.
So the tasks of one job stay: they ask over a channel (`messages.NextStep`) for the next step, and find it in a directory:
what all tasks of a step have in common, and a queue of them (`task_queue`). Their answers lie beside it.

Such a job holds its cores while this process resolves, so it is for cleanings that end soon. One that has nothing to do
waits for the next cleaning, but only as long as nothing else in the session wants cores (`Residents`).
"""

import math
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pyspark import SparkContext

from cleanerd.errors import Aborted, JobFailed

from .block_store import Put, block_file, scratch_directory
from .channel import Channel, Reporter
from .messages import STOP, NextStep, ReportAnswer
from .pyspark_privates import dump_function
from .shared_value import Shared, SharedFile
from .task_queue import Numbered, TaskQueue, numbered

_STEP, _ANSWERS = "step", "answers-"
_LEAVE_S = 1.0  # for jobs that have been told to end

Answers = list[tuple[int, Any]]
"""Each with the number of its task."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One function for many tasks: `do(tasks, shared, put)` answers them in order, in each process that does some of them.

    `shared` makes what they have in common, once for each try; `put` ships bytes (`block_store`). `begun` is called once
    tasks can be taken; `take` gets every answer while what it has `put` can be loaded.
    """

    tasks: Sequence[Any]
    do: Callable[[Iterator[Any], Any, Put], Iterable[Any]]
    shared: Callable[[], AbstractContextManager[Any]]
    begun: Callable[[], object] = lambda: None
    take: Callable[[Any], Any] = lambda answer: answer
    blocks_in: Callable[[str], str] = lambda directory: directory
    """Where what is `put` lies, by default in the directory of the step."""


def answer_all(
    tasks: Numbered[Any],
    do: Callable[..., Any],
    shared: Shared,
    blocks: Callable[[], AbstractContextManager[Put]],
) -> Numbered[Any]:
    """What a step answers to tasks, in one of its processes."""
    with blocks() as put:
        value = shared.value
        yield from numbered(tasks, lambda some: do(some, value, put))


class JvmLost(JobFailed):
    """The JVM has ended; the session can have another one."""


class Host(Protocol):
    """What such a job asks of its session."""

    def run_once(self, work: Callable[[SparkContext], None]) -> None:
        """As a job. Raises JvmLost, JobFailed."""
        ...

    def at_work(self) -> AbstractContextManager[None]:
        """While this lasts tasks report."""
        ...


class Gate:
    """Where tasks wait for the next step, and this process for the end of one; knows steps by number, from 1."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._step = 0  # the last one that was opened
        self._is_open = False  # it can be joined: no task has come back from it
        self._at_work = 0  # tasks in it
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether there will be no other step."""
        return self._is_closed

    @property
    def is_at_work(self) -> bool:
        """Whether a step has not come to its end."""
        with self._changed:
            return self._is_open or self._at_work > 0

    def answer(self, message: NextStep) -> ReportAnswer:
        """A task that comes back from a step is held until there is another one; STOP: never."""
        with self._changed:
            if message.done:  # it found nothing left to take
                self._is_open = False
                self._at_work -= 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or (self._is_open and self._step > message.done))
            if self._is_closed:
                return STOP
            self._at_work += 1
            return ReportAnswer(self._step)

    def open(self, step: int) -> None:
        """Let tasks in."""
        with self._changed:
            self._step, self._is_open = step, True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Until all tasks have come back; whether they have: the gate may be closed before."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self._is_open or self._at_work))
            return not self._is_closed

    def close(self) -> None:
        """There will be no other step."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class ResidentJob:
    """The driver's end. Begins at once, in the background, with so many `tasks`; lasts until `close`."""

    def __init__(self, host: Host, tasks: int) -> None:
        self.tasks = tasks
        self.ended: Future[None] = Future()
        self._host = host
        self._gate = Gate()
        self._steps = 0
        self._directory: Future[str | None] = Future()
        self._cancel: Callable[[], object] = lambda: None
        name = threading.current_thread().name  # Spark knows the pool of a job by it
        threading.Thread(target=self._live, name=name, daemon=True).start()

    @property
    def is_free(self) -> bool:
        """Whether it can take another step."""
        return not (self._gate.is_closed or self._gate.is_at_work)

    def run(self, step: TaskStep) -> Answers | None:
        """The answers; None when the JVM was lost under it. Raises JobFailed, OSError."""
        with self._host.at_work():
            directory = self._directory.result()
            answers = None if directory is None else self._run(step, directory)
            if answers is None:
                with suppress(JvmLost):
                    self.ended.result()
            return answers

    def close(self) -> None:
        """Let the tasks go; a step that is being done is cancelled."""
        is_at_work = self._gate.is_at_work
        self._gate.close()
        if is_at_work:
            with suppress(Exception):  # it has ended
                self._cancel()

    def _run(self, step: TaskStep, directory: str) -> Answers | None:
        self._steps += 1
        own = os.path.join(directory, str(self._steps))
        try:
            os.mkdir(own)
            with step.shared() as value:
                shared = SharedFile.of(own, value)
                queue = TaskQueue.of(own, step.tasks)
                with open(os.path.join(own, _STEP), "xb") as file:
                    dump_function((step.do, shared, queue, step.blocks_in(own)), file)
                self._gate.open(self._steps)
                step.begun()
                if not self._gate.wait():
                    return None
            return [(number, step.take(answer)) for number, answer in _answers(own)]
        except OSError:
            if not self._gate.is_closed:
                raise
            return None  # its files have gone with the job
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _live(self) -> None:
        try:
            self._host.run_once(self._stay)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        if not self._directory.done():
            self._directory.set_result(None)

    def _stay(self, spark: SparkContext) -> None:
        with (
            scratch_directory(spark) as directory,
            Channel(self._gate.answer) as channel,
        ):
            gate = channel.reporter
            group = str(spark.getLocalProperty("spark.jobGroup.id"))
            self._cancel = lambda: spark.cancelJobGroup(group)
            try:
                rows = spark.parallelize(range(self.tasks), self.tasks)
                self._directory.set_result(directory)
                rows.foreachPartition(lambda some: _stay_in(list(some), directory, gate))
            finally:
                self._gate.close()


class Residents:
    """The resident jobs of one session."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._mutex = threading.Lock()
        self._users = 0  # cleanings and Spark jobs that want cores
        self._free: ResidentJob | None = None  # waits for the next cleaning: there are no users
        self._leaving: set[Future[None]] = set()

    def take(self, tasks: int) -> ResidentJob:
        """One with so many tasks or more, for a cleaning that gives it back."""
        with self._mutex:
            self._users += 1
            free, self._free = self._free, None
        if free is not None and (free.tasks < tasks or not free.is_free):
            self._close(free)
            free = None
        return free or ResidentJob(self._host, tasks)

    def give_back(self, job: ResidentJob) -> None:
        """It is kept if nothing else is going on."""
        with self._mutex:
            self._users -= 1
            if self._users == 0 and job.is_free:
                self._free = job
                return
        self._close(job)

    @contextmanager
    def away(self) -> Iterator[None]:
        """While this lasts another Spark job wants cores: what is free is let go."""
        with self._mutex:
            self._users += 1
        self.close()
        try:
            yield
        finally:
            with self._mutex:
                self._users -= 1

    def close(self) -> None:
        """Let the one that is free go."""
        with self._mutex:
            free, self._free = self._free, None
        if free is not None:
            self._close(free)

    def end(self) -> None:
        """`close`, and wait until it has ended: before its JVM does."""
        self.close()
        wait(self._leaving.copy(), _LEAVE_S)

    def _close(self, job: ResidentJob) -> None:
        self._leaving.add(job.ended)
        job.ended.add_done_callback(self._leaving.discard)
        job.close()


def _stay_in(_: list[int], directory: str, gate: Reporter) -> None:
    """A task: step after step, as long as there are any. It has read its rows, else Spark would end its process."""
    done = 0
    while True:
        try:
            step = gate.ask(NextStep(done))
        except Aborted:
            return
        _do(os.path.join(directory, str(step)))
        done = step


def _do(directory: str) -> None:
    """A share of a step. Raises OSError."""
    with open(os.path.join(directory, _STEP), "rb") as file:
        do, shared, queue, blocks_in = pickle.load(file)  # noqa: S301 - a file of this session's own
    answers = list(answer_all(queue.take(math.inf), do, shared, partial(block_file, blocks_in)))
    fd, _ = tempfile.mkstemp(prefix=_ANSWERS, dir=directory)
    with open(fd, "wb") as file:
        pickle.dump(answers, file, pickle.HIGHEST_PROTOCOL)


def _answers(directory: str) -> Iterator[tuple[int, Any]]:
    """What the tasks have left. Raises OSError."""
    for name in os.listdir(directory):
        if name.startswith(_ANSWERS):
            with open(os.path.join(directory, name), "rb") as file:
                yield from pickle.load(file)  # noqa: S301 - a file of this session's own
