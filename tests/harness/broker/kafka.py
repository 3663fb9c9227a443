"""A single node on loopback, as a context manager; of the release that `current_release()` says.

1. A log directory without `meta.properties` is formatted; one that has it (a copy, a cleaned one) is used as
   it is. A release with ZooKeeper gets one beside it.
2. Every start writes its own `server-<n>.log`, which `messages()` reads back.

The settings make background work quick and keep the broker's own cleaner away: its ratio threshold is 1.0,
which no log exceeds (rule 1.21), until a test sets it lower.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cleanerd.format.uuid_text import render_uuid
from tests.harness.broker.releases import (
    class_archive,
    current_release,
    java_command,
    kafka_libs,
    required_program,
    run_tool,
)
from tests.harness.broker.zookeeper import ZooKeeper

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.05
CLUSTER_ID = "Y2xlYW5lcmQtdGVzdHMtMQ"

LOG4J2 = """\
<Configuration status="ERROR" shutdownHook="disable">
  <Appenders>
    <File name="file" fileName="{path}"><PatternLayout pattern="%p %c %d{{UNIX_MILLIS}} %m%n%ex{{short}}"/></File>
  </Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="file"/></Root>
    <Logger name="kafka.log" level="INFO"/>
    <Logger name="org.apache.kafka.storage.internals" level="INFO"/>
  </Loggers>
</Configuration>
"""
RELOAD4J = """\
log4j.rootLogger=WARN, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={path}
log4j.appender.file.layout=org.apache.log4j.EnhancedPatternLayout
log4j.appender.file.layout.ConversionPattern=%p %c %r %m%n%throwable{{short}}
log4j.logger.kafka.log=INFO
log4j.logger.org.apache.kafka.storage.internals=INFO
"""
LOGGING = {
    # by backend: name of the file, its text, the option that names it
    "log4j2": ("log4j2.xml", LOG4J2, "-Dlog4j2.configurationFile={}"),
    "reload4j": ("log4j.properties", RELOAD4J, "-Dlog4j.configuration=file:{}"),
}

KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
}
ZOOKEEPER = {"broker.id": "1"}
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.threads": "2",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.cleaner.min.cleanable.ratio": "1.0",
    "log.message.timestamp.after.max.ms": str(2**63 - 1),
}

MESSAGE = re.compile(r"\n(?=(?:TRACE|DEBUG|INFO|WARN|ERROR|FATAL) )")
"""Where the next one begins."""
WARNING = re.compile(r"(WARN|ERROR|FATAL) (kafka\.log|org\.apache\.kafka\.storage)\.|ERROR |FATAL ")
RECOVERY = re.compile(
    r"recover|rebuil|truncat|corrupt|could not find|sanity|swap|unclean|splitting|overflow", re.IGNORECASE
)
NOT_OF_LOGS = (
    r"controller event queue overloaded"  # of a controller on a slow machine
    r"|EventPerformanceMonitor"  # the same
    r"|ControllerApis .* handling request .*CONTROLLER_REGISTRATION"  # by itself, before it is ready
    # It has told the controller where a replica lies, which is deleted, or has moved, by the time of the answer.
    r"|AssignmentsManager .* unexpected callback exception"
)
"""Errors of a broker and controller that are in order."""
ORDINARY = re.compile(
    r"partition=__cluster_metadata-0"  # always loaded as after a crash (spec disk A8)
    r"|Producer state recovery took|Reloading from producer snapshot and rebuilding|Skipping recovery (of|for all logs)"
    rf"|{NOT_OF_LOGS}"
)
"""Lines of an untroubled start that speak of recovery all the same."""


def formatted() -> tuple[Path, Path]:
    """Log directories of a node as StorageTool, once for each release, makes them: that of the metadata log, and another."""
    kept = kafka_libs() / "formatted"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as new:
            made, config = Path(new, "made"), Path(new, "server.properties")
            rows = {
                **KRAFT,
                "controller.quorum.voters": "1@127.0.0.1:9093",
                "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "log.dirs": f"{made}/metadata,{made}/other",
            }
            config.write_text("".join(f"{key}={value}\n" for key, value in rows.items()), encoding="utf-8")
            run_tool(java_command("kafka.tools.StorageTool", "format", "-c", str(config), "-t", CLUSTER_ID))
            with suppress(OSError):  # another process was first
                made.rename(kept)
    return kept / "metadata", kept / "other"


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class KafkaBroker:
    """One broker over `log_dirs`, started and stopped as often as a test likes.

    `properties` are added to all others and win. `work_dir` receives configuration and logs. `ports`: of broker and
    controller or ZooKeeper, so that clients find it again after a restart; new ones at every start by default.
    `jvm_options` win over those that make a broker start fast.
    """

    def __init__(
        self,
        work_dir: Path,
        log_dirs: Sequence[Path],
        properties: Mapping[str, str] | None = None,
        *,
        ports: tuple[int, int] | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._jvm_options = tuple(jvm_options)
        self.log_dirs = tuple(log_dirs)
        self.release = current_release()
        self.properties = {
            **(ZOOKEEPER if self.release.has_zookeeper else KRAFT),
            **PROPERTIES,
            "log.initial.task.delay.ms": str(self.release.first_checkpoint_ms),
            **(properties or {}),
        }
        self.bootstrap = ""
        self._own_properties = dict(properties or {})
        self._ports = ports
        self._work_dir = work_dir
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._zookeeper: ZooKeeper | None = None

    def __enter__(self) -> "KafkaBroker":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is None:
            return
        if kind is None:
            self.stop()
        else:
            self.kill()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def start(self) -> None:
        """Format what is new, start, return when the broker answers.

        Raises: `RuntimeError` with the end of the broker's output when it ends or does not answer in time.
        """
        assert self._process is None
        self._starts += 1
        self._work_dir.mkdir(parents=True, exist_ok=True)
        config = self._write_configuration()
        if not self.release.has_zookeeper:
            self._format()
        options = [self._logging_option(), *self._jvm_options]
        command = java_command("kafka.Kafka", str(config), heap="512m", options=options)
        if not self._jvm_options and not any("SharedArchiveFile" in word for word in command):
            command.insert(1, f"-XX:ArchiveClassesAtExit={self._new_archive}")
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(command, stdout=console, stderr=subprocess.STDOUT)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """SIGTERM, and wait for the clean end."""
        process = self._taken_process()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
            with suppress(FileNotFoundError):  # only the first broker makes one
                self._new_archive.rename(class_archive())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop:\n{self._tail()}") from None
        finally:
            self._stop_zookeeper()

    def kill(self) -> None:
        process = self._taken_process()
        process.kill()
        process.wait()
        self._stop_zookeeper()

    def poll(self) -> None:
        """Wait a moment; raise `RuntimeError` when the broker has ended."""
        if self._is_dead():
            raise RuntimeError(f"the broker ended:\n{self._tail()}")

    def threads(self) -> str:
        """What each of its threads does now."""
        return run_tool([required_program("jcmd"), str(self.pid), "Thread.print", "-l"]).stdout

    def messages(self) -> list[str]:
        """What the broker logged since its last start, with exceptions: warnings, and every line of the log layer."""
        text = self._server_log.read_text(encoding="utf-8", errors="replace").rstrip("\n")
        return MESSAGE.split(text) if text else []

    def troubles(self) -> list[str]:
        """Messages of the last start that an untroubled log does not cause.

        Errors of any part, warnings of the log layer, and its informal lines about recovery, rebuilt indexes
        or leftover files.
        """
        return [line for line in self.messages() if self._is_trouble(line)]

    def _is_trouble(self, line: str) -> bool:
        for path in self.log_dirs:
            line = line.replace(str(path), "")  # a directory's name is no message
        return bool(WARNING.match(line) or RECOVERY.search(line)) and not ORDINARY.search(line)

    @property
    def _server_log(self) -> Path:
        return self._work_dir / f"server-{self._starts}.log"

    @property
    def _console(self) -> Path:
        return self._work_dir / f"console-{self._starts}.log"

    @property
    def _new_archive(self) -> Path:
        return class_archive().with_suffix(f".{os.getpid()}-{id(self)}")

    def _taken_process(self) -> subprocess.Popen[bytes]:
        process = self._process
        assert process is not None
        self._process = None
        return process

    def _stop_zookeeper(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.stop()
            self._zookeeper = None

    def _write_configuration(self) -> Path:
        broker, other = self._ports or free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        properties = {
            **self.properties,
            **self._metadata_properties(other),
            "log.dirs": ",".join(str(path) for path in self.log_dirs),
            **self._own_properties,
        }
        path = self._work_dir / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        return path

    def _metadata_properties(self, port: int) -> dict[str, str]:
        """Where the controller listens, or a ZooKeeper that is started."""
        broker = f"PLAINTEXT://{self.bootstrap}"
        if self.release.has_zookeeper:
            self._zookeeper = ZooKeeper(self._work_dir, self.log_dirs[0], port)
            return {"zookeeper.connect": f"127.0.0.1:{port}", "listeners": broker}
        return {
            "controller.quorum.voters": f"1@127.0.0.1:{port}",
            "listeners": f"{broker},CONTROLLER://127.0.0.1:{port}",
        }

    def _logging_option(self) -> str:
        """The option that names the configuration of the broker's log, which is written."""
        name, text, option = LOGGING[self.release.logging]
        path = self._work_dir / name
        path.write_text(text.format(path=self._server_log), encoding="utf-8")
        return option.format(path)

    def _format(self) -> None:
        """Each directory that is new gets an id of its own, which releases before 3.7 do not have."""
        metadata, other = formatted()
        for number, path in enumerate(self.log_dirs):
            properties = path / "meta.properties"
            if properties.exists():
                continue
            shutil.copytree(other if number else metadata, path, dirs_exist_ok=True)
            text = re.sub(r"node\.id=.*", f"node.id={self.properties['node.id']}", properties.read_text())
            properties.write_text(re.sub(r"directory\.id=.*", f"directory.id={render_uuid(uuid4())}", text))

    def _wait_until_it_answers(self) -> None:
        admin = self.admin()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self.poll()
            try:
                answer = admin.list_topics(timeout=1)
                if answer.brokers and self._topics_of_zookeeper() <= set(answer.topics):
                    return
            except KafkaException:
                continue
        self.kill()
        raise RuntimeError(f"the broker did not answer within {START_TIMEOUT_S} s:\n{self._tail()}")

    def _topics_of_zookeeper(self) -> set[str]:
        """Those with a directory: of a broker with ZooKeeper, which answers before the controller has told it of topics."""
        found = [path.name.rpartition("-") for log_dir in self.log_dirs for path in log_dir.glob("*-*/")]
        return {topic for topic, _, end in found if end.isdigit() and self.release.has_zookeeper}

    def _is_dead(self) -> bool:
        assert self._process is not None
        try:
            self._process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        self._stop_zookeeper()
        return True

    def _tail(self) -> str:
        lines = [*self._console.read_text(errors="replace").splitlines()[-30:], *self.messages()[-30:]]
        return "\n".join(lines)
