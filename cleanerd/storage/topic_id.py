"""Does a directory belong to the topic that the cluster, or a live broker, means? Ids against `partition.metadata` (spec
disk A6, F4).

A topic that was deleted and created again has its old name and another id. What lies in a directory with the
old id belongs to no topic any more: the broker removes it, cleanerd leaves it alone.
"""

from dataclasses import dataclass
from uuid import UUID

from cleanerd.config.model import ClusterMetadata
from cleanerd.errors import SourceChanged
from cleanerd.format.errors import FormatError
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.uuid_text import render_uuid

from .partition_dir import PartitionDir


@dataclass(frozen=True, slots=True)
class LiveIdentity:
    """The log that a live broker reported: inode of its directory and topic id, None if it has none.

    A broker renames the directory of a topic that is deleted, so that one that is created again has another inode; once the
    old directory is gone its inode may come back, with another topic id.
    """

    directory_inode: int
    topic_id: str | None

    def check(self, partition: PartitionDir) -> None:
        """Raise SourceChanged if another log lies there now, also OSError."""
        inode = partition.files.stat(partition.path).inode
        found = read_topic_id(partition)
        if self.directory_inode != inode or self.topic_id not in {None, found}:
            raise SourceChanged(
                f"{partition.path}: its broker reported topic id {self.topic_id} in directory inode "
                f"{self.directory_inode}, found topic id {found} in {inode}: the topic was created again"
            )


def read_topic_id(partition: PartitionDir) -> str | None:
    """The topic id in Kafka's notation; None without a file, as in old formats. Raises SourceChanged, OSError."""
    try:
        content = partition.files.read(partition.path_of(PARTITION_METADATA))
        return render_uuid(parse_partition_metadata(content))
    except FileNotFoundError:
        return None
    except FormatError as problem:
        raise SourceChanged(
            f"{partition.path}/{PARTITION_METADATA}: expected {problem.expected}, found {problem.found}"
        ) from problem


def topic_stamp(partition: PartitionDir) -> str:
    """Which directory this is, and what names the topic by its id, whatever it holds: with another one it is another log.

    A directory that was exchanged for another, as by a restore, has other files, however much they look like these. Raises
    OSError.
    """
    inode = partition.files.stat(partition.path).inode
    try:
        return (
            f"{inode} {partition.files.read(partition.path_of(PARTITION_METADATA)).decode(errors='replace')}"
        )
    except FileNotFoundError:
        return f"{inode}"


def why_not_of_cluster(partition: PartitionDir, topic: str, metadata: ClusterMetadata | None) -> str | None:
    """Why a partition directory of `topic` must be left alone; None: it is the cluster's, or there is none. Raises OSError,
    and CorruptFile as `list_segments`.

    A topic that the metadata log does not know has no configuration either: the defaults would be retention
    by time, whatever the topic was.
    """
    if metadata is None:
        return None
    expected = metadata.topic_ids.get(topic)
    if not metadata.is_whole and not partition.files.exists(partition.path_of(PARTITION_METADATA)):
        return None  # no broker with ZooKeeper takes it for a stray one
    if expected is None and metadata.is_whole:
        partition.names()  # else a broker in such a locale is the cause
        return (
            f"{partition.path}: expected a topic of the cluster, found none named {topic} in its metadata log"
        )
    return topic_id_mismatch(partition, expected)


def topic_id_mismatch(partition: PartitionDir, expected: UUID | None) -> str | None:
    """Why this is not a directory of the topic with the id `expected`; None: it is, or the id is not known.

    A directory without the file is a stray one to a broker, too (A6). Never raises.
    """
    if expected is None:
        return None
    path = partition.path_of(PARTITION_METADATA)
    try:
        found = parse_partition_metadata(partition.files.read(path))
    except FormatError as problem:
        return f"{path}: expected {problem.expected}, found {problem.found}"
    except FileNotFoundError:
        known = render_uuid(expected)
        return (
            f"{path}: expected topic id {known}, found no such file; if the log is that topic's, restore the file, with the "
            f"lines `version: 0` and `topic_id: {known}`"
        )
    except OSError as error:
        return f"{path}: expected topic id {render_uuid(expected)}, found: {error.strerror}"
    if found == expected:
        return None
    return f"{path}: expected topic id {render_uuid(expected)}, found {render_uuid(found)}"
