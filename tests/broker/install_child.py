"""An install in a process of its own, which kills itself when a step is in the journal.

`python -m tests.broker.install_child BOOTSTRAP NODE LOG_DIR TOPIC PARTITION [STEP]` prints the outcome and the reason.
"""

import os
import signal
import sys
import threading
import time

from cleanerd.daemon.kafka_replicas import KafkaReplicas
from cleanerd.env.clock import SystemClock
from cleanerd.env.files import RealFiles
from cleanerd.errors import CleanerdError, ClusterRefused
from cleanerd.format.names import TopicPartition
from cleanerd.install.area import Area
from cleanerd.install.driver import Driver, offer
from cleanerd.install.machine import Limits
from cleanerd.install.values import Install

LIMITS = Limits(step_ms=10_000, catch_up_ms=60_000)
GIVEN_UP_S = 150.0


def main() -> int:
    bootstrap, node, log_dir, topic, partition, *step = sys.argv[1:]
    clock, area = SystemClock(), Area(RealFiles(), log_dir)

    def told(install: Install) -> None:
        print(f"{clock.now_ms()} {install.step.value} {install.reason}", file=sys.stderr, flush=True)
        if [install.step.value] == step:
            os.kill(os.getpid(), signal.SIGKILL)

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
        driver = Driver(area, cluster, clock, LIMITS, install, told)
        if offered is not None:
            try:
                driver.begin(offered.prepared, threading.Event().wait)
            except CleanerdError as error:
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
