"""What the servers of the daemon share: an answer, a page, and what one client can take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one client can take of the daemon."""

    max_connections: int = 32
    max_body_bytes: int = 65_536
    request_s: float = 10.0
    answer_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back to the client."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client says beside the path: the Accept header, and what follows the `?`."""

    accept: str = ""
    query: str = ""


Page = Callable[[Request], Answer]
"""Makes the answer to GET on a path beside the verbs (metrics, health, status)."""
