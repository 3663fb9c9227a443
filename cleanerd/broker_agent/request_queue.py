"""How long requests of clients wait in a live broker before it handles them: what they feel of a busy machine."""

from dataclasses import dataclass
from typing import Self

from cleanerd.errors import NoWayIn

from .session import Session

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class RequestQueue:
    """Requests to produce and to fetch since the start of a broker, and for how long all of them waited in its queue."""

    requests: int = 0
    waited_us: int = 0

    @classmethod
    def of(cls, session: Session) -> Self:
        """As the broker's metrics have it (`RequestQueueTimeMs`). Raises NoWayIn."""
        answer = session.ask({"request": "request_queue"}, _ANSWER_S)
        if answer["outcome"] != "request_queue":
            raise NoWayIn(f"the broker's request queue is not known: {answer.get('reason')}")
        return cls(answer["requests"], answer["waited_us"])

    def mean_ms_since(self, before: Self) -> float:
        """How long one request waited on average; 0.0 where there was none, also of a broker that has started since."""
        requests = self.requests - before.requests
        return max(self.waited_us - before.waited_us, 0) / 1000 / requests if requests > 0 else 0.0
