"""Describes the served methods as an OpenAPI 3.1 document: a path for each, with types from annotations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from penstock.signature import Shape

PATH = "/openapi.json"


def document(title: str, shapes: Mapping[str, Shape], default: str | None) -> dict[str, Any]:
    """Make the document.

    Args:
        title: the document's title.
        shapes: shapes of the methods, by name.
        default: name of the default method, which has the path `/`; None if there is none.
    """
    schemas: dict[str, Any] = {}
    paths = {
        "/" if name == default else f"/{name}": {"post": _operation(name, shape, schemas)}
        for name, shape in shapes.items()
    }
    problem = {"type": "object", "properties": {"detail": {"type": "string"}, "reason": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"schemas": {**schemas, "Problem": problem}},
    }


def _operation(name: str, shape: Shape, schemas: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {"instances": {"type": "array", "items": item(shape, schemas)}}
    members |= {parameter.name: _argument(shape, parameter, schemas) for parameter in shape.shared}
    required = [each.name for each in shape.shared if each.default is inspect.Parameter.empty]
    answers = {"application/json": {"schema": _predictions()}}
    if shape.generator:
        answers |= {"text/event-stream": {}, "application/x-ndjson": {}}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    body = {"type": "object", "properties": members, "required": ["instances", *required]}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "an answer for each item", "content": answers},
            "default": {"description": "a problem", "content": problem},
        },
    }


def _predictions() -> dict[str, Any]:
    return {"type": "object", "properties": {"predictions": {"type": "array"}}, "required": ["predictions"]}


def item(shape: Shape, schemas: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an item of a method.

    Args:
        shape: the method's.
        schemas: the schemas that others refer to; those of this one are added.
    """
    if shape.whole:
        return _argument(shape, shape.parameters[0], schemas)
    if not shape.parameters and not shape.open:
        return {}
    properties = {each.name: _argument(shape, each, schemas) for each in shape.parameters}
    required = [each.name for each in shape.parameters if each.default is inspect.Parameter.empty]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": shape.open}
    return schema | ({"required": required} if required else {})


def _argument(shape: Shape, parameter: inspect.Parameter, schemas: dict[str, Any]) -> dict[str, Any]:
    validator = shape.validators.get(parameter.name)
    schema = {} if validator is None else dict(validator.schema())
    schemas.update(schema.pop("$defs", {}))
    if isinstance(parameter.default, str | int | float | bool | None):
        schema.setdefault("default", parameter.default)
    return schema
