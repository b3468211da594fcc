"""Alerts and dashboard speak of metrics, labels and words that the code has; promtool runs them elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.clock import LoopClock
from penstock_operator.metrics import Metrics as OperatorMetrics
from penstock_operator.metrics import QueueMetrics
from penstock_operator.reports import Reports
from penstock_operator.resource_metrics import CONDITIONS, ResourceMetrics
from penstock_operator.store import Store
from penstock_router.metrics import Metrics as RouterMetrics
from penstock_sidecar.interfaces import Counts
from penstock_sidecar.metrics import Metrics as SidecarMetrics
from penstock_wire.errors import Reason
from tests.support.pages.monitoring import dashboard_queries, rule_groups

ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs/operations/watch.md"


class _Load:
    queued, ongoing, oldest_age, drain_seconds, slots, batch_limit, batch_wait = 0, 0, 0.0, 0.0, 1, 32, 0.0
    counts = Counts()


def families() -> Iterator[Metric]:
    """All families of the three programs, as they are when the process starts."""
    operator = OperatorMetrics()
    QueueMetrics(operator, "reconcile")
    yield from operator.registry.collect()
    yield from text_string_to_metric_families(ResourceMetrics(Store(), Reports(LoopClock()), {}).text())
    yield from RouterMetrics(dict).collect()
    sidecar = SidecarMetrics()
    sidecar.show(_Load())
    yield from sidecar.collect()


def names() -> set[str]:
    """Every name that a query may use."""
    known = set()
    for family in families():
        suffixes = {
            "counter": ["_total"],
            "gauge": [""],
            "histogram": ["_bucket", "_count", "_sum"],
        }[family.type]
        known |= {family.name + suffix for suffix in suffixes}
    return known


def queries() -> list[tuple[str, str]]:
    """Every query, with the alert or panel that makes it."""
    rules = [(rule["alert"], rule["expr"]) for group in rule_groups() for rule in group["rules"]]
    return rules + dashboard_queries()


@pytest.mark.parametrize(("where", "query"), queries(), ids=lambda value: value[:40])
def test_every_metric_of_a_query_is_one_that_the_code_has(where: str, query: str) -> None:
    used = set(re.findall(r"\b(?:penstock|workqueue)_\w+", query))
    assert used
    assert used <= names(), where


def test_every_word_that_a_query_compares_with_exists() -> None:
    """A reason, condition or state that was renamed must not leave an alert that never fires."""
    known = {
        "reason": {reason.value for reason in Reason} | {""},
        "condition": set(CONDITIONS),
        "state": {"wanted", "there", "ready", "reporting", "queued", "ongoing"},
        "kind": {"ModelBackend", "ModelEndpoint", "TrafficSplit", "BatchPolicy"},
        "outcome": {"error", "taken", "late"},
    }
    for where, query in queries():
        for label, _, words in re.findall(r'(\w+)(=~|!=|!~|=)"([^"$]*)"', query):
            if label in known:
                assert set(words.split("|")) <= known[label], where


def test_every_alert_says_how_grave_it_is_and_what_it_is() -> None:
    alerts = [rule for group in rule_groups() for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


def test_every_alert_has_its_row_in_the_docs() -> None:
    """docs/operations/watch.md says of each what to do."""
    rows = set(re.findall(r"^\| `(Penstock\w+)` \|", OPERATIONS.read_text(), re.MULTILINE))
    assert rows == {rule["alert"] for group in rule_groups() for rule in group["rules"]}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    dashboard: dict[str, Any] = json.loads((ROOT / "helm/penstock/files/dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_the_rules_reach_the_cluster_as_they_stand() -> None:
    """Both files are put in by `.Files.Get`, which leaves Prometheus' own `{{ }}` alone."""
    template = (ROOT / "helm/penstock/templates/monitoring/rules.yaml").read_text()
    assert '.Files.Get "files/rules.yaml"' in template
    assert yaml.safe_load((ROOT / "helm/penstock/files/rules.yaml").read_text()).keys() == {"groups"}
