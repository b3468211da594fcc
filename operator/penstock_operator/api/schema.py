"""Converts pydantic models to structural OpenAPI schemas, as a CustomResourceDefinition requires.

Pydantic's JSON schema has references, nulls, titles and `additionalProperties: true`; a structural schema has
none of these. Defaults go into the schema of `spec` alone: `status`, which the operator writes, needs none.
"""

from __future__ import annotations

import copy
from typing import Any

from penstock_operator.api.base import Resource
from penstock_operator.api.fields import cel

Schema = dict[str, Any]

_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_RULES = "x-kubernetes-validations"

_OF_ONE_BRANCH = ("type", "title", "const")
"""Keywords of a number or string branch that do not fit the other; a rule says which strings are valid."""

_TYPE_META: Schema = {
    "apiVersion": {
        "type": "string",
        "description": "The API group and version of this document: penstock.dev/v1alpha1.",
    },
    "kind": {"type": "string", "description": "The kind of this document."},
    # The bounds are Kubernetes' own; repeated here, they bound the cost of the rules on the name.
    "metadata": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 253},
            "generateName": {"type": "string", "maxLength": 253},
        },
    },
}

_NAME_RULES = [
    cel(
        "size(self.metadata.name) <= 50",
        "metadata.name: expected at most 50 characters",
        expression="'metadata.name: expected at most 50 characters, found ' + self.metadata.name",
    ),
    cel(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name: expected lower-case letters, digits and -, beginning with a letter and not ending "
        "with -",
        expression="'metadata.name: expected lower-case letters, digits and -, beginning with a letter and "
        "not ending with -, found ' + self.metadata.name",
    ),
]


def structural(kind: type[Resource]) -> Schema:
    """The structural schema of a kind: its `openAPIV3Schema`.

    Args:
        kind: the resource's model; its class variable `rules` adds CEL rules on the whole object.
    """
    raw = kind.model_json_schema(by_alias=True, mode="validation")
    definitions = raw.get("$defs", {})
    spec = _convert(raw["properties"]["spec"], definitions, defaults=True)
    status = _convert(raw["properties"]["status"], definitions, defaults=False)
    # kstatus considers an object without a status current, and waits if observedGeneration is -1.
    status["default"] = {"observedGeneration": -1}
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": copy.deepcopy(_TYPE_META) | {"spec": spec, "status": status},
        _RULES: _NAME_RULES + list(kind.rules),
    }


def _convert(node: Schema, definitions: Schema, *, defaults: bool) -> Schema:
    """Convert a node to a structural schema; the result shares nothing with its argument."""
    node = _resolve(node, definitions)
    node.pop("title", None)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if node.get(_INT_OR_STRING):
        _merge_int_or_string(node)
    _set_default(node, wanted=defaults)
    extra = node.pop("additionalProperties", None)
    if extra is True:
        node[_PRESERVE] = True
    elif isinstance(extra, dict):
        node["additionalProperties"] = _convert(extra, definitions, defaults=defaults)
    if "items" in node:
        node["items"] = _convert(node["items"], definitions, defaults=defaults)
    if "properties" in node:
        children = node["properties"].items()
        node["properties"] = {
            name: _convert(child, definitions, defaults=defaults) for name, child in children
        }
    return node


def _resolve(node: Schema, definitions: Schema) -> Schema:
    """Return a copy of the node with its reference resolved and its `| None` removed."""
    node = copy.deepcopy(node)
    if "anyOf" in node:
        kinds = [kind for kind in node["anyOf"] if kind != {"type": "null"}]
        if len(kinds) == 1:
            del node["anyOf"]
            node = _over(kinds[0], node)
    if "$ref" in node:
        name = node.pop("$ref").rsplit("/", 1)[-1]
        return _over(_resolve(definitions[name], definitions), node)
    return node


def _over(below: Schema, above: Schema) -> Schema:
    """Merge two schemas: the keywords of `above` win, rules add up."""
    merged = copy.deepcopy(below) | above
    rules = below.get(_RULES, []) + above.get(_RULES, [])
    return merged | {_RULES: rules} if rules else merged


def _merge_int_or_string(node: Schema) -> None:
    """Turn `anyOf` of a number and a string, each with its own keywords, into the form of Kubernetes."""
    for branch in node.pop("anyOf", []):
        node.update({word: value for word, value in branch.items() if word not in _OF_ONE_BRANCH})
    node["anyOf"] = [{"type": "integer"}, {"type": "string"}]


def _set_default(node: Schema, *, wanted: bool) -> None:
    """Keep constant defaults. NB: an object's is complete: its rules run before its members' fill it."""
    default = _without_null(node.get("default"))
    if default is None or default in ([], {}) or not wanted:
        node.pop("default", None)
    else:
        node["default"] = default


def _without_null(default: Any) -> Any:
    if isinstance(default, dict):
        return {key: _without_null(value) for key, value in default.items() if value is not None}
    if isinstance(default, list):
        return [_without_null(value) for value in default]
    return default
