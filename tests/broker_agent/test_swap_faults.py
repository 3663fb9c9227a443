"""What a kill of the broker, a kill of cleanerd and a power failure leave after each step of a swap: the numbered table of
`cleanerd.broker_agent.swap`. CLEANERD_TEST_FAULTS=1 plays every failure after every step.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.broker.swapping import TOPIC, Swapping, build_agent, swap_command
from tests.daemon.processes import wait_until
from tests.operate.tools import need
from tests.storage.ext4 import Ext4

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

FAILURES = ("the broker", "cleanerd", "the power", "the power, names kept")
_BASE = f"{0:020}"
STEPS = {
    # the last operation of a step, or one before, for the first group: the file that it renames or unlinks
    "1": f"{_BASE}.manifest.cleanerd",
    "3, the log": f"{_BASE}.log.cleanerd",
    "3": f"{_BASE}.timeindex.cleanerd",
    "4, the log": f"{_BASE}.log.cleaned",
    "4": f"{_BASE}.timeindex.cleaned",
    "5, the log": f"{_BASE}.log",
    "5": f"{_BASE}.timeindex",
    "6, the log": f"{_BASE}.log.swap",
    "6": f"{_BASE}.timeindex.swap",
    "7": "../cleaner-offset-checkpoint.tmp",
}
_CALLS = "rename,renameat,renameat2,unlink,unlinkat"
IS_LONG = bool(os.environ.get("CLEANERD_TEST_FAULTS"))
SHORT = ("1", "3", "4, the log", "5, the log", "6, the log", "7")
CASES = (
    [(step, failure) for step in STEPS for failure in FAILURES]
    if IS_LONG
    else [(step, FAILURES[number % len(FAILURES)]) for number, step in enumerate(SHORT)]
)


class World:
    """A broker whose log directory lies on a disk of its own."""

    def __init__(self, root: Path) -> None:
        image = root / "disk.img"
        with image.open("wb") as file:
            file.truncate(256 << 20)
        subprocess.run([need("mkfs.ext4", "e2fsprogs"), "-q", "-m0", str(image)], check=True)
        self.disk = Ext4(image, root / "disk")
        self.disk.mount()
        self.swapping = Swapping(root, log_dir=self.disk.place / "logs")
        self._told = root / "strace.log"

    def open(self) -> None:
        self.swapping.start()
        self.swapping.transactions.end(commit=True)

    def close(self) -> None:
        self.swapping.close()
        self.disk.unmount()

    def make_dirty(self) -> None:
        """Some segments more, all of which is on the disk."""
        swapping = self.swapping
        for number in range(30):
            for ledger in swapping.ledgers.values():
                ledger.send()
            if number % 10 == 0:
                swapping.transactions.write()
                swapping.transactions.end(commit=number % 20 == 0)
        for ledger in swapping.ledgers.values():
            ledger.flush()
        subprocess.run(["sync", "--file-system", str(self.disk.place)], check=True)

    @contextmanager
    def stopped_after(self, step: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The broker stands still after a step of a swap that the process asked for which is returned."""
        path, pid = os.path.normpath(self.swapping.directory() / STEPS[step]), self.swapping.broker.pid
        told = self._told
        command = [need("strace", "strace"), "-f", "-qq", "-o", str(told), "-p", str(pid), "-P", path]
        command += ["-e", f"trace={_CALLS}", "-e", f"inject={_CALLS}:signal=SIGSTOP:when=1"]
        told.write_bytes(b"")
        tracer = subprocess.Popen(command)
        wait_until(lambda: "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text(), 30)
        cleaning = subprocess.Popen(swap_command(self.swapping.log_dir, [TOPIC]), stdout=subprocess.DEVNULL)
        try:
            wait_until(
                lambda: b"stopped by SIGSTOP" in told.read_bytes() or cleaning.poll() is not None,
                120,
                told.read_text,
            )
            assert cleaning.poll() is None, f"the step was not met: {told.read_text()}"
            yield cleaning
        finally:
            tracer.terminate()
            tracer.wait()
            cleaning.wait(120)

    def fail(self, failure: str, cleaning: "subprocess.Popen[bytes]") -> None:
        broker = self.swapping.broker
        assert broker.pid is not None
        if failure == "cleanerd":
            cleaning.kill()
            os.kill(broker.pid, signal.SIGCONT)
            return
        if failure.startswith("the power"):
            self.disk.cut(keeps_names=failure != "the power")
        broker.kill()

    def start(self, failure: str) -> None:
        if failure == "cleanerd":
            return
        if failure.startswith("the power"):
            self.disk.unmount(at_once=True)
            self.disk.mount()
        self.swapping.broker.start()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    build_agent()
    world = World(tmp_path_factory.mktemp("faults"))
    try:
        world.open()
        yield world
    finally:
        with suppress(OSError):
            world.close()


@pytest.mark.parametrize(("step", "failure"), CASES)
def test_a_failure_after_a_step_leaves_the_old_log_or_the_new_one(
    world: World, step: str, failure: str
) -> None:
    """The broker starts without an error, every key is there, and the next cleaning goes on."""
    swapping = world.swapping
    world.make_dirty()
    with world.stopped_after(step) as cleaning:
        world.fail(failure, cleaning)
    world.start(failure)
    swapping.check()
    results = swapping.clean()
    assert {row["outcome"] for row in results.values()} <= {"committed", "unchanged", "skipped"}, results
    assert not [
        path for path in swapping.directory().iterdir() if path.suffix in {".cleaned", ".swap", ".cleanerd"}
    ]
    swapping.check()
    assert [line for line in swapping.complaints() if "ERROR" in line] == []
