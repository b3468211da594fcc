"""A cluster of its own with Penstock, for other scalers, and a namespace with the name of the guide's."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from devcluster import addons, images
from devcluster.cluster import Cluster
from tests.support.cluster.circumstances import circumstances
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace
from tests.support.cluster.release import upgrade

MODELS = "models"
"""As in the URL of docs/how-to/other-scalers.md."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave the cluster up")
    parser.addoption("--cluster-name", default="penstock-scalers", help="of the cluster that is made")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure reports the state of the cluster, and what KEDA and HPAs say of it."""
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        cluster = Cluster(item.config.getoption("--cluster-name"))
        report.sections += circumstances(cluster, MODELS)
        for what in (("logs", "deployment/keda-operator", "--tail=60"), ("get", "pods", "-o", "wide")):
            said = cluster.kubectl("-n", addons.KEDA.namespace, *what, check=False)
            report.sections.append((f"keda: {' '.join(what)}", said.stdout + said.stderr))
        said = cluster.kubectl("describe", "hpa", "-A", check=False)
        report.sections.append(("the HPAs", said.stdout + said.stderr))
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, up, with Penstock by its chart."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    made = Cluster(request.config.getoption("--cluster-name"))
    with capture.global_and_fixture_disabled():
        print()
        made.up()
        made.load(*images.build_targets())
        upgrade(made)
    yield made
    if not request.config.getoption("--keep-cluster"):
        made.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """The namespace `models`, empty."""
    cluster.kubectl("delete", "namespace", MODELS, "--ignore-not-found", timeout=300)
    cluster.kubectl("create", "namespace", MODELS)
    made = Namespace(cluster, MODELS)
    wait_for("the namespace's own ServiceAccount", lambda: made.get("serviceaccount", "default"))
    yield made
    cluster.kubectl("delete", "namespace", MODELS, "--wait=false", "--ignore-not-found")


@pytest.fixture
def load(namespace: Namespace) -> Iterator[Load]:
    """Ledger load with a collector of its own."""
    with Load(namespace) as started:
        yield started
