"""An install in a process of its own, and what befalls it when a step is in the journal.

`python -m tests.broker.install.child BOOTSTRAP NODE LOG_DIR TOPIC PARTITION [WHAT=STEP[=NUMBER[=LIMIT]]]` prints the outcome
and the reason. WHAT: `kill` this process, `fill` the file system (STEP may be `offer`: nothing is prepared yet) and wait for
NUMBER seconds, `stop` the broker, whose process is NUMBER. LIMIT: time limit of a step in ms.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from cleanerd.daemon.kafka_replicas import KafkaReplicas
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.env.space import space_of
from cleanerd.errors import CleanerdError, ClusterRefused
from cleanerd.format.names import TopicPartition
from cleanerd.install.area import Area
from cleanerd.install.driver import Driver, offer
from cleanerd.install.machine import Limits
from cleanerd.install.values import Install

GIVEN_UP_S = 150.0


def befalls(event: list[str], step: str, log_dir: str) -> None:
    """What was asked for, if it was for this step."""
    what, wanted, *number = (event[0] if event else "=").split("=")
    if wanted != step:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(int(number[0]), signal.SIGSTOP)
    if what == "fill":
        parent = Path(log_dir).parent
        with (parent / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, space_of(str(parent)).free_bytes)
        threading.Event().wait(int(number[0]) if number else 0)


def limits(event: list[str]) -> Limits:
    """How long a step may take."""
    limit = event[0].split("=")[3:] if event else []
    return Limits(step_ms=int(limit[0]) if limit else 10_000, catch_up_ms=30_000)


def main() -> int:
    bootstrap, node, log_dir, topic, partition, *event = sys.argv[1:]
    clock, area = SystemClock(), Area(RealFiles(), log_dir)

    def told(install: Install) -> None:
        print(f"{clock.now_ms()} {install.step.value} {install.reason}", file=sys.stderr, flush=True)
        befalls(event, install.step.value, log_dir)

    with KafkaReplicas(bootstrap.split(","), "") as cluster:
        area.check_place([log_dir])
        install = area.journal.read()
        offered = None
        if install is None:
            try:
                offered = offer(
                    RealFiles(), cluster, area, TopicPartition(topic, int(partition)), int(node), clock
                )
            except CleanerdError as error:
                print(f"refused: {error}")
                return 1
            install = offered.install
            befalls(event, "offer", log_dir)
        driver = Driver(area, cluster, clock, limits(event), install, told)
        if offered is not None:
            try:
                driver.begin(offered.prepared, threading.Event().wait)
            except (CleanerdError, OSError) as error:
                driver.abandon(str(error))
        done, deadline = None, time.monotonic() + GIVEN_UP_S
        while done is None and time.monotonic() < deadline:
            try:
                done = driver.step()
            except (ClusterRefused, OSError) as error:
                print(error, file=sys.stderr, flush=True)
            threading.Event().wait(0.05)
        assert done is not None, driver.install
        assert done.outcome is not None
        print(f"{done.outcome.value}: {done.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
