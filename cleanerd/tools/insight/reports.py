"""Documents of `-o json` that travel between machines, read again: whatever comes from there is checked by a model."""

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cleanerd import API_VERSION
from cleanerd.errors import BadUsage
from cleanerd.units import in_utf8, printable

_SHOWN = 80


class Read(BaseModel):
    """What is used of a document. Other fields may be there: a later release may have added them."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


Number = Annotated[int, Field(ge=-(1 << 64), le=1 << 64)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Text = Annotated[str, BeforeValidator(lambda found: in_utf8(found) if isinstance(found, str) else found)]
"""Names of files may be no UTF-8."""
Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
Partition = Annotated[int, Field(ge=0, lt=1 << 31)]

_Read = TypeVar("_Read", bound=Read)


def read_report(path: str, command: str) -> dict[str, Any]:
    """A document of this command and version; fields of another one may mean something else. Raises BadUsage."""
    try:
        with open(path, "rb") as file:
            found = json.load(file, parse_constant=_no_number)
    except OSError as error:
        raise BadUsage(f"{path}: expected a readable file, found: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadUsage(f"{_what(path, command)}, found: {error}") from None
    version = found.get("apiVersion") if isinstance(found, dict) else None
    if version != API_VERSION:
        what = f"{_what(path, command)} with apiVersion {API_VERSION}"
        raise BadUsage(f"{what}, found {_shown(version)}: use the same cleanerd for both")
    return dict(found)


def checked(model: type[_Read], found: dict[str, Any], path: str, command: str) -> _Read:
    """A document of this command as its model. Raises BadUsage, which names the first key that is missing or wrong."""
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
        if first["type"] == "missing":
            raise BadUsage(f"{_what(path, command)}, found no {key.lstrip('.')}") from None
        expected = first["msg"].removeprefix("Value error, ").replace("Input should be ", "")
        where = f"{path}: {key.lstrip('.') or 'document'}"
        raise BadUsage(f"{where}: expected {expected}, found {_shown(first['input'])}") from None


def _what(path: str, command: str) -> str:
    return f"{path}: expected what `cleanerd {command} -o json` writes"


def _shown(value: object) -> str:
    text = printable(in_utf8(repr(value)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _no_number(text: str) -> float:
    raise ValueError(f"the number {text}")
