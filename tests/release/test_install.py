"""README's commands as they stand there, from an index, a registry and a cluster on this machine alone.

The Python environment, the home and the cluster are new; nothing is taken from the checkout.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import images as builder
from devcluster import programs
from devcluster.cluster import Cluster
from devcluster.node import VERIFIERS
from release import chart, images, packages, registry
from tests.release.conftest import COMMIT, serving
from tests.support.cluster.cluster_waits import wait_for
from tests.support.pages.page import Command, Page, Shell
from tests.support.processes.ports import free_port

ROOT = Path(__file__).parents[2]
README = Page.of(ROOT / "README.md")
ANSWER = '{"predictions":[{"digit":3,"probability":0.9843}]}'
pytestmark = pytest.mark.timeout(1800)  # the first run builds cosign


def commands(section: str) -> list[Command]:
    """A section's commands; their output is shown as an example."""
    return [dataclasses.replace(each, example=True) for each in README.sections(section, section).commands()]


def patient(curl: Command) -> Command:
    """The command as somebody gives it who sees that the server is up."""
    silent = "curl --silent --show-error --retry 120 --retry-delay 1 --retry-connrefused "
    return dataclasses.replace(curl, line=curl.line.replace("curl ", silent, 1))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index with this distribution, as pip reads it; its address."""
    (wheel, _) = packages.build_pure(tmp_path / "simple/penstock-serving", COMMIT.epoch)
    assert wheel.is_file()
    port = free_port()
    server: list[str | Path] = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    page = f"127.0.0.1:{port}/simple/"
    with serving([*server, "--directory", tmp_path], tmp_path / "index.log", page):
        yield f"http://{page}"


def test_pip_install_to_the_first_answer_takes_less_than_a_minute(index: str, tmp_path: Path) -> None:
    """On a clean Python and without a cache; README has the checkout where the index has the name."""
    port = str(free_port())
    venv.create(tmp_path / "clean", with_pip=True)
    (tmp_path / "home").mkdir()
    path = f"{tmp_path}/clean/bin:{os.defpath}"
    here = {
        "'.[run]'": "--quiet 'penstock-serving[run]'",
        "penstock.examples:Digits": f"penstock.examples:Digits --port {port}",
        "8000": port,
    }
    install, run, curl = commands("Try it in a minute")
    environment = {"PATH": path, "HOME": str(tmp_path / "home"), "PIP_EXTRA_INDEX_URL": index}
    begin = time.monotonic()
    with Shell(tmp_path, here, **environment) as shell:
        shell.run(install)
        installed = time.monotonic() - begin
        shell.run(run)
        assert ANSWER in shell.run(patient(curl))
    took = time.monotonic() - begin
    print(f"pip install {installed:.1f} s, first answer after {took:.1f} s")
    assert took < 60


def test_an_older_python_is_refused_with_the_one_that_is_expected(index: str, tmp_path: Path) -> None:
    """By pip, from what the wheel declares: Python 3.10 is asked for."""
    older = ["--python-version=3.10", "--only-binary=:all:", f"--dest={tmp_path}"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", f"--index-url={index}", *older]
    done = subprocess.run([*command, "penstock-serving"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "requires a different Python: 3.10.0 not in '>=3.11'" in done.stderr


@pytest.fixture(scope="module")
def released(local_registry: str, keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release in the registry, signed: the images of this tree, the chart."""
    into = tmp_path_factory.mktemp("released")
    builder.build_targets()
    for target in images.TITLES:
        builder.export(builder.image_name(target), into / "images", f"{target}-{COMMIT.version}")
    chart.package(into, COMMIT, local_registry)
    pushed = registry.push(into, COMMIT, local_registry, plain=True)
    registry.sign(pushed, into, COMMIT, key=keys / "cosign.key", plain=True)
    (into / "pushed.json").write_text(json.dumps(pushed))
    return into


@pytest.fixture(scope="module")
def bare_cluster(
    released: Path,
    local_registry: str,
    keys: Path,
    registry_config: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A cluster without our images, which refuses what is not signed.

    On its own loopback there is a registry with the same data.
    """
    cluster = Cluster("penstock-release")
    cluster.down()
    cluster.up()
    verifier = cluster.state.root / "containerd" / VERIFIERS / "penstock"
    verifier.parent.mkdir()
    (text,) = Page.of(ROOT / "docs/releasing.md").blocks("sh")
    for theirs, here in (
        ("ghcr.io/OWNER/penstock", local_registry),
        ("/etc/penstock/cosign.pub", f"{keys}/cosign.pub"),
        ("exec cosign", f"exec {programs.program('cosign', 'cosign')}"),
    ):
        assert text.count(theirs) == 1
        text = text.replace(theirs, here)
    verifier.write_text(text)
    verifier.chmod(0o755)
    log = tmp_path_factory.mktemp("inside") / "log"
    with log.open("w") as file:
        inside = subprocess.Popen(
            [*cluster.exec_prefix, "docker-registry", "serve", registry_config], stdout=file, stderr=file
        )
    try:
        yield cluster
    finally:
        inside.terminate()
        inside.wait(10)
        cluster.down()


def refusal(cluster: Cluster, image: str) -> str:
    """Why a node does not pull an image."""
    pod = image.rpartition(":")[2]
    cluster.kubectl("run", pod, f"--image={image}", "--restart=Never")
    path = "jsonpath={.status.containerStatuses[0].state.waiting.message}"

    def message() -> str:
        text = cluster.kubectl("get", "pod", pod, "-o", path).stdout
        return text if "rejected image" in text else ""

    said = wait_for(f"{pod} to be refused", message)
    cluster.kubectl("delete", "pod", pod, "--now")
    return said


def test_a_node_refuses_what_is_not_signed_and_what_was_altered(
    bare_cluster: Cluster, local_registry: str
) -> None:
    """By the program of the page; something else is refused with the signature moved there, too."""
    plain = ("--src-tls-verify=false", "--dest-tls-verify=false")
    name = f"{local_registry}/sidecar"
    signed = builder.copy(f"docker://{name}:{COMMIT.version}", f"docker://{name}:same", *plain)
    other = f"docker://{local_registry}/router:{COMMIT.version}"
    for tag, source in (("unsigned", f"docker://{name}:same"), ("altered", other)):
        digest = builder.copy(source, f"docker://{name}:{tag}", "--format=v2s2", *plain)
        assert digest != signed
    signature = f"docker://{name}:{{}}.sig"
    of_signed, of_other = (signature.format(each.replace(":", "-")) for each in (signed, digest))
    builder.copy(of_signed, of_other, *plain)
    assert "no signatures found" in refusal(bare_cluster, f"{name}:unsigned")
    assert "invalid or missing digest in claim" in refusal(bare_cluster, f"{name}:altered")


def test_helm_install_to_the_first_answer_takes_less_than_three_minutes(
    bare_cluster: Cluster, local_registry: str, tmp_path: Path
) -> None:
    """On a running cluster, whose nodes pull each image."""
    port = str(free_port())
    helm, kubectl = programs.program("helm", "helm"), programs.program("kubernetes", "kubectl")
    environment = {
        "PATH": f"{helm.parent}:{kubectl.parent}:{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(bare_cluster.host_kubeconfig),
    }
    chart_there = "oci://registry.example/penstock/charts/penstock"
    here = {
        chart_there: f"{chart_there.replace('registry.example/penstock', local_registry)} --plain-http",
        "registry.example/penstock": local_registry,
        "localhost:8000": f"localhost:{port}",  # the same curl
        "8080": port,
    }
    *_, curl = commands("Try it in a minute")
    begin = time.monotonic()
    with Shell(tmp_path, here, **environment) as shell:
        for command in commands("Put it on your cluster"):
            shell.run(command)
            print(f"{time.monotonic() - begin:.1f} s: {command.line}")
        assert ANSWER in shell.run(patient(curl))
    took = time.monotonic() - begin
    print(f"first answer after {took:.1f} s")
    pods = bare_cluster.kubectl("get", "pods", "-A", "-o", "jsonpath={..image}").stdout.split()
    assert {image.partition("/penstock/")[0] for image in pods} == {local_registry.partition("/")[0]}
    assert took < 180
