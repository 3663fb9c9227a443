"""The JVM that a session of Spark runs in: how it is started, called and ended.

PySpark's own launcher hands on the environment of this process, so this one takes its place. The JVM is of the Spark that
lies beside PySpark, knows of the host what `env.host` passes, and gets its settings from the session alone.
"""

import contextlib
import os
import posix
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import pyspark
from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext

from cleanerd.env.host import passed_on, user_name
from cleanerd.errors import Fatal, in_words

from .channel import driver_host
from .class_archive import ClassArchive
from .forked_daemon import ForkedDaemon
from .pyspark_privates import CONNECTION_FILE, connect, forget_gateway, java_command, new_context
from .scratch import GATEWAY_FILE, SETTING, Scratch, scratch_roots, temporary_place
from .session_log import SessionLog

_T = TypeVar("_T")

JVM_OPTIONS = "spark.driver.extraJavaOptions"
PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python.sh")
"""Starts the Python of this machine's workers, which this process runs with."""
FOR_US_ALONE = 0o077
"""The umask of the JVM and its children, for their files and sockets."""

_HOME = os.path.dirname(os.path.abspath(pyspark.__file__))
_DEAF = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Ctrl-C on a terminal reaches its whole process group, and is ours to answer."""
_KEPT_FROM_SIGHT = re.compile(r"^spark\.authenticate|secret|password|token|access[.]?key", re.IGNORECASE)
_OF_MASTERS = {
    "yarn": ("HADOOP_CONF_DIR", "YARN_CONF_DIR"),
    "k8s": ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
}
"""Where the clients of cluster managers find the cluster; they look nowhere else."""
_READ_BY_PYSPARK = ("SPARK_", "PYSPARK_")  # in this process: of the host, or of an earlier session
_LEAST_FILES = 512  # the JVM has 300 open before its first job
_FILES = 1024  # `select` knows no larger descriptors
_POLL_S = 0.02
_SAID_S = 0.5  # in which a reason is written
_KILLED_S = 10.0
_ARCHIVED_S = 60.0  # it takes seconds to write its classes


class Jvm:
    """A starting or running JVM: its settings, its output and its gateway.

    `java_home`: of its runtime. `archive`: which it writes when it ends. `is_plain`: no setting of its user asks for what
    Spark's launcher does.
    """

    def __init__(
        self,
        conf: SparkConf,
        java_home: str,
        archive: ClassArchive | None,
        daemon: ForkedDaemon | None,
        *,
        is_plain: bool,
    ) -> None:
        """Begin its start. Raises Fatal where it could not open the files that it needs, or has no place for its own."""
        _provide_files()
        if not os.path.exists("/proc/self"):
            raise Fatal("Java and Spark need /proc, which is not mounted here: mount it")
        _check_calls()
        for name in [name for name in os.environ if name.startswith(_READ_BY_PYSPARK)]:
            del os.environ[name]
        self._scratch = _scratch_of(conf)
        self.conf = conf
        self.log = SessionLog(self._scratch.paths[0])
        self.daemon = daemon
        self._is_plain = is_plain
        self.ended = threading.Event()
        self._archive = archive
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway = begin(lambda: self._start(java_home))

    def _start(self, java_home: str) -> ClientServer:
        connection = os.path.join(self._scratch.paths[0], GATEWAY_FILE)
        environment = spark_environment(os.environ, java_home, self.conf.get("spark.master") or "")
        self._process = subprocess.Popen(
            [*_DEAF, *self._command(java_home)],
            env={**environment, CONNECTION_FILE: connection},
            stdin=subprocess.PIPE,  # it ends when that is closed, however we ended
            stdout=self.log.fileno(),
            stderr=self.log.fileno(),
            umask=FOR_US_ALONE,
        )
        while not os.path.exists(connection):
            if self.ended.wait(_POLL_S) or self._process.poll() is not None:
                raise OSError(f"the JVM ended with code {self._process.returncode}")
            if self.log.says_that_it_failed() and not self.ended.wait(
                _SAID_S
            ):  # it may live on in other threads
                raise OSError("the JVM has failed")
        gateway = connect(connection, self._process)
        if user_name() is None:  # Hadoop's login asks the system for a name
            hadoop = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
            hadoop.setLoginUser(hadoop.createRemoteUser(_user()))
        return gateway

    def _command(self, java_home: str) -> list[str]:
        if not self._is_plain:
            return [os.path.join(_HOME, "bin", "spark-submit"), *_seen(self.conf), "pyspark-shell"]
        options, memory = (
            self.conf.get(JVM_OPTIONS, "") or "",
            self.conf.get("spark.driver.memory", "1g") or "",
        )
        return java_command(os.path.join(java_home, "bin", "java"), _HOME, memory, options.split())

    def new_context(self) -> SparkContext:
        """A context in it; blocks until it has started, or raises why it has not."""
        gateway = self._gateway.result()
        before = os.umask(FOR_US_ALONE)  # for a socket that PySpark makes here
        try:
            return new_context(self.conf, gateway, self._python)
        finally:
            os.umask(before)

    @property
    def _python(self) -> str:
        """The Python that Spark starts; on a cluster only its path is the same on all machines."""
        is_ours = (self.conf.get("spark.master") or "").startswith("local") and os.access(PYTHON, os.X_OK)
        return PYTHON if is_ours else sys.executable

    def end(self) -> None:
        """Let one whose context has been stopped end by itself if it is to leave an archive, which takes seconds."""
        if self._archive is not None and self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()  # type: ignore[union-attr] # a pipe
                if self._process.wait(_ARCHIVED_S) == 0:
                    self._archive.keep()
                    self._archive = None
        self.kill()

    def kill(self) -> None:
        """End the JVM in any state, and delete its files."""
        self.ended.set()
        _kill_writers(self.log)
        with contextlib.suppress(Exception):  # it never started, or has ended
            self._gateway.result(_KILLED_S).shutdown()
        if self._process is not None:
            with contextlib.suppress(OSError):  # a sandbox may refuse even that: it ends with its input, too
                self._process.kill()
            self._process.stdin.close()  # type: ignore[union-attr] # a pipe
            self._process.wait()
        self.forget()
        if self._archive is not None:
            self._archive.drop()
        if self.daemon is not None:
            self.daemon.stop()
        self.log.close()
        self._scratch.remove()

    def forget(self) -> None:
        """Drop it from PySpark in this process, so that another one can start."""
        forget_gateway(self._process)

    @property
    def leaves_archive(self) -> bool:
        """Whether it needs time to end."""
        return self._archive is not None


def _check_calls() -> None:
    """Raise Fatal if a sandbox refuses system calls that Java and Spark need: they would hang or crash."""
    asked: Mapping[str, Callable[[], object]] = {
        "wait4": lambda: os.waitpid(os.getpid(), os.WNOHANG),
        "sched_getaffinity": lambda: posix.sched_getaffinity(0),  # that of `os` may be ours (`env.cores`)
    }
    for call, ask in asked.items():
        try:
            ask()
        except ChildProcessError:  # nobody is his own child
            continue
        except OSError as error:
            raise Fatal(
                f"Java and Spark need the system call {call}, which is refused here ({error.strerror}): allow it (seccomp)"
            ) from error


def begin(work: Callable[[], _T]) -> "Future[_T]":
    """`work` in a thread that delays no exit."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="cleanerd-spark", daemon=True).start()
    return future


def spark_environment(environment: Mapping[str, str], java_home: str, master: str) -> dict[str, str]:
    """The environment of the JVM, and through it of the Python workers of this machine."""
    of_master = _OF_MASTERS.get(master.partition(":")[0], ())
    passed = {"PYTHONWARNINGS": "ignore", **passed_on(environment)}
    passed |= {name: value for name, value in environment.items() if name in of_master}
    with contextlib.suppress(OSError):  # a master of an unknown name, which Spark reports
        passed["SPARK_LOCAL_IP"] = driver_host(master)
    of_spark = {"JAVA_HOME": java_home, "SPARK_HOME": _HOME, "SPARK_USER": _user()}
    return {**passed, **of_spark, "CLEANERD_PYTHON": sys.executable}


def _user() -> str:
    return user_name() or str(os.geteuid())


def _seen(conf: SparkConf) -> list[str]:
    """The part of the settings that may stand on a command line, which every user can read."""
    shown = [(name, value) for name, value in conf.getAll() if not _KEPT_FROM_SIGHT.search(name)]
    return [word for name, value in shown for word in ("--conf", f"{name}={value}")]


def _scratch_of(conf: SparkConf) -> Scratch:
    """A new one, that a JVM with this configuration writes to. Raises Fatal."""
    settings = dict(conf.getAll())
    try:
        scratch = Scratch(scratch_roots(settings, os.environ))
    except OSError as error:
        raise Fatal(
            f"Spark cannot write its scratch files ({in_words(error)}): name a directory that it can write to in TMPDIR or "
            f"cleanerd.spark.conf.{SETTING}"
        ) from error
    os.environ.update(temporary_place(settings, os.environ))
    conf.set(SETTING, ",".join(scratch.paths))
    conf.set(JVM_OPTIONS, f"{scratch.jvm_options()} {conf.get(JVM_OPTIONS, '')}".strip())
    return scratch


def _provide_files() -> None:
    """Raise the limit of open files as far as needed and permitted. Raises Fatal if the permitted limit is too low."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < _FILES:
            soft = _FILES if hard < 0 else min(hard, _FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except OSError:  # a sandbox that lets nobody ask
        return
    if 0 <= soft < _LEAST_FILES:
        raise Fatal(
            f"Spark needs {_LEAST_FILES} open files or more, and the limit is {soft} (ulimit -n; LimitNOFILE= of a unit, "
            f"--ulimit nofile= of a container): raise it to {_FILES}"
        )


def _kill_writers(log: SessionLog) -> None:
    """Kill all that write to it: a script and a launcher JVM run before the JVM itself."""
    wanted = os.fstat(log.fileno())
    try:
        names = os.listdir("/proc")
    except OSError:  # not mounted: the process itself is killed by whoever has it
        return
    for name in filter(str.isdecimal, names):
        with contextlib.suppress(OSError):
            found = os.stat(f"/proc/{name}/fd/2")
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                os.kill(int(name), signal.SIGKILL)
