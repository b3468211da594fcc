"""Texts that cannot import `penstock_wire.contract` say what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock_wire import contract

ROOT = Path(__file__).parents[3]
OPERATOR = {contract.OPERATOR_PORT, contract.REPORTS_PORT}
SIDECAR = {contract.SIDECAR_PORT, contract.SIDECAR_ADMIN_PORT}


@pytest.mark.parametrize(
    ("path", "ports"),
    [
        ("operator/penstock_operator/api/model.py", SIDECAR | {contract.ARTIFACT_PORT, contract.MODEL_PORT}),
        ("operator/penstock_operator/desired/template_pinning.py", SIDECAR),
        ("helm/penstock/templates/operator/deployment.yaml", OPERATOR),
        ("helm/penstock/templates/operator/service.yaml", OPERATOR),
        ("helm/penstock/templates/operator/networkpolicy.yaml", OPERATOR),
        ("helm/penstock/templates/tests/ready.yaml", {contract.OPERATOR_PORT}),
        (
            "helm/penstock/values.schema.json",
            {contract.SIDECAR_ADMIN_PORT, contract.ROUTER_ADMIN_PORT, contract.OPERATOR_PORT},
        ),
    ],
)
def test_the_ports_of_a_text_are_those_of_the_contract(path: str, ports: set[int]) -> None:
    """CEL rules, their messages and the chart: all their ports of four digits."""
    assert {int(port) for port in re.findall(r"(?<!\d)80\d\d(?!\d)", (ROOT / path).read_text())} == ports


def test_the_rule_for_routes_names_the_paths_that_are_kept() -> None:
    text = (ROOT / "operator/penstock_operator/api/modelendpoint.py").read_text()
    kept = contract.OWN_PATHS
    assert f"self != '{kept.rstrip('/')}' && !self.startsWith('{kept}')" in text


@pytest.mark.parametrize("name", [n for n in vars(contract) if n.endswith("_ENV")])
def test_no_other_module_spells_an_environment_variable(name: str) -> None:
    """Else one process could rename what another sets."""
    spelled = re.compile(rf'"{vars(contract)[name]}"')
    packages = [ROOT / part for part in ("operator", "router", "sdk", "sidecar", "wire")]
    files = [path for package in packages for path in package.rglob("*.py")]
    assert [path.name for path in files if spelled.search(path.read_text())] == ["contract.py"]
