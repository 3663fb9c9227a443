"""What Spark says: the reason in a line, all of it in a file, and nothing of py4j for the user."""

import subprocess
import sys
from pathlib import Path

import pytest

from cleanerd.spark_runtime.session_log import SessionLog, reason_of

NO_NAME = """\
WARNING: Using incubator modules: jdk.incubator.vector
Setting default log level to "WARN".
09:41:36 ERROR SparkContext: Error initializing SparkContext.
java.io.IOException: Invalid UID, could not determine effective user
\tat org.apache.hadoop.security.UserGroupInformation.doSubjectLogin(UserGroupInformation.java:2081)
\tat org.apache.hadoop.security.UserGroupInformation.createLoginUser(UserGroupInformation.java:733)
Caused by: javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name
\tat jdk.security.auth/com.sun.security.auth.UnixPrincipal.<init>(UnixPrincipal.java:71)

\tat org.apache.hadoop.security.UserGroupInformation$HadoopLoginContext.login(UserGroupInformation.java:2167)
\t... 22 more
"""
TOO_MANY_FILES = """\
09:18:20 ERROR SparkContext: Error initializing SparkContext.
java.util.concurrent.ExecutionException: Boxed Exception
\tat scala.concurrent.impl.Promise$.resolve(Promise.scala:99)
Caused by: java.lang.ExceptionInInitializerError
\tat io.netty.channel.unix.Errors.<clinit>(Errors.java:1)
Caused by: java.net.SocketException: Too many open files
\tat java.base/sun.nio.ch.Net.socket0(Native Method)
\t... 12 more
09:18:21 ERROR Utils: Exception while deleting Spark temp dir: /tmp/spark-1
java.io.IOException: Failed to delete: /tmp/spark-1
\tat org.apache.spark.util.SparkFileUtils.deleteRecursively(SparkFileUtils.scala:1)
Caused by: java.io.IOException: Cannot run program "rm"
\t... 3 more
"""
MAIN = """\
Exception in thread "main" java.lang.IllegalArgumentException: basedir must be absolute:
  ?/.ivy2.5.2/local
\tat org.apache.ivy.util.Checks.checkAbsolute(Checks.java:48)
"""
FROM_PY4J = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.ClassNotFoundException: com.example.Absent
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
"""
NO_MEMORY = """\
Picked up JAVA_TOOL_OPTIONS: -Dx=1
Error occurred during initialization of VM
Could not reserve enough space for 104857600000KB object heap
"""
CRASHED = """\
OpenJDK 64-Bit Server VM warning: sched_getaffinity failed (Operation not permitted)
#
# A fatal error has been detected by the Java Runtime Environment:
#
#  Internal Error (os_linux.cpp:5438), pid=15371, tid=15372
#  fatal error: pthread_getattr_np failed with error = 1
#
# JRE version:  (17.0.15+6) (build )
spark-class: line 97: CMD: bad array subscript
"""
BY_A_SIGNAL = """\
#
# A fatal error has been detected by the Java Runtime Environment:
#
#  SIGSEGV (0xb) at pc=0x00007f8992f2df14 (sent by kill), pid=32405, tid=32405
#
# JRE version: OpenJDK Runtime Environment (17.0.15+6) (build 17.0.15+6-Debian-1deb12u1)
"""
BANNER = """\
WARNING: Using incubator modules: jdk.incubator.vector
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
OpenJDK 64-Bit Server VM warning: Sharing is only supported for boot loader classes
26/11/28 09:41:36 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
[0.012s][warning][cds] The shared archive file has a bad magic number
      ____              __
     / __/__  ___ _____/ /__
    _\\ \\/ _ \\/ _ `/ __/  '_/
   /___/ .__/\\_,_/_/ /_/\\_\\   version 4.1.1
      /_/
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            NO_NAME,
            "java.io.IOException: Invalid UID, could not determine effective user; caused by: "
            "javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name",
        ),
        (
            TOO_MANY_FILES,
            "java.util.concurrent.ExecutionException: Boxed Exception; caused by: "
            "java.net.SocketException: Too many open files",
        ),
        (MAIN, "java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2.5.2/local"),
        (FROM_PY4J, "java.lang.ClassNotFoundException: com.example.Absent"),
        (
            NO_MEMORY,
            "Error occurred during initialization of VM; "
            "Could not reserve enough space for 104857600000KB object heap",
        ),
        (
            CRASHED,
            "Java crashed: Internal Error (os_linux.cpp:5438), pid=15371, tid=15372; "
            "fatal error: pthread_getattr_np failed with error = 1",
        ),
        (
            BY_A_SIGNAL,
            "Java crashed: SIGSEGV (0xb) at pc=0x00007f8992f2df14 (sent by kill), pid=32405, tid=32405",
        ),
        (BANNER, ""),
        ("\tat nothing.Before(It.java:1)\n", "at nothing.Before(It.java:1)"),
        ("", ""),
    ],
    ids=[
        "no name",
        "too many files",
        "in main",
        "from py4j",
        "no memory",
        "a crash",
        "a crash by a signal",
        "a banner",
        "no exception",
        "nothing",
    ],
)
def test_the_reason_is_the_exception_and_its_innermost_cause(text: str, reason: str) -> None:
    """Not the end of a stack, nor what followed from the first failure."""
    assert reason_of(text) == reason


def test_all_that_was_said_is_kept_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path))
    log = SessionLog(str(tmp_path))
    assert not log.says_that_it_failed()
    with open(log.fileno(), "wb", closefd=False) as file:
        file.write(MAIN.encode())
    assert log.says_that_it_failed()
    assert log.why_not_started(OSError("code 1")) == f"{reason_of(MAIN)} (log: {tmp_path}/spark.log)"
    log.close()
    assert (tmp_path / "spark.log").read_text() == MAIN
    assert (tmp_path / "spark.log").stat().st_mode & 0o777 == 0o600


def test_where_nothing_was_said_the_reason_is_what_was_raised(tmp_path: Path) -> None:
    log = SessionLog(str(tmp_path))
    assert log.why_not_started(OSError("the JVM ended with code 0")) == "the JVM ended with code 0"
    log.close()


RESET = """
import contextlib, socket, struct, sys, threading
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from cleanerd.spark_runtime.session_log import SessionLog

log = SessionLog("/tmp") if sys.argv[1] == "kept" else None
listening = socket.create_server(("127.0.0.1", 0))

def reset():
    connection, _ = listening.accept()
    listening.close()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

threading.Thread(target=reset).start()
java = JavaParameters(port=listening.getsockname()[1])
client = ClientServer(java_parameters=java, python_parameters=PythonParameters(port=0, eager_load=False))
with contextlib.suppress(Exception):
    client.jvm.java.lang.System.nanoTime()
if log is not None:
    with open(log.fileno(), "rb", closefd=False) as file:
        file.seek(0)
        print(file.read().decode())
    log.close()
    with contextlib.suppress(Exception):
        client.jvm.java.lang.System.nanoTime()
"""


@pytest.mark.parametrize("kept", ["kept", "not kept"])
def test_a_traceback_of_py4j_reaches_the_log_of_the_session_and_not_the_user(kept: str) -> None:
    """A JVM that ends resets the connection of a call; py4j writes that to the root logger, so without us to the user."""
    command = [sys.executable, "-c", RESET, kept]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    traces = "Exception while sending command.", "ConnectionResetError"
    heard, silent = (done.stdout, done.stderr) if kept == "kept" else (done.stderr, done.stdout)
    assert all(trace in heard for trace in traces)
    assert silent == ""
