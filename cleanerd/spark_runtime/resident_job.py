"""One Spark job for one step after the other: its tasks stay.

To begin a Spark job keeps all cores waiting for 25 ms on one machine and for 50 on a cluster, and so does its end, in all a
fifth of what it took to clean a GiB. So the process of each task has a connection to this one: it is sent the function of a
step and what all tasks of the step have in common, takes one task after the other, sends their answers when none is left,
and waits for the next step (`Steps`). When such a job, which holds its cores, is kept, and for how long: `Residents`.
"""

import io
import pickle
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from pyspark import SparkContext

from cleanerd.errors import JobFailed

from .block_store import Put, scratch_directory
from .channel import Endpoint, Listener
from .pyspark_privates import dump_function
from .shared_value import Shared
from .task_queue import Numbered, numbered

_IDLE_S = 10.0  # on a cluster: its other users want cores, and one may give them those that idle for a minute
_TRIES = 4  # as Spark does; a job that Spark repeats shows why it fails
_LEAVE_S = 1.0  # for jobs that are to end
_SENT_BYTES_MAX = 256 << 20  # to all processes of a step: Spark's broadcast is quicker with more

_T = TypeVar("_T")
Answers = list[tuple[int, Any]]
"""Each with the number of its task."""
Blocks = Callable[[], AbstractContextManager[Put]]
"""Where a process of a step puts its blocks."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One function for many tasks: `do(tasks, shared, put)` answers them in order, in each process that does some of them.

    `shared` makes what they have in common, once for each try; `put` ships bytes (`block_store`). `begun` is called once
    tasks can be taken; `take` gets every answer while what it has `put` can be loaded. `blocks`: where that lies, for a
    directory of the step; None: wherever its executor has it.
    """

    tasks: Sequence[Any]
    do: Callable[[Iterator[Any], Any, Put], Iterable[Any]]
    shared: Callable[[], AbstractContextManager[Any]]
    begun: Callable[[], object] = lambda: None
    take: Callable[[Any], Any] = lambda answer: answer
    blocks: Callable[[str], Blocks] | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A step without its tasks, as it is sent to each process."""

    do: Callable[[Iterator[Any], Any, Put], Iterable[Any]]
    shared: Shared
    blocks: Blocks

    def answer(self, tasks: Numbered[Any]) -> Numbered[Any]:
        """Answer some of the tasks, in one of the processes."""
        with self.blocks() as put:
            value = self.shared.value
            yield from numbered(tasks, lambda some: self.do(some, value, put))


class JvmLost(JobFailed):
    """The JVM has ended; the session can have another one."""


class Session(Protocol):
    """The session, as executors and resident jobs use it."""

    residents: "Residents"

    @property
    def address(self) -> str:
        """The address at which tasks reach this process."""
        ...

    @property
    def is_one_machine(self) -> bool:
        """Whether no task is ever repeated."""
        ...

    def cores(self) -> int:
        """How many tasks run at a time."""
        ...

    def run(self, work: Callable[[SparkContext], _T]) -> _T:
        """Run `work` as a job. Raises JobFailed."""
        ...

    def run_once(self, work: Callable[[SparkContext], None]) -> None:
        """`run`, but raises JvmLost if the JVM is gone."""
        ...

    def at_work(self) -> AbstractContextManager[None]:
        """While this lasts tasks report."""
        ...


class _Pickles:
    """Values that go over a connection, one behind the other. A context manager."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # not everything could be sent
            self._file.close()

    def send(self, value: Any) -> None:
        """Raises OSError."""
        pickle.dump(value, self._file, pickle.HIGHEST_PROTOCOL)
        self._file.flush()

    def receive(self) -> Any:
        """The next one. Raises OSError, also when the other end has hung up."""
        try:
            return pickle.load(self._file)  # noqa: S301 - from one that knows the token
        except (EOFError, pickle.UnpicklingError) as error:
            raise ConnectionResetError("the connection has ended") from error


@dataclass(slots=True)
class _Step:
    work: bytes
    left: list[tuple[int, Any]]  # that nobody has taken, the next one last
    answers: Answers = field(default_factory=list)
    processes: int = 0  # that are in it
    losses: Counter[int] = field(default_factory=Counter)  # of processes that had taken a task


class Steps:
    """Hands out the tasks of one step after the other, in order, and collects their answers.

    What a process had taken when it is lost is handed out again, if tasks are `repeated`, up to four times; else that is the
    end.
    """

    def __init__(self, *, repeated: bool) -> None:
        self._repeated = repeated
        self._changed = threading.Condition()
        self._step: _Step | None = None  # that is being done
        self.is_closed = False
        """Whether there will be no other step."""

    @property
    def is_at_work(self) -> bool:
        """Whether a step has not come to its end."""
        return self._step is not None

    def do(self, work: bytes, tasks: Sequence[Any], begun: Callable[[], object]) -> Answers | None:
        """The answers; None when it was closed before. `begun` is called once tasks can be taken."""
        step = _Step(work, list(enumerate(tasks))[::-1])
        with self._changed:
            assert self._step is None, "one step at a time"
            self._step = step
            self._changed.notify_all()
        begun()
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or not (step.left or step.processes))
            if self.is_closed:
                return None
            self._step = None
        return step.answers

    def close(self) -> None:
        """End it: no other step follows."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def lead(self, connection: socket.socket) -> None:
        """The process at the other end through all steps. Raises OSError when it is lost."""
        with _Pickles(connection) as process:
            while self._lead_on(process):
                pass
            process.send(None)

    def _join(self) -> _Step | None:
        """A step with tasks to take, as soon as there is one; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or (self._step is not None and self._step.left))
            if self.is_closed or self._step is None:
                return None
            self._step.processes += 1
            return self._step

    def _lead_on(self, process: _Pickles) -> bool:
        """Work on the next step that has tasks; False if there is none. Keeps no reference to the step."""
        step = self._join()
        if step is None:
            return False
        taken: list[tuple[int, Any]] = []
        answers = None
        try:
            process.send(step.work)
            while (answers := process.receive()) is None:
                task = self._take(step)
                taken += [] if task is None else [task]
                process.send(task)
        finally:
            with self._changed:
                if answers is not None:
                    step.answers += answers
                elif taken:
                    step.losses.update(number for number, _ in taken)
                    step.left += taken[::-1]
                    self.is_closed |= not self._repeated or max(step.losses.values()) == _TRIES
                step.processes -= 1
                self._changed.notify_all()
        return True

    def _take(self, step: _Step) -> tuple[int, Any] | None:
        with self._changed:
            return step.left.pop() if step.left and not self.is_closed else None


class ResidentJob:
    """The driver's end. Begins at once, in the background, with so many `tasks`; lasts until `close`."""

    def __init__(self, session: Session, tasks: int) -> None:
        self.tasks = tasks
        self.ended: Future[None] = Future()
        self._session = session
        self._steps = Steps(repeated=not session.is_one_machine)
        self._directory: Future[str | None] = Future()
        self._cancel: Callable[[], object] = lambda: None
        name = threading.current_thread().name  # Spark knows the pool of a job by it
        threading.Thread(target=self._live, name=name, daemon=True).start()

    @property
    def is_free(self) -> bool:
        """Whether it can take another step."""
        return not (self._steps.is_closed or self._steps.is_at_work)

    def run(self, step: TaskStep, work: Callable[[TaskStep, str, Any], Work]) -> Answers | None:
        """The answers; None when its JVM was lost under it, or too much would have to be sent. Raises JobFailed, OSError.

        `work` makes what processes get, of a step, a directory for it, and what its tasks share.
        """
        if self._steps.is_closed:  # it has ended while it had nothing to do
            return None
        with self._session.at_work():
            directory = self._directory.result()
            if directory is None:
                self._raise_failure()
                return None
            try:
                with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own:
                    return self._run(step, partial(work, step, own))
            except OSError:
                if not self._steps.is_closed:
                    raise
                self._raise_failure()  # its files have gone with the job
                return None

    def close(self) -> None:
        """Let the tasks go; a step that is being done is cancelled."""
        is_at_work = self._steps.is_at_work
        self._steps.close()
        if is_at_work:
            with suppress(Exception):  # it has ended
                self._cancel()

    def _run(self, step: TaskStep, work: Callable[[Any], Work]) -> Answers | None:
        with step.shared() as value:
            pickled = io.BytesIO()
            dump_function(work(value), pickled)
            if pickled.tell() * self.tasks > _SENT_BYTES_MAX:
                return None
            answers = self._steps.do(pickled.getvalue(), step.tasks, step.begun)
        if answers is None:
            self._raise_failure()
            return None
        return [(number, step.take(answer)) for number, answer in answers]

    def _raise_failure(self) -> None:
        """Raise the error of a job that has ended; a lost JVM is no error here."""
        with suppress(JvmLost):
            self.ended.result()

    def _live(self) -> None:
        try:
            self._session.run_once(self._stay)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        if not self._directory.done():
            self._directory.set_result(None)

    def _stay(self, spark: SparkContext) -> None:
        with (
            scratch_directory(spark) as directory,
            Listener(self._steps.lead, self._session.address) as listener,
        ):
            steps = listener.endpoint
            group = str(spark.getLocalProperty("spark.jobGroup.id"))
            self._cancel = lambda: spark.cancelJobGroup(group)
            try:
                rows = spark.parallelize(range(self.tasks), self.tasks)
                self._directory.set_result(directory)
                rows.foreachPartition(lambda some: _stay_in(list(some), steps))
            finally:
                self._steps.close()


class Residents:
    """The resident jobs of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._mutex = threading.Lock()
        self._users = 0  # cleanings and Spark jobs that want cores
        self._free: ResidentJob | None = None  # waits for the next cleaning: there are no users
        self._patience: threading.Timer | None = None  # how long it waits
        self._leaving: set[Future[None]] = set()

    def take(self, tasks: int) -> ResidentJob:
        """Take a job with at least so many tasks, to be given back."""
        with self._mutex:
            self._users += 1
            free = self._no_longer_free()
        if free is not None and (free.tasks < tasks or not free.is_free):
            self._close(free)
            free = None
        return free or ResidentJob(self._session, tasks)

    def give_back(self, job: ResidentJob) -> None:
        """Give a job back; it is kept if nothing else runs."""
        with self._mutex:
            self._users -= 1
            if self._users == 0 and job.is_free:
                if not self._session.is_one_machine:
                    self._patience = threading.Timer(_IDLE_S, self._give_up, [job])
                    self._patience.daemon = True
                    self._patience.start()
                self._free = job
                return
        self._close(job)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Release the free job inside the block: another Spark job wants cores."""
        with self._mutex:
            self._users += 1
        self.close()
        try:
            yield
        finally:
            with self._mutex:
                self._users -= 1

    def close(self) -> None:
        """Release the free job."""
        with self._mutex:
            free = self._no_longer_free()
        if free is not None:
            self._close(free)

    def _give_up(self, job: ResidentJob) -> None:
        with self._mutex:
            if self._free is not job:
                return
            self._no_longer_free()
        self._close(job)

    def _no_longer_free(self) -> ResidentJob | None:
        free, self._free = self._free, None
        timer, self._patience = self._patience, None
        if timer is not None:
            timer.cancel()
        return free

    def end(self) -> None:
        """`close`, and wait until it has ended: before its JVM does."""
        self.close()
        wait(self._leaving.copy(), _LEAVE_S)

    def _close(self, job: ResidentJob) -> None:
        self._leaving.add(job.ended)
        job.ended.add_done_callback(self._leaving.discard)
        job.close()


def _stay_in(_: list[int], steps: Endpoint) -> None:
    """A task: step after step, as long as there are any. It has read its rows, else Spark would end its process.

    Raises OSError when it has lost the driver: Spark begins another one then.
    """
    with steps.connect() as connection, _Pickles(connection) as driver:
        while _do_next(driver):
            pass


def _do_next(driver: _Pickles) -> bool:
    """Do the next step; False if there is none. Keeps no reference to the step."""
    work = driver.receive()
    if work is None:
        return False
    driver.send(list(pickle.loads(work).answer(_taken(driver))))  # noqa: S301 - of this session
    return True


def _taken(driver: _Pickles) -> Numbered[Any]:
    while True:
        driver.send(None)
        task = driver.receive()
        if task is None:
            return
        yield task
