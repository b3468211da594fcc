"""promtool on the chart's alerts and dashboard: each alert fires when it should, and not a moment earlier.

No cluster is needed, but the programs that the cluster's builder makes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from devcluster import programs
from tests.support.pages.monitoring import RULES, dashboard_queries, rule_groups

AT = 'namespace="demo",backend="digits"'
REPLICAS = "penstock_operator_backend_replicas"
CONDITION = "penstock_operator_condition"
ROUTED = 'penstock_router_requests_total{namespace="demo",endpoint="digits"'
REFUSED = f"penstock_sidecar_requests_total{{{AT},pod="
DUE = "penstock_operator_certificate_renewal_timestamp_seconds"
RUNS = 'penstock_operator_reconcile_duration_seconds_count{kind="ModelBackend"'

# Alert → minutes after which it fires, series that let it fire, series of health (promtool's notation, one
# sample a minute). In each case all series of the other alerts are healthy or absent.
CASES: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {
    "PenstockOperatorAbsent": (5, {}, {'penstock_operator_leader{instance="a"}': "1x60"}),
    "PenstockOperatorNotLeading": (
        2,
        {'penstock_operator_leader{instance="a"}': "0x60"},
        {'penstock_operator_leader{instance="a"}': "1x60", 'penstock_operator_leader{instance="b"}': "0x60"},
    ),
    "PenstockOperatorQueueBacksUp": (
        10,
        {
            'workqueue_depth{name="reconcile",instance="a"}': "150x60",
            'penstock_operator_leader{instance="a"}': "1x60",
        },
        # Another controller's queue of the same name is not one of ours.
        {
            'workqueue_depth{name="reconcile",instance="z"}': "150x60",
            'workqueue_depth{name="reconcile",instance="a"}': "20x60",
            'penstock_operator_leader{instance="a"}': "1x60",
        },
    ),
    "PenstockReconcileFails": (
        16,
        {RUNS + ',outcome="error"}': "0+60x60", RUNS + ',outcome="success"}': "0+20x60"},
        {RUNS + ',outcome="error"}': "0+20x60", RUNS + ',outcome="success"}': "0+60x60"},
    ),
    "PenstockWatchesRestart": (
        6,
        {"penstock_operator_watch_starts_total": "0+1x60"},
        {"penstock_operator_watch_starts_total": "0x10 1x50"},
    ),
    "PenstockReportsRefused": (
        11,
        {'penstock_operator_reports_total{kind="sidecar",outcome="unauthenticated"}': "0+60x60"},
        {
            'penstock_operator_reports_total{kind="sidecar",outcome="taken"}': "0+60x60",
            'penstock_operator_reports_total{kind="sidecar",outcome="late"}': "0+60x60",
        },
    ),
    "PenstockCertificateNotRenewed": (
        20,
        # Due at the fifth minute; a standby does not have a certificate.
        {DUE + '{instance="a"}': "300x60", DUE + '{instance="b"}': "0x60"},
        # Due at the tenth, and done ten minutes later.
        {DUE + '{instance="a"}': "600x20 86400x40", DUE + '{instance="b"}': "0x60"},
    ),
    "PenstockBackendDown": (
        5,
        {f'{REPLICAS}{{{AT},state="ready"}}': "0x60", f'{REPLICAS}{{{AT},state="wanted"}}': "1x60"},
        {f'{REPLICAS}{{{AT},state="ready"}}': "0x60", f'{REPLICAS}{{{AT},state="wanted"}}': "0x60"},
    ),
    "PenstockBackendNotReady": (
        30,
        {f'{CONDITION}{{kind="ModelBackend",namespace="demo",name="digits",condition="Ready"}}': "0x60"},
        {f'{CONDITION}{{kind="ModelBackend",namespace="demo",name="digits",condition="Ready"}}': "-1x60"},
    ),
    "PenstockEndpointNotReady": (
        5,
        {f'{CONDITION}{{kind="ModelEndpoint",namespace="demo",name="digits",condition="Ready"}}': "0x60"},
        {f'{CONDITION}{{kind="ModelEndpoint",namespace="demo",name="digits",condition="Ready"}}': "1x60"},
    ),
    "PenstockNotAccepted": (
        15,
        {f'{CONDITION}{{kind="TrafficSplit",namespace="demo",name="s",condition="Accepted"}}': "0x60"},
        {f'{CONDITION}{{kind="TrafficSplit",namespace="demo",name="s",condition="Accepted"}}': "1x60"},
    ),
    "PenstockReportsMissing": (
        5,
        {f'{REPLICAS}{{{AT},state="ready"}}': "3x60", f'{REPLICAS}{{{AT},state="reporting"}}': "2x60"},
        {f'{REPLICAS}{{{AT},state="ready"}}': "3x60", f'{REPLICAS}{{{AT},state="reporting"}}': "3x60"},
    ),
    "PenstockSettingsNotApplied": (
        10,
        {f'{CONDITION}{{kind="ModelBackend",namespace="d",name="b",condition="SettingsApplied"}}': "0x60"},
        {f'{CONDITION}{{kind="ModelBackend",namespace="d",name="b",condition="SettingsApplied"}}': "1x60"},
    ),
    "PenstockQueueStandsStill": (
        5,
        {f"penstock_operator_backend_oldest_age_seconds{{{AT}}}": "11x60"},
        {f"penstock_operator_backend_oldest_age_seconds{{{AT}}}": "9x60"},
    ),
    "PenstockSidecarRefuses": (
        11,
        {
            REFUSED + '"a",code="200",reason=""}': "0+90x60",
            REFUSED + '"a",code="503",reason="queue_full"}': "0+10x60",
        },
        {
            REFUSED + '"a",code="200",reason=""}': "0+99x60",
            REFUSED + '"a",code="503",reason="queue_full"}': "0+1x60",
        },
    ),
    "PenstockQueueDrainsSlowly": (
        5,
        {f'penstock_sidecar_drain_seconds{{{AT},pod="a"}}': "31x60"},
        {f'penstock_sidecar_drain_seconds{{{AT},pod="a"}}': "29x60"},
    ),
    "PenstockEndpointErrors": (
        6,
        {ROUTED + ',code="200"}': "0+90x60", ROUTED + ',code="503"}': "0+10x60"},
        {ROUTED + ',code="200"}': "0+99x60", ROUTED + ',code="503"}': "0+1x60"},
    ),
    "PenstockRequestsHeld": (
        5,
        {f'penstock_router_held_requests{{{AT},pod="a"}}': "2x60"},
        {f'penstock_router_held_requests{{{AT},pod="a"}}': "0x60"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The program, built when it is not there."""
    programs.ensure("prometheus")
    return programs.program("prometheus", "promtool")


def run(promtool: Path, *arguments: str | Path) -> None:
    """Run it; what it says is the failure's text."""
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules(promtool: Path) -> None:
    run(promtool, "check", "rules", RULES)


def test_every_query_of_the_dashboard_is_one(promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(dashboard_queries())
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(promtool, "check", "rules", path)


def test_each_alert_fires_after_its_time_and_not_in_health(promtool: Path, tmp_path: Path) -> None:
    """Pending a minute before, firing a minute after, silent for an hour of health."""
    assert set(CASES) == {rule["alert"] for group in rule_groups() for rule in group["rules"]}
    cases = []
    for alert, (minutes, sick, healthy) in CASES.items():
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        for series, moments in ((sick, {minutes - 2: 0, minutes + 1: 1}), (healthy, {59: 0})):
            cases.append(
                {
                    "interval": "1m",
                    "name": f"{alert} {'ill' if series is sick else 'well'}",
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": query,
                            "eval_time": f"{at}m",
                            "exp_samples": [{"labels": "{}", "value": value}],
                        }
                        for at, value in moments.items()
                    ],
                }
            )
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    run(promtool, "test", "rules", path)
