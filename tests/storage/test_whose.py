"""Whose a log directory is, by what lies in it (the table of architecture 2)."""

import shutil
from pathlib import Path

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.format import names
from cleanerd.storage.whose import Onlooker, Whose, whose
from tests.harness.logs.troubled import META_PROPERTIES, contents, put

SIGNS = (
    names.REPLICATION_CHECKPOINT,
    names.RECOVERY_POINT_CHECKPOINT,
    names.CLEAN_SHUTDOWN,
    names.BOOTSTRAP_CHECKPOINT,
    "__cluster_metadata-0",
    f"t-0/{names.PARTITION_METADATA}",
    f"t-0.{'0' * 32}-delete/{names.PARTITION_METADATA}",
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """With a log of a cooperating writer, and what cleanerd itself leaves beside one."""
    put(tmp_path, "t", [(b"k", b"v")])
    for name in (names.CLEANER_OFFSET_CHECKPOINT, names.LOG_START_CHECKPOINT):
        (tmp_path / name).write_text("0\n1\nt 0 1\n")
    (tmp_path / names.CLEANERD_LOCK).touch()
    return tmp_path


def look(log_dir: Path, node: str | None = None) -> Whose:
    return whose(RealFiles(), str(log_dir), node, thorough=True)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_what_we_leave_ourselves_makes_no_directory_a_brokers(log_dir: Path) -> None:
    assert look(log_dir) == Whose(is_kafka=False)
    write(log_dir / names.META_PROPERTIES, META_PROPERTIES)
    assert look(log_dir) == Whose(is_kafka=True)


def test_a_kind_of_file_that_many_partitions_have_is_named_once(log_dir: Path) -> None:
    for name in ("t-0", "t-1", "u-0"):
        write(log_dir / name / names.PARTITION_METADATA)
    assert str(look(log_dir).damage).endswith(", remove partition.metadata of 3 partitions")


@pytest.mark.parametrize("sign", SIGNS)
def test_a_sign_of_a_broker_without_meta_properties_is_damage(log_dir: Path, sign: str) -> None:
    """The remedy names what would mend it."""
    write(log_dir / sign)
    found = look(log_dir)
    assert found.is_kafka
    assert f"{log_dir}/meta.properties: expected the file, found none beside {sign}: " in str(found.damage)
    assert "restore it" in str(found.damage)
    assert str(found.damage).endswith(f"if this is a copy on which no broker will ever start, remove {sign}")
    write(log_dir / names.META_PROPERTIES, META_PROPERTIES)
    assert look(log_dir) == Whose(is_kafka=True)


def test_a_configuration_that_names_the_node_is_a_sign(log_dir: Path) -> None:
    found = look(log_dir, "node.id (config file: /f:1)")
    assert found.is_kafka
    assert str(found.damage).endswith("leave out node.id (config file: /f:1)")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "expected broker.id or node.id, found neither"),
        ("version=1\n", "expected cluster.id and node.id"),
        ("version=0\nbroker.id=one\n", "expected a number for broker.id"),
        ("version=7\nnode.id=1\n", "expected version 0 or 1"),
        ("\0" * 80, "expected broker.id or node.id, found neither"),
    ],
)
def test_meta_properties_that_name_no_node_are_damage(log_dir: Path, content: str, told: str) -> None:
    """A power failure leaves an empty file, or one of zeros; a newer release may write another version."""
    write(log_dir / names.META_PROPERTIES, content)
    found = look(log_dir)
    assert found.is_kafka
    assert told in str(found.damage)


def test_what_was_a_brokers_is_never_nobodys_again(log_dir: Path) -> None:
    """Whatever else goes with the file; it is the broker's again when the file is back."""
    onlooker, path = Onlooker(RealFiles()), log_dir / names.META_PROPERTIES
    assert not onlooker.look(str(log_dir)).is_kafka
    write(path, META_PROPERTIES)
    assert onlooker.look(str(log_dir)) == Whose(is_kafka=True)
    path.unlink()
    for is_thorough in (False, True, False):
        found = onlooker.look(str(log_dir), thorough=is_thorough)
        assert found.is_kafka
        assert "expected the file, which was there before, found none" in str(found.damage)
    assert not Onlooker(RealFiles()).look(str(log_dir)).is_kafka, "of another process"
    write(path, META_PROPERTIES)
    assert onlooker.look(str(log_dir)) == Whose(is_kafka=True)


def test_what_a_thorough_look_found_holds_until_the_next_one(log_dir: Path) -> None:
    onlooker, sign = Onlooker(RealFiles()), write(log_dir / "t-0" / names.PARTITION_METADATA)
    assert not onlooker.look(str(log_dir)).is_kafka
    assert onlooker.look(str(log_dir), thorough=True).damage is not None
    assert onlooker.look(str(log_dir)).damage is not None
    sign.unlink()
    assert onlooker.look(str(log_dir), thorough=True) == Whose(is_kafka=False)
    assert onlooker.look(str(log_dir)) == Whose(is_kafka=False)


def test_a_look_changes_nothing(log_dir: Path) -> None:
    before = contents(log_dir / "t-0")
    look(log_dir)
    assert contents(log_dir / "t-0") == before
    shutil.rmtree(log_dir)
    with pytest.raises(FileNotFoundError):
        look(log_dir)
