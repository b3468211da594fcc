"""Reference pages of the resources, one per kind, generated from their CustomResourceDefinitions.

`pages` returns docs/reference as Markdown. A unit test compares both; with `--update-golden` it writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from penstock_operator.api import GROUP, KINDS, VERSION
from penstock_operator.api.crds import definition
from penstock_operator.api.fields import NAME
from penstock_operator.api.schema import Schema

_HEADER = (
    "<!-- Generated from operator/penstock_operator/api by "
    "`pytest tests/unit/docs/test_docs_reference.py --update-golden`; changes here are lost. -->\n"
)
_LEGEND = "A field may be absent unless it is required. In `status`, the operator alone writes."
_EXPECTED = re.compile(r"\bexpected ")
_SHORT = 40
"""Characters of a description up to which it is repeated, rather than referred to."""
_RULES = "x-kubernetes-validations"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_CORE = {
    frozenset(names.split()): "https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.33/#" + anchor
    for names, anchor in (
        ("name value valueFrom", "envvar-v1-core"),
        ("prefix configMapRef secretRef", "envfromsource-v1-core"),
        ("limits requests", "resourcerequirements-v1-core"),
        ("limits requests claims", "resourcerequirements-v1-core"),
        ("name mountPath subPath readOnly", "volumemount-v1-core"),
        ("type status reason message observedGeneration lastTransitionTime", "condition-v1-meta"),
    )
}
"""Objects of Kubernetes' own, by the names of their fields: it describes them."""
_CONDITION = next(link for link in _CORE.values() if link.endswith("#condition-v1-meta"))


def pages() -> dict[str, str]:
    """The page of each kind, by file name."""
    return {f"{kind.lower()}.md": page(kind) for kind in sorted(KINDS)}


def page(kind: str) -> str:
    """The page of a kind: what it is, its fields, a list for each object, and kubectl's columns."""
    spec = definition(kind)["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    scale = "scale" in version["subresources"]
    parts = [
        _HEADER + f"# {kind}",
        schema["description"],
        f"`apiVersion: {GROUP}/{VERSION}`, `kind: {kind}`. kubectl: `{names['plural']}`, short "
        f"`{names['shortNames'][0]}`, in the category `penstock`. Scope: one namespace."
        + (" Subresources: `status` and `scale`." if scale else " Subresource: `status`."),
        *_refused(schema),
        _LEGEND,
    ]
    shown = _shown_elsewhere(kind)
    for path in ("spec", "status"):
        parts += list(_sections(schema["properties"][path], path, shown))
    parts += ["## Columns of `kubectl get`", _columns(version["additionalPrinterColumns"])]
    return "\n\n".join(parts) + "\n"


Shown = dict[str, str]
"""Where objects are described, by what they are (`_identity`)."""


def _shown_elsewhere(kind: str) -> Shown:
    if kind == "BatchPolicy":
        return {}
    (version,) = definition("BatchPolicy")["spec"]["versions"]
    policy = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return {_identity(policy): "batchpolicy.md#spec"}


def _identity(node: Schema) -> str:
    """Equal for objects with the same fields, whatever is said of the whole."""
    return json.dumps(node["properties"], sort_keys=True)


def described(node: Schema, path: str, shown: Shown) -> str:
    """The link to where an object is described; the first time that is a section of its own.

    Args:
        path: where it stands, such as `spec.model`.
        shown: gains the object, if its section is to come at `path`.
    """
    core = _CORE.get(frozenset(node["properties"]))
    return core or shown.setdefault(_identity(node), f"#{anchor(path)}")


def _sections(node: Schema, path: str, shown: Shown) -> Iterator[str]:
    """The section of an object, then those of the objects in it, depth first."""
    top = "." not in path
    yield ("## " if top else "### ") + f"`{path}`"
    if top and node.get("description"):  # of another, the field that has it says this
        yield node["description"]
    required = node.get("required", [])
    rows: list[str] = []
    again: dict[str, list[str]] = {}
    if path == "status":
        rows.append(f"- `observedGeneration`, [`conditions`]({_CONDITION}): as of Kubernetes' own resources")
    for name, child in sorted(node["properties"].items(), key=lambda field: field[0] not in required):
        if path == "status" and name in ("observedGeneration", "conditions"):
            continue
        here = f"#{anchor(path)}"
        where = shown.setdefault(json.dumps([name, child], sort_keys=True), here)
        own = described(_inner(child)[0], "", dict(shown)) if "properties" in _inner(child)[0] else ""
        if where == here or own.startswith("#") or len(child.get("description", "")) < _SHORT:
            rows.append(_row(name, child, f"{path}.{name}", shown, required=name in required))
        else:
            again.setdefault(where, []).append(f"`{name}`")
    rows += [f"- {', '.join(names)}: as [above]({where})" for where, names in again.items()]
    yield "\n".join(rows)
    if node.get(_PRESERVE):
        yield "Further fields are stored as they stand and checked in the pod."
    yield from _refused(node)
    for name, child in node["properties"].items():
        inner, suffix = _inner(child)
        below = f"{path}.{name}{suffix}"
        if "properties" in inner and described(inner, below, shown) == f"#{anchor(below)}":
            yield from _sections(inner, below, shown)


def _inner(node: Schema) -> tuple[Schema, str]:
    """The object that a field holds, itself or as elements, and how elements are written in a path."""
    if "items" in node:
        return node["items"], "[]"
    if isinstance(node.get("additionalProperties"), dict):
        return node["additionalProperties"], ".*"
    return node, ""


def _row(name: str, node: Schema, path: str, shown: Shown, *, required: bool) -> str:
    inner, suffix = _inner(node)
    field = f"`{name}`"
    if "properties" in inner:
        field = f"[{field}]({described(inner, path + suffix, shown)})"
    in_status = path.startswith("status.")
    words = _kind(node) if in_status else _type(node)
    if "properties" in inner:
        words = re.sub(r"( of )?object", "", words)
    details = ["required" if required and not in_status else "", words, _default(node)]
    text = node.get("description", "").replace("\n", " ")
    for default in ("none", str(node.get("default")), json.dumps(node.get("default"))):
        text = text.removesuffix(f" Default {default}.")
    shape = "; ".join(filter(None, details))
    return f"- {field} ({shape}): {text}" if shape else f"- {field}: {text}"


def anchor(heading: str) -> str:
    """GitHub's anchor for a heading: lower case, without punctuation."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def _default(node: Schema) -> str:
    default = node.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"default `{default if isinstance(default, str) else json.dumps(default)}`"


def _kind(node: Schema) -> str:
    """The values that a field of a status may have, if they are few: users write none."""
    return _type(node) if "enum" in node else ""


def _type(node: Schema) -> str:
    """The type of a field and its bounds, in words."""
    if "items" in node:
        words = [f"list of {_element(node['items'])}", *_counts(node, "Items", "elements")]
        if keys := node.get("x-kubernetes-list-map-keys"):
            words.append("unique by " + ", ".join(f"`{key}`" for key in keys))
        elif node.get("x-kubernetes-list-type") == "set":
            words.append("each once")
    elif isinstance(node.get("additionalProperties"), dict):
        values = _element(node["additionalProperties"])
        words = [f"map of text to {values}", *_counts(node, "Properties", "entries")]
    elif "enum" in node:
        words = [" or ".join(f"`{value}`" for value in node["enum"])]
    elif node.get("type") == "object" or "properties" in node:
        words = ["object" + (", not checked" if node.get(_PRESERVE) and "properties" not in node else "")]
    elif node.get(_PRESERVE):
        words = ["any JSON"]
    else:
        words = _scalar(node)
    bounds = [_bound(rule) for rule in node.get(_RULES, []) if rule != NAME.rule]
    return "; ".join([*words, *bounds] if "properties" not in node else words)


def _element(node: Schema) -> str:
    """The type of the elements of a list or a map, with bounds in brackets."""
    kind, semicolon, bounds = _type(node).partition("; ")
    return f"{kind} ({bounds})" if semicolon else kind


def _scalar(node: Schema) -> list[str]:
    kind = "integer or string" if node.get("x-kubernetes-int-or-string") else str(node["type"])
    if "format" in node:
        kind += f" ({node['format']})"
    rules = node.get(_RULES, [])
    if NAME.rule in rules:
        return ["name of a resource"]
    if any(_expected(rule).startswith("expected a duration ") for rule in rules):
        return ["duration"]
    words = [kind]
    least, most = node.get("minimum"), node.get("maximum")
    if least is not None and most is not None:
        words.append(f"{least} to {most}")
    elif least is not None:
        words.append(f"at least {least}")
    return words + _counts(node, "Length", "characters")


def _counts(node: Schema, word: str, of: str) -> list[str]:
    least, most = node.get(f"min{word}"), node.get(f"max{word}")
    if most is None:
        return []
    return [f"{least} to {most} {of}" if least else f"at most {most} {of}"]


def _bound(rule: dict[str, Any]) -> str:
    """A rule on one field, as a bound after its type."""
    return _expected(rule).removeprefix("expected ").removeprefix("a duration ")


def _refused(node: Schema) -> Iterator[str]:
    """The rules on an object, in the words of the error."""
    if rules := node.get(_RULES):
        yield "Expected:"
        blamed = [rule.get("fieldPath", "").removeprefix(".") for rule in rules]
        yield "\n".join(
            f"- {field}{': ' if field else ''}{_EXPECTED.sub('', _expected(rule))}"
            for field, rule in zip(blamed, rules, strict=True)
        )


def _expected(rule: dict[str, Any]) -> str:
    return str(rule["message"]).partition(", found ")[0]


def _columns(columns: list[dict[str, Any]]) -> str:
    always, wide = (
        ", ".join(f"`{each['name'].upper()}`" for each in columns if bool(each.get("priority")) == late)
        for late in (False, True)
    )
    return f"{always}; with `-o wide` also {wide}." if wide else f"{always}."
