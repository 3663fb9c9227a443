"""The private interfaces of PySpark that cleanerd uses. No other module uses any.

`tests/spark_runtime/test_pyspark_privates.py` looks for each of these things by its name, so that the first release without
it fails there, and not in a session that hangs.
"""

import contextlib
import glob
import os
import struct
import subprocess
import threading
from collections.abc import Iterable
from typing import IO, Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import java_import
from pyspark import SparkConf, SparkContext, cloudpickle

SETTINGS = {
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "cleanerd.spark_runtime.python_daemon",
    # Over loopback TCP every task waits 40 ms for a delayed acknowledgement: 16 empty tasks 0.67 s, like this 0.23 s.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings that Spark's documentation does not list, or not with the effect that is needed here."""
CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Environment variable that names the file to which a JVM writes how it can be called."""
_CONNECTION = struct.Struct(">ii")  # the port and the length of the secret, which follows
_IMPORTED = ("org.apache.spark.SparkConf", "org.apache.spark.api.java.*", "org.apache.spark.api.python.*")
"""Classes that PySpark uses by their short names."""
GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"
"""The class that Spark's launcher ends in, to be called from Python."""
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs",
    "java.base/sun.security.action", "java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5",
)  # fmt: skip
_JVM_OF_SPARK = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)


def java_command(java: str, spark: str, memory: str, options: Iterable[str]) -> list[str]:
    """How Spark's launcher would start a driver's JVM, but for a module of MLlib, and without SparkSubmit.

    That is for settings that ask for nothing from either. It saves a script, a JVM, and a sixth of what the start computes.
    """
    jars = os.path.join(spark, "jars")
    first = glob.glob(os.path.join(glob.escape(jars), "slf4j-api-*.jar"))
    class_path = ":".join([os.path.join(spark, "conf"), *first, os.path.join(jars, "*")])
    return [java, "-cp", class_path, f"-Xmx{memory}", *options, *_JVM_OF_SPARK, GATEWAY]


def dump_function(value: Any, file: IO[bytes]) -> None:
    """As `pickle.dump`, of functions, too: PySpark's own copy of cloudpickle."""
    cloudpickle.dump(value, file)  # type: ignore[no-untyped-call]


def serve_workers() -> None:
    """Be the process that workers are forked from, until Spark closes its input."""
    from pyspark import daemon  # noqa: PLC0415 - imports most of PySpark

    daemon.manager()


def connect(path: str, process: subprocess.Popen[bytes]) -> ClientServer:
    """The gateway to a JVM that has written its address. PySpark's launcher would read the same file."""
    with open(path, "rb") as file:
        port, length = _CONNECTION.unpack(file.read(_CONNECTION.size))
        secret = file.read(length).decode()
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    gateway.proc = process
    for name in _IMPORTED:
        java_import(gateway.jvm, name)
    return gateway


def new_context(conf: SparkConf, gateway: ClientServer, python: str) -> SparkContext:
    """A context whose workers are forked from a process of `python`."""
    context = SparkContext(conf=conf, gateway=gateway)
    context.pythonExec = python
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_: None  # that the JVM is gone: it would print a stack trace
    return context


def scratch_root(context: SparkContext) -> str:
    """The directory that Spark deletes when the session ends."""
    directory: str = context._temp_dir
    return directory


def is_stopped(context: SparkContext) -> bool:
    """Whether a context has stopped. Raises the error of py4j if the JVM is gone.

    Where it was stopped from here, whatever PySpark does with it is an AttributeError, also the end of a job.
    """
    java = context._jsc
    return java is None or bool(java.sc().isStopped())


def stop(context: SparkContext) -> None:
    """Stop it, and do not wait for its server of accumulators, which looks up once a second and is never used."""
    server: Any = context._accumulatorServer
    context._accumulatorServer = None  # type: ignore[assignment]
    try:
        context.stop()
    finally:
        if server is not None:
            threading.Thread(target=_shut_down, args=(server,), daemon=True).start()


def _shut_down(server: Any) -> None:
    with contextlib.suppress(FileNotFoundError):  # its socket goes with Spark's directory, at the same time
        server.shutdown()


def forget_gateway(process: "subprocess.Popen[bytes] | None") -> None:
    """Drop the gateway of a JVM that is gone: PySpark keeps one for the life of the process."""
    gateway = SparkContext._gateway
    if gateway is not None and getattr(gateway, "proc", None) is process:
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
