"""Which directories are log directories."""

from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.storage.no_log_dir import found_instead, why_no_log_dir
from tests.harness.disks.hooked import HookedFiles

ENCRYPTED = "files that are encrypted: mount them, and give the path where they can be read"


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "t-0/00000000000000000000.log",
        "t-0/00000000000000000000.log.swap",  # of an interrupted commit
        "t-0/00000000000000000000.log.deleted",
        "t-0.0123456789abcdef0123456789abcdef-future/00000000000000000000.log",
        "__cluster_metadata-0/00000000000000000000.log",
    ],
)
def test_log_directories(tmp_path: Path, name: str) -> None:
    """A broker's also when it is new; any other by its first segment, whatever its transition."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert found_instead(RealFiles(), str(tmp_path)) is None


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "nothing"),
        (["server.log", "gc.log"], "gc.log, server.log"),
        (["e", "d", "c", "b", "a"], "a, b, c and 2 more"),
        (
            [
                "kafka/t/0_12/0-1-v1.log",
                "kafka/t/0_12/0-1-v1.base_index",
                "redpanda/controller/0_0/0-1-v1.log",
                "redpanda/kvstore/0_0/0-0-v1.log",
                "pid.lock",
            ],
            "a data directory of Redpanda, whose segments have another format (redpanda)",
        ),
        (
            ["orders/0_12/0-1-v1.log", "orders/0_12/0-1-v1.compaction_index"],
            "a data directory of Redpanda, whose segments have another format (orders/0_12)",
        ),
        (["gocryptfs.conf", "gocryptfs.diriv", "8cm2lRmZ1Z9Yk0vQ2q6v3A/x"], f"{ENCRYPTED} (gocryptfs.conf)"),
        (["cryfs.config", "000/0A1B"], f"{ENCRYPTED} (cryfs.config)"),
        ([".encfs6.xml", "Dw7-fm,"], f"{ENCRYPTED} (.encfs6.xml)"),
        (["ECRYPTFS_FNEK_ENCRYPTED.FWa1/x"], f"{ENCRYPTED} (ECRYPTFS_FNEK_ENCRYPTED.FWa1)"),
        (["t-0/0-1-v1.log"], "t-0"),
        (["t-0/leader-epoch-checkpoint"], "t-0"),
        (["00000000000000000000.log"], "00000000000000000000.log"),  # a partition, not a log directory
        (["t-0"], "t-0"),  # a file
    ],
)
def test_no_log_directories(tmp_path: Path, names: list[str], found: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert found_instead(RealFiles(), str(tmp_path)) == found
    assert why_no_log_dir(RealFiles(), str(tmp_path)) == (
        f"{tmp_path}: expected a log directory (meta.properties, or a partition with a segment), found {found}"
    )


def test_a_partition_that_cannot_be_listed_may_have_segments(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()

    def deny(_call: str, path: str) -> None:
        if path.endswith("t-0"):
            raise PermissionError(13, "Permission denied", path)

    assert found_instead(HookedFiles(before=deny), str(tmp_path)) is None
