"""Every rendered object, as golden YAML: `pytest --update-golden` writes the files anew.

`golden/NAME.in.yaml` holds resources; `golden/NAME.out.yaml` what they render to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_operator.api import KINDS, BatchPolicy, ModelBackend, ModelEndpoint, Resource, TrafficSplit
from penstock_operator.api.defaults import closed_paths, is_dedicated
from penstock_operator.desired import backend, deployment, ports, router, settings, traffic
from penstock_operator.desired.config import RenderConfig, RouterAutoscaling
from penstock_operator.desired.template_pinning import PinnedTemplate

GOLDEN = Path(__file__).parent / "golden"
CONFIG = RenderConfig(
    sidecar_image="penstock/sidecar:0.1.0",
    router_image="penstock/router:0.1.0",
    router_replicas=2,
    router_autoscaling=RouterAutoscaling(min_replicas=3, max_replicas=8, target=70),
)
CASES = sorted(path.name.removesuffix(".in.yaml") for path in GOLDEN.glob("*.in.yaml"))


def render(resources: list[Resource]) -> list[dict[str, Any]]:
    """All objects of all resources of one namespace, as the reconcilers would ask for them."""
    backends = [item for item in resources if isinstance(item, ModelBackend)]
    policies = {item.name: item for item in resources if isinstance(item, BatchPolicy)}
    endpoints = [item for item in resources if isinstance(item, ModelEndpoint)]
    splits = [item for item in resources if isinstance(item, TrafficSplit)]
    objects: list[dict[str, Any]] = []
    for item in backends:
        make = settings.for_sidecar(item, policies.get(item.spec.batch_policy_ref or ""))
        version = settings.next_version(make, recorded=None, status_version=0, reported=0)
        template = deployment.pod_template(item, config=CONFIG, drain_secret="0badcafe")
        # Without the annotation that repeats the template: test_operator_template_pinning.py has it.
        pinned = PinnedTemplate(template=template, record=None, upgrade_pending=False)
        objects += backend.backend_objects(item, document=version.document, pinned=pinned, config=CONFIG)
    if endpoints:
        plan = traffic.plan(endpoints, splits, {item.name: True for item in backends})
        given = ports.allocate([item.name for item in endpoints], [])
        closed = {item.name: closed_paths(item) for item in backends}

        def document(served: list[ModelEndpoint]) -> bytes:
            make = settings.for_router(traffic.router_endpoints(served, plan, given, closed))
            return settings.next_version(make, recorded=None, status_version=0, reported=0).document

        shared = [item for item in endpoints if not is_dedicated(item)]
        objects += router.router_objects(
            "demo", endpoints, config=CONFIG, document=document(shared), idle=not shared
        )
        for item in endpoints:
            if is_dedicated(item):
                objects += router.dedicated_objects(
                    item, given[item.name], config=CONFIG, document=document([item])
                )
        objects += [
            router.endpoint_service(item, given[item.name], dedicated=is_dedicated(item))
            for item in endpoints
        ]
    return objects


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    """What renders is what is on record, byte for byte."""
    source = yaml.safe_load_all((GOLDEN / f"{name}.in.yaml").read_text())
    objects = render([KINDS[raw["kind"]].parse(raw) for raw in source])
    text = yaml.safe_dump_all(objects, sort_keys=False, width=110)
    path = GOLDEN / f"{name}.out.yaml"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_golden_file_has_its_pair() -> None:
    """No output is left over from an input that is gone."""
    assert sorted(path.name.removesuffix(".out.yaml") for path in GOLDEN.glob("*.out.yaml")) == CASES
