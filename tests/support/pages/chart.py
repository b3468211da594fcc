"""The chart as helm renders it, without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from devcluster import programs
from tests.support.cluster.k8s import CHART, INSTALLED_IN, RELEASE, VALUES


def helm(verb: str, *arguments: str, chart: str | Path = CHART) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart; it is built where it is not there.

    Args:
        arguments: further ones, such as values; there are none but these.
        chart: the chart's folder.
    """
    programs.ensure("helm")
    command = [programs.program("helm", "helm"), verb, RELEASE, chart, "-n", INSTALLED_IN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """All objects of the chart, with the development cluster's values."""
    done = helm("template", *VALUES, *arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]
