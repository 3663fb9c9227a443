"""The table of what the control API understands: every verb of `Operations` with its method, path and parameters.

Dispatch and the OpenAPI document are both made from `ROUTES`. Parameters come from path and query for GET and from a JSON
object for the others, which change something; their names are those of the verb's arguments. The answer is a JSON document
with `apiVersion` and one more key, that of the route.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError

from cleanerd.daemon.api.operations import MAX_WAIT_MS, Operations
from cleanerd.daemon.values.models import HistoryEventKind, LogState, ThrottleChange, View
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir

DEFAULT_WAIT_MS = 30_000


def _topic_partition(name: object) -> TopicPartition:
    parsed = parse_partition_dir(name) if isinstance(name, str) else None
    if parsed is None or parsed[1] is not DirKind.CURRENT:
        raise PydanticCustomError("name", "not the name of a partition, which is like orders-3")
    return parsed[0]


def _whole(number: object) -> object:
    """In JSON 5.0 is a whole number."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


_TP_SCHEMA = {
    "type": "string",
    "pattern": r"^(?!\.{1,2}-)[a-zA-Z0-9._-]{1,249}-(0|[1-9][0-9]{0,8})$",
    "examples": ["orders-3"],
}
_PATTERN_EXAMPLES = ["orders-3", "orders", "orders-*"]
Tp = Annotated[
    TopicPartition, BeforeValidator(_topic_partition), PlainSerializer(str), WithJsonSchema(_TP_SCHEMA)
]
Pattern = Annotated[str, Field(min_length=1, max_length=300, examples=_PATTERN_EXAMPLES)]
Owner = Annotated[str, Field(min_length=1, max_length=200)]
ShortText = Annotated[str, Field(max_length=1000)]
_WHOLE = BeforeValidator(_whole)
WaitMs = Annotated[int, Field(ge=0, le=MAX_WAIT_MS), _WHOLE]
Ttl = Annotated[int, Field(gt=0, le=2**53), _WHOLE]
Offset = Annotated[int, Field(ge=0, lt=2**63), _WHOLE]
TimeMs = Annotated[int, Field(ge=0, le=2**53)]
Limit = Annotated[int, Field(ge=1, le=10_000)]
_KIND = f"({'|'.join(get_args(HistoryEventKind))})"
Kinds = Annotated[
    tuple[HistoryEventKind, ...],
    BeforeValidator(lambda text: text.split(",") if isinstance(text, str) else text),
    WithJsonSchema({"type": "string", "pattern": f"^{_KIND}(,{_KIND})*$", "examples": ["cleaning,commit"]}),
]


class Parameters(View):
    """What a verb takes: here nothing."""

    def arguments(self) -> Mapping[str, object]:
        """What the verb is called with."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class Selection(Parameters):
    """Which logs: all where there is no pattern."""

    pattern: Pattern | None = None
    state: LogState | None = None


class OnePartition(Parameters):
    """A partition by its name."""

    topic_partition: Tp


class Await(OnePartition):
    """An offset to wait for."""

    offset: Offset
    timeout_ms: WaitMs = DEFAULT_WAIT_MS


class OneJob(Parameters):
    """A job by its id."""

    job_id: str


class WaitJob(OneJob):
    """A job, and how long to wait for its end."""

    timeout_ms: WaitMs = DEFAULT_WAIT_MS


class Matching(Parameters):
    """Which logs, all without a pattern."""

    pattern: Pattern | None = None


class History(Parameters):
    """Which events; `kinds` are separated by commas, all where there are none."""

    pattern: Pattern | None = None
    limit: Limit = 100
    since_ms: TimeMs | None = None
    kinds: Kinds | None = None


class Clean(Parameters):
    """What to clean."""

    pattern: Pattern
    force: bool = False


class Pause(Parameters):
    """What to hold, for whom and why; without `ttl_ms` until it is resumed."""

    pattern: Pattern
    owner: Owner
    reason: ShortText = ""
    ttl_ms: Ttl | None = None
    timeout_ms: WaitMs = DEFAULT_WAIT_MS


class Resume(Parameters):
    """Id of a hold, or the pattern of some."""

    selector: Pattern


class Abort(Parameters):
    """What to stop."""

    pattern: Pattern
    timeout_ms: WaitMs = DEFAULT_WAIT_MS


class Commit(Parameters):
    """Which staged results, and how long to wait for locks."""

    pattern: Pattern | None = None
    wait_ms: WaitMs = 0


class Retry(Parameters):
    """Which logs."""

    pattern: Pattern


class Topics(Parameters):
    """The name of a topic, or a glob for some."""

    pattern: Pattern


class SetThrottle(ThrottleChange, Parameters):
    """Limits in bytes per second; what is not named stays, null is unlimited."""

    def arguments(self) -> Mapping[str, object]:
        """What the verb is called with."""
        return {"change": self}


class DeleteRecords(OnePartition):
    """The partition and its new log start offset."""

    offset: Offset


class Retention(Parameters):
    """Which logs; `dry_run`: only tell."""

    pattern: Pattern
    dry_run: bool = False


@dataclass(frozen=True)
class Route:
    """Where a verb is (`method`, `path`), what it takes, and the key that its answer has in the document."""

    method: str
    path: str
    verb: str
    parameters: type[Parameters]
    key: str

    @property
    def changes(self) -> bool:
        """Whether the verb does more than look."""
        return self.method != "GET"

    @property
    def summary(self) -> str:
        """What the verb does, in a line or two."""
        doc = getattr(Operations, self.verb).__doc__ or ""
        return " ".join(doc.split("\n\n", 1)[0].split())

    @cached_property
    def answer(self) -> TypeAdapter[Any]:
        """Type of what the verb returns."""
        return TypeAdapter(get_type_hints(getattr(Operations, self.verb))["return"])

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))

    def match(self, path: str) -> dict[str, str] | None:
        """Parameters in the path, None when it is another path."""
        found = self._regex.fullmatch(path)
        return None if found is None else found.groupdict()


ROUTES = (
    Route("GET", "/v1/status", "status", Parameters, "status"),
    Route("GET", "/v1/logs", "logs", Selection, "logs"),
    Route("GET", "/v1/logs/{topic_partition}", "log", OnePartition, "logs"),
    Route("GET", "/v1/logs/{topic_partition}/explanation", "explain", OnePartition, "explanations"),
    Route("GET", "/v1/logs/{topic_partition}/cleaned", "await_cleaned", Await, "logs"),
    Route("GET", "/v1/jobs", "jobs", Parameters, "jobs"),
    Route("GET", "/v1/jobs/{job_id}", "job", OneJob, "job"),
    Route("GET", "/v1/jobs/{job_id}/done", "wait_job", WaitJob, "job"),
    Route("GET", "/v1/holds", "holds", Parameters, "holds"),
    Route("GET", "/v1/history", "history", History, "events"),
    Route("GET", "/v1/forecast", "forecast", Matching, "forecast"),
    Route("GET", "/v1/throttle", "throttle", Parameters, "throttle"),
    Route("PUT", "/v1/throttle", "set_throttle", SetThrottle, "throttle"),
    Route("POST", "/v1/clean", "clean", Clean, "jobs"),
    Route("POST", "/v1/pause", "pause", Pause, "hold"),
    Route("POST", "/v1/resume", "resume", Resume, "holds"),
    Route("POST", "/v1/abort", "abort", Abort, "logs"),
    Route("POST", "/v1/commit", "commit", Commit, "commits"),
    Route("POST", "/v1/mute", "mute", Topics, "muted"),
    Route("POST", "/v1/unmute", "unmute", Topics, "muted"),
    Route("POST", "/v1/retry", "retry", Retry, "logs"),
    Route("POST", "/v1/reload", "reload", Parameters, "reload"),
    Route("POST", "/v1/retention", "retention", Retention, "retention"),
    Route("POST", "/v1/delete-records", "delete_records", DeleteRecords, "deleted"),
)
