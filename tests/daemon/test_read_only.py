"""A file system that the kernel makes read-only under a daemon: only its log directory is in trouble."""

import os
from pathlib import Path

import pytest

from tests.cleaning.logs import TRUTH, assert_settled, contents, newest, write_logs
from tests.daemon.processes import DaemonProcess, wait_until
from tests.daemon.test_process import committed
from tests.storage.ext4 import Ext4

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
PATIENCE_S = 120.0


def test_an_error_of_the_file_system_harms_only_its_directory(tmp_path: Path) -> None:
    """`errors=remount-ro`, as most hosts mount their data: what is there can be read, nothing can be written."""
    ext4 = Ext4.made(tmp_path)
    with ext4.mounted() as place:
        assert ext4.remount("errors=remount-ro")
        sick, sound = write_logs(place / "logs", "one"), write_logs(tmp_path / "b", "two")
        (tmp_path / "d").mkdir()
        policies = {"one": "delete", "two": "compact"}
        daemon = DaemonProcess(tmp_path / "d", [sick, sound], {}, topics=policies)
        daemon.start()
        try:
            wait_until(lambda: committed(daemon, "two-0"), PATIENCE_S, daemon.output)
            before = contents(sick / "one-0")
            os.sync()
            ext4.fail()
            assert daemon.topics is not None
            daemon.topics["one"] = "compact"
            daemon.configure()
            wait_until(lambda: "ead-only" in str(daemon.log("one-0")), PATIENCE_S, daemon.output)
            assert contents(sick / "one-0") == before
            assert daemon.log("two-0")["state"] == "clean"
            assert daemon.ask("status")["status"]["ready"]
            assert daemon.stop() == 0
            ext4.unmount()
            ext4.mount()
            daemon.start()
            wait_until(lambda: committed(daemon, "one-0"), PATIENCE_S, daemon.output)
            assert "Traceback" not in daemon.output()
        finally:
            assert daemon.stop() == 0
        assert_settled(sick / "one-0")
        assert newest(sick / "one-0") == TRUTH
