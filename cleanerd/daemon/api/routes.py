"""A verb's request as a route: its paths, its parameters, its answer.

Parameters come from path and query for GET and from a JSON object for the others, which change something; they are those of
the verb's function. One whose only parameter is a model takes the fields of that. The answer is a JSON document with
`apiVersion` and one more key, that of the endpoint.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, create_model

from cleanerd.daemon.api.control import Control
from cleanerd.daemon.api.verb import Endpoint, Verb
from cleanerd.daemon.values.models import View


class Route:
    """An endpoint with its types; `verb` is the name of its function, `parameters` the model of what that takes."""

    def __init__(self, endpoint: Endpoint) -> None:
        types = get_type_hints(endpoint.run, include_extras=True)
        control, *arguments = inspect.signature(endpoint.run).parameters.values()
        assert types[control.name] is Control, f"{endpoint.run}: the first parameter is the Control"
        self.verb = endpoint.run.__name__
        self.key, self.path, self.method, self.changes = (
            endpoint.key, endpoint.path, endpoint.method, endpoint.changes,
        )  # fmt: skip
        self.answer: TypeAdapter[Any] = TypeAdapter(types["return"])
        self._run = endpoint.run
        self._regex = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))
        self._whole = next((one.name for one in arguments if _is_model(types[one.name])), None)
        if self._whole is not None:
            assert len(arguments) == 1, f"{endpoint.run}: a model is the only parameter"
            self.parameters: type[BaseModel] = types[self._whole]
        else:
            fields = {one.name: (types[one.name], _default(one)) for one in arguments}
            name = self.verb.title().replace("_", "")
            self.parameters = create_model(name, __base__=View, __doc__="", **fields)  # type: ignore[call-overload]

    @property
    def summary(self) -> str:
        """What the verb does, in a line or two."""
        return " ".join((self._run.__doc__ or "").split("\n\n", 1)[0].split())

    def match(self, path: str) -> dict[str, str] | None:
        """Parameters in the path, None when it is another path."""
        found = self._regex.fullmatch(path)
        return None if found is None else found.groupdict()

    def call(self, control: Control, given: BaseModel) -> bytes:
        """Call the verb; its answer as JSON. Raises `OperationError`."""
        arguments: Mapping[str, object] = {name: getattr(given, name) for name in type(given).model_fields}
        return self.answer.dump_json(
            self._run(control, **({self._whole: given} if self._whole else arguments))
        )


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _default(parameter: inspect.Parameter) -> object:
    return ... if parameter.default is parameter.empty else parameter.default


def routes_of(verbs: Sequence[Verb]) -> tuple[Route, ...]:
    """The routes of some verbs."""
    return tuple(Route(endpoint) for verb in verbs for endpoint in verb.endpoints)
