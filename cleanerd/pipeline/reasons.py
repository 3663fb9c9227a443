"""Why a cluster ended its application, from what the JVM wrote."""

import os
import re
from typing import IO

_SAID_BYTES = 64 << 10
_REASONS_MAX = 3
_REASON = re.compile(
    r"(?:Executor updated: \S+ is now (?:EXITED|FAILED|LOST) \((?=.+\))|Application has been killed. Reason: )(.*?)\)?$",
    re.MULTILINE,
)
"""Lines of a standalone cluster's scheduler, see log4j2.properties."""


def reasons_said(said: IO[bytes]) -> list[str]:
    """The reason of the executors first; none for a JVM that just ended."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(size - _SAID_BYTES, 0))
    text = said.read().decode(errors="replace")
    found = [match[1].strip() for match in _REASON.finditer(text)]
    return list(dict.fromkeys(found))[:_REASONS_MAX]
