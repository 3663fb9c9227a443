"""Several cleanerds in the same log directories: one works, the others say who does, and nothing is harmed."""

import signal
from pathlib import Path

import pytest

from cleanerd.errors import Fatal
from cleanerd.format import names
from cleanerd.storage.lock import probe
from tests.daemon.test_at_work import in_the_middle
from tests.daemon.test_at_work import log_dir as big
from tests.harness.command_line import clean, results
from tests.harness.daemon.processes import DaemonProcess, wait_until
from tests.harness.daemon.tracing import PATIENCE_S
from tests.harness.daemon.world import World
from tests.harness.logs.troubled import TRUTH, assert_settled, lock_of_another, newest, write_logs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
__all__ = ["big"]

REFUSED_S = 60


def test_the_lock_of_a_second_directory_is_not_taken_while_the_first_is_refused(world: World) -> None:
    """Whatever their order in the configuration: else two daemons that name them differently would refuse each other."""
    ownership, is_refused = world.parts.ownership, pytest.raises(Fatal, match="another cleanerd works in")
    ownership.release()
    with lock_of_another(world.a / names.CLEANERD_LOCK) as pid, is_refused as caught:
        ownership.take_at_start([str(world.b), str(world.a)])
    assert f"process {pid}" in str(caught.value)
    assert probe(str(world.b), names.CLEANERD_LOCK) is None


@pytest.mark.fault("several daemons and one-shots at once")
def test_of_three_daemons_that_start_at_once_one_works(tmp_path: Path) -> None:
    """In two directories, named in a different order by each. When it is killed another one takes its place."""
    logs = [write_logs(tmp_path / "a", "one"), write_logs(tmp_path / "b", "two")]
    orders = (logs, logs[::-1], logs)
    daemons = [DaemonProcess(tmp_path / f"d{number}", order, {}) for number, order in enumerate(orders)]
    try:
        processes = [daemon.spawn() for daemon in daemons]
        wait_until(lambda: sum(one.poll() is None for one in processes) == 1, REFUSED_S)
        (works,) = (one for one in daemons if one.process is not None and one.process.poll() is None)
        works.wait_committed("one-0", "two-0", timeout_s=PATIENCE_S)
        for other in daemons:
            if other is not works:
                assert other.process is not None
                assert other.process.returncode == 1
                assert f"(process {works.pid})" in other.output()
                assert "Traceback" not in other.output()
        works.stop(signal.SIGKILL)
        heir = next(one for one in daemons if one is not works)
        heir.start()
        assert heir.stop() == 0
    finally:
        for daemon in daemons:
            daemon.kill()
    for log_dir, topic in zip(logs, ("one", "two"), strict=True):
        assert_settled(log_dir / f"{topic}-0")
        assert newest(log_dir / f"{topic}-0") == TRUTH


def test_a_second_daemon_with_the_state_directory_of_another_is_refused(tmp_path: Path) -> None:
    """Each would take the pauses, mutes and answers of the other for its own. One that was killed is in nobody's way."""
    settings = {"cleanerd.state.dir": tmp_path / "state"}
    daemons = []
    for name in ("one", "two"):
        (tmp_path / f"{name}-logs").mkdir()
        daemons.append(DaemonProcess(tmp_path / name, [tmp_path / f"{name}-logs"], settings))
    first, second = daemons
    try:
        first.start()
        assert second.spawn().wait(REFUSED_S) == 1
        why = f"{tmp_path / 'state'}: another cleanerd keeps its state there (process {first.pid})"
        assert why in second.output()
        assert "Traceback" not in second.output()
        first.kill()
        assert second.start().stop() == 0
    finally:
        first.kill()
        second.kill()


@pytest.mark.fault("several daemons and one-shots at once")
def test_a_one_shot_beside_a_daemon_is_refused_and_disturbs_nothing(tmp_path: Path, big: Path) -> None:
    """In the middle of a cleaning; a directory that no daemon has is cleaned all the same."""
    free = write_logs(tmp_path / "free", "one")
    before = newest(big / "big-0")
    with in_the_middle(tmp_path, big) as daemon:
        process = clean(big, f"--log-dir={free}")
        found = results(process)
        assert process.returncode == 1
        assert (found["big"]["outcome"], found["one"]["outcome"]) == ("failed", "committed")
        assert f"(process {daemon.pid})" in found["big"]["reason"]
        assert newest(big / "big-0") == before
        daemon.configure(log_cleaner_io_max_bytes_per_second=1e12)
        daemon.wait_committed("big-0", timeout_s=PATIENCE_S)
        assert daemon.outcomes("big-0") == ["committed"]
    assert newest(big / "big-0") == before
    assert newest(free / "one-0") == TRUTH
