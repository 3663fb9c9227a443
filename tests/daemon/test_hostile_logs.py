"""One bad log stops no other: hostile logs beside healthy ones, cleaned by a daemon."""

import os
from pathlib import Path

import pytest

from tests.cleaning.damage import end_beyond_int64
from tests.cleaning.logs import TRUTH, assert_settled, newest, write_logs
from tests.cleaning.test_odd_files import PLACES, fifo, sparse
from tests.daemon.processes import DaemonProcess, customise, running, wait_until
from tests.daemon.test_process import committed

HEALTHY = ("a", "z")


def _assert_healthy_cleaned(daemon: DaemonProcess, log_dir: Path) -> None:
    wait_until(lambda: all(committed(daemon, f"{topic}-0") for topic in HEALTHY), 90, daemon.output)
    for topic in HEALTHY:
        assert_settled(log_dir / f"{topic}-0")
        assert newest(log_dir / f"{topic}-0") == TRUTH
        assert daemon.outcomes(f"{topic}-0") == ["committed"]
        assert daemon.log(f"{topic}-0")["state"] == "clean"


@pytest.mark.soak
def test_hostile_logs_become_uncleanable_and_no_other(tmp_path: Path) -> None:
    """Every hostile log at once, and two healthy ones: no worker dies of any of them."""
    places = [(fifo, place) for place in PLACES] + [(sparse, "txnindex"), (sparse, "epochs")]
    odd_files = {f"{odd.__name__}.{place}": (odd, PLACES[place]) for odd, place in places}
    topics = [*odd_files, "endless"]
    log_dir = write_logs(tmp_path / "logs", *HEALTHY, *topics)
    for topic, (odd, find) in odd_files.items():
        odd(find(log_dir / f"{topic}-0"))
    end_beyond_int64(log_dir / "endless-0")
    os.mkdir(os.path.join(os.fsencode(log_dir), b"caf\xe9-0"))
    policies = dict.fromkeys([*HEALTHY, *topics], "compact")
    with running(tmp_path / "d", log_dir, topics=policies, cleanerd_retry_max=1) as daemon:
        _assert_healthy_cleaned(daemon, log_dir)
        for topic in topics:
            wait_until(lambda topic=topic: _failed(daemon, topic), 60, daemon.output)  # type: ignore[misc]
        assert not [event for event in daemon.events() if event["event"] == "worker_died"]


def _failed(daemon: DaemonProcess, topic: str) -> bool:
    """One that is no directory is no log that the daemon knows."""
    listed = {f"{log['topic']}-{log['partition']}": log["state"] for log in daemon.ask("logs")["logs"]}
    return listed.get(f"{topic}-0") not in ("dirty", "cleaning", "clean")


KILLER = """
import os, signal
from cleanerd.cleaning import choose
examine = choose.examine

def deadly(log_dir, tp, *args, **kwargs):
    if tp.topic == "hostile":
        os.kill(os.getpid(), signal.SIGKILL)
    return examine(log_dir, tp, *args, **kwargs)

choose.examine = deadly
"""


@pytest.mark.soak
def test_logs_of_a_job_whose_engine_died_are_tried_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that kills whatever process looks at it, as one does that takes all memory, costs the others nothing."""
    customise(monkeypatch, tmp_path / "site", KILLER)
    log_dir = write_logs(tmp_path / "logs", "a", "hostile", "z")
    with running(tmp_path / "d", log_dir) as daemon:
        _assert_healthy_cleaned(daemon, log_dir)
        (event, *_) = [event for event in daemon.history("hostile-0") if event["kind"] == "cleaning"]
        assert event["outcome"] == "failed"
        assert "the engine ended in the middle of the work" in event["reason"]
