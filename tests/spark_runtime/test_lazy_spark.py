"""The Spark session: who is heard at its ports, what is seen of it from outside, what is told when it ends."""

import contextlib
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import NoneType
from typing import Any

import psutil
import pytest

from cleanerd.errors import Fatal
from cleanerd.spark_runtime import jvm, lazy_spark
from cleanerd.spark_runtime.lazy_spark import LazySpark, SparkFailed, raised_in_task
from cleanerd.spark_runtime.pyspark_privates import GATEWAY
from tests.harness.daemon.processes import wait_until
from tests.harness.spark.sessions import count, jvm_of, session

pytestmark = pytest.mark.soak

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
SEND = """
import os, socket, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
connection = socket.socket()
connection.settimeout(2)
connection.connect(("127.0.0.1", int(sys.argv[1])))
connection.sendall(bytes.fromhex(sys.argv[2]))
try:
    connection.recv(1)
except OSError:
    pass
"""


@pytest.fixture
def alone(spark: LazySpark) -> None:
    """A process has one Spark context at a time; the shared one comes back when it is used."""
    spark.stop()


def stop_executor(session: LazySpark) -> bytes:
    """The message that stops the executor of a local session, as Spark's transport frames a request."""
    jvm: Any = session.context()._jvm
    module = jvm.java.lang.Class.forName("org.apache.spark.scheduler.local.StopExecutor$")
    out = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(out).writeObject(module.getField("MODULE$").get(None))
    host, port = b"127.0.0.1", int(str(session.context().getConf().get("spark.driver.port")))
    address = b"\x01" + struct.pack(">H", len(host)) + host + struct.pack(">i", port)
    name = b"LocalSchedulerBackendEndpoint"
    body = b"\x00" + address + struct.pack(">H", len(name)) + name + bytes(out.toByteArray())
    return struct.pack(">qBqi", 8 + 1 + 8 + 4 + len(body), 3, 1, len(body)) + body


def send_as_another_user(port: int, message: bytes) -> None:
    arguments = [sys.executable, "-S", "-c", SEND, str(port), message.hex()]
    subprocess.run(arguments, check=True, timeout=30)


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings", [{}, {"spark.authenticate": "false"}], ids=["as it is", "without a secret"]
)
def test_a_message_of_another_user_is_not_heard(alone: None, settings: dict[str, str]) -> None:
    """`StopExecutor`, sent by any local user to the driver's port, would leave every job waiting for ever."""
    with session("local[2]", settings) as own, ThreadPoolExecutor(1) as pool:
        assert count(own) == 2
        port = int(str(own.context().getConf().get("spark.driver.port")))
        send_as_another_user(port, stop_executor(own))
        job = pool.submit(count, own)
        wait([job], 3 if settings else 60)
        assert job.done() == (not settings), "without the secret it is heard, so this test can fail"
        own.stop()
        assert isinstance(job.exception(60), SparkFailed if settings else NoneType), "no new session for it"


def test_a_job_under_which_its_session_is_stopped_gives_that_as_the_reason(alone: None) -> None:
    """PySpark sets what is Java's to None then, and fails on that in the end of a job."""

    def work(context: Any) -> None:
        own.stop()
        context.setLocalProperty("key", "value")

    with session() as own, pytest.raises(SparkFailed, match="the session was stopped"):
        own.run(work)


def jvms() -> set[int]:
    """JVMs of Spark that this process has started; not the script and the JVM that find out how to start one."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ends while it is looked at
            command = child.cmdline()
            is_spark = child.name() == "java" and {GATEWAY, "org.apache.spark.deploy.SparkSubmit"} & {
                *command
            }
            if is_spark and "org.apache.spark.launcher.Main" not in command:
                found.add(child.pid)
    return found


@pytest.mark.soak
def test_a_session_that_was_begun_uses_its_jvm(alone: None) -> None:
    before = jvms()
    with session() as own:
        own.begin()
        wait_until(lambda: len(jvms() - before) == 1, 60, lambda: "no JVM")
        (begun,) = jvms() - before
        own.begin()
        assert jvm_of(own).pid == begun
        own.begin()
        assert jvms() - before == {begun}
    assert jvms() <= before


@pytest.mark.soak
def test_a_session_that_was_begun_in_vain_ends_at_once(alone: None) -> None:
    """Its JVM, which may not have answered yet, is gone; the session can be used again."""
    before = jvms()
    with session() as own:
        own.begin()
        wait_until(lambda: bool(jvms() - before), 60, lambda: "no JVM")
        own.stop()
        assert jvms() <= before
        assert count(own) == 2


def test_without_java_a_session_fails_where_it_is_used(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise Fatal("no Java")

    monkeypatch.setattr("cleanerd.spark_runtime.lazy_spark.find_java_home", none)
    with session() as own:
        own.begin()
        with pytest.raises(Fatal, match="no Java"):
            own.context()


def test_a_local_session_listens_on_loopback_only_and_tells_no_secret(spark: LazySpark) -> None:
    """The secret is drawn for the session and stands on no command line."""
    pid = jvm_of(spark).pid
    connections = psutil.Process(pid).net_connections("tcp")
    listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= LOOPBACK
    secret = spark.context().getConf().get("spark.authenticate.secret")
    assert secret is not None
    assert len(secret) == 64
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert GATEWAY.encode() in command
    assert secret.encode() not in command
    assert b"authenticate" not in command


@pytest.mark.soak
def test_settings_go_to_spark_and_win(alone: None) -> None:
    """`cleanerd.spark.conf.*`; whoever names a secret means it to be asked for."""
    with session(settings={"spark.locality.wait": "7s", "spark.authenticate.secret": "s3cret"}) as own:
        conf = own.context().getConf()
        assert conf.get("spark.locality.wait") == "7s"
        assert conf.get("spark.authenticate.secret") == "s3cret"
        assert conf.get("spark.authenticate") == "true"
        assert b"s3cret" not in Path(f"/proc/{jvm_of(own).pid}/cmdline").read_bytes()


@pytest.mark.soak
def test_a_context_that_was_stopped_is_replaced(spark: LazySpark) -> None:
    """Its JVM lives, but it takes no jobs: the next one starts another."""
    context = spark.context()
    context._jsc.sc().stop()
    assert count(spark) == 2


@pytest.mark.usefixtures("alone")
def test_a_jvm_that_is_killed_leaves_no_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """As at the end of each engine whose JVM leaves no archive: the log of the daemon is a line of JSON for each event."""
    with session() as spark:
        assert count(spark) == 2
        server: Any = spark.context()._accumulatorServer
        jvm_of(spark).kill()
        jvm_of(spark).wait()
        server.shutdown()
    assert capsys.readouterr().err == ""


@pytest.mark.soak
def test_none_starts_before_the_end_of_one_whose_jvm_has_died(
    spark: LazySpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would call the JVM that is gone."""
    process = psutil.Process(jvm_of(spark).pid)
    is_ending, kill = threading.Event(), jvm.Jvm.kill

    def kill_late(self: jvm.Jvm) -> None:
        is_ending.set()
        wait([other], 0.5)
        kill(self)

    monkeypatch.setattr(jvm.Jvm, "kill", kill_late)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lambda: is_ending.wait(60) and spark.cores())
        process.kill()
        process.wait()
        assert count(spark) == 2
        assert other.result() == spark.cores()


def jvm_that_runs(tmp_path: Path, script: str) -> Callable[..., list[str]]:
    """The command of a JVM that writes its pid and goes on like that."""
    return lambda *_: ["sh", "-c", f"echo $$ > {tmp_path}/pid\n{script}"]


@pytest.mark.fault("the JVM hangs")
@pytest.mark.soak
def test_a_jvm_that_hangs_at_its_start_is_killed(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be waited for without end; the next start is an ordinary one."""
    hanging = LazySpark("local[1]", start_limit_s=3)
    with monkeypatch.context() as patched:
        patched.setattr(jvm, "java_command", jvm_that_runs(tmp_path, "sleep 600 & wait"))
        with pytest.raises(SparkFailed, match="did not start within 3 s"):
            hanging.context()
    assert not hanging.is_up
    started = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{started}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    with session() as second:
        assert count(second) == 2


def test_a_jvm_that_ends_without_a_word_is_not_waited_for(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "java_command", jvm_that_runs(tmp_path, "exit 0"))
    with pytest.raises(Fatal, match=r"did not start with master 'local\[1\]': the JVM ended with code 0$"):
        LazySpark("local[1]").context()


def test_workers_are_forked_from_a_process_that_has_imported_cleanerd(spark: LazySpark) -> None:
    def parent(_: Any) -> list[tuple[str, bool]]:
        there = f"/proc/{os.getppid()}"
        return [(Path(there, "cmdline").read_text(), "llvmlite" in Path(there, "maps").read_text())]

    ((command, has_compiler),) = spark.run(
        lambda context: context.parallelize([1], 1).mapPartitions(parent).collect()
    )
    assert "cleanerd.spark_runtime.python_daemon" in command
    assert has_compiler


@pytest.mark.soak
def test_idle_workers_live_as_long_as_the_session(spark: LazySpark) -> None:
    """Spark ends them 60 to 70 s after their last task; `cleanerd.spark.idle.timeout.ms` says how long a session is kept."""

    def workers(rows: Iterable[int]) -> list[int]:
        list(rows)  # a worker that has read its input to the end stays for the next job
        return [os.getpid()]

    (before,) = spark.run(lambda context: context.parallelize([1], 1).mapPartitions(workers).collect())
    threading.Event().wait(75)
    assert psutil.Process(before).status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("key", ["spark.network.timeout", "spark.executor.heartbeatInterval"])
def test_a_user_of_spark_sets_heartbeats_alone(key: str) -> None:
    """Spark does not start with an interval that is not below the timeout."""
    found = LazySpark("local[1]", {key: "50s"})._settings
    assert {name for name in found if "eartbeat" in name or "network" in name} == {key}
    assert {"spark.network.timeout", "spark.executor.heartbeatInterval"} <= LazySpark(
        "local[1]"
    )._settings.keys()


@pytest.mark.soak
def test_keeping_workers_holds_no_more_and_more(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor for each time would be the limit of a unit some day."""
    monkeypatch.setattr(lazy_spark, "_KEPT_S", 0.05)
    me = psutil.Process()
    with session() as own:
        count(own)
        threading.Event().wait(2)
        before = me.num_fds()
        threading.Event().wait(4)
        assert me.num_fds() <= before + 3, "one that is at it may have some for the moment"


IN_A_WORKER = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.api.python.PythonException: An exception was thrown: Traceback (most recent call last):
  File "worker.py", line 2230, in main
    process()
_pickle.PicklingError: Can't pickle <class 'error'>: attribute lookup failed

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2231, in main
RuntimeError: what followed

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""


def test_the_reason_of_a_failed_job_is_what_its_task_raised() -> None:
    """Not that there was a traceback."""
    reason = "_pickle.PicklingError: Can't pickle <class 'error'>: attribute lookup failed"
    assert raised_in_task(IN_A_WORKER) == reason
    assert str(SparkFailed(IN_A_WORKER)) == f"Spark gave up on the job: {reason}"
    assert str(SparkFailed("lost")) == "Spark gave up on the job: lost"
