r"""`partition.metadata`: the topic id of a partition directory (spec disk A6).

=====  ======================================================
line   content
=====  ======================================================
1      `version: 0`
2      `topic_id: <22 characters>`, without a newline after it
=====  ======================================================
"""

import re
from uuid import UUID

from cleanerd.format.errors import FormatError
from cleanerd.format.uuid_text import parse_uuid, render_uuid

_CONTENT = re.compile(r"version:\s+([0-9]{1,9})\r?\ntopic_id:\s+(\S+)(?:\r?\n)?")


def parse_partition_metadata(data: bytes) -> UUID:
    """Read the topic id.

    Raises: `FormatError` for anything but the two lines, or the zero UUID.
    """
    match = _CONTENT.fullmatch(data.decode("latin-1"))
    if match is None:
        raise FormatError(0, "the lines 'version: 0' and 'topic_id: <id>'", data[:100])
    topic_id = parse_uuid(match[2])
    if topic_id.int == 0:
        raise FormatError(match.start(2), "a topic id", "the zero UUID")
    return topic_id


def render_partition_metadata(topic_id: UUID) -> bytes:
    """The 43 bytes of the file."""
    return f"version: 0\ntopic_id: {render_uuid(topic_id)}".encode()
