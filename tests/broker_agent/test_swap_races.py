"""What a broker does in the middle of a swap: it stops, it deletes the log. One of its system calls is held up for that."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cleanerd.broker_agent.live_logs import roll
from cleanerd.format.names import FileKind
from tests.harness.broker.live import PATIENCE_S
from tests.harness.broker.swapping import TOPIC, Swapping, answered
from tests.harness.daemon.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

HELD_UP = "delay_enter=8000000"  # microseconds


@pytest.fixture(scope="module")
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
    swapping.check_in_order()


def test_the_first_dirty_offset_of_a_log_that_is_deleted_meanwhile_is_taken_back(swapping: Swapping) -> None:
    """One of the same name may come, of which no cleaning has seen a record."""
    session, checkpoint = swapping.session(), swapping.log_dir / "cleaner-offset-checkpoint"
    renamed = checkpoint.with_name(f"{checkpoint.name}.tmp")
    with ThreadPoolExecutor(1) as threads, swapping.injecting(HELD_UP, "rename", renamed) as told:
        answer = threads.submit(answered, swapping.stage_copies(), session)
        wait_until(lambda: checkpoint.name in told.read_text() or answer.done(), 60)
        assert not answer.done(), answer
        admin = swapping.broker.admin()
        admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
        wait_until(lambda: not swapping.directory().exists() or answer.done(), 60)
        swapped = answer.result()
    assert (swapped.outcome, swapped.cause) == ("changed", "another_log"), swapped
    wait_until(lambda: swapping.first_dirty_offset(TOPIC) == 0, 30)
    assert swapping.errors() == []


@pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in the client library
def test_the_move_of_a_log_begins_before_or_after_a_group_is_swapped(tmp_path: Path) -> None:
    """The copy is made from the log as it is: what was copied before the swap and after it would not fit together."""
    from kafka.admin import KafkaAdminClient  # slow

    homes = (tmp_path / "first", tmp_path / "second")
    with Swapping(tmp_path, log_dirs=homes) as swapping:
        swapping.transactions.end(commit=True)
        swapping.log_dir, target = sorted(homes, key=lambda home: not (home / f"{TOPIC}-0").exists())
        session, swap = swapping.session(), swapping.stage_copies(groups_max=3)
        held = Path(swap.partition.path_of(swap.groups[0].staged(FileKind.OFFSET_INDEX)))
        client = KafkaAdminClient(bootstrap_servers=[swapping.broker.bootstrap])
        with closing(client), ThreadPoolExecutor(2) as threads:
            with swapping.injecting(HELD_UP, "rename", held) as told:
                answer = threads.submit(answered, swap, session)
                wait_until(lambda: held.name in told.read_text() or answer.done(), 60)
                moved = threads.submit(client.alter_replica_log_dirs, {(TOPIC, 0, 1): str(target)})
                wait_until(lambda: not held.exists() or any(target.glob(f"{TOPIC}-0*")), 60)
                assert not held.exists(), "it has begun in the middle"
                swapped = answer.result()
            moved.result()
        assert (swapped.outcome, swapped.cause) in (("swapped", "other"), ("changed", "log_moves")), swapped
        assert swapped.lock_s
        wait_until(lambda: (target / f"{TOPIC}-0").exists(), PATIENCE_S)
        swapping.check_in_order()


def test_log_dirs_may_be_links(tmp_path: Path) -> None:
    """The broker knows a directory by the name in its configuration, and its checkpoint with it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with Swapping(tmp_path, log_dirs=[tmp_path / "link"]) as swapping:
        swapping.transactions.end(commit=True)
        results = swapping.clean()
        for topic, row in results.items():
            assert (row["outcome"], row["committed_by"]) == ("committed", "swap"), row
            assert swapping.first_dirty_offset(topic) == row["end_offset"] > 0
        swapping.check_in_order()
