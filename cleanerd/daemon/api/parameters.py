"""Types of the parameters of verbs, with their limits and their text in the OpenAPI document."""

from typing import Annotated, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from cleanerd.daemon.api.refusals import MAX_WAIT_MS
from cleanerd.daemon.values.models import HistoryEventKind
from cleanerd.format.names import DirKind, TopicPartition, parse_partition_dir


def _topic_partition(name: object) -> TopicPartition:
    parsed = parse_partition_dir(name) if isinstance(name, str) else None
    if parsed is None or parsed[1] is not DirKind.CURRENT:
        raise PydanticCustomError("name", "not the name of a partition, which is like orders-3")
    return parsed[0]


def _whole(number: object) -> object:
    """Turn floats without a fraction into integers: in JSON 5.0 is a whole number."""
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
OwnerName = Annotated[str, Field(min_length=1, max_length=200)]
ShortText = Annotated[str, Field(max_length=1000)]
_WHOLE = BeforeValidator(_whole)
WaitMs = Annotated[int, Field(ge=0, le=MAX_WAIT_MS), _WHOLE]
Ttl = Annotated[int, Field(gt=0, le=2**53, description="default: until it is resumed"), _WHOLE]
Offset = Annotated[int, Field(ge=0, lt=2**63), _WHOLE]
TimeMs = Annotated[int, Field(ge=0, le=2**53)]
Limit = Annotated[int, Field(ge=1, le=10_000)]
_KIND = f"({'|'.join(get_args(HistoryEventKind))})"
Kinds = Annotated[
    tuple[HistoryEventKind, ...],
    BeforeValidator(lambda text: text.split(",") if isinstance(text, str) else text),
    WithJsonSchema({"type": "string", "pattern": f"^{_KIND}(,{_KIND})*$", "examples": ["cleaning,commit"]}),
]
