"""The chart's alerting rules and dashboard as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).parents[3] / "helm/penstock/files"
RULES = FILES / "rules.yaml"


def rule_groups() -> list[dict[str, Any]]:
    """The groups of alerting rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def dashboard_queries() -> list[tuple[str, str]]:
    """Every query of the dashboard with its panel's title, Grafana's variables replaced by values."""
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    return [
        (
            panel["title"],
            target["expr"]
            .replace("$__rate_interval", "5m")
            .replace("$namespace", ".*")
            .replace("$backend", ".*"),
        )
        for panel in dashboard["panels"]
        for target in panel.get("targets") or ()
    ]
