"""Whose directory is it: partition.metadata against the ids of the metadata log (spec disk A6, F4)."""

from pathlib import Path
from uuid import UUID

import pytest

from cleanerd.env.files import RealFiles
from cleanerd.storage.metadata_log import read_metadata
from cleanerd.storage.partition_dir import PartitionDir
from cleanerd.storage.topic_id import topic_id_mismatch, why_not_of_cluster

GOLDEN = Path(__file__).parents[1] / "golden" / "logs"
METADATA = read_metadata(RealFiles(), str(GOLDEN / "__cluster_metadata-0"))
PLAIN = METADATA.topic_ids["plain"]
DIRECTORIES = sorted(path for path in GOLDEN.glob("*-0") if path.name != "__cluster_metadata-0")


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_directories_of_a_real_broker_are_the_clusters(directory: Path) -> None:
    """Ids that the broker wrote into both places; with those of another topic they are not."""
    topic = directory.name.removesuffix("-0")
    assert why_not_of_cluster(PartitionDir(RealFiles(), str(directory)), topic, METADATA) is None
    other = "zstd" if topic != "zstd" else "plain"
    reason = why_not_of_cluster(PartitionDir(RealFiles(), str(directory)), other, METADATA)
    assert reason is not None
    assert reason.startswith(f"{directory}/partition.metadata: expected topic id ")


def test_a_topic_created_anew_is_another(tmp_path: Path) -> None:
    """The directory of the deleted one is left alone; the reason names both ids in Kafka's text."""
    (tmp_path / "partition.metadata").write_bytes((GOLDEN / "plain-0" / "partition.metadata").read_bytes())
    assert topic_id_mismatch(PartitionDir(RealFiles(), str(tmp_path)), PLAIN) is None
    found = (tmp_path / "partition.metadata").read_text()[-22:]
    assert topic_id_mismatch(PartitionDir(RealFiles(), str(tmp_path)), UUID(int=1)) == (
        f"{tmp_path}/partition.metadata: expected topic id AAAAAAAAAAAAAAAAAAAAAQ, found {found}"
    )
    (tmp_path / "partition.metadata").unlink()
    assert str(topic_id_mismatch(PartitionDir(RealFiles(), str(tmp_path)), UUID(int=1))).endswith(
        "with the lines `version: 0` and `topic_id: AAAAAAAAAAAAAAAAAAAAAQ`"
    )


@pytest.mark.parametrize(
    "data", [None, b"", b"version: 0\n", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"]
)
def test_without_a_good_file_nobody_knows(tmp_path: Path, data: bytes | None) -> None:
    """A6: to a broker such a directory is stray or its log directory is broken."""
    if data is not None:
        (tmp_path / "partition.metadata").write_bytes(data)
    reason = topic_id_mismatch(PartitionDir(RealFiles(), str(tmp_path)), PLAIN)
    assert reason is not None
    assert reason.startswith(f"{tmp_path}/partition.metadata: expected ")


def test_where_no_id_is_known_every_directory_is_fine(tmp_path: Path) -> None:
    """No cluster: a restored volume, a cooperating writer."""
    assert topic_id_mismatch(PartitionDir(RealFiles(), str(tmp_path)), None) is None
    assert why_not_of_cluster(PartitionDir(RealFiles(), str(tmp_path)), "plain", None) is None


def test_a_topic_that_the_cluster_does_not_have_is_left_alone(tmp_path: Path) -> None:
    """Without a topic there is no configuration, and the defaults would be retention by time."""
    reason = why_not_of_cluster(PartitionDir(RealFiles(), str(tmp_path)), "gone", METADATA)
    assert reason == f"{tmp_path}: expected a topic of the cluster, found none named gone in its metadata log"
