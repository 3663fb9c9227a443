"""A ZooKeeper for one broker: the server that comes with the jars of releases that need it.

A test copies a log directory and starts a broker on the copy. What ZooKeeper knows of its topics has to go with it: between
two runs it lies there as one file, which no broker minds.
"""

import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.harness.broker.releases import java_command

KEPT = "zookeeper.tar"
_TIMEOUT_S = 60.0
"""The session of a broker that was killed lives on for 18 s; until its end the next one is refused."""
_POLL_S = 0.05


class ZooKeeper:
    """Started and stopped with its broker; `log_dir` is one of the broker's."""

    def __init__(self, work_dir: Path, log_dir: Path, port: int) -> None:
        self._data, self._kept = work_dir / "zookeeper", log_dir / KEPT
        self._port = port
        work_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir()
        if self._kept.exists():
            shutil.unpack_archive(self._kept, self._data, filter="data")
        config = work_dir / "zookeeper.properties"
        config.write_text(
            f"dataDir={self._data}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
            "tickTime=2000\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        options = ["-Dzookeeper.preAllocSize=64"]
        with (work_dir / "zookeeper.log").open("wb") as log:
            self._process = subprocess.Popen(
                java_command(main, str(config), heap="64m", options=options),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_nobody_is_registered()

    def stop(self) -> None:
        """End it; the log directory has what it knew."""
        self._process.terminate()
        self._process.wait()
        if self._kept.parent.is_dir():
            shutil.make_archive(str(self._kept.with_suffix("")), "tar", self._data)

    def _wait_until_nobody_is_registered(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while (answer := self._ask(b"dump")) is None or "/brokers/ids/" in answer:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper is not ready: {answer}")
            time.sleep(_POLL_S)  # noqa: TID251  # until another process is ready

    def _ask(self, word: bytes) -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                connection.sendall(word)
                return connection.makefile().read()
        except OSError:
            return None
