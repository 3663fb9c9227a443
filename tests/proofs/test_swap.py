"""A running broker that swaps segments has the old ones or the new ones, whoever dies meanwhile.

What a kill of the broker, a kill of cleanerd and a power failure leave after each step: the numbered table of
`cleanerd.broker_agent.swap`. CLEANERD_TEST_FAULTS=1 plays every failure after every step.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cleanerd.broker_agent import swap as swaps
from cleanerd.broker_agent.live_logs import describe
from cleanerd.errors import NoWayIn
from cleanerd.format.names import TopicPartition
from tests.harness.broker.swapping import TOPIC, Swapping, answered, build_agent, swap_command
from tests.harness.daemon.processes import wait_until
from tests.harness.disks.ext4 import Ext4

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
        self.disk = Ext4.made(root, 256 << 20)
        self.disk.mount()
        self.swapping = Swapping(root, log_dirs=[self.disk.place / "logs"])

    def open(self) -> None:
        self.swapping.start()
        self.swapping.transactions.end(commit=True)

    def close(self) -> None:
        self.swapping.close()
        self.disk.unmount()

    def make_dirty(self) -> None:
        """Some segments more, all of which is on the disk."""
        self.swapping.write(30)
        subprocess.run(["sync", "--file-system", str(self.disk.place)], check=True)

    @contextmanager
    def stopping_after(self, step: str) -> Iterator[Callable[[], bool]]:
        """The broker will stand still after a step of the next swap; yields whether it does."""
        path = os.path.normpath(self.swapping.directory() / STEPS[step])
        with self.swapping.injecting("signal=SIGSTOP", _CALLS, Path(path)) as told:
            yield lambda: b"stopped by SIGSTOP" in told.read_bytes()

    @contextmanager
    def stopped_after(self, step: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The broker stands still after a step of a swap that the process asked for which is returned."""
        with self.stopping_after(step) as is_stopped:
            cleaning = subprocess.Popen(
                swap_command(self.swapping.log_dir, [TOPIC]), stdout=subprocess.DEVNULL
            )
            wait_until(
                lambda: is_stopped() or cleaning.poll() is not None, 120, self.swapping.strace_log.read_text
            )
            assert cleaning.poll() is None, f"the step was not met: {self.swapping.strace_log.read_text()}"
            yield cleaning
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
    assert swapping.errors() == []


def test_a_broker_that_hangs_in_the_middle_begins_nothing_when_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is gone by then, and who asked for the swap has given it up: what is staged may be something else now."""
    monkeypatch.setattr(swaps, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr(swaps, "_ANSWER_S", 2.0)
    swapping, pid = world.swapping, world.swapping.broker.pid
    world.make_dirty()
    session, swap = swapping.session(), swapping.stage_copies(groups_max=3)
    before = live(swapping.directory())

    with ThreadPoolExecutor(1) as threads:
        with world.stopping_after("1") as is_stopped:
            asking = threads.submit(answered, swap, session)
            wait_until(lambda: is_stopped() or asking.done(), 60)
            with pytest.raises(NoWayIn, match="did not answer in time"):
                asking.result(30)
        os.kill(pid or 0, signal.SIGCONT)
    wait_until(lambda: conversations(pid) == 0, 30)
    assert live(swapping.directory()) == before
    session = swapping.session()
    (found,) = describe(session, str(swapping.log_dir), [TopicPartition(TOPIC, 0)])
    assert found.cleaning_state != "LogCleaningPaused", "its own cleaner may go on"
    monkeypatch.undo()
    swapping.swap(session)
    session.close()
    swapping.check()
    assert swapping.errors() == []


def test_so_many_conversations_hang_in_a_broker_and_no_more(world: World) -> None:
    """A daemon that asks again and again costs a broker whose disk hangs no thread for each time."""
    swapping = world.swapping
    opened = [swapping.session() for _ in range(16)]
    with pytest.raises(NoWayIn, match="16 conversations with this broker have not ended: does a disk hang"):
        swapping.session()
    for session in opened:
        session.close()
    wait_until(lambda: conversations(swapping.broker.pid) == 0, 30)
    swapping.session().close()


def live(directory: Path) -> dict[str, int]:
    """Inodes of the files that the broker has, by name."""
    return {
        path.name: path.stat().st_ino
        for path in directory.iterdir()
        if path.suffix not in {".cleanerd", ".deleted"}
    }


def conversations(pid: int | None) -> int:
    """Threads of the agent in a broker."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found += (task / "comm").read_text().startswith("cleanerd-agent")
    return found
