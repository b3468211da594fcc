"""What `make demo` does before it has a cluster: the images are built beside the cluster's programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from devcluster import images, machine
from devcluster.errors import DevclusterError
from examples.digits import demo
from tests.support.clocks.waiting import SECONDS


class SlowCluster:
    """A cluster that is up once the images are being built; `loaded` is what it was given."""

    def __init__(self, building: threading.Event, error: Exception | None = None) -> None:
        self._building = building
        self._error = error
        self.loaded: list[str] = []

    def up(self) -> None:
        assert self._building.wait(SECONDS)
        if self._error is not None:
            raise self._error

    def load(self, *names: str) -> None:
        self.loaded += names


@pytest.fixture
def building(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when the images begin to be built."""
    event = threading.Event()

    def build_targets() -> list[str]:
        event.set()
        return ["localhost/penstock/operator:dev"]

    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("PENSTOCK_COMPILE", "no")
    monkeypatch.setattr(machine, "require_runnable", lambda: None)
    monkeypatch.setattr(machine, "ensure_packages", lambda *_: None)
    monkeypatch.setattr(images, "build_targets", build_targets)
    monkeypatch.setattr(images, "build", lambda **_: True)
    monkeypatch.setattr(images, "built", lambda: {"localhost/penstock/operator:dev": "k"})
    return event


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Is set when the test has ended, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


def target(cluster: SlowCluster) -> demo.Target:
    target = demo.Target()
    target.cluster = cluster  # type: ignore[assignment]
    return target


def test_the_images_are_built_while_the_cluster_comes_up_and_loaded_after(building: threading.Event) -> None:
    cluster = SlowCluster(building)
    wanted = target(cluster)
    wanted.up()
    wanted.images()
    assert cluster.loaded == ["localhost/penstock/operator:dev", demo.DEV_DIGITS]
    assert wanted.chart_values[-1] == "operator.podAnnotations.made-from=k"


def test_images_that_cannot_be_built_end_the_demo_with_their_reason(
    building: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> bool:
        raise DevclusterError("buildah failed")

    monkeypatch.setattr(images, "build", fail)
    wanted = target(SlowCluster(building))
    wanted.up()
    with pytest.raises(DevclusterError, match="buildah failed"):
        wanted.images()


def test_a_cluster_that_fails_waits_for_no_image(
    building: threading.Event, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "build", lambda **_: never.wait(SECONDS))
    wanted = target(SlowCluster(building, DevclusterError("no root")))
    with pytest.raises(DevclusterError, match="no root"):
        wanted.up()


@pytest.mark.parametrize(
    ("kubeconfig", "command"),
    [
        ("", ".venv/bin/python -m devcluster kubectl penstock status -n digits "),
        ("/k", ".venv/bin/kubectl-penstock status -n digits "),
    ],
)
def test_the_summary_names_the_command_that_says_why(
    kubeconfig: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    monkeypatch.setenv("PENSTOCK_IMAGES", "registry.example/penstock")
    shown = demo.Demo(demo.Target())
    shown.policy = "shared"
    shown.summary()
    assert f"  {command}" in capsys.readouterr().out
