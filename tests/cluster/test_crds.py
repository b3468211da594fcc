"""The real apiserver takes every good resource, and says of every bad one what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import Cluster
from tests.support.cluster_waits import wait_for
from tests.support.k8s import Namespace

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "crd_cases.yaml").read_text())
CASES: list[dict[str, Any]] = TABLE["cases"]
ROOT = Path(__file__).parents[2]


def merged(below: Any, above: Any) -> Any:
    """An RFC 7386 merge: null takes a member away."""
    if not isinstance(above, dict):
        return above
    result = dict(below) if isinstance(below, dict) else {}
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def holds(part: Any, whole: Any) -> bool:
    """Whether every member of `part` is in `whole`; lists of one length, element by element."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and holds(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(holds, part, whole))
    return bool(part == whole)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(penstock: Cluster, case: dict[str, Any]) -> None:
    """A good resource is taken, with its defaults; a bad one is refused with the message of the table."""
    resource = merged(TABLE["bases"][case["kind"]], case.get("with", {}))
    answer = penstock.kubectl(
        *("apply", "--dry-run=server", "-o", "json", "-f", "-"),
        *("-n", "default"),
        input=json.dumps(resource),
        check=False,
    )
    if "says" in case:
        assert answer.returncode != 0
        assert [text for text in case["says"] if text not in answer.stderr] == [], answer.stderr
    else:
        assert answer.returncode == 0, answer.stderr
        stored = json.loads(answer.stdout)
        assert holds(case.get("becomes", {}), stored), stored


def test_crds_are_established(penstock: Cluster) -> None:
    """The apiserver took every CRD whole: within its cost budget, structural, with its names."""
    names = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in (ROOT / "crds").glob("*.yaml")]
    assert len(names) == 4
    for name in names:
        raw = penstock.kubectl("get", "crd", name, "-o", "json").stdout
        conditions = {item["type"]: item["status"] for item in json.loads(raw)["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


def test_explain_tells_a_derived_default(penstock: Cluster) -> None:
    """`kubectl explain` says of a field what it is, and what holds when it is absent."""
    default = Namespace(penstock, "default")

    def text() -> str:
        said = " ".join(default.kubectl("explain", "bpol.spec.maxQueuedItems", check=False).split())
        return said if "Items that may wait in one pod" in said else ""

    # NB: the apiserver publishes a changed definition's schema a moment after it took it.
    assert "at least 8 full batches for each slot" in wait_for("the field's explanation", text)


def test_short_names_and_category(penstock: Cluster) -> None:
    """All four kinds answer to their short names and to `kubectl get penstock`."""
    for short in ("mbe", "mep", "tsp", "bpol", "penstock"):
        assert penstock.kubectl("get", short, "-n", "default", check=False).returncode == 0
