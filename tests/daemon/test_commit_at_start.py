"""A broker that starts together with cleanerd: `commit` waits for a daemon that has only begun to look at its logs."""

from pathlib import Path

import pytest

from cleanerd.format import names
from tests.cleaning.logs import TRUTH, assert_settled, lock_of_another, newest, write_logs
from tests.daemon.processes import wait_until
from tests.daemon.test_faults import clean, results
from tests.daemon.tracing import PATIENCE_S, Traced, injecting, lasting

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def test_a_commit_that_comes_before_the_daemon_is_ready_finds_what_is_staged(tmp_path: Path) -> None:
    """Its socket answers while it recovers; its disk is slow here."""
    logs = write_logs(tmp_path / "logs", "one")
    with lock_of_another(logs / names.LOCK):
        assert results(clean(logs))["one"]["outcome"] == "staged"
    (tmp_path / "d").mkdir()
    daemon = Traced(tmp_path / "d", [logs], {})
    daemon.tracing = injecting("getdents64", lasting(2), [logs / "one-0"])
    with daemon:
        daemon.spawn()
        wait_until(lambda: daemon.ctl("status", check=False).returncode == 0, PATIENCE_S, daemon.output)
        assert not daemon.ask("status")["status"]["ready"]
        at_once = daemon.ctl("commit", check=False)
        assert (at_once.returncode, "not ready yet" in at_once.stderr) == (75, True)
        assert daemon.ctl("commit", "--wait", "--timeout", "60s").returncode == 0
        assert_settled(logs / "one-0")
        assert newest(logs / "one-0") == TRUTH
        assert daemon.stop() == 0
