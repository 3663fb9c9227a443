"""The one place where a Spark session is built: lazily, quietly, on loopback; and rebuilt once if its JVM dies.

Spark's ports answer only those who know a secret. Of a local session it is drawn here; the nodes of a cluster share one,
which the configuration has to name. Neither stands on a command line, where every user of the machine could read it.

Spark moves blocks, never records, so what a session needs is little heap and no compression: fingerprints are random
bytes. Executors import cleanerd, so they must find it: an installed package is found anyway, a source tree is put on
their path here.
"""

import contextlib
import gc
import os
import re
import secrets
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

from cleanerd.env.cache import cache_directory
from cleanerd.env.host import passed_on
from cleanerd.errors import Fatal, JobFailed

from .block_store import DRIVER
from .channel import driver_host
from .class_archive import ClassArchive
from .executor import Cluster, Executor, Local
from .forked_daemon import ADDRESS, ForkedDaemon
from .java import find_java_home
from .jvm import JVM_OPTIONS, Jvm, begin
from .pyspark_privates import GATEWAY, SETTINGS, is_stopped, stop
from .resident_job import JvmLost, Residents

_T = TypeVar("_T")

_LOGGING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
# It moves blocks and computes nothing: the optimizing compiler costs it 0.5 s of CPU a job and gives nothing back, and of
# more room for new objects than they need it would use all, 100 MiB. One that crashes reports it in its log, and leaves no
# files in the directory that we were started in.
_JVM = (
    "-XX:+UseSerialGC -Xmn32m -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    " -XX:+ErrorFileToStderr -XX:-DumpReplayDataOnError"
)
_SETTINGS = {
    "spark.app.name": "cleanerd",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    **SETTINGS,
    "spark.scheduler.mode": "FAIR",  # a small log does not wait for all tasks of a large one
    "spark.broadcast.compress": "false",
    JVM_OPTIONS: f"{_JVM} -Dlog4j2.configurationFile=file:{_LOGGING}",
    "spark.executor.extraJavaOptions": _JVM,
    # The worker frees and takes MiBs all the time: glibc would give each back to the kernel and fault it in again. What it
    # holds of a part (by default 80 MiB) and frees at once should be less than what is trimmed, or costs that again.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "spark.executorEnv.MALLOC_TOP_PAD_": str(16 << 20),
    "spark.sql.catalogImplementation": "in-memory",
}
# Driver and executor are one process, which a daemon keeps while it has nothing to do.
_ONE_MACHINE = {"spark.executor.heartbeatInterval": "60s", "spark.network.timeout": "600s"}


_LOST = (Py4JError, ConnectionError, EOFError)
"""How a JVM that is gone, or a context that has stopped, shows."""
_SHARED = "spark.authenticate.secret"
_START_LIMIT_S = 180.0  # a minute for a master that does not answer, twice that for a machine under load
_KILLED_S = 10.0
_KEPT_S = 45.0  # Spark gives a worker up after a minute


class SparkFailed(JobFailed):
    """Spark gave up on a job: lost executors, a dead JVM twice in a row, or a defect of ours.

    `reasons` are what Spark itself logged before; the first is the root cause.
    """

    def __init__(self, cause: object, reasons: Sequence[str] = ()) -> None:
        text = _text(cause)
        raised = raised_in_task(text)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        messages = [line for line in lines if not line.startswith(("at ", "File ", "^"))][:3]
        super().__init__(
            "Spark gave up on the job: " + "; ".join([*reasons, *([raised] if raised else messages)])
        )


def raised_in_task(text: str) -> str | None:
    """The exception of a Python worker, from the text of a failed job: the first line after the frames of its traceback."""
    _, is_there, following = text.partition("Traceback (most recent call last):\n")
    unindented = (line for line in following.splitlines() if line and not line[0].isspace())
    return next(unindented, None) if is_there else None


def _text(cause: object) -> str:
    """The text of a failure; one of Java's asks its JVM, which may be gone."""
    try:
        return str(cause)
    except _LOST:
        return f"{type(cause).__name__} of a JVM that has ended"


class LazySpark:
    """A lazily built SparkContext for `master`; `settings` are added to (and win over) the built-in ones.

    `observe` is called in the thread that calls `run`, when its job begins (True) and ends (False). A session that has not
    started after `start_limit_s` is given up. With `makes_archive` the first one leaves a `ClassArchive` to later ones, for
    which its start, and its end, take some seconds longer.
    """

    def __init__(
        self,
        master: str,
        settings: Mapping[str, str] | None = None,
        observe: Callable[[bool], None] = lambda _: None,
        start_limit_s: float = _START_LIMIT_S,
        *,
        makes_archive: bool = False,
    ) -> None:
        self.master = master
        self._makes_archive = makes_archive
        self._start_limit_s = start_limit_s
        self._settings = {
            **_SETTINGS,
            **(_ONE_MACHINE if self.is_one_machine and not _ONE_MACHINE.keys() & (settings or {}) else {}),
            # Else in a home that there may not be.
            "spark.jars.ivy": os.path.join(cache_directory(os.environ), "ivy"),
            **_authentication(master, settings or {}),
            **(settings or {}),
        }
        self._is_plain = self.is_one_machine and not settings
        self._observe = observe
        self._stops = 0  # a job whose session was stopped under it does not start another one
        self._context: SparkContext | None = None
        self._cores = 1  # that the context began with
        self._jvm: Jvm | None = None  # that of the context, or of the one to come
        self._daemon: ForkedDaemon | None = None  # forked for the next JVM
        self._mutex = threading.Lock()
        self.residents = Residents(self)

    def begin(self) -> None:
        """Start a JVM in the background; `context` then waits for less, and raises its errors.

        Then `context` forks the daemon of its workers from this process: for a process that has little memory of its own.
        """
        with self._mutex, contextlib.suppress(Fatal):
            if self._jvm is None:
                self._jvm = self._new_jvm(ForkedDaemon() if self.is_one_machine else None)

    def fork(self) -> None:
        """Fork the daemon of the next context's workers from this process now, as small and free of threads as it is."""
        with self._mutex:
            if self._daemon is None and self.is_one_machine:
                daemon = ForkedDaemon()
                try:
                    daemon.fork()
                except OSError:  # Spark's own takes longer to start
                    daemon.stop()
                else:
                    self._daemon = daemon

    def context(self) -> SparkContext:
        """The context, started if need be; no resident job waits in it.

        Raises Fatal with what to do when Java is missing, SparkFailed when the JVM hangs.
        """
        self.residents.close()
        return self._started()

    def _started(self) -> SparkContext:
        with self._mutex:
            if self._context is None:
                self._context = self._start()
            return self._context

    @property
    def is_up(self) -> bool:
        """Whether a context has been started and not been stopped."""
        return self._context is not None

    @property
    def is_one_machine(self) -> bool:
        """Whether all tasks are processes of this machine, started in order and never repeated (`place`, `block_store`)."""
        return re.fullmatch(r"local(\[[^,\]]+\])?", self.master) is not None

    @property
    def address(self) -> str:
        """The address at which tasks reach this process."""
        return driver_host(self.master)

    def executor(self) -> Executor:
        """An executor for the steps of one cleaning; the session starts when the first step runs."""
        return Local(self) if self.is_one_machine else Cluster(self)

    def cores(self) -> int:
        """How many tasks run at a time. On one machine no JVM is asked: one that hangs, or is gone, shows in `run`."""
        context = self._started()
        return self._cores if self.is_one_machine else max(int(context.defaultParallelism), 1)

    def run(self, work: Callable[[SparkContext], _T]) -> _T:
        """`work(context)` as a job group of its own; tried once more with a fresh session if the JVM is gone.

        Raises SparkFailed when Spark gives up on a job or the session is stopped, Fatal when none can be started.
        """
        context = None
        with self.residents.away():
            with contextlib.suppress(JvmLost), self.at_work():
                return self.run_once(work)
            try:
                with self.at_work():
                    context = self._context
                    return self._run_group(work)
            except _LOST as error:
                raise SparkFailed(error, () if self._is_alive() else self._forget(context)) from error

    def run_once(self, work: Callable[[SparkContext], _T]) -> _T:
        """`run`, but raises JvmLost if the JVM is gone; not `at_work` by itself."""
        stops, context = self._stops, self._started()
        try:
            return self._run_group(work)
        except _LOST as error:
            if self._context is context and self._is_alive():
                raise SparkFailed(error) from error
            if self._stops != stops:
                raise SparkFailed("the session was stopped") from error
            reasons = self._forget(context)
            if reasons:  # it did not die: its cluster ended it
                raise SparkFailed(error, reasons) from error
            raise JvmLost("the JVM of the session has ended") from error

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Let tasks report inside the block, which `observe` sees. Starts the session if need be."""
        self._started()
        self._observe(True)
        try:
            yield
        finally:
            self._observe(False)

    def _run_group(self, work: Callable[[SparkContext], _T]) -> _T:
        context = self._started()
        group = uuid.uuid4().hex
        try:
            context.setJobGroup(group, "cleanerd", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
            return work(context)
        except BaseException as error:
            with contextlib.suppress(Exception):  # the context has stopped; only the cause matters
                context.cancelJobGroup(group)
            if isinstance(error, AttributeError) and is_stopped(context):
                raise EOFError("the context was stopped") from error
            raise

    def stop(self) -> None:
        """Give the session's memory back; the next use starts a new one."""
        self.residents.end()
        with self._mutex:
            self._stops += 1
            context, self._context = self._context, None
            jvm, self._jvm = self._jvm, None
            daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.stop()
        if jvm is None:
            return
        jvm.ended.set()
        if context is None:
            jvm.kill()
            return
        with contextlib.suppress(*_LOST):
            stop(context)
        jvm.end()

    def end(self, *, has_time: bool) -> None:
        """Before this process ends: the JVM is killed, but for one that is to leave a `ClassArchive`, if it `has_time`."""
        jvm = self._jvm
        if jvm is None:
            return
        if has_time and jvm.leaves_archive:
            self.stop()
        else:
            self._stops += 1  # without the mutex: a session that starts holds it
            jvm.kill()

    def _is_alive(self) -> bool:
        context = self._context
        try:
            return context is not None and not is_stopped(context)
        except _LOST:
            return False

    def _forget(self, ended: SparkContext | None) -> list[str]:
        """Drop a session that has ended; returns the reason that Spark logged, if any.

        No other one starts meanwhile: PySpark would call the JVM that is gone. Once another thread has dropped it there is
        nothing to drop: the session that works now is another one.
        """
        with self._mutex:
            if self._context is not ended:
                return []
            self._context = None
            jvm, self._jvm = self._jvm, None
            if jvm is None:
                return []
            reasons = jvm.log.reasons()
            jvm.log.keep_crash()
            jvm.kill()
            return reasons

    def _start(self) -> SparkContext:
        """The context of the JVM that was begun, or of a new one; PySpark itself waits for it without end."""
        jvm = self._jvm or self._new_jvm(self._daemon)
        self._jvm = self._daemon = None
        if jvm.daemon is not None:
            with contextlib.suppress(OSError):  # Spark's own takes longer to start
                jvm.daemon.fork()
        starting = begin(jvm.new_context)
        try:
            context = starting.result(self._start_limit_s)
        except TimeoutError:
            jvm.kill()
            with contextlib.suppress(Exception):  # wait for its end, so that it cannot disturb the next start
                starting.result(_KILLED_S)
            jvm.forget()
            raise SparkFailed(
                f"it did not start within {self._start_limit_s:.0f} s with master {self.master!r}; its JVM was killed"
            ) from None
        except Exception as error:
            reason = jvm.log.why_not_started(error)
            jvm.kill()
            raise Fatal(f"Spark did not start with master {self.master!r}: {reason}") from error
        except BaseException:
            jvm.kill()
            raise
        self._jvm = jvm
        self._cores = max(int(context.defaultParallelism), 1)
        if self.is_one_machine:
            begin(lambda: _keep_workers(context, jvm.ended))
        gc.freeze()  # what is imported and set up by now stays: no search for garbage in it, 0.1 s each
        return context

    def _new_jvm(self, daemon: ForkedDaemon | None = None) -> Jvm:
        java_home = find_java_home()
        conf = SparkConf(loadDefaults=False).setMaster(self.master)
        conf.set("spark.executorEnv.PYTHONPATH", passed_on(os.environ)["PYTHONPATH"])
        if self.master.startswith("local"):
            conf.set("spark.driver.bindAddress", "127.0.0.1").set("spark.driver.host", "127.0.0.1")
        if not self.is_one_machine:
            with contextlib.suppress(OSError):  # a master of an unknown name, which Spark reports
                conf.set(f"spark.executorEnv.{DRIVER}", driver_host(self.master))
        for name, value in self._settings.items():
            conf.set(name, value)
        if daemon is not None:
            conf.set(f"spark.executorEnv.{ADDRESS}", daemon.address)
        archive = self._use_archive(conf, java_home)
        return Jvm(conf, java_home, archive, daemon, is_plain=self._is_plain)

    def _use_archive(self, conf: SparkConf, java_home: str) -> ClassArchive | None:
        """Let the JVM use the archive of its classes; returns the one that it will write."""
        options = conf.get(JVM_OPTIONS, "") or ""
        about = f"{GATEWAY} {options}" if self._is_plain else options
        archive = ClassArchive.of(java_home, about, os.environ)
        if archive is None:
            return None
        makes = self._makes_archive and archive.is_wanted()
        conf.set(JVM_OPTIONS, f"{options} {archive.options(makes=makes)}".strip())
        return archive if makes else None


def _keep_workers(context: SparkContext, ended: threading.Event) -> None:
    """Keep idle workers, with their kernels and memory, for the life of the session.

    Spark ends them all once none has had anything to do for a minute (`PythonWorkerFactory`), and no setting changes that.
    """
    while not ended.wait(_KEPT_S):
        # In a thread of its own, with which its connection to the JVM goes. Where the session has ended, its jobs know why.
        begin(lambda: context.parallelize([0], 1).mapPartitions(list).count()).exception()


def _authentication(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings so that Spark's ports answer only those who know the secret; none for a cluster that shares none."""
    if _SHARED in settings:
        return {"spark.authenticate": "true"}
    if master.startswith("local"):
        return {"spark.authenticate": "true", _SHARED: secrets.token_hex(32)}
    return {}
