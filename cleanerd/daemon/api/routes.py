"""A request of the control API with the function that answers it.

Parameters come from path and query for GET, and from a JSON object for the others, which may change something. Their types
are those of the function. If its only parameter is a model, the request takes the fields of that model. The answer is a
JSON document with `apiVersion` and the key of the endpoint.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model
from pydantic_core import PydanticSerializationError

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.endpoints import Endpoint
from cleanerd.daemon.values.models import View
from cleanerd.units import in_utf8


class Route:
    """An endpoint, the function `run` behind it, and the types that `run` declares.

    `verb` is the name of `run`, for metrics and the OpenAPI document; `parameters` is the model of its parameters.
    """

    def __init__(self, endpoint: Endpoint, run: Callable[..., Any]) -> None:
        types = get_type_hints(run, include_extras=True)
        control, *arguments = inspect.signature(run).parameters.values()
        assert types[control.name] is Control, f"{run}: the first parameter is the Control"
        self.verb = run.__name__
        self.method, self.path, self.key = endpoint
        self.changes = endpoint.changes
        self.answer: TypeAdapter[Any] = TypeAdapter(types["return"])
        self._run = run
        self._regex = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))
        self._whole = next((one.name for one in arguments if _is_model(types[one.name])), None)
        if self._whole is not None:
            assert len(arguments) == 1, f"{run}: a model is the only parameter"
            self.parameters: type[BaseModel] = types[self._whole]
        else:
            fields = {one.name: (types[one.name], _default(one)) for one in arguments}
            name = self.verb.title().replace("_", "")
            self.parameters = create_model(name, __base__=View, __doc__="", **fields)  # type: ignore[call-overload]

    @property
    def summary(self) -> str:
        """The first paragraph of the function's docstring, for the OpenAPI document."""
        return " ".join((self._run.__doc__ or "").split("\n\n", 1)[0].split())

    def match(self, path: str) -> dict[str, str] | None:
        """Parameters in the path, None when it is another path."""
        found = self._regex.fullmatch(path)
        return None if found is None else found.groupdict()

    def call(self, control: Control, given: BaseModel) -> bytes:
        """Call the verb; its answer as JSON. Raises `OperationError`."""
        arguments: Mapping[str, object] = {name: getattr(given, name) for name in type(given).model_fields}
        answer = self._run(control, **({self._whole: given} if self._whole else arguments))
        try:
            return self.answer.dump_json(answer)
        except PydanticSerializationError:  # the name of a file may be no UTF-8
            return json.dumps(_in_utf8(self.answer.dump_python(answer))).encode()


def _in_utf8(value: Any) -> Any:
    """A value of JSON in which bytes that are no UTF-8 are escapes."""
    if isinstance(value, str):
        return in_utf8(value)
    if isinstance(value, Mapping):
        return {_in_utf8(key): _in_utf8(one) for key, one in value.items()}
    return list(map(_in_utf8, value)) if isinstance(value, list | tuple) else value


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _default(parameter: inspect.Parameter) -> object:
    return ... if parameter.default is parameter.empty else parameter.default
