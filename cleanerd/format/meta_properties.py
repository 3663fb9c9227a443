"""`meta.properties`: marks a directory as a Kafka node's and names the node (spec disk A2).

Java properties text with the keys `version` (absent: 0), `cluster.id`, `node.id` (version 1) or `broker.id`
(version 0) and `directory.id`. Version 1 requires the cluster and node ids.
"""

import re
from dataclasses import dataclass
from uuid import UUID

import javaproperties

from cleanerd.format.errors import FormatError
from cleanerd.format.uuid_text import parse_uuid

_NUMBER = re.compile("-?[0-9]{1,10}")  # an int of Java


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a directory; None for values that the file lacks."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: UUID | None


def parse_meta_properties(data: bytes) -> MetaProperties:
    """Read the file.

    Raises: `FormatError` for text that is no properties file, an unknown version, missing or malformed ids.
    """
    try:
        values = javaproperties.loads(data)
    except ValueError as problem:
        raise FormatError(0, "Java properties", problem) from problem
    version = _number(values, "version")
    if version not in (None, 0, 1):
        raise FormatError(0, "version 0 or 1", version)
    properties = MetaProperties(
        version=version or 0,
        cluster_id=values.get("cluster.id"),
        node_id=_number(values, "node.id" if version else "broker.id"),
        directory_id=parse_uuid(values["directory.id"]) if "directory.id" in values else None,
    )
    if version and (properties.cluster_id is None or properties.node_id is None):
        raise FormatError(0, "cluster.id and node.id", sorted(values))
    return properties


def _number(values: dict[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise FormatError(0, f"a number for {key}", repr(text))
    return int(text)
