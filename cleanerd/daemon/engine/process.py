"""The engine: the child process that examines, cleans and stages, and owns the Spark session.

It is a process of its own so that its memory (kernels, Spark's driver, the JVM) goes back to the machine when there is
nothing to do, and so that its death costs a retry and never the daemon. It holds no `.lock`, commits nothing, and ends when
the daemon's end of the pipe is closed, however that came about.

Wire: a pickled `SparkPlace`, then `EngineCall`s one way, pickled `PlannedBytes`, `SparkJob` and `EngineReply` the other,
over one socket pair; several calls at a time. None instead of a call: there will be none, and there is time to end.
"""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

from cleanerd.cleaning.choose import Candidate, PaceOf, examine_all
from cleanerd.cleaning.clean import NOBODYS, Cleaner
from cleanerd.cleaning.outcomes import Planned
from cleanerd.cleaning.result import CleanRequest, LogResult, Progress, Step
from cleanerd.cleaning.room import Reservations
from cleanerd.cleaning.rounds import Rests
from cleanerd.daemon.engine.calls import (
    CleanCall,
    EngineCall,
    EngineReply,
    ExamineCall,
    PlannedBytes,
    RestDropped,
    SparkJob,
    StepDone,
)
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.env.pace import Pace, unpaced
from cleanerd.errors import Aborted, InternalError, JobFailed, each_log, portable
from cleanerd.format.names import TopicPartition
from cleanerd.spark_runtime.lazy_spark import LazySpark
from cleanerd.spark_runtime.spark_master import SparkPlace
from cleanerd.storage.log_dir import LogDir

_CALLS_AT_ONCE = 64  # more than workers; an explanation does not wait for a cleaning


class _Planning(Progress):
    """Reports to the daemon which logs the tasks of a job are about, before the first task reports, which it does itself.

    `reports_steps`: also the numbers of each step of a log.
    """

    def __init__(self, engine: "EngineProcess", call_id: int, *, reports_steps: bool) -> None:
        self._engine = engine
        self._call_id = call_id
        self._reports_steps = reports_steps

    def planned(self, tp: TopicPartition, log_dir: str, total_bytes: int) -> None:  # noqa: ARG002
        """One more log of the job."""
        self._engine.send(PlannedBytes(self._call_id, tp, total_bytes))

    def step(self, step: Step) -> None:
        """A step of a log is done."""
        if self._reports_steps:
            self._engine.send(StepDone(self._call_id, step))


class EngineProcess:
    """Serves calls until the pipe is closed."""

    def __init__(self, connection: Connection, place: SparkPlace) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._call = threading.local()  # which call a thread works at
        self._session = LazySpark(place.master, dict(place.conf), self._observe, makes_archive=True)
        self._files = RealFiles()
        self._reservations = Reservations(self._files)
        self._rests: Rests = {}
        self._clock = SystemClock()

    def serve(self) -> None:
        """Read calls; each runs in a thread of its own.

        If the first one is a cleaning, as it nearly always is, Spark's workers will be forked from this process, which has
        imported what they need, and has no other thread yet.
        """
        pool = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="cleanerd-call")
        call = self._next_call()
        if isinstance(call, EngineCall) and isinstance(call.task, CleanCall):
            self._session.fork()
        while isinstance(call, EngineCall | RestDropped):
            if isinstance(call, EngineCall):
                pool.submit(self._answer, call)
            else:
                self._rests.pop(call.directory, None)
            call = self._next_call()
        self._session.end(has_time=call is None)

    def _next_call(self) -> EngineCall | RestDropped | EOFError | ConnectionError | None:
        """A call; None: there will be none, and there is time; an error: the pipe is closed."""
        try:
            return self._connection.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionError) as error:
            return error

    def send(self, message: PlannedBytes | StepDone | SparkJob | EngineReply) -> None:
        """Send a message to the daemon, from any thread."""
        with self._sending:
            self._connection.send(message)

    def _observe(self, is_running: bool) -> None:
        self.send(SparkJob(self._call.id, is_running))

    def _answer(self, call: EngineCall) -> None:
        self._call.id = call.id
        value: object = None
        with each_log(call.task.log_dir) as job:
            value = self._do(call)
        if isinstance(job.error, InternalError) and len(call.task.partitions) > 1:
            job.error = JobFailed(str(job.error))
        self.send(EngineReply(call.id, value if job.error is None else portable(job.error)))

    def _do(self, call: EngineCall) -> object:
        task = call.task
        return self._clean(call.id, task) if isinstance(task, CleanCall) else self._examine(task)

    def _examine(self, task: ExamineCall) -> LogResult:
        (answer,) = self._examine_all(task, _request(task), lambda _: unpaced)
        if isinstance(answer, LogResult):
            return answer
        found, cause = answer.range, answer.held_back(self._files, self._clock.now_ms())
        what = f"dirty ratio {found.dirty_ratio:.3f}, {found.cleanable_bytes} bytes to clean"
        beyond = "" if cause is None else f"; not beyond: {cause.text}"
        return answer.result(Planned(f"{what}, up to offset {found.first_uncleanable_offset}{beyond}"))

    def _clean(self, call_id: int, task: CleanCall) -> list[LogResult]:
        request = replace(
            _request(task), force=task.force, horizons=task.horizons, jobs_at_once=task.jobs_at_once
        )
        progress = _Planning(self, call_id, reports_steps=task.config.log_level == "debug")
        with task.reporter.examining() as report:

            def pace_of(tp: TopicPartition) -> Pace:
                return partial(report, task.partitions.index(tp))

            cleaner = Cleaner(
                request, progress, self._clock, self._files, self._session, self._reservations, pace_of, self._rests
            )  # fmt: skip
            if task.goes_on:
                return self._go_on(cleaner, task)
            answers = self._examine_all(task, request, pace_of)
            candidates = [answer for answer in answers if isinstance(answer, Candidate)]
            skipped = [answer for answer in answers if isinstance(answer, LogResult)]
            owned = {task.log_dir: None} if task.is_owned else NOBODYS
            return skipped + (cleaner.stage(candidates, task.reporter, owned) if candidates else [])

    def _go_on(self, cleaner: Cleaner, task: CleanCall) -> list[LogResult]:
        (tp,) = task.partitions
        rest = cleaner.rest(LogDir.at(self._files, task.log_dir, self._clock).partition(tp).path)
        if rest is None:
            why = "the engine that began with it has ended"
            raise Aborted(f"{why}; the next cleaning goes on behind what is committed")
        return cleaner.end(cleaner.write(rest, task.reporter))

    def _examine_all(
        self, task: ExamineCall, request: CleanRequest, pace_of: PaceOf
    ) -> list[Candidate | LogResult]:
        log_dir = LogDir.at(self._files, task.log_dir, self._clock)
        return list(examine_all(log_dir, task.partitions, request, pace_of, checkpoints=task.checkpoints))


def _request(task: ExamineCall) -> CleanRequest:
    return CleanRequest(
        config=task.config,
        topic_config=task.topic_configs.__getitem__,
        log_dirs=(task.log_dir,),
        why_tombstones_stay=lambda _, tp: task.tombstones.get(tp),
    )


def main() -> None:
    """`python -m cleanerd.daemon.engine.process FD`, started by `client.Engine`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which then stops us
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as connection:
        EngineProcess(connection, connection.recv()).serve()
    os._exit(0)  # nothing that still runs will be committed; the JVM ends with us


if __name__ == "__main__":
    main()
