"""Kafka's text of a UUID: its 16 bytes in base64url without padding, 22 characters (spec disk A2)."""

import base64
import re
from uuid import UUID

from cleanerd.format.errors import FormatError

_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")


def parse_uuid(text: str) -> UUID:
    """Read the 22 characters.

    Raises: `FormatError` for any other text.
    """
    if _TEXT.fullmatch(text) is None:
        raise FormatError(0, "a UUID of 22 base64url characters", repr(text))
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def render_uuid(value: UUID) -> str:
    """The 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
