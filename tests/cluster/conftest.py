"""One real cluster a worker, Penstock installed by its chart, and a namespace a test.

With `-n 2 --dist loadgroup --no-loadscope-reorder` two workers have a cluster each, so a test may restart the
operator, upgrade the release or take a node away. Whichever worker is free takes the next test, or the next
group (`xdist_group`), whose tests follow each other on one cluster. One marked `undisturbed` has the machine
to itself.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from devcluster import images
from devcluster.cluster import Cluster
from tests.support.cluster.circumstances import circumstances, components
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import INSTALLED_IN, ROOT, Load, Namespace
from tests.support.cluster.release import leading_pod, upgrade, wait_in_force
from tests.support.ledger.fight import Fight

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
NAME = "penstock-test" if _WORKER == "0" else f"penstock-test-{int(_WORKER) + 1}"
"""Of this worker's cluster."""
DIGITS_IMAGE = "localhost/penstock-examples/digits:dev"
_RUN = secrets.token_hex(2)
"""Of this run, in the names of its namespaces: an earlier one on the same cluster may have left some."""
LONG = ("fight", "nodes", "devcluster")
"""Groups: changes of the operator beside scalers that disagree, a second node, clusters of tests' own."""
_SECONDS = 900
"""Of a test, at most. Beyond it the whole run ends: no bound of anything promised."""
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave the test cluster up")
    parser.addoption("--fault-seconds", default="40", help="how long test_faults.py makes things fail")
    parser.addoption("--fault-seed", default="1", help="what fails, and what its user does")
    parser.addoption(
        "--fight-seconds", default="40", help="how long scalers disagree: tests/support/ledger/fight.py"
    )
    parser.addoption("--loss-rounds", default="1", help="how often test_zero_loss.py makes all its changes")
    parser.addoption("--loss-rate", default="60", help="requests a second; 0: what the machine bears")
    parser.addoption("--weights-rate", default="100", help="requests a second while weights change")
    parser.addoption("--pictures", default="", help="folder for test_ui.py's pictures, such as docs/pictures")
    parser.addoption("--loss-results", default="", help="JSON file for what the tests of losses found")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the groups that take long, last what has the machine to itself."""
    ours = [item for item in items if "tests/cluster/" in item.nodeid]
    for item in ours:
        item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS, func_only=True))

    def turn(item: pytest.Item) -> int:
        group = item.get_closest_marker("xdist_group")
        if group and group.args[0] in LONG:
            return LONG.index(group.args[0])
        return len(LONG) + bool(item.get_closest_marker("undisturbed"))

    ours.sort(key=turn)
    items[:] = [*(item for item in items if "tests/cluster/" not in item.nodeid), *ours]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where pytest-xdist does not keep a group in one worker: it reads the group from the test's id."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: expected its xdist_group in its id, found none")


def shared_folder(config: pytest.Config) -> Path:
    """A folder of this run, the same in all its workers."""
    own: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def locked(config: pytest.Config, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock among the workers of this run."""
    with (shared_folder(config) / name).open("w") as file:
        fcntl.flock(file, how)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before a test that is undisturbed, the others end; the wait is no part of the test's time."""
    if "tests/cluster/" not in item.nodeid:
        return (yield)
    undisturbed = item.get_closest_marker("undisturbed") is not None
    with locked(item.config, "undisturbed", fcntl.LOCK_EX if undisturbed else fcntl.LOCK_SH):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take the clusters down once no worker uses them."""
    config = session.config
    if hasattr(config, "workerinput") or config.getoption("--keep-cluster") or config.option.collectonly:
        return
    for name in shared_folder(config).glob("penstock-test*"):
        Cluster(name.name).down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure reports the state of the cluster while the test's objects still exist."""
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        arguments = getattr(item, "funcargs", {})
        made = arguments.get("namespace", getattr(arguments.get("fight"), "namespace", None))
        name = made.name if isinstance(made, Namespace) else None
        report.sections += circumstances(Cluster(NAME), name)
    if report.failed:
        own = [cluster for cluster in getattr(item, "funcargs", {}).values() if isinstance(cluster, Cluster)]
        report.sections += [(f"cluster {each.name}", components(each)) for each in own if each.name != NAME]
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster, up, with all our images loaded."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    made = Cluster(NAME)
    (shared_folder(request.config) / NAME).touch()
    with capture.global_and_fixture_disabled():
        print()
        made.up()
        load_images(made)
    return made


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
    kept = Namespace(cluster, INSTALLED_IN).get("deployment", "penstock-operator") is not None
    upgrade(cluster)
    if kept:  # by --keep-cluster: its pods may have the images of another tree, under the same names
        cluster.kubectl("-n", INSTALLED_IN, "rollout", "restart", "deployment/penstock-operator")
        wait_in_force(cluster)
    return cluster


@pytest.fixture(scope="session")
def second_node(penstock: Cluster) -> Iterator[Cluster]:
    """The cluster with a second node, `node1`, that every test after the first that asks for it has, too."""
    penstock.add_node("node1")
    yield penstock
    penstock.remove_node("node1")


@contextmanager
def fresh_namespace(cluster: Cluster, test: str) -> Iterator[Namespace]:
    """A namespace named after a test, restricted Pod Security enforced; deleted after it."""
    slug = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")
    name = f"t{next(_numbers)}-{_RUN}-{slug[:40].strip('-')}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("create", "-f", "-", input=json.dumps(document))
    made = Namespace(cluster, name)
    # A pod that a test makes itself is refused before this is there, which the controllers make.
    wait_for("the namespace's own ServiceAccount", lambda: made.get("serviceaccount", "default"))
    yield made
    delete = ("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    wait_for("the namespace's deletion to be accepted", lambda: [made.kubectl(*delete)])


@pytest.fixture
def namespace(penstock: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    with fresh_namespace(penstock, request.node.name) as made:
        yield made


@pytest.fixture
def namespaces(penstock: Cluster) -> Iterator[Callable[[str], Namespace]]:
    """Makes further namespaces of the test's own, by a text for their names."""
    with ExitStack() as made:
        yield lambda text: made.enter_context(fresh_namespace(penstock, text))


@pytest.fixture(scope="session")
def fight(
    penstock: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fight]:
    """Scalers that disagree, from the first test of the group `fight` on, beside the tests that follow."""
    seconds = float(pytestconfig.getoption("--fight-seconds"))
    path = tmp_path_factory.mktemp("fight") / "states.json"
    with (
        fresh_namespace(penstock, "scalers that disagree") as made,
        Load(made) as load,
        Fight(made, load, seconds=seconds, path=path) as begun,
    ):
        yield begun


@pytest.fixture
def load(namespace: Namespace) -> Iterator[Load]:
    """Ledger load with a collector of its own."""
    with Load(namespace) as started:
        yield started


@pytest.fixture
def operator(penstock: Cluster) -> Namespace:
    """The namespace that the operator runs in; one of its pods leads."""
    system = Namespace(penstock, INSTALLED_IN)
    leading_pod(system)
    return system
