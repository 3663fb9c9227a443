"""The OpenAPI 3.1 document of the control API, made from the route table and the schemas of its models."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from cleanerd import API_VERSION, __version__
from cleanerd.daemon.api.routes import Route

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["apiVersion", "error"],
    "properties": {
        "apiVersion": {"const": API_VERSION},
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_Mode = Literal["validation", "serialization"]


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document as a value that `json.dumps` takes."""
    schemas, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "cleanerd control API", "version": __version__},
        "paths": paths,
        "components": {"schemas": components | {"Error": _ERROR}},
    }


def _schemas(routes: Sequence[Route]) -> tuple[dict[tuple[Any, Any], Any], dict[str, Any]]:
    """Schemas of parameters and answer by (verb, mode), and the named ones that they refer to."""
    inputs: list[tuple[str, _Mode, TypeAdapter[Any]]] = []
    for route in routes:
        if route.changes:
            inputs.append((route.verb, "validation", TypeAdapter(route.parameters)))
        inputs.append((route.verb, "serialization", route.answer))
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    return dict(schemas), definitions.get("$defs", {})


def _operation(route: Route, schemas: Mapping[tuple[Any, Any], Any]) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["apiVersion", route.key],
        "properties": {"apiVersion": {"const": API_VERSION}, route.key: schemas[route.verb, "serialization"]},
    }
    error = {"description": "Not done.", "content": _json({"$ref": _REF.format(model="Error")})}
    operation: dict[str, Any] = {
        "operationId": route.verb,
        "summary": route.summary,
        "responses": {"200": {"description": "Done.", "content": _json(body)}, "default": error},
    }
    if route.changes:
        is_needed = any(field.is_required() for field in route.parameters.model_fields.values())
        operation["requestBody"] = {
            "required": is_needed,
            "content": _json(schemas[route.verb, "validation"]),
        }
    else:
        operation["parameters"] = _path_and_query(route)
    return operation


def _path_and_query(route: Route) -> list[dict[str, Any]]:
    schema = route.parameters.model_json_schema(ref_template=_REF)
    return [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in route.path else "query",
            "required": name in schema.get("required", ()),
            "schema": property_schema,
        }
        for name, property_schema in schema.get("properties", {}).items()
    ]


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
