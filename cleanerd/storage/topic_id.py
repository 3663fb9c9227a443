"""Is a directory the topic's that the cluster means? Ids of topics against `partition.metadata` (spec disk A6, F4).

A topic that was deleted and created again has its old name and another id. What lies in a directory with the
old id belongs to no topic any more: the broker removes it, cleanerd leaves it alone.
"""

from uuid import UUID

from cleanerd.config.model import KraftMetadata
from cleanerd.format.errors import FormatError
from cleanerd.format.names import PARTITION_METADATA
from cleanerd.format.partition_metadata import parse_partition_metadata
from cleanerd.format.uuid_text import render_uuid

from .partition_dir import PartitionDir


def why_not_of_cluster(partition: PartitionDir, topic: str, metadata: KraftMetadata | None) -> str | None:
    """Why a partition directory of `topic` must be left alone; None: it is the cluster's, or there is none.

    A topic that the metadata log does not know has no configuration either: the defaults would be retention
    by time, whatever the topic was.
    """
    if metadata is None:
        return None
    expected = metadata.topic_ids.get(topic)
    if expected is None:
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
    except OSError as error:
        return f"{path}: expected topic id {render_uuid(expected)}, found: {error.strerror}"
    if found == expected:
        return None
    return f"{path}: expected topic id {render_uuid(expected)}, found {render_uuid(found)}"
