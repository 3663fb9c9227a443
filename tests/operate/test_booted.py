"""The units under a systemd that runs: PID 1 of a machine in the machine, over a copy of its root that goes away.

Its sandbox is in force, so what these tests see of cleanerd works with all of `ProtectSystem=strict`, `SystemCallFilter` and
the rest. There is no registry to ask: Python's packages are those of this environment.
"""

import contextlib
import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cleanerd.format import names
from tests.harness.daemon.processes import wait_until
from tests.harness.logs.troubled import TRUTH, assert_settled, newest, write_logs
from tests.harness.programs import ROOT, missing, need, run

MUST_RUN = os.environ.get("CLEANERD_TEST_CONTAINER") == "1"
pytestmark = [
    pytest.mark.skipif(not MUST_RUN, reason="boots a systemd; needs CLEANERD_TEST_CONTAINER=1"),
    pytest.mark.timeout(1200),
]

PLACES = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
CLEANED_S = 600.0  # the kernels are compiled first, at low priority
CONFIGURATION = """log.dirs=/var/lib/kafka/data
log.cleanup.policy=compact
log.cleaner.backoff.ms=200
cleanerd.metrics.listen=
"""
BROKER = "[Service]\nUser=kafka\nExecStart=/bin/sleep 1000\n"


class Booted:
    """A machine whose systemd runs."""

    def __init__(self, root: Path, pid: int) -> None:
        self.root, self.pid = root, pid

    def __call__(self, *words: str, check: bool = True) -> str:
        """What a command in it says."""
        return run("nsenter", "-a", "-t", self.pid, *words, check=check, timeout_s=150).stdout.strip()

    def is_in_state(self, unit: str, state: str) -> bool:
        return self("systemctl", "is-active", unit, check=False) == state

    def shown(self, unit: str, what: str) -> str:
        return self("systemctl", "show", "-P", what, unit)

    def told(self, *units: str) -> str:
        """The journal, the oldest first."""
        # What systemd says of a unit reaches the journal after `systemctl start` ends.
        self("journalctl", "--sync")
        return self("journalctl", "--no-pager", "-o", "cat", *(f"-u{unit}" for unit in units))


def _cgroup() -> Path:
    """A new control group for all of it."""
    found = [path for path in map(Path, PLACES) if (path / "cgroup.controllers").exists()]
    if not found:
        missing("no cgroup2 is mounted")
    group = found[0] / f"cleanerd-test-{os.getpid()}"
    group.mkdir()
    return group


def _init_below(process: psutil.Process) -> int | None:
    children = process.children() if process.is_running() else []
    return next((child.pid for child in children if child.name() == "systemd"), None)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists():
        missing("takes root and systemd")
    need("nsenter", "util-linux")
    directory, group = tmp_path_factory.mktemp("machine"), _cgroup()
    site = sysconfig.get_paths()["purelib"]
    command = [
        "bash",
        str(ROOT / "tests" / "operate" / "boot.sh"),
        str(directory),
        str(group),
        str(ROOT),
        site,
    ]
    with (directory / "told").open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told)
    pid = None
    try:
        wait_until(lambda: _init_below(psutil.Process(process.pid)), 60, (directory / "told").read_text)
        pid = _init_below(psutil.Process(process.pid))
        assert pid is not None
        booted = Booted(directory / "root", pid)
        wait_until(lambda: booted("systemctl", "is-system-running", check=False) == "running", 60)
        _set_up(booted)
        yield booted
    finally:
        if pid is not None:
            os.kill(pid, 9)
        process.kill()
        process.wait()
        time.sleep(1)  # noqa: TID251  # the kernel ends what lived below PID 1
        for place in ("root", "memory"):
            subprocess.run(["umount", "--recursive", str(directory / place)], check=False)
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()


def _set_up(machine: Booted) -> None:
    (machine.root / "etc/kafka/server.properties").write_text(CONFIGURATION)
    (machine.root / "etc/systemd/system/kafka.service").write_text(BROKER)
    logs = write_logs(machine.root / "var/lib/kafka/data", "one")
    for name in (names.META_PROPERTIES, names.REPLICATION_CHECKPOINT, names.RECOVERY_POINT_CHECKPOINT):
        (logs / name).unlink()
    for command in ("systemd-sysusers", "systemd-tmpfiles --create", "chown -R kafka:kafka /var/lib/kafka"):
        machine(*command.split())
    machine("systemctl", "daemon-reload")
    machine("systemctl", "start", "cleanerd.socket", "cleanerd.service")


def test_it_is_ready_cleans_and_reloads_in_its_sandbox(machine: Booted) -> None:
    assert machine.is_in_state("cleanerd", "active"), machine.told("cleanerd")
    log = machine.root / "var/lib/kafka/data/one-0"
    wait_until(lambda: '"committed"' in machine.told("cleanerd"), CLEANED_S, lambda: machine.told("cleanerd"))
    assert_settled(log)
    assert newest(log) == TRUTH
    assert machine("stat", "-c%U", f"/var/lib/kafka/data/one-0/{min(log.glob('*.log')).name}") == "kafka"
    (machine.root / "etc/kafka/server.properties").write_text(CONFIGURATION.replace("=200", "=300"))
    machine("systemctl", "reload", "cleanerd")
    assert re.search(r'"accepted", "trigger": "SIGHUP".*backoff.ms: 200', machine.told("cleanerd"))
    assert machine.shown("cleanerd", "NRestarts") == "0"


def test_it_comes_back_when_it_is_killed_and_leaves_no_process(machine: Booted) -> None:
    before = machine.shown("cleanerd", "MainPID")
    machine("kill", "-9", before)
    wait_until(lambda: machine.shown("cleanerd", "MainPID") not in ("0", before), 60)
    wait_until(lambda: machine.is_in_state("cleanerd", "active"), 60)
    alive = machine("cat", "/sys/fs/cgroup/system.slice/cleanerd.service/cgroup.procs")
    assert min(map(int, alive.split())) == int(machine.shown("cleanerd", "MainPID")), (
        "nothing older than the new one"
    )


ORDERS = {
    "cleanerd.service": (
        "Started cleanerd.service",
        "Starting kafka.service",
        "commit wait_ms=",
        "Started kafka.service",
    ),
    "cleanerd.socket": (
        "Starting kafka.service",
        "Started cleanerd.service",
        "commit wait_ms=",
        "Started kafka.service",
    ),
}
"""By what is started with the broker: as at a boot, or as when only the broker is started, whose commit starts cleanerd."""


@pytest.mark.parametrize(("unit", "order"), ORDERS.items(), ids=ORDERS)
def test_a_broker_starts_after_what_cleanerd_has_to_commit(
    machine: Booted, unit: str, order: tuple[str, ...]
) -> None:
    machine("systemctl", "stop", "cleanerd.service")
    machine("systemctl", "start", unit, "kafka.service")
    told = machine.told("cleanerd", "kafka")
    told = told[told.rindex(order[0]) :]
    assert [told.find(text) for text in order] == sorted(told.find(text) for text in order)
    assert order[-1] in told
    machine("systemctl", "stop", "kafka.service")


def test_a_broker_starts_no_cleanerd_that_nobody_wants(machine: Booted) -> None:
    machine("systemctl", "stop", "cleanerd.socket", "cleanerd.service")
    machine("systemctl", "start", "kafka.service")
    assert machine.is_in_state("kafka", "active")
    assert machine.is_in_state("cleanerd", "inactive")
    machine("systemctl", "stop", "kafka.service")


def test_a_broker_starts_when_cleanerd_cannot(machine: Booted) -> None:
    """A configuration with an error: no second try, and no broker that waits for it."""
    machine("systemctl", "stop", "cleanerd.service", "cleanerd.socket")
    path = machine.root / "etc/kafka/server.properties"
    path.write_text(f"{CONFIGURATION}cleanerd.nonsense=1\n")
    machine("systemctl", "start", "cleanerd.service", "kafka.service", check=False)
    assert machine.is_in_state("kafka", "active")
    assert (machine.shown("cleanerd", "ExecMainStatus"), machine.shown("cleanerd", "ActiveState")) == (
        "78",
        "failed",
    )
    path.write_text(CONFIGURATION)
    machine("systemctl", "stop", "kafka.service")
    machine("systemctl", "reset-failed")


def test_who_connects_to_its_socket_starts_it_and_a_stop_is_quick(machine: Booted) -> None:
    machine("systemctl", "start", "cleanerd.socket")
    assert machine.is_in_state("cleanerd.service", "inactive")
    assert "Daemon:" in machine("/opt/cleanerd/bin/cleanerctl", "status")
    wait_until(lambda: machine.is_in_state("cleanerd.service", "active"), 60)
    began = time.monotonic()
    machine("systemctl", "stop", "cleanerd.socket", "cleanerd.service")
    assert time.monotonic() - began < 25
    assert machine.shown("cleanerd", "Result") == "success"
