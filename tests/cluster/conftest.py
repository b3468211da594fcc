"""One real cluster a test run, Penstock installed by its chart, and a namespace a test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from devcluster import images
from devcluster.cluster import Cluster
from tests.support.k8s import INSTALLED_IN, ROOT, Load, Namespace, upgrade, wait_for

NAME = "penstock-test"
DIGITS_IMAGE = "localhost/penstock-examples/digits:dev"
_ports = itertools.count(9900)
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave the test cluster up")
    parser.addoption("--fault-seconds", default="60", help="how long test_faults.py makes things fail")
    parser.addoption("--fault-seed", default="1", help="what fails, and what its user does")
    parser.addoption("--loss-rounds", default="1", help="how often test_zero_loss.py makes all its changes")
    parser.addoption("--loss-results", default="", help="JSON file for what the tests of losses found")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster/" in item.nodeid:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, up, with every image of ours loaded."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    found = Cluster(NAME)
    with capture.global_and_fixture_disabled():
        print()
        found.up()
        load_images(found)
    yield found
    if not request.config.getoption("--keep-cluster"):
        found.down()


def load_images(cluster: Cluster) -> None:
    """Build the four images and the digits example's, where their inputs changed, and load them."""
    names = images.build_targets()
    images.build(
        dockerfile=ROOT / "examples/digits/Dockerfile",
        tag=DIGITS_IMAGE,
        build_args={"BASE": images.image_name("python-model")},
    )
    cluster.load(*names, DIGITS_IMAGE)


@pytest.fixture(scope="session")
def penstock(cluster: Cluster) -> Cluster:
    """The cluster with the operator installed by the chart and ready."""
    upgrade(cluster)
    return cluster


@pytest.fixture(scope="session")
def second_node(penstock: Cluster) -> Iterator[Cluster]:
    """The cluster with a second node, `node1`, that every test after the first that asks for it has, too."""
    penstock.add_node("node1")
    yield penstock
    penstock.remove_node("node1")


@pytest.fixture
def namespace(penstock: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, restricted Pod Security enforced; deleted after it."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    name = f"t{next(_numbers)}-{slug[:40].strip('-')}"
    penstock.kubectl("create", "namespace", name)
    for mode in ("enforce", "warn"):
        penstock.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/{mode}=restricted")
    yield Namespace(penstock, name)
    penstock.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def load(namespace: Namespace) -> Iterator[Load]:
    """Ledger load with a collector port of its own."""
    with Load(namespace, port=next(_ports)) as found:
        yield found


@pytest.fixture
def operator(penstock: Cluster) -> Namespace:
    """The namespace that the operator runs in."""
    system = Namespace(penstock, INSTALLED_IN)
    wait_for(
        "the operator",
        lambda: (system.get("deployment", "penstock-operator") or {}).get("status", {}).get("readyReplicas"),
    )
    return system
