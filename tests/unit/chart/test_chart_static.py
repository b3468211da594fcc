"""The chart as files: its values, schema and docs agree, its rights are named, its CRDs are in step.

What helm makes of it is tested on the cluster (tests/cluster/test_chart.py).
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_operator.api import crds
from penstock_operator.desired import names
from penstock_operator.desired.labels import MANAGED, MANAGED_BY
from penstock_operator.kinds import CHILDREN

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/penstock"
DOCS = ROOT / "docs/chart.md"
TEMPLATES = {
    path.relative_to(CHART / "templates"): path for path in sorted((CHART / "templates").rglob("*.*"))
}
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
FREE = "podSecurityContext", "resources"
"""Values that are parts of core/v1 as they stand: one row in the docs, one use."""


def leaves(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its dotted path; a part of core/v1 and an empty map are one value."""
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value and name not in FREE:
            yield from leaves(value, where)
        else:
            yield where, value


def described(path: str) -> dict[str, Any]:
    """The schema of a value."""
    schema = SCHEMA
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def used() -> set[str]:
    """Dotted paths of the values that templates name."""
    return {
        match
        for path in TEMPLATES.values()
        for match in re.findall(r"\.Values\.([A-Za-z0-9_.]+)", path.read_text())
    }


def test_every_value_is_used_and_every_used_value_exists() -> None:
    existing = dict(leaves(VALUES))
    paths = used()
    unknown = [
        name for name in paths if name not in existing and not any(p.startswith(name + ".") for p in existing)
    ]
    unused = [
        path for path in existing if not any(path == name or path.startswith(name + ".") for name in paths)
    ]
    assert (unknown, unused) == ([], [])


def test_each_image_is_used_by_name() -> None:
    """`images.<name>` is looked up by the helper; each such value has a template that asks for it."""
    text = "".join(path.read_text() for path in TEMPLATES.values())
    asked = set(re.findall(r'"penstock\.image" \(dict "root" \. "name" "([a-z-]+)"\)', text))
    assert asked == set(VALUES["images"]) - {"prefix", "tag", "pullPolicy", "pullSecrets"}


def objects(schema: dict[str, Any], path: str = "values") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with where it is."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from objects(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from objects(schema["items"], f"{path}[]")


def test_the_schema_knows_every_value_and_no_other() -> None:
    """A mistyped name is an error of helm, not a value without effect."""
    wanted = {path for path, _ in leaves(VALUES)}
    free = {f"{path}." for path, _ in objects(SCHEMA) if path.split(".")[-1] in FREE}
    unknown = {
        path.removeprefix("values.")
        for path, schema in objects(SCHEMA)
        if path != "values" and "[]" not in path and not path.startswith(tuple(free))
        if (f"{path}." in free or not schema.get("properties")) and not schema.get("deprecated")
    }
    assert unknown - {"global"} == wanted
    loose = [
        path for path, schema in objects(SCHEMA) if "properties" in schema and schema["additionalProperties"]
    ]
    assert loose == []


def test_every_value_has_a_description() -> None:
    bare = [path for path, schema in objects(SCHEMA) if "[]" not in path and not schema.get("description")]
    assert bare == []


def listed() -> str:
    """Render the values as a Markdown list, with each default that is not empty."""
    rows = []
    for path, value in leaves(VALUES):
        schema = described(path)
        details = [f"`{json.dumps(value)}`"] if value not in ("", [], {}, None) else []
        if "enum" in schema:
            details.append(f"one of {', '.join(f'`{choice}`' for choice in schema['enum'])}")
        if "minimum" in schema:
            details.append(f"{schema['minimum']} to {schema['maximum']}")
        shape = f" ({'; '.join(details)})" if details else ""
        rows.append(f"- `{path}`{shape}: {schema['description']}")
    return "\n".join(
        textwrap.fill(row, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for row in rows
    )


def test_the_docs_list_the_values_as_they_are(request: pytest.FixtureRequest) -> None:
    """docs/chart.md has the values of values.yaml and its schema (`--update-golden` writes it)."""
    head, mark, rest = DOCS.read_text().partition("<!-- values: generated -->\n")
    now, end, tail = rest.partition("<!-- end of values -->")
    assert mark
    assert end
    if request.config.getoption("--update-golden"):
        DOCS.write_text(head + mark + listed() + "\n" + end + tail)
        now = listed() + "\n"
    assert now == listed() + "\n"


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    """The rules of every role, with the file that has them."""
    for name, path in TEMPLATES.items():
        text = path.read_text()
        if re.search(r"^kind: (Cluster)?Role$", text, re.MULTILINE):
            plain = re.sub(r"\{\{-? include \"penstock\.(\w+)\" \. -?\}\}", r"\1", text)
            plain = "\n".join(line for line in plain.splitlines() if "{{" not in line)
            for rule in yaml.safe_load(plain)["rules"]:
                yield str(name), rule


def test_no_role_has_a_wildcard_or_a_right_over_rights() -> None:
    """Named verbs on named resources; `bind` is limited to one name; no `escalate`, no `impersonate`."""
    seen = list(rules())
    assert {name for name, _ in seen} == {
        "access/edit.yaml",
        "access/view.yaml",
        "operator/clusterrole.yaml",
        "operator/leaserole.yaml",
        "operator/role.yaml",
        "router/clusterrole.yaml",
    }
    for name, rule in seen:
        words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"], *rule.get("resourceNames", [])]
        assert not any("*" in word for word in words), name
        assert not {"escalate", "impersonate", "approve", "sign"} & set(rule["verbs"]), name
        if "secrets" in rule["resources"]:
            # Its own, by name: no other Secret of any namespace, and no list of them.
            assert name == "operator/role.yaml"
            assert rule["resourceNames"] == ["operator-tls"]
            assert rule["verbs"] == ["get", "create", "patch"]
        if name == "operator/leaserole.yaml":
            # In a namespace that is not the release's: a Lease by name; a POST cannot be limited to one.
            assert rule["resources"] == ["leases"]
            assert (rule.get("resourceNames"), rule["verbs"]) in (
                (None, ["create"]), (["lease"], ["get", "patch"])
            )  # fmt: skip
        assert "nonResourceURLs" not in rule, name
        if "rolebindings" in rule["resources"] and not {"list", "watch"} >= set(rule["verbs"]):
            # Those that it makes: of one name.
            assert rule["resourceNames"] == [names.ROUTER], name
            assert rule["verbs"] == ["get", "create", "patch", "delete"]
        if "bind" in rule["verbs"]:
            assert rule == {
                "apiGroups": ["rbac.authorization.k8s.io"],
                "resources": ["clusterroles"],
                "resourceNames": ["routerClusterRole"],
                "verbs": ["bind"],
            }


def test_writers_of_backends_are_asked_for_pods_and_nobody_else_is() -> None:
    """The main resource alone: not status and scale, which operator and autoscalers write; no deletion."""
    text = TEMPLATES[Path("protection/backend-writers.yaml")].read_text()
    plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
    policy, binding = yaml.safe_load_all(plain)
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == [crds.KINDS["ModelBackend"].plural]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["apiVersions"] == ["v1alpha1"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert VALUES["protection"]["backendWriters"] is True


def test_all_that_the_operator_renders_is_reserved_for_it() -> None:
    """Every kind of its children, and what routers read: slices, and the Endpoints mirrored into some."""
    text = TEMPLATES[Path("protection/managed-objects.yaml")].read_text()
    plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
    policy, binding = yaml.safe_load_all(plain)
    constraints = policy["spec"]["matchConstraints"]
    assert constraints["objectSelector"] == {"matchLabels": {MANAGED_BY: MANAGED}}
    reserved = {
        (group, plural)
        for rule in constraints["resourceRules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    routers_read = {("discovery.k8s.io", "endpointslices"), ("", "endpoints")}
    assert reserved == {(kind.group, kind.plural) for kind in CHILDREN} | routers_read
    for rule in constraints["resourceRules"]:
        assert (rule["apiVersions"], rule["operations"]) == (["*"], ["CREATE", "UPDATE", "DELETE"])
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert VALUES["protection"]["managedObjects"] is True


def test_what_the_operator_opens_is_limited_only_where_its_way_to_the_apiserver_is_said() -> None:
    """A policy of egress that does not lead there would cut it off: none is the default."""
    assert VALUES["networkPolicies"]["egress"] == []
    text = TEMPLATES[Path("operator/networkpolicy.yaml")].read_text()
    asked = text[text.index("policyTypes") :].partition("\n")[0]
    assert asked == "policyTypes: [Ingress{{ if .Values.networkPolicies.egress }}, Egress{{ end }}]"
    assert text.index("{{- with .Values.networkPolicies.egress }}") < text.index("  egress:")


def test_every_kind_of_ours_is_in_the_roles() -> None:
    """A new kind is watched by the operator and open to the cluster's editors and viewers."""
    plurals = {kind.plural for kind in crds.KINDS.values()}
    for name in ("operator/clusterrole.yaml", "access/edit.yaml", "access/view.yaml"):
        rules_of_ours = {
            resource
            for file, rule in rules()
            if file == name and rule["apiGroups"] == ["penstock.dev"]
            for resource in rule["resources"]
            if "/" not in resource
        }
        assert rules_of_ours == plurals, name


def test_the_charts_crds_are_the_generated_ones() -> None:
    assert crds.stale(CHART / "files/crds") == []


def test_a_crd_can_be_given_its_annotation_by_text() -> None:
    """The template puts labels and annotations behind the line `metadata:`, of which each file has one."""
    for path in (CHART / "files/crds").iterdir():
        text = path.read_text()
        assert text.count("\nmetadata:\n") == 1, path.name
        assert "{{" not in text, path.name


def test_the_chart_has_the_packages_version() -> None:
    """Images, chart and package are one release."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["appVersion"], chart["version"]) == (version, version)
