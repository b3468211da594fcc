"""`penstock validate FILE…`: checks resources as the API server would, without one.

The CRDs' schemas first (as with `kubectl apply`, an unknown field is a fault), then their CEL rules on what
fits, in Google's own implementation of CEL, then the parts that are core/v1's, by the types of the Kubernetes
client's models: the API server checks these last ones only in the pods.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kubernetes.client import models as core

from penstock_operator.api import KINDS
from penstock_operator.api.model import ModelBase
from penstock_operator.api.schema import Schema, structural
from penstock_operator.desired.drift import quantity
from penstock_operator.dry_run import read_file
from penstock_operator.errors import ConfigError
from penstock_operator.kube.cluster import Obj
from penstock_wire.extras import needs

CORE = {
    "podTemplate.volumes[]": "V1Volume",
    "podTemplate.initContainers[]": "V1Container",
    "podTemplate.containers[]": "V1Container",
    "podTemplate.affinity": "V1Affinity",
    "podTemplate.tolerations[]": "V1Toleration",
    "podTemplate.topologySpreadConstraints[]": "V1TopologySpreadConstraint",
    "podTemplate.resourceClaims[]": "V1PodResourceClaim",
    "podTemplate.hostAliases[]": "V1HostAlias",
    "podTemplate.dnsConfig": "V1PodDNSConfig",
    "podTemplate.imagePullSecrets[]": "V1LocalObjectReference",
    "podTemplate.securityContext": "V1PodSecurityContext",
    "model.container": "V1Container",
    **{
        f"model.{source}.{core.V1Container.attribute_map[name]}": core.V1Container.openapi_types[name]
        for source in ("python", "format")
        for name in ModelBase.model_fields
    },
}
"""The parts of a ModelBackend's `spec` that core/v1 defines, and the client's model of each."""

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_EXAMPLE = re.compile(r"such as ([^\s,]+)")


def faults(resource: Obj, *, rules: bool = True) -> list[str]:
    """Return what the API server would refuse, and what kubelet could not use; empty if all is well.

    Args:
        rules: whether CEL rules are checked, for which the extra `validate` is needed.
    """
    schema = _schema(resource["kind"])
    document = {name: value for name, value in resource.items() if name != "status"}
    found = list(_misfits(document, schema, ""))
    if not found and rules:
        found = list(_broken_rules(document, schema, ""))
    if not found and resource["kind"] == "ModelBackend":
        found = list(_core_faults(document["spec"]))
    return found


def has_rules() -> bool:
    """Whether the library that evaluates CEL is installed."""
    return importlib.util.find_spec("cel_expr_python") is not None


@functools.cache
def _schema(kind: str) -> Schema:
    schema = structural(KINDS[kind])
    metadata = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema["properties"]["metadata"] = metadata | schema["properties"]["metadata"]
    return schema


# The schema


def _misfits(value: Any, schema: Schema, at: str) -> Iterator[str]:
    """Yield the faults of a value; defaults are filled in, as the rules are checked after that."""
    where = at or "(object)"
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield f"{where}: expected a whole number or a text, found {value!r}"
            return
    elif "type" in schema and not _is(value, schema["type"]):
        yield f"{where}: {_type_words(value, schema)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: expected one of {', '.join(map(str, schema['enum']))}, found {value!r}"
    yield from (f"{where}: {words}" for words in _out_of_bounds(value, schema))
    if isinstance(value, dict):
        yield from _object_misfits(value, schema, at)
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _misfits(item, schema.get("items", {}), f"{at}[{number}]")
        yield from _duplicates(value, schema, where)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind]) or (
        kind == "integer" and isinstance(value, float) and value.is_integer()
    )


def _type_words(value: Any, schema: Schema) -> str:
    kind = {"string": "a text", "integer": "a whole number", "object": "an object", "array": "a list"}
    rules = " ".join(rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    words = f"expected {kind.get(schema['type'], 'a ' + schema['type'])}"
    if "duration" in rules and isinstance(value, int | float):
        words += f' with a unit, such as "{value:g}ms" or "{value:g}s"'
    elif schema["type"] == "string" and (example := _EXAMPLE.search(rules)):
        words += f', such as "{example[1]}"'
    return f"{words}, found {value!r}"


_BOUNDS: dict[str, tuple[Any, str, int]] = {
    # keyword: type, words, sign
    "maximum": (float, "at most", 1),
    "minimum": (float, "at least", -1),
    "maxLength": (str, "characters, at most", 1),
    "minLength": (str, "characters, at least", -1),
    "maxItems": (list, "entries, at most", 1),
    "minItems": (list, "entries, at least", -1),
    "maxProperties": (dict, "members, at most", 1),
    "minProperties": (dict, "members, at least", -1),
}


def _out_of_bounds(value: Any, schema: Schema) -> Iterator[str]:
    for keyword, (kind, words, sign) in _BOUNDS.items():
        if keyword not in schema or isinstance(value, bool):
            continue
        if kind is float:
            size = value if isinstance(value, int | float) else None
        else:
            size = len(value) if isinstance(value, kind) else None
        if size is not None and sign * size > sign * schema[keyword]:
            yield f"expected {words} {schema[keyword]}, found {size}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
        yield f"{rules[0] if rules else 'expected a text that matches ' + schema['pattern']}, found {value!r}"


def _object_misfits(value: dict[str, Any], schema: Schema, at: str) -> Iterator[str]:
    members, more = schema.get("properties", {}), schema.get("additionalProperties")
    for name, child in members.items():
        if name in value and value[name] is None:
            del value[name]  # the API server takes null as absent
        if name not in value and "default" in child:
            value[name] = child["default"]
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_join(at, name)}: expected a value, found none"
    for name, each in list(value.items()):
        if name in members:
            yield from _misfits(each, members[name], _join(at, name))
        elif isinstance(more, dict):
            yield from _misfits(each, more, _join(at, name))
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{_join(at, name)}: unknown field{_instead(name, members)}"


def _duplicates(value: list[Any], schema: Schema, where: str) -> Iterator[str]:
    kind, seen = schema.get("x-kubernetes-list-type"), list[Any]()
    for number, item in enumerate(value):
        keys = schema.get("x-kubernetes-list-map-keys", ())
        key = [item.get(name) for name in keys] if kind == "map" and isinstance(item, dict) else item
        if kind in ("map", "set") and key in seen:
            yield f"{where}[{number}]: Duplicate value: {key!r}"
        seen.append(key)


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _instead(name: str, members: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), {each.lower(): each for each in members}, n=1)
    meant = next((each for each in members if near and each.lower() == near[0]), None)
    return f"; did you mean {meant}?" if meant else ""


# The rules


def _broken_rules(value: Any, schema: Schema, at: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        words = _broken(rule, value)
        if words is not None:
            place = at + rule.get("fieldPath", "") if at else rule.get("fieldPath", "").lstrip(".")
            yield f"{place}: {words}" if place else words
    if isinstance(value, dict):
        for name, each in value.items():
            child = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if isinstance(child, dict):
                yield from _broken_rules(each, child, _join(at, name))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _broken_rules(item, schema.get("items", {}), f"{at}[{number}]")


def _broken(rule: Mapping[str, str], value: Any) -> str | None:
    """Return a rule's message if it does not hold; also if it cannot be evaluated, as the API server does."""
    held = _evaluate(rule["rule"], value)
    if held is True:
        return None
    message = _evaluate(rule["messageExpression"], value) if "messageExpression" in rule else None
    words = message if isinstance(message, str) else rule["message"]
    return words if held is False else f"{words} ({held})"


def _evaluate(expression: str, value: Any) -> Any:
    """Return an expression's value with `self`; if it has none, an error's words."""
    try:
        return _compiled(expression).eval(data={"self": value}).plain_value()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"error: {error}"


@functools.cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@functools.cache
def _environment() -> Any:
    """CEL with the libraries of Kubernetes that the CRDs' rules use; quantities are numbers of bytes."""
    from cel_expr_python import cel  # type: ignore[import-untyped]

    kinds = cel.Type
    config = "name: kubernetes\nextensions:\n- name: two-var-comprehensions\n- name: strings\n- name: lists\n"

    def declared(name: str, returns: Any, parameters: list[Any], impl: Any, *, member: bool = False) -> Any:
        overload = cel.Overload(
            f"{name}_of_kubernetes", return_type=returns, parameters=parameters, is_member=member, impl=impl
        )
        return cel.FunctionDecl(name, [overload])

    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(config),
        variables={"self": kinds.DYN},
        functions=[
            declared("isQuantity", kinds.BOOL, [kinds.STRING], lambda text: quantity(text) is not None),
            declared("quantity", kinds.DOUBLE, [kinds.STRING], lambda text: float(quantity(text) or 0)),
            declared(
                "compareTo",
                kinds.INT,
                [kinds.DOUBLE, kinds.DOUBLE],
                lambda one, other: (one > other) - (one < other),
                member=True,
            ),
        ],
    )


# core/v1


def _core_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    for path, model in CORE.items():
        places: list[tuple[str, Any]] = [("spec", spec)]
        for step in path.split("."):
            name, is_list = step.removesuffix("[]"), step.endswith("[]")
            inner = [(f"{at}.{name}", value[name]) for at, value in places if value.get(name)]
            places = inner
            if is_list:
                places = [(f"{at}[{n}]", item) for at, items in inner for n, item in enumerate(items)]
        for at, value in places:
            yield from _of_type(value, model, at)


def _of_type(value: Any, kind: str, at: str) -> Iterator[str]:
    """Yield the faults of a value by one of the client's type names, such as `list[V1Volume]`."""
    if value is None or kind == "object":
        return
    if inner := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{at}: expected a list, found {value!r}"
            return
        for number, item in enumerate(value):
            yield from _of_type(item, inner[1], f"{at}[{number}]")
    elif inner := re.fullmatch(r"dict\(\w+, (.+)\)", kind):
        if not isinstance(value, dict):
            yield f"{at}: expected an object, found {value!r}"
            return
        for name, item in value.items():
            yield from _of_type(item, inner[1], f"{at}.{name}")
    elif hasattr(core, kind):
        yield from _of_model(value, getattr(core, kind), at)
    elif kind in _PLAIN and not _is(value, _PLAIN[kind]) and not (kind == "str" and _is_quantity(value, at)):
        yield f"{at}: expected type {_PLAIN[kind]}, found {value!r}"


_PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}


def _is_quantity(value: Any, at: str) -> bool:
    """Whether a number stands where the client has a text, as a quantity may."""
    return (
        _is(value, "number")
        and re.search(r"\.(limits|requests)\.|\.(sizeLimit|divisor|storage)$", at) is not None
    )


def _of_model(value: Any, model: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: expected an object, found {value!r}"
        return
    types = {json: model.openapi_types[name] for name, json in model.attribute_map.items()}
    for name, each in value.items():
        if name in types:
            yield from _of_type(each, types[name], f"{at}.{name}")
        else:
            yield f"{at}.{name}: unknown field{_instead(name, types)}"
    for name, json in model.attribute_map.items():
        # The model container's name is Penstock's.
        field = model.model_fields.get(name)
        needed = field is not None and field.is_required() and not at.endswith(".model.container")
        if needed and value.get(json) is None:
            yield f"{at}.{json}: expected a value, found none"


# The command


def run(paths: Sequence[str]) -> int:
    """Check files and print each fault in a line; return 1 if there was any, 2 if a file is unreadable.

    Args:
        paths: YAML files; ``-`` for standard input.
    """
    count = bad = 0
    for path in paths:
        try:
            resources = read_file(path, what="validate")
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        for resource in resources:
            count += 1
            for fault in faults(resource):
                bad += 1
                print(f"{path}: {resource['kind']}/{resource['metadata']['name']}: {fault}")
    resources_word, faults_word = "resource" + "s" * (count != 1), "fault" + "s" * (bad != 1)
    print(f"{count} {resources_word} of Penstock, {bad} {faults_word}", file=sys.stderr)
    return int(bad > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m penstock_operator.validation`."""
    parser = argparse.ArgumentParser(
        prog="penstock validate", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML; - for standard input")
    options = parser.parse_args(argv)
    with needs("penstock validate", "validate"):
        importlib.import_module("cel_expr_python.cel")
    return run(options.files)


if __name__ == "__main__":
    sys.exit(main())
