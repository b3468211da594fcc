"""docs/reference has a page for each resource, as the schemas make it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penstock_operator.api import KINDS, crds, reference

FOLDER = Path(__file__).parents[3] / "docs/reference"


def test_the_pages_of_the_resources_are_the_generated_ones(request: pytest.FixtureRequest) -> None:
    """`--update-golden` writes them."""
    pages = reference.pages()
    if request.config.getoption("--update-golden"):
        for name, text in pages.items():
            (FOLDER / name).write_text(text)
    assert {name: (FOLDER / name).read_text() for name in pages} == pages


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_schema_is_on_its_page(kind: str) -> None:
    """Each object has a section with a line for each of its fields, or a link to where it is described."""
    text = reference.page(kind)
    (version,) = yaml.safe_load(crds.rendered()[f"{KINDS[kind].plural}.yaml"])["spec"]["versions"]
    todo = [(name, version["schema"]["openAPIV3Schema"]["properties"][name]) for name in ("spec", "status")]
    while todo:
        path, node = todo.pop()
        if "items" in node:
            path, node = path + "[]", node["items"]
        if "properties" not in node:
            continue
        _, heading, rest = text.partition(f"# `{path}`\n")
        assert heading, path
        section = rest.partition("\n#")[0]
        for name, child in node["properties"].items():
            own_section = f"- [`{name}`](#{reference.anchor(f'{path}.{name}')})"
            assert f"`{name}`" in section, f"{path}.{name}"
            if own_section in section:
                todo.append((f"{path}.{name}", child))


def test_objects_of_kubernetes_and_of_a_policy_are_linked() -> None:
    """What core/v1 has, and what a BatchPolicy has, is described once, where it belongs."""
    text = reference.page("ModelBackend")
    assert "#resourcerequirements-v1-core" in text
    assert "### `spec.model.container.resources`" not in text
    assert "[`batching`](batchpolicy.md#spec)" in text
    assert (
        text.count("# `spec.podTemplate.containers[]`") + text.count("# `spec.podTemplate.initContainers[]`")
        == 1
    )
