"""What a broker does in the middle of a swap: it stops, it deletes the log. One of its system calls is held up for that."""

import threading
from pathlib import Path

import pytest

from cleanerd.broker_agent.live_logs import roll
from cleanerd.broker_agent.swap import Swapped
from tests.broker.live import PATIENCE_S
from tests.broker.swapping import TOPIC, Swapping
from tests.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

HELD_UP = "delay_enter=8000000"  # microseconds


@pytest.fixture
def swapping(swapping: Swapping) -> Swapping:
    swapping.transactions.end(commit=True)
    return swapping


def test_a_log_that_the_broker_has_closed_is_not_touched(swapping: Swapping) -> None:
    """It stops, and its JVM may live on for a while. Another broker may have the directory by then."""
    session, swap = swapping.session(), swapping.stage_copies(groups_max=3)
    directory, marker = swapping.directory(), swapping.log_dir / ".kafka_cleanshutdown"
    live = sorted((path.name, path.stat().st_ino) for path in directory.glob("*.log"))
    with swapping.injecting(HELD_UP, "openat,rename", marker, marker.with_name(f"{marker.name}.tmp")) as told:
        stopping = threading.Thread(target=swapping.broker.stop)
        stopping.start()
        wait_until(lambda: marker.name in told.read_text(), 60)
        answer = swap.by(session)
        rolled = roll(session, swap.partition, swap.topic_partition)
        assert stopping.is_alive()
    stopping.join()
    assert (answer.outcome, answer.cause) == ("later", "broker_stops"), answer
    assert rolled.outcome == "later", rolled
    assert sorted((path.name, path.stat().st_ino) for path in directory.glob("*.log")) == live
    swapping.broker.start()
    assert swapping.complaints() == []
    swapping.check()


def test_the_first_dirty_offset_of_a_log_that_is_deleted_meanwhile_is_taken_back(swapping: Swapping) -> None:
    """One of the same name may come, of which no cleaning has seen a record."""
    session, answers = swapping.session(), list[Swapped]()
    checkpoint = swapping.log_dir / "cleaner-offset-checkpoint"

    def swap() -> None:
        staged = swapping.stage_copies()
        while not answers or answers[-1].outcome == "busy":
            answers.append(staged.by(session))

    with swapping.injecting(HELD_UP, "rename", checkpoint.with_name(f"{checkpoint.name}.tmp")) as told:
        swapper = threading.Thread(target=swap)
        swapper.start()
        wait_until(lambda: checkpoint.name in told.read_text() or not swapper.is_alive(), 60)
        assert swapper.is_alive(), answers
        admin = swapping.broker.admin()
        admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
        wait_until(lambda: not swapping.directory().exists() or not swapper.is_alive(), 60)
        swapper.join()
    assert (answers[-1].outcome, answers[-1].cause) == ("changed", "another_log"), answers[-1]
    wait_until(lambda: swapping.first_dirty_offset(TOPIC) == 0, 30)
    assert [line for line in swapping.complaints() if "ERROR" in line] == []


def test_log_dirs_may_be_links(tmp_path: Path) -> None:
    """The broker knows a directory by the name in its configuration, and its checkpoint with it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with Swapping(tmp_path, log_dir=tmp_path / "link") as swapping:
        swapping.transactions.end(commit=True)
        results = swapping.clean()
        for topic, row in results.items():
            assert (row["outcome"], row["committed_by"]) == ("committed", "swap"), row
            assert swapping.first_dirty_offset(topic) == row["end_offset"] > 0
        swapping.check()
        assert swapping.complaints() == []
